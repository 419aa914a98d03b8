"""Who coordinates the job, as a file in the checkpoint directory. Liveness only
(`continuous-order` f)."""

import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice.runtime.checkpoint.succession import taken_over
from sluice.runtime.errors import UnsupportedFormatError
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["LEADER_FILE", "FileLeaderStore", "Leader", "leader_in"]

log = logging.getLogger(__name__)

LEADER_FILE = "_leader"
_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """Who coordinates the job now, and where.

    Attributes:
        leader_session_id: of its coordinator.
        address: of its service.
        attempt_id: of its run, the place that it has sealed: a later run has a larger one. None:
            the record does not say.
    """

    leader_session_id: str
    address: str
    attempt_id: int | None = None


class FileLeaderStore:
    """Who leads a job, and where, as ``_leader``: versioned JSON, replaced whole. For clients that
    nobody answers, and for the command line.

    The coordinator announces itself once it has sealed; source runners, tasks and the command
    line ask. A record may be stale: whoever follows it is told off by the address, or by the
    store's next place.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def announce(self, leader: Leader, *, is_newest: Callable[[], bool] = lambda: True) -> None:
        """Replace the record. Liveness only: safety is the decision.

        Args:
            is_newest: whether no later run has sealed; asked where one has announced itself, for a
                directory that was emptied by hand may have kept its record.
        Raises:
            FencedError: one has. This run slept behind its seal, and nobody shall be sent to it.
        """
        if self._has_later(leader) and not is_newest():
            raise taken_over((leader.attempt_id or 0) + 1)
        record = {
            "format_version": _FORMAT_VERSION,
            "leader_session_id": leader.leader_session_id,
            "address": leader.address,
            "attempt_id": leader.attempt_id,
        }
        self._fs.replace(LEADER_FILE, json.dumps(record).encode())

    def _has_later(self, leader: Leader) -> bool:
        with contextlib.suppress(UnsupportedFormatError):
            found = self.current()
            if found is not None and found.attempt_id is not None:
                return leader.attempt_id is not None and found.attempt_id > leader.attempt_id
        return False

    def current(self) -> Leader | None:
        """See `leader_in`: the last announced leader."""
        return leader_in(self._fs.read(LEADER_FILE), uri=self._fs.uri)


def leader_in(data: bytes | None, *, uri: str) -> Leader | None:
    """Whom a record names; None when there is none, or what is there is no record. Pure.

    Args:
        data: of the file; None: there is no file.
        uri: of the checkpoint directory, for the message of an error.
    Raises:
        UnsupportedFormatError: a later Sluice announced itself.
    """
    if data is None:
        return None
    try:
        record: Any = parsed_json(data)
        version = int(record["format_version"])
    except (ValueError, LookupError, TypeError) as error:
        log.warning("leader record cannot be read: uri=%s error=%r", uri, error)
        return None
    if version > _FORMAT_VERSION:
        raise UnsupportedFormatError(
            f"the leader record has format version {version}; this Sluice reads {_FORMAT_VERSION}",
            {"uri": uri, "path": LEADER_FILE, "format_version": version},
            "Use the Sluice that runs the job, or a later one.",
        )
    try:
        attempt_id = record.get("attempt_id")
        return Leader(
            leader_session_id=str(record["leader_session_id"]),
            address=str(record["address"]),
            attempt_id=attempt_id if type(attempt_id) is int else None,
        )
    except KeyError as error:
        log.warning("leader record lacks a field: uri=%s field=%s", uri, error)
        return None
