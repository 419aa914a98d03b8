"""A sink that rolls, over random epochs: rows are published once, or held, whatever is aborted,
swept, restarted or changed in between (`ids-never-reused`, `fence-first`, `files-with-decision`,
`rename-settled` and `retire-after-commit`).

The writer, the committer and the sweep are the real ones, over a file system in memory; a file
has a line for each row.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.connectors.hdfs.committing.file_committer import FileCommitter
from sluice.connectors.hdfs.committing.file_sweep import StagingSweeper
from sluice.connectors.hdfs.rolling.merging import JoiningMerger
from sluice.connectors.hdfs.rolling.roll_plan import Roll
from sluice.connectors.hdfs.rolling.rolling_writer import RollingFrameWriter
from sluice.connectors.hdfs.staging.committables import StagedFile, decode_file_set
from sluice.connectors.hdfs.staging.pending_files import decode_pending_files, encode_pending_files
from sluice.connectors.hdfs.staging.staged_names import final_name, staging_root
from sluice.connectors.hdfs.writing.frame_writer import (
    FileFrameWriter,
    Frame,
    SavedFrame,
    StagingDirectory,
)
from sluice.runtime.contracts import (
    CommitOutcome,
    RegisteredAttempt,
    StagedFrame,
    SweepView,
    TaskScope,
)
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey
from tests.kit.effort import examples
from tests.kit.files.fake_file_system import Disk, FakeFileSystem

TARGET = "fake:///data/orders"
RETAINED = 3
ROOT = staging_root("orders", job_uid="job", operator_id="op")


class LineSaver:
    """A frame is (directory, rows) pairs; each becomes one file, as a task of Spark's writes it."""

    def save(self, frame: Frame, directory: StagingDirectory) -> SavedFrame:
        files = []
        for number, (partition, rows) in enumerate(frame):
            data = b"".join(b"%d\n" % row for row in rows)
            written = f"part-{number:05d}-0f6c1fd2-7f0f-4a43-9ae3-d5d0fd2ed5d8-c000.json"
            name = final_name(directory.attempt, written, checkpoint_id=directory.checkpoint_id)
            slash = "/" if partition else ""
            staged, final = f"{partition}{slash}{written}", f"{partition}{slash}{name}"
            directory.fs.write_temporary(f"{directory.path}/{staged}", data)
            files.append(StagedFile(staged=staged, final=final, length_bytes=len(data)))
        return SavedFrame(rows=sum(len(rows) for _, rows in frame), files=tuple(files))


