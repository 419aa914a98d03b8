"""A file system in memory that can die, lie and be late between any two steps."""

import enum
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sluice.runtime.errors import StorageError
from sluice.runtime.storage.file_system import Entry, FileDigest, FileSystem


class SimulatedCrashError(BaseException):
    """The process died here; nothing of it runs any more, not even a ``finally`` of the store."""


class Fault(enum.Enum):
    """What goes wrong with one step that writes."""

    NONE = "none"
    CRASH_BEFORE = "crash before"
    CRASH_DURING = (
        "crash during"  # a temporary file is truncated; an atomic step is as CRASH_BEFORE
    )
    CRASH_AFTER = "crash after"
    REFUSED = "refused"  # an error, and it did not happen
    ANSWER_LOST = "answer lost"  # an error, and it did happen
    LATE = "late"  # an error, and it happens at some later time


@dataclass(slots=True)
class Disk:
    """What outlives processes: files by path, with times if a test sets any, and steps that have
    not landed yet."""

    files: dict[str, bytes] = field(default_factory=dict)
    changed_ms: dict[str, int] = field(default_factory=dict)
    late: list[Callable[[], object]] = field(default_factory=list)

    def land_late_steps(self) -> None:
        """Let everything happen that a lost connection had on its way."""
        late, self.late = self.late, []
        for step in late:
            step()

    def place(self, temporary: str, path: str) -> bool:
        """The atomic no-replace step."""
        if path in self.files or temporary not in self.files:
            return False
        self.files[path] = self.files.pop(temporary)
        return True

    def create(self, path: str, data: bytes) -> bool:
        """The same of an object store, in one step."""
        if path in self.files:
            return False
        self.files[path] = data
        return True

    def write(self, path: str, data: bytes) -> None:
        """A file's content from here on, whole or not."""
        self.files[path] = data

    def remove(self, path: str) -> None:
        """A file, or a directory with all that is below it."""
        for each in [f for f in self.files if f == path or f.startswith(f"{path}/")]:
            del self.files[each]


