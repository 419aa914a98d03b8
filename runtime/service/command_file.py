"""How people reach a running job: its service's address, and a token for commands, in a file of the
checkpoint directory that nobody but its owner can read.

Each run has one of its own, named by its attempt, and people ask the newest. One for all would
be that of whoever writes it last, and a start may sleep right before.
"""

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sluice.runtime.errors import (
    AuthenticationError,
    StorageError,
    StreamError,
    UnreachableError,
    UnsupportedFormatError,
)
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.service.service_client import CoordinatorAddress
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["announced", "command_address", "command_file"]

log = logging.getLogger(__name__)

_NAME = "_command-"
_NAMES = re.compile(rf"{_NAME}\d+")
_FORMAT_VERSION = 1


def command_file(attempt_id: int) -> str:
    """Name of a run's file in the checkpoint directory.

    Args:
        attempt_id: of the run, the place that it has sealed.
    """
    return f"{_NAME}{attempt_id}"


@contextlib.contextmanager
def announced(
    fs: FileSystem, address: CoordinatorAddress, attempt_id: int, *, is_newest: Callable[[], bool]
) -> Iterator[None]:
    """Let people command the job while the block runs.

    A job runs without it, too: where the file cannot be written, that is told in the log.

    Args:
        attempt_id: of the run.
        is_newest: whether no later run has sealed. The newest run deletes what others have left: it
            looks for them first, so that none of a later run is among them.
    """
    name = command_file(attempt_id)
    try:
        fs.replace(name, _encoded(address), is_private=True)
        others = [each for each in fs.names("", _NAMES) if each != name]
        if others and is_newest():
            for each in others:
                fs.delete(each)
    except StreamError as err:
        log.warning("the job cannot be commanded: uri=%s error=%s", fs.uri, err)
    try:
        yield
    finally:
        with contextlib.suppress(StreamError):  # it is of no use to anybody: the token is gone
            fs.delete(name)


def command_address(fs: FileSystem) -> CoordinatorAddress:
    """Where the job with this checkpoint directory answers people.

    Raises:
        UnreachableError: no job runs, or it ended without taking the file away.
        AuthenticationError: the file is somebody else's.
        UnsupportedFormatError: a later Sluice runs the job.
    """
    name = max(fs.names("", _NAMES), key=_attempt_id_of, default=None)
    try:
        data = None if name is None else fs.read(name)
    except AuthenticationError as err:
        raise AuthenticationError(
            "only the user who runs the job may command it",
            {"uri": fs.uri, "file": name},
            "Run the command as that user.",
        ) from err
    if data is None:
        raise UnreachableError(
            "no job runs with this checkpoint directory",
            {"uri": fs.uri},
            "Start it, or wait: a job that is starting answers when it has read its checkpoints. "
            "What it has decided, `sluice checkpoint list` shows.",
        )
    return _decoded(data, {"uri": fs.uri, "path": name})


def _attempt_id_of(name: str) -> int:
    return int(name.removeprefix(_NAME))


def _encoded(address: CoordinatorAddress) -> bytes:
    record = {
        "format_version": _FORMAT_VERSION,
        "address": address.address,
        "token": address.token,
        "leader_session_id": address.leader_session_id,
        "job_uid": address.job_uid,
    }
    return json.dumps(record).encode()


def _decoded(data: bytes, where: Mapping[str, object]) -> CoordinatorAddress:
    try:
        record: Any = parsed_json(data)
        version = int(record["format_version"])
        if version > _FORMAT_VERSION:
            raise UnsupportedFormatError(
                f"the command file has format version {version}; "
                f"this Sluice reads {_FORMAT_VERSION}",
                where,
                "Use the Sluice that runs the job, or a later one.",
            )
        return CoordinatorAddress(
            address=str(record["address"]),
            token=str(record["token"]),
            leader_session_id=str(record["leader_session_id"]),
            job_uid=str(record["job_uid"]),
        )
    except (ValueError, LookupError, TypeError) as err:
        raise StorageError(
            "the command file cannot be read",
            {**where, "error": repr(err)},
            "The next start of the job writes it anew.",
        ) from err