class MovesAreSynced(FakeFileSystem):
    """Knows the directories into which a file was moved, and which no sync has made durable."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk, uri="fake:///data")
        self.unsynced: set[str] = set()

    def move(self, source: str, path: str) -> bool:
        self.unsynced.add(path.rpartition("/")[0])
        return super().move(source, path)

    def sync_directory(self, path: str) -> None:
        self.unsynced.discard(path)
        super().sync_directory(path)


class Registry:
    """Remembers nothing: the sweep must do without, as after a restart."""

    def register(self, attempt: RegisteredAttempt) -> float:
        del attempt
        return 0.0


@dataclass
class Record:
    """A decided checkpoint: what it keeps, and which rows it contains."""

    states: tuple[StateEntry, ...] = ()
    rows: Counter[int] = field(default_factory=Counter)


class RollingSink(RuleBasedStateMachine):
    """One region of a job, its records and its disk."""

    @initialize()
    def begin(self) -> None:
        self.disk = Disk()
        self.fs = MovesAreSynced(self.disk)
        self.committer = FileCommitter(lambda _: self.fs)
        self.sweeper = StagingSweeper(self.fs, root=ROOT, operator_id="op")
        self.records = [Record()]
        self.attempt_id = 0
        self.batch_id = 0
        self.settled = -1
        self.next_row = 0
        self.now_ms = 0
        self.layout = "one"
        self.roll: Roll | None = Roll(size=40, age=60.0, idle=20.0)
        self.last: StagedFrame = StagedFrame(rows=0)

    def teardown(self) -> None:
        if hasattr(self, "committer"):
            self.committer.close()

    def _write(self, sizes: Sequence[tuple[str, int]], *, is_last: bool = False) -> Record:
        frame = []
        for partition, count in sizes:
            frame.append((partition, range(self.next_row, self.next_row + count)))
            self.next_row += count
        scope = TaskScope(
            job_uid="job",
            operator_id="op",
            batch=BatchKey(region="main", attempt_id=self.attempt_id, batch_id=self.batch_id),
            checkpoint_id=len(self.records),
            committed_through=0,
            operator_states=self.records[-1].states,
            is_last=is_last,
        )
        writer = RollingFrameWriter(
            files=FileFrameWriter(
                target=TARGET, saver=LineSaver(), open_file_system=lambda _: self.fs
            ),
            roll=self.roll,
            merger=JoiningMerger(),
            layout=lambda _: self.layout,
            wall_ms=lambda: self.now_ms,
        )
        self.last = writer.write(frame, scope, Registry())
        self._require_durable()
        rows = Counter(row for _, found in frame for row in found)
        return Record(states=self.last.operator_states, rows=self.records[-1].rows + rows)

    def _require_durable(self) -> None:
        """A decision may name them from now on."""
        for entry in self.last.committables:
            files = decode_file_set(entry)
            named = {files.staged_path(file).rpartition("/")[0] for file in files.files}
            assert not named & self.fs.unsynced

    def _decide(self, record: Record) -> None:
        reports = self.committer.commit(self.last.committables, timeout_s=5, after_crash=False)
        assert {report.outcome for report in reports} <= {CommitOutcome.COMMITTED}
        self.records.append(record)
        self.settled = self.batch_id
        self.batch_id += 1

    partitions = st.lists(st.tuples(st.sampled_from(["", "dt=1"]), st.integers(1, 25)), max_size=3)

    @rule(sizes=partitions, waited_s=st.sampled_from([0, 0, 1, 30, 70]))
    def an_epoch_is_decided(self, sizes: list[tuple[str, int]], waited_s: int) -> None:
        self.now_ms += waited_s * 1000
        self._decide(self._write(sizes))

    @rule(sizes=partitions)
    def an_epoch_is_aborted(self, sizes: list[tuple[str, int]]) -> None:
        """Its region begins a new attempt."""
        self._write(sizes)
        self.committer.abort(self.last.committables, timeout_s=5)
        self._restart()

    @rule()
    def a_driver_is_killed_behind_its_batch(self) -> None:
        self._write([("", 3)])
        self._restart()
        self.sweep()

    @rule()
    def the_region_has_become_one_of_two(self) -> None:
        """A run with another number of regions continues with what both held, entry by entry."""
        entries = [decode_pending_files(entry) for entry in self.records[-1].states]
        held = tuple(file for entry in entries for file in entry.files)
        if len(held) < 2:
            return
        self.records[-1].states = tuple(
            encode_pending_files(replace(entries[0], files=files), operator_id="op")
            for files in (held[1:], held[:1])
        )
        self._restart()

    def _restart(self) -> None:
        self.attempt_id += 1
        self.batch_id, self.settled = 0, -1

    @rule()
    def sweep(self) -> None:
        kept = tuple(e for record in self.records[-RETAINED:] for e in record.states)
        self.sweeper.sweep(
            SweepView(
                job_uid="job",
                attempt_ids={"main": self.attempt_id},
                protected=(),
                orphans=(),
                kept=kept,
                settled={"main": self.settled} if self.settled >= 0 else {},
            )
        )

    @rule()
    def the_columns_change(self) -> None:
        self._restart()
        self.layout = "two" if self.layout == "one" else "one"

    @rule()
    def the_policy_changes(self) -> None:
        self._restart()
        self.roll = Roll(size=40, age=60.0) if self.roll is None else None

    @precondition(lambda self: len(self.records) > RETAINED)
    @rule()
    def every_retained_record_can_be_started_from(self) -> None:
        for record in self.records[-RETAINED:]:
            self._rows_held(record)

    @rule()
    def the_run_ends(self) -> None:
        self._decide(self._write([], is_last=True))
        assert self.records[-1].states == ()

    def _rows_held(self, record: Record) -> Counter[int]:
        found: Counter[int] = Counter()
        for entry in record.states:
            for file in decode_pending_files(entry).files:
                data = self.disk.files[file.path]
                assert len(data) == file.length_bytes
                found.update(int(line) for line in data.split())
        return found

    @invariant()
    def each_decided_row_is_published_once_or_held(self) -> None:
        """And nothing else is published; an aborted epoch's rows are in neither."""
        if not hasattr(self, "disk"):
            return
        published: Counter[int] = Counter()
        for path, data in self.disk.files.items():
            if path.startswith("orders/"):
                published.update(int(line) for line in data.split())
        assert published + self._rows_held(self.records[-1]) == self.records[-1].rows


TestRollingSink = RollingSink.TestCase
TestRollingSink.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
