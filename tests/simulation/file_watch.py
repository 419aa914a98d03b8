"""What must hold of published, decided and held files; judged by the disk, which no process sees
whole, and by what stands in the checkpoint directory."""

from collections import Counter
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.hdfs.staging.committables import (
    COMMITTABLE_KIND,
    FileSet,
    StagedFile,
    decode_file_set,
)
from sluice.connectors.hdfs.staging.pending_files import PENDING_KIND, decode_pending_files
from sluice.runtime.model.checkpoint_record import CheckpointRecord, StateEntry
from sluice.runtime.model.splits import SplitRange
from tests.kit.files.fake_file_system import Disk
from tests.simulation.lineage import Lineages

if TYPE_CHECKING:
    from tests.simulation.world import World

TARGET = "model:///data/out"
"""Where readers look."""
_PUBLISHED = "out/"
_HIDDEN = "out/."  # what readers pass over: a start tries a rename there
_DIRECTORY = "p="


@dataclass(frozen=True, slots=True)
class _Decided:
    """A file that a decision names."""

    at: int
    staged: str
    length_bytes: int


class WatchedFiles(Disk):
    """What outlives processes; the watch is reported each change."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._watch = world.watch.files

    def place(self, temporary: str, path: str) -> bool:
        """See `Disk.place`."""
        placed = super().place(temporary, path)
        if placed:
            self._watch.moved(temporary, path, self.files[path])
        return placed

    def write(self, path: str, data: bytes) -> None:
        """See `Disk.write`."""
        self._watch.written(path)
        super().write(path, data)

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        before = set(self.files)
        super().remove(path)
        self._watch.removed(sorted(before - set(self.files)))


class FileWatch:
    """The promises about files. Called as it happens.

    Attributes:
        published: how many files readers see.
        held: how many decisions held files back.
        merged: how many files were made of held ones.
        late: how many were staged in a directory that had been deleted.
    """

    def __init__(
        self, world: "World", require: Callable[[object, str], None], lineages: Lineages
    ) -> None:
        self._world = world
        self._require = require
        self._lineages = lineages
        self.published = 0
        self.held = 0
        self.merged = 0
        self.late = 0
        self._gone: set[str] = set()
        self._decided: dict[str, _Decided] = {}  # by final path
        self._due: dict[str, str] = {}  # staged path to final path, until it is published
        self._held: dict[str, int] = {}  # lengths of what the last decision holds, by path
        self._held_rows: Counter[str] = Counter()
        self._held_after: dict[int, tuple[dict[str, int], Counter[str]]] = {}  # by decision
        self._due_again: Counter[str] = Counter()  # rows that were held where a run went back to
        self._seen: list[set[str]] = [set()]  # by lineage
        self._read: dict[tuple[int, int], int] = {}  # by lineage and input partition: next offset

    # --- the checkpoint directory -----------------------------------------------------------------

    def decided(self, record: CheckpointRecord, ranges: Iterable[SplitRange]) -> None:
        """A decision stands; these ranges are new in it. Each of their rows is in one file that is
        published now, or held, and so is each row that was held before."""
        if not self._world.profile.files:
            return
        rows = Counter(self._held_rows)
        for split in ranges:
            rows.update(
                f"{split.partition}-{at}" for at in range(split.start_offset, split.end_offset)
            )
        found: Counter[str] = Counter()
        for entry in record.committables:
            if entry.kind == COMMITTABLE_KIND:
                files = decode_file_set(entry)
                for file in files.files:
                    found.update(self._name(record.checkpoint_id, files, file))
        self._held_rows = Counter()
        self._held = {}
        for region in record.regions:
            for entry in region.operator_states:
                if entry.kind == PENDING_KIND:
                    self._hold(entry)
        self._held_after[record.checkpoint_id] = dict(self._held), Counter(self._held_rows)
        self.held += bool(self._held)
        found += self._held_rows
        self._require(found == rows, "a decision loses or doubles rows of files")

    def goes_back(self, at: int) -> None:
        """A run begins at an older decision, with what that one holds: all of it is there."""
        if not self._world.profile.files:
            return
        self._held, self._held_rows = map(copy, self._held_after[at])
        self._due_again = Counter(self._held_rows)
        self._seen.append(set())
        files = self._world.shelf.files
        are_there = all(len(files.get(path, b"")) == n for path, n in self._held.items())
        self._require(are_there, "a run goes back to files that are gone")

    def _name(self, at: int, files: FileSet, file: StagedFile) -> list[str]:
        staged, final = files.staged_path(file), files.final_path(file)
        if final in self._decided:
            return []  # an idle region's record names what it did last
        self._decided[final] = _Decided(at, staged, file.length_bytes)
        self._due[staged] = final
        return self._rows_of(staged, file.length_bytes)

    def _hold(self, entry: StateEntry) -> None:
        for file in decode_pending_files(entry).files:
            self._held[file.path] = file.length_bytes
            self._held_rows.update(self._rows_of(file.path, file.length_bytes))

    def _rows_of(self, path: str, length_bytes: int) -> list[str]:
        data = self._world.shelf.files.get(path)
        is_whole = data is not None and len(data) == length_bytes
        self._require(is_whole, "a decision names a file that is not there")
        return data.decode().split()

    def marked(self, at: int) -> None:
        """Section 4: the mark says that all that its decision names is visible."""
        late = [final for final in self._due.values() if self._decided[final].at == at]
        self._require(not late, "marked before its files are visible")

    # --- the file system --------------------------------------------------------------------------

    def moved(self, source: str, path: str, data: bytes) -> None:
        """A file has another name."""
        self._require(source not in self._held, "a held file is moved away")
        if not path.startswith(_PUBLISHED) or path.startswith(_HIDDEN):
            self._require(source not in self._due, "a decided file is moved away")
            return
        decided = self._decided.get(path)
        self._require(decided is not None, "a file is visible before its decision")
        is_the_one = source == decided.staged and len(data) == decided.length_bytes
        self._require(is_the_one, "another file than the decided one is visible")
        self._due.pop(source, None)
        self.published += 1
        self._world.note(f"publishes {path}")
        self._read_on(data.decode().split(), self._lineages.of(decided.at))

    def _read_on(self, rows: list[str], lineage: int) -> None:
        for row in rows:
            self._require(row not in self._seen[lineage], f"a row is in two files: {row}")
            self._seen[lineage].add(row)
            if self._world.profile.roll:
                continue  # a directory's large files are not kept waiting for its small ones
            partition, offset = map(int, row.split("-"))
            key = lineage, partition
            due = self._read.get(key, self._lineages.start(*key))
            self._require(offset == due, f"files are published out of order: {row}")
            self._read[key] = due + 1

    def written(self, path: str) -> None:
        """A file gets new content."""
        self.merged += "/merged/" in path
        self.late += path.rpartition("/p=")[0] in self._gone
        is_visible = path.startswith(_PUBLISHED) and not path.startswith(_HIDDEN)
        self._require(not is_visible, "a file is written where readers look")
        self._require(path not in self._due, "a decided file is written over")
        self._require(path not in self._held, "a held file is written over")

    def removed(self, paths: Iterable[str]) -> None:
        """These are gone."""
        for path in paths:
            is_visible = path.startswith(_PUBLISHED) and not path.startswith(_HIDDEN)
            self._require(not is_visible, "a published file is deleted")
            self._require(path not in self._due, "a decided file is deleted")
            self._require(path not in self._held, "a held file is deleted")
            self._gone.add(path.rpartition("/p=")[0])

    # --- in the end -------------------------------------------------------------------------------

    def missing(self) -> list[str]:
        """Rows of the input that no reader of the files can see; of those that a run read once
        more, as it has written them."""
        last = self._lineages.number
        again, ever = self._seen[last], set[str]().union(*self._seen)
        due = [
            (f"{partition}-{offset}", offset >= self._lineages.start(last, partition))
            for partition, end in self._world.ends.items()
            for offset in range(end)
        ]
        due += [(row, True) for row in self._due_again]
        return [row for row, is_again in due if row not in (again if is_again else ever)]