class FakeFileSystem:
    """`sluice.runtime.storage.file_system.FileSystem` on a `Disk`, for one process.

    Args:
        disk: shared with other processes.
        fault: asked before each step that writes, with the step's name.
        is_unreadable: asked before each look at what there is, with its name.
        turn: called before each step; a scheduler lets others go first there.
        has_temporaries: False: as an object store. `place` writes the whole file, and a tree is
            deleted file by file, its ``_metadata`` first.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        uri: str = "fake:///checkpoints",
        fault: Callable[[str], Fault] = lambda _: Fault.NONE,
        is_unreadable: Callable[[str], bool] = lambda _: False,
        turn: Callable[[], None] = lambda: None,
        has_temporaries: bool = True,
    ) -> None:
        self.has_temporaries = has_temporaries
        self.uri = uri
        self._disk = disk
        self._fault = fault
        self._is_unreadable = is_unreadable
        self._turn = turn

    def read(self, path: str) -> bytes | None:
        """See `FileSystem.read`."""
        self._look("read")
        return self._disk.files.get(path)

    def entries(self, path: str) -> list[Entry]:
        """See `FileSystem.entries`."""
        self._look("entries")
        prefix = f"{path}/" if path else ""
        found: dict[str, Entry] = {}
        for each, data in list(self._disk.files.items()):
            if each.startswith(prefix):
                name, _, rest = each.removeprefix(prefix).partition("/")
                length = 0 if rest else len(data)
                changed_ms = self._disk.changed_ms.get(each, 0)
                if name in found:
                    changed_ms = max(changed_ms, found[name].changed_ms)
                found[name] = Entry(
                    name=name, is_directory=bool(rest), length_bytes=length, changed_ms=changed_ms
                )
        return [found[name] for name in sorted(found)]

    def names(self, path: str, pattern: re.Pattern[str]) -> list[str]:
        """See `FileSystem.names`."""
        return [entry.name for entry in self.entries(path) if pattern.fullmatch(entry.name)]

    def exists(self, path: str) -> bool:
        """See `FileSystem.exists`."""
        self._look("exists")
        files, below = self._disk.files, f"{path}/"
        return path in files or any(each.startswith(below) for each in list(files))

    def write_temporary(self, path: str, data: bytes) -> None:
        """See `FileSystem.write_temporary`."""
        half = data[: len(data) // 2]
        self._step(
            "write",
            lambda: self._disk.write(path, data),
            during=lambda: self._disk.write(path, half),
        )

    def stage(self, temporary: str, data: bytes) -> None:
        """See `FileSystem.stage`."""
        if self.has_temporaries:
            self.write_temporary(temporary, data)

    def place(self, temporary: str, path: str, data: bytes) -> bool:
        """See `FileSystem.place`."""
        placed: list[bool] = []
        if self.has_temporaries:
            self._step("place", lambda: placed.append(self._disk.place(temporary, path)))
        else:
            self._step("place", lambda: placed.append(self._disk.create(path, data)))
        return placed[0]

    def make_durable(self, path: str) -> None:
        """See `FileSystem.make_durable`."""
        self._step("sync", lambda: None)

    def replace(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        """See `FileSystem.replace`."""
        self._step("replace", lambda: self._disk.write(path, data))

    def length_bytes(self, path: str) -> int | None:
        """See `FileSystem.length_bytes`."""
        self._look("length_bytes")
        data = self._disk.files.get(path)
        return None if data is None else len(data)

    def digest(self, path: str) -> FileDigest | None:
        """See `FileSystem.digest`."""
        data = self.read(path)
        return None if data is None else _digest(data)

    def copy_from(
        self, source: FileSystem, source_path: str, path: str, *, may_link: bool = False
    ) -> FileDigest:
        """See `FileSystem.copy_from`."""
        data = source.read(source_path)
        if data is None:
            raise StorageError("no such file", {"path": source_path}, "Look for who deleted it.")
        self.write_temporary(path, data)
        return _digest(data)

    def export(self, path: str, target: Path) -> FileDigest:
        """See `FileSystem.export`."""
        data = self.read(path)
        if data is None:
            raise StorageError("no such file", {"path": path}, "Look for who deleted it.")
        target.write_bytes(data)
        return _digest(data)

    def make_directories(self, path: str) -> None:
        """See `FileSystem.make_directories`: a directory is there with its first file."""
        self._step("mkdir", lambda: None)

    def join(self, sources: Sequence[str], path: str) -> int:
        """See `FileSystem.join`."""
        missing = [source for source in sources if source not in self._disk.files]
        if missing:
            raise StorageError("no such file", {"path": missing[0]}, "Look for who deleted it.")
        data = b"".join(self._disk.files[source] for source in sources)
        self.write_temporary(path, data)
        return len(data)

    def move(self, source: str, path: str) -> bool:
        """See `FileSystem.move`; as on HDFS, false for a source that is not there."""
        moved: list[bool] = []
        self._step("move", lambda: moved.append(self._disk.place(source, path)))
        return moved[0]

    def sync_directory(self, path: str) -> None:
        """See `FileSystem.sync_directory`."""
        self._step("sync", lambda: None)

    def delete(self, path: str) -> None:
        """See `FileSystem.delete`."""
        if self.has_temporaries:
            self._step("delete", lambda: self._disk.remove(path))
            return
        record = f"{path}/_metadata"
        for each in [
            record,
            *sorted(f for f in self._disk.files if f.startswith(f"{path}/")),
            path,
        ]:
            if each in self._disk.files:
                self._step("delete", partial(self._disk.remove, each))

    def close(self) -> None:
        """See `FileSystem.close`."""

    def _look(self, name: str) -> None:
        self._turn()
        if self._is_unreadable(name):
            raise StorageError("a simulated fault", {"step": name}, "Look again.")

    def _step(
        self,
        name: str,
        happens: Callable[[], object],
        *,
        during: Callable[[], object] = lambda: None,
    ) -> None:
        self._turn()
        fault = self._fault(name)
        if fault is Fault.CRASH_DURING:
            during()
        if fault in (Fault.CRASH_BEFORE, Fault.CRASH_DURING):
            raise SimulatedCrashError(name)
        if fault is Fault.LATE:
            self._disk.late.append(happens)
        elif fault is not Fault.REFUSED:
            happens()
        if fault is Fault.CRASH_AFTER:
            raise SimulatedCrashError(name)
        if fault is not Fault.NONE:
            raise StorageError("a simulated fault", {"step": name, "fault": fault.value}, "Retry.")


def _digest(data: bytes) -> FileDigest:
    return FileDigest(length_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
