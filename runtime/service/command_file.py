"""How people reach a running job: its service's address, and a token for commands, in a file of the
checkpoint directory that nobody but its owner can read."""

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

from runtime.errors import (
    AuthenticationError,
    StorageError,
    StreamError,
    UnreachableError,
    UnsupportedFormatError,
)
from runtime.json_text import parsed_json
from runtime.service.client import CoordinatorAddress
from runtime.storage.file_system import FileSystem

__all__ = ["COMMAND_FILE", "announced", "command_address"]

log = logging.getLogger(__name__)

COMMAND_FILE = "_command"
_FORMAT_VERSION = 1


@contextlib.contextmanager
def announced(fs: FileSystem, address: CoordinatorAddress) -> Iterator[None]:
    """Let people command the job while the block runs.

    A job runs without it, too: where the file cannot be written, that is told in the log.
    """
    try:
        fs.replace(COMMAND_FILE, _encoded(address), is_private=True)
    except StreamError as err:
        log.warning("the job cannot be commanded: uri=%s error=%s", fs.uri, err)
    try:
        yield
    finally:
        with contextlib.suppress(StreamError):  # it is of no use to anybody: the token is gone
            if _session_of(fs) == address.leader_session_id:
                fs.delete(COMMAND_FILE)


def command_address(fs: FileSystem) -> CoordinatorAddress:
    """Where the job with this checkpoint directory answers people.

    Raises:
        UnreachableError: no job runs, or it ended without taking the file away.
        AuthenticationError: the file is somebody else's.
        UnsupportedFormatError: a later Sluice runs the job.
    """
    try:
        data = fs.read(COMMAND_FILE)
    except AuthenticationError as err:
        raise AuthenticationError(
            "only the user who runs the job may command it",
            {"uri": fs.uri, "file": COMMAND_FILE},
            "Run the command as that user.",
        ) from err
    if data is None:
        raise UnreachableError(
            "no job runs with this checkpoint directory",
            {"uri": fs.uri},
            "Start it, or wait: a job that is starting answers when it has read its checkpoints. "
            "What it has decided, `sluice checkpoint list` shows.",
        )
    return _decoded(data, fs.uri)


def _session_of(fs: FileSystem) -> str | None:
    data = fs.read(COMMAND_FILE)
    return None if data is None else _decoded(data, fs.uri).leader_session_id


def _encoded(address: CoordinatorAddress) -> bytes:
    record = {
        "format_version": _FORMAT_VERSION,
        "address": address.address,
        "token": address.token,
        "leader_session_id": address.leader_session_id,
        "job_uid": address.job_uid,
    }
    return json.dumps(record).encode()


def _decoded(data: bytes, uri: str) -> CoordinatorAddress:
    try:
        record: Any = parsed_json(data)
        version = int(record["format_version"])
        if version > _FORMAT_VERSION:
            raise UnsupportedFormatError(
                f"the command file has format version {version}; "
                f"this Sluice reads {_FORMAT_VERSION}",
                {"uri": uri, "path": COMMAND_FILE},
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
            {"uri": uri, "path": COMMAND_FILE, "error": repr(err)},
            "The next start of the job writes it anew.",
        ) from err
