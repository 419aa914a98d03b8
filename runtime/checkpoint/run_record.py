"""Small files in the checkpoint directory with the address of a run.

``_leader`` names the newest run: its session and address. Clients read it if the coordinator does
not answer. It serves liveness only (`continuous-order` f); a client that follows a stale record
is refused by the address, or by the next checkpoint slot.

``_command-{attempt_id}`` also holds the token for commands. Only the user who runs the job can read
it. Each run has a file of its own, and commands go to the newest one. A start may be paused right
before it writes, so a single file could name an older run.

``_hosts-{attempt_id}`` is the same for drivers that host regions for a coordinator in another
process, with the token for them.
"""

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.runtime.checkpoint.succession import taken_over
from sluice.runtime.errors import (
    AuthenticationError,
    StorageError,
    StreamError,
    UnreachableError,
    UnsupportedFormatError,
)
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.local_fs import LocalFileSystem
from sluice.runtime.storage.objects.object_file_system import ObjectFileSystem
from sluice.runtime.storage.objects.object_location import ObjectLocation
from sluice.runtime.storage.web_hdfs import WebHdfsAddress, read_over_web

__all__ = [
    "LEADER_FILE",
    "RunRecord",
    "RunRecordStore",
    "command_file",
    "decode_run",
    "encode_run",
    "find_leader",
]

log = logging.getLogger(__name__)

LEADER_FILE = "_leader"
_COMMAND = "_command-"
_HOSTS = "_hosts-"
_FORMAT_VERSION = 1
_LOCAL = "file://"
_HDFS = "hdfs://"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run of the job, and how to reach its coordinator.

    Attributes:
        leader_session_id: of its coordinator.
        address: ``http://host:port`` of its service, or ``https``.
        attempt_id: slot of its fencing record; a later run has a larger one.
        job_uid: of the job.
        token: for commands in ``_command-{attempt_id}``, for hosts in ``_hosts-{attempt_id}``;
            ``_leader`` has none.
        ca: PEM text of the authorities that the service's certificate is checked with, also only
            there; empty: those of the reader's system.
    """

    leader_session_id: str
    address: str
    attempt_id: int
    job_uid: str
    token: str = field(default="", repr=False)
    ca: str = field(default="", repr=False)


def command_file(attempt_id: int) -> str:
    """Name of a run's command file in the checkpoint directory."""
    return f"{_COMMAND}{attempt_id}"


