"""One small file for each job in a directory that all jobs share, ``{job_uid}.json``.

A job writes it at its start and its end, and renews it in between. An old file of a job that does
not answer belongs to a killed run. The file holds no token. It serves display only: a job never
reads the registry to decide something.
"""

import json
import logging
import re
from dataclasses import dataclass, field
from typing import Any

from sluice.runtime.errors import StorageError, UnsupportedFormatError
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.storage.file_system import FileSystem

__all__ = [
    "JOB_UID",
    "REGISTRY_VARIABLE",
    "RENEWED_EVERY_S",
    "SUBMISSION_VARIABLE",
    "JobRegistry",
    "Registration",
]

log = logging.getLogger(__name__)

JOB_UID = re.compile(r"[0-9A-Za-z_-]{1,64}")
"""A job uid that may be part of a file name."""
RENEWED_EVERY_S = 20.0
"""A running job renews its file this often."""
REGISTRY_VARIABLE = "SLUICE_REGISTRY"
"""Environment variable with the registry of jobs that name none."""
SUBMISSION_VARIABLE = "SLUICE_SUBMISSION_ID"
"""Environment variable of a program that a service submitted."""
_FILE = re.compile(rf"{JOB_UID.pattern}\.json")
_FORMAT_VERSION = 1
_MOST_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A run of a job, as it registered itself.

    Attributes:
        job_uid, name: of the job.
        checkpoint_uri: its directory, absolute; the token for commands is there.
        address: ``http://host:port`` of its service.
        read_only_address: of its read-only port; None: it has none.
        host: of the driver, as Spark names it.
        run_attempt: how often the job has been started; a later run has a larger one.
        started_ms, renewed_ms, ended_ms: wall clock of the driver; ``ended_ms`` None: it runs.
        state: ``running``, or how it ended: ``finished``, ``stopped``, ``failed``, ``fenced``.
        error: that ended it, or "".
        submission_id: if a service submitted it.
    """

    job_uid: str
    name: str
    checkpoint_uri: str
    address: str
    host: str
    run_attempt: int
    started_ms: int
    renewed_ms: int
    read_only_address: str | None = None
    ended_ms: int | None = None
    state: str = "running"
    error: str = ""
    submission_id: str | None = None

    def is_older_than(self, other: "Registration") -> bool:
        """Whether ``other`` is a later run. Both must be later: a person may have put an older copy
        of the checkpoint directory in place."""
        return self.run_attempt < other.run_attempt and self.started_ms < other.started_ms


@dataclass(slots=True)
class JobRegistry:
    """Reads and writes the files. Any thread; each call raises as `FileSystem`.

    Args:
        fs: rooted at the registry.
    """

    fs: FileSystem
    _reported: set[str] = field(default_factory=set)

    def write(self, registration: Registration) -> None:
        """Replace the file of this job."""
        content = {"format_version": _FORMAT_VERSION, **to_json(registration)}
        self.fs.replace(_file(registration.job_uid), json.dumps(content).encode())

    def read(self, job_uid: str) -> Registration | None:
        """The job's registration; None: there is none.

        Raises:
            StorageError: it is damaged.
            UnsupportedFormatError: a later version wrote it.
        """
        name = _file(job_uid)
        data = self.fs.read(name)
        return None if data is None else _decoded(data, name, self.fs.uri)

    def registrations(self) -> list[Registration]:
        """All that can be read. Another file is logged once, and left out."""
        found = []
        for entry in self.fs.entries(""):
            if entry.is_directory or not _FILE.fullmatch(entry.name):
                continue
            try:
                if entry.length_bytes > _MOST_BYTES:
                    raise _damaged(entry.name, self.fs.uri, f"{entry.length_bytes} bytes")
                data = self.fs.read(entry.name)
                if data is not None:
                    found.append(_decoded(data, entry.name, self.fs.uri))
                self._reported.discard(entry.name)
            except (_DamagedFileError, UnsupportedFormatError) as err:
                if entry.name not in self._reported:
                    self._reported.add(entry.name)
                    log.warning("a file of the job registry is left out: error=%s", err)
        return found

    def delete(self, job_uid: str) -> None:
        """Forget a job that has ended."""
        self.fs.delete(_file(job_uid))


class _DamagedFileError(StorageError):
    """This file, not the store."""


def _file(job_uid: str) -> str:
    if not JOB_UID.fullmatch(job_uid):
        raise _damaged(repr(job_uid), "", "a job uid has other characters")
    return f"{job_uid}.json"


def _decoded(data: bytes, name: str, uri: str) -> Registration:
    try:
        content: Any = parsed_json(data)
        version = int(content.pop("format_version"))
        if version > _FORMAT_VERSION:
            raise UnsupportedFormatError(
                f"the registration has format version {version}",
                {"uri": uri, "path": name, "readable": _FORMAT_VERSION},
                "Use the Sluice that runs the job, or a later one.",
            )
        found = from_json(Registration, content)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as err:
        raise _damaged(name, uri, repr(err)) from err
    if _file(found.job_uid) != name:
        raise _damaged(name, uri, "its job uid differs from its name")
    return found


def _damaged(name: str, uri: str, reason: str) -> _DamagedFileError:
    return _DamagedFileError(
        "the registration of a job is damaged",
        {"uri": uri, "path": name, "reason": reason},
        "Delete the file: a running job writes it again.",
    )
