"""Who coordinates the job, as a file in the checkpoint directory. Liveness only (rule 18 f)."""

import json
import logging
from dataclasses import dataclass
from typing import Any, Protocol

from runtime.errors import UnsupportedFormatError
from runtime.json_text import parsed_json
from runtime.storage.file_system import FileSystem

__all__ = ["LEADER_FILE", "FileLeaderStore", "Leader", "LeaderStore"]

log = logging.getLogger(__name__)

LEADER_FILE = "_leader"
_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """Who coordinates the job now, and where."""

    leader_session_id: str
    address: str


class LeaderStore(Protocol):
    """Who leads a job, and where: for clients that nobody answers, and for the command line."""

    def announce(self, leader: Leader) -> None:
        """Replace the record. Liveness only: safety is the decision."""
        ...

    def current(self) -> Leader | None:
        """The last announced leader, or None."""
        ...


class FileLeaderStore:
    """`LeaderStore` as ``_leader``: versioned JSON, replaced whole.

    The coordinator announces itself once it has sealed; source runners, tasks and the command
    line ask. A record may be stale: whoever follows it is told off by the address, or by the
    store's next place.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def announce(self, leader: Leader) -> None:
        """Replace the record."""
        record = {
            "format_version": _FORMAT_VERSION,
            "leader_session_id": leader.leader_session_id,
            "address": leader.address,
        }
        self._fs.replace(LEADER_FILE, json.dumps(record).encode())

    def current(self) -> Leader | None:
        """The last announced leader; None when there is none, or what is there is no record.

        Raises:
            UnsupportedFormatError: a later Sluice announced itself.
        """
        data = self._fs.read(LEADER_FILE)
        if data is None:
            return None
        try:
            record: Any = parsed_json(data)
            version = int(record["format_version"])
        except (ValueError, LookupError, TypeError) as error:
            log.warning("leader record cannot be read: uri=%s error=%r", self._fs.uri, error)
            return None
        if version > _FORMAT_VERSION:
            raise UnsupportedFormatError(
                f"the leader record has format version {version}; "
                f"this Sluice reads {_FORMAT_VERSION}",
                {"uri": self._fs.uri, "path": LEADER_FILE, "format_version": version},
                "Use the Sluice that runs the job, or a later one.",
            )
        try:
            return Leader(
                leader_session_id=str(record["leader_session_id"]), address=str(record["address"])
            )
        except KeyError as error:
            log.warning("leader record lacks a field: uri=%s field=%s", self._fs.uri, error)
            return None