class RunRecordStore:
    """Writes and reads both files. The coordinator writes after it has published its fencing
    record; tasks, source runners and the command line read.

    Args:
        fs: rooted at the checkpoint directory.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._for_hosts: tuple[str, RunRecord] | None = None  # that was read last

    def announce(self, run: RunRecord, *, is_newest: Callable[[], bool] = lambda: True) -> None:
        """Replace ``_leader``.

        Args:
            is_newest: whether no later run has published a fencing record. It is called if
                ``_leader`` names a later run: that file may be left over in a directory that a
                person has emptied.
        Raises:
            FencedError: a later run is the leader; this one was paused after its fencing record.
        """
        if self._names_later(run) and not is_newest():
            raise taken_over(run.attempt_id + 1)
        self._fs.replace(LEADER_FILE, encode_run(run, with_token=False))

    def current(self) -> RunRecord | None:
        """The run that announced itself last; None if there is none, or the file is damaged.

        Raises:
            UnsupportedFormatError: a later Sluice wrote the file.
        """
        return _leader_in(self._fs.read(LEADER_FILE), uri=self._fs.uri)

    def accept_commands(
        self, run: RunRecord, *, is_newest: Callable[[], bool]
    ) -> contextlib.AbstractContextManager[None]:
        """Keep the run's command file while the block runs.

        The job also runs without the file: if it cannot be written, a warning is logged.

        Args:
            is_newest: whether no later run has published a fencing record. The newest run deletes
                the files of other runs. It lists them before this call, so the list holds no file
                of a later run.
        """
        return self._kept(_COMMAND, run, is_newest=is_newest, is_needed=False)

    def accept_hosts(
        self, run: RunRecord, *, is_newest: Callable[[], bool]
    ) -> contextlib.AbstractContextManager[None]:
        """As `accept_commands`, for region hosts. Without this file no host finds the leader.

        Raises:
            StreamError: the file cannot be written.
        """
        return self._kept(_HOSTS, run, is_newest=is_newest, is_needed=True)

    @contextlib.contextmanager
    def _kept(
        self, prefix: str, run: RunRecord, *, is_newest: Callable[[], bool], is_needed: bool
    ) -> Iterator[None]:
        name = f"{prefix}{run.attempt_id}"
        try:
            self._fs.replace(name, encode_run(run, with_token=True), is_private=True)
            others = [each for each in self._names(prefix) if each != name]
            if others and is_newest():
                for each in others:
                    self._fs.delete(each)
        except StreamError as err:
            if is_needed:
                raise
            log.warning("job accepts no commands: uri=%s error=%s", self._fs.uri, err)
        try:
            yield
        finally:
            with contextlib.suppress(StreamError):  # a file that is left holds an invalid token
                self._fs.delete(name)

    def newest_command(self) -> RunRecord:
        """The newest run that accepts commands.

        Raises:
            UnreachableError: no job runs, or it ended without deleting the file.
            AuthenticationError: the file belongs to another user.
            UnsupportedFormatError: a later Sluice runs the job.
            StorageError: the file is damaged.
        """
        name = self._newest(_COMMAND)
        try:
            data = None if name is None else self._fs.read(name)
        except AuthenticationError as err:
            raise AuthenticationError(
                "only the user who runs the job may command it",
                {"uri": self._fs.uri, "file": name},
                "Run the command as that user.",
            ) from err
        if data is None:
            raise UnreachableError(
                "no job runs with this checkpoint directory",
                {"uri": self._fs.uri},
                "Start the job, or wait: a starting job answers after it has read its "
                "checkpoints. `sluice checkpoint list` shows its decided checkpoints.",
            )
        return decode_run(data, {"uri": self._fs.uri, "path": name})

    def newest_for_hosts(self) -> RunRecord | None:
        """The newest run that accepts hosts; None: there is none now.

        Raises:
            StreamError: the store does not answer, or the file is another user's or damaged.
        """
        name = self._newest(_HOSTS)
        known, self._for_hosts = self._for_hosts, None
        if known is not None and known[0] == name:  # no file changes
            self._for_hosts = known
            return known[1]
        data = None if name is None else self._fs.read(name)
        if name is None or data is None:
            return None
        found = decode_run(data, {"uri": self._fs.uri, "path": name})
        self._for_hosts = name, found
        return found

    def _newest(self, prefix: str) -> str | None:
        def attempt_id(name: str) -> int:
            return int(name.removeprefix(prefix))

        return max(self._names(prefix), key=attempt_id, default=None)

    def _names(self, prefix: str) -> list[str]:
        return self._fs.names("", re.compile(rf"{prefix}\d+"))

    def _names_later(self, run: RunRecord) -> bool:
        with contextlib.suppress(UnsupportedFormatError):  # the user went back to this release
            found = self.current()
            return found is not None and found.attempt_id > run.attempt_id
        return False


def find_leader(
    checkpoint_uri: str, web: WebHdfsAddress | ObjectLocation | None
) -> RunRecord | None:
    """The leader of a job, read without a JVM; None if there is none or it cannot be read.

    A client calls it after the coordinator has not answered. Every failure to read is ignored.

    Args:
        checkpoint_uri: absolute; empty if there is no directory.
        web: how to read a directory that is not local: the WebHDFS address, or where the objects
            are; None: it cannot be read.
    """
    try:
        if checkpoint_uri.startswith(_LOCAL):
            directory = Path(checkpoint_uri.removeprefix(_LOCAL))
            return RunRecordStore(LocalFileSystem(directory)).current()
        if isinstance(web, ObjectLocation):
            return RunRecordStore(ObjectFileSystem(web)).current()
        if web is not None:
            _, _, path = checkpoint_uri.removeprefix(_HDFS).partition("/")
            data = read_over_web(web, f"/{path}/{LEADER_FILE}")
            return _leader_in(data, uri=checkpoint_uri)
    except StreamError:
        return None
    return None


def _leader_in(data: bytes | None, *, uri: str) -> RunRecord | None:
    if data is None:
        return None
    try:
        return decode_run(data, {"uri": uri, "path": LEADER_FILE})
    except StorageError as err:
        log.warning("leader record is ignored: error=%s", err)
        return None


def encode_run(run: RunRecord, *, with_token: bool) -> bytes:
    """The content of a file or node with this record."""
    content = to_json(run)
    if not with_token:
        del content["token"], content["ca"]
    elif not run.ca:
        del content["ca"]
    return json.dumps({"format_version": _FORMAT_VERSION, **content}).encode()


def decode_run(data: bytes, where: Mapping[str, object]) -> RunRecord:
    """The record in a file or node; UnsupportedFormatError, StorageError (damaged)."""
    try:
        content: Any = parsed_json(data)
        version = int(content["format_version"])
        if version > _FORMAT_VERSION:
            raise UnsupportedFormatError(
                f"the run record has format version {version}",
                {**where, "format_version": version, "readable": _FORMAT_VERSION},
                "Use the Sluice that runs the job, or a later one.",
            )
        return from_json(RunRecord, {k: v for k, v in content.items() if k != "format_version"})
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as err:
        raise StorageError(
            "the run record is damaged",
            {**where, "error": repr(err)},
            "Start the job again: it replaces the file.",
        ) from err
