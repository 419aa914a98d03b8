"""Files that are held over epochs: nothing lost or doubled, and they stay few."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.connectors.hdfs.committing.file_committer import FileCommitter
from sluice.connectors.hdfs.committing.file_sweep import StagingSweeper
from sluice.connectors.hdfs.rolling.merging import JoiningMerger
from sluice.connectors.hdfs.rolling.roll_plan import (
    FAN_IN,
    FILES_AT_ONCE,
    Plan,
    Roll,
    again_in_s,
    plan,
    settle,
)
from sluice.connectors.hdfs.rolling.rolling_writer import RollingFrameWriter
from sluice.connectors.hdfs.staging.committables import StagedFile, decode_file_set
from sluice.connectors.hdfs.staging.pending_files import (
    PendingFile,
    PendingFiles,
    decode_pending_files,
    encode_pending_files,
)
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

SIZE = 1_000
ROLL = Roll(size=SIZE, age=60.0, idle=10.0)

epochs = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.sampled_from(["", "dt=1", "dt=ü"]), st.integers(1, 1_500)), max_size=5
        ),
        st.integers(0, 20_000),
    ),
    max_size=120,
)


@dataclass
class Region:
    """One region's epochs over `plan` and `settle`; each row of a file is known by a number.

    Attributes:
        share: per mille of their bytes that merged files have.
        held, rows: what is held, and the rows in each file that there is.
        published: files in order of their decisions.
    """

    share: int = 1000
    held: tuple[PendingFile, ...] = ()
    rows: dict[str, list[int]] = field(default_factory=dict)
    published: list[PendingFile] = field(default_factory=list)
    now_ms: int = 0
    _names: int = 0

    def epoch(self, staged: Sequence[tuple[str, int]], *, publishes_all: bool = False) -> None:
        own = [self.stage(directory, length) for directory, length in staged]
        planned = plan((*self.held, *own), ROLL, now_ms=self.now_ms, publishes_all=publishes_all)
        self._require_all_once((*self.held, *own), planned)
        merged = [[self._merge(merge)] for merge in planned.merges]
        outcome = settle(planned, merged, ROLL)
        self.held = outcome.keep
        self.published.extend(outcome.publish)

    def stage(self, directory: str, length: int) -> PendingFile:
        name = self._name()
        self.rows[name] = [self._names]
        return PendingFile(
            directory=directory,
            staging="root/main.1/1-a",
            staged=name,
            length_bytes=length,
            rows=1,
            first_ms=self.now_ms,
            last_ms=self.now_ms,
        )

    def _merge(self, merge: object) -> PendingFile:
        name, files = self._name(), merge.files  # type: ignore[attr-defined]
        assert len(files) > 1
        assert len({file.directory for file in files}) == 1
        self.rows[name] = [row for file in files for row in self.rows[file.staged]]
        length = max(sum(file.length_bytes for file in files) * self.share // 1000, 1)
        made: PendingFile = merge.merged(  # type: ignore[attr-defined]
            staging="root/main.1/2-b", staged=name, length_bytes=length, rows=len(self.rows[name])
        )
        assert made.rows == merge.rows  # type: ignore[attr-defined]
        return made

    def _name(self) -> str:
        self._names += 1
        return f"part-{self._names}"

    def _require_all_once(self, files: Iterable[PendingFile], planned: Plan) -> None:
        placed = [*planned.publish, *planned.keep]
        placed += [file for merge in planned.merges for file in merge.files]
        assert sorted(file.staged for file in placed) == sorted(file.staged for file in files)

    def rows_of(self, files: Iterable[PendingFile]) -> list[int]:
        return sorted(row for file in files for row in self.rows[file.staged])


@given(epochs=epochs, share=st.sampled_from([1000, 700, 300]))
@settings(deadline=None)
def test_files_with_decision_held_and_published_rows_are_exactly_those_staged(
    epochs: list[tuple[list[tuple[str, int]], int]], share: int
) -> None:
    """After each epoch; a published file is whole at once, and the last epoch leaves nothing."""
    region = Region(share=share)
    staged = 0
    for files, wait_ms in epochs:
        region.epoch(files)
        staged += len(files)
        found = region.rows_of((*region.held, *region.published))
        assert len(found) == len(set(found)) == staged
        region.now_ms += wait_ms
    region.epoch([], publishes_all=True)
    assert region.held == ()
    assert len(set(region.rows_of(region.published))) == staged


@given(epochs=epochs)
@settings(deadline=None)
def test_nothing_is_held_longer_than_the_policy_says(
    epochs: list[tuple[list[tuple[str, int]], int]],
) -> None:
    """The time that is asked for is the time at which something is due; none is forgotten."""
    region = Region()
    for files, wait_ms in epochs:
        region.epoch(files)
        again_s = again_in_s(region.held, ROLL, now_ms=region.now_ms)
        assert (again_s is None) == (not region.held)
        if again_s is not None:
            assert 0 < again_s <= min(ROLL.age, ROLL.idle or ROLL.age)
            due_ms = region.now_ms + round(again_s * 1000)
            early = plan(region.held, ROLL, now_ms=due_ms - 1, publishes_all=False)
            late = plan(region.held, ROLL, now_ms=due_ms, publishes_all=False)
            assert len(late.keep) < len(early.keep) + len(early.merges)
        region.now_ms += wait_ms


def _many_due(directories: int) -> Region:
    """Two small files in each directory, later ones later, all past their age."""
    region = Region()
    for number in range(directories):
        region.held += tuple(region.stage(f"key={number}", 10) for _ in range(2))
        region.now_ms += 1
    region.now_ms += int(ROLL.age * 1000)
    return region


def test_an_epoch_publishes_a_bounded_part_of_many_directories_oldest_first() -> None:
    """The rest is asked for at once, so that no epoch is too long to end in time, for ever."""
    region = _many_due(2 * FILES_AT_ONCE + 1)
    counts = []
    while region.held:
        assert again_in_s(region.held, ROLL, now_ms=region.now_ms) == 0
        published = len(region.published)
        region.epoch([])
        counts.append(len(region.published) - published)

    assert counts == [FILES_AT_ONCE, FILES_AT_ONCE, 1]
    ages = [file.first_ms for file in region.published]
    assert ages == sorted(ages)


def test_the_last_epoch_publishes_all_of_many_directories() -> None:
    region = _many_due(FILES_AT_ONCE + 1)
    region.epoch([], publishes_all=True)

    assert region.held == ()
    assert len(region.published) == FILES_AT_ONCE + 1


@pytest.mark.parametrize("number", [2, 4, 5, 7])
def test_files_with_decision_what_fills_no_file_of_its_own_is_published_with_the_last_one_that_is_full(
    number: int,
) -> None:
    region = Region()
    region.epoch([("dt=1", 600)] * number, publishes_all=True)
    assert region.held == ()
    assert len(region.rows_of(region.published)) == number
    assert len(region.published) == max(number // 2, 1)


def test_many_files_of_a_level_are_merged_however_few_there_are_of_the_levels_below() -> None:
    """Else those of a level grow in number as long as there is always a new file."""
    region = Region()
    region.held = tuple(replace(region.stage("", 10), level=1) for _ in range(FAN_IN))
    region.epoch([("", 10)])
    (held,) = region.held
    assert held.level == 2


def test_files_that_are_merged_to_be_held_are_held_however_many_the_writer_makes_of_them() -> None:
    region = Region()
    region.held = tuple(region.stage("", 10) for _ in range(FAN_IN))
    planned = plan(region.held, ROLL, now_ms=0, publishes_all=False)
    (merge,) = planned.merges
    outcome = settle(planned, [merge.files[:2]], ROLL)
    assert outcome.keep == merge.files[:2]
    assert outcome.publish == ()


@given(
    sizes=st.lists(st.integers(1, 1_500), min_size=1, max_size=600),
    share=st.sampled_from([1000, 700]),
)
@settings(deadline=None, max_examples=examples(30))
def test_files_are_few_whatever_the_epochs(sizes: list[int], share: int) -> None:
    """Not more than bytes / size, rounded up, and one: also of thousands of small epochs."""
    region = Region(share=share)
    for size in sizes:
        region.epoch([("dt=1", size)])
    region.epoch([], publishes_all=True)
    published_bytes = sum(file.length_bytes for file in region.published)
    assert len(region.published) <= math.ceil(published_bytes / SIZE) + 1


@given(count=st.integers(1, 3_000))
@settings(deadline=None, max_examples=examples(10))
def test_what_a_record_names_grows_with_the_logarithm_of_the_epochs(count: int) -> None:
    roll = Roll(size="1t", age=10**6)
    held: tuple[PendingFile, ...] = ()
    merged_files = 0
    for number in range(count):
        own = PendingFile(
            directory="",
            staging="root/main.1/1-a",
            staged=f"part-{number}",
            length_bytes=10,
            rows=1,
            first_ms=number,
            last_ms=number,
        )
        planned = plan((*held, own), roll, now_ms=number, publishes_all=False)
        done = [
            [m.merged(staging="s", staged=f"merged-{number}", length_bytes=10, rows=m.rows)]
            for m in planned.merges
        ]
        merged_files += sum(file.rows or 0 for merge in planned.merges for file in merge.files)
        held = settle(planned, done, roll).keep
    levels = 1 + int(math.log(count, FAN_IN))
    assert len(held) <= levels * (FAN_IN - 1) + 1
    assert merged_files <= count * levels
    assert sum(file.rows or 0 for file in held) == count


paths = st.text(min_size=1, max_size=8).filter(lambda t: not ({"", ".", ".."} & set(t.split("/"))))


@given(
    files=st.lists(
        st.builds(
            PendingFile,
            directory=st.one_of(st.just(""), paths),
            staging=paths,
            staged=paths,
            length_bytes=st.integers(1, 2**62),
            rows=st.one_of(st.none(), st.integers(0, 2**62)),
            first_ms=st.integers(0, 5),
            last_ms=st.integers(5, 9),
            level=st.integers(0, 9),
        ),
        max_size=5,
        unique_by=lambda file: file.path,
    )
)
def test_what_is_held_comes_back_from_a_record_as_it_was(files: list[PendingFile]) -> None:
    held = PendingFiles(target="hdfs://name/lake/orders", layout="x", files=tuple(files))
    entry = encode_pending_files(held, operator_id="op")
    assert decode_pending_files(entry) == held
    assert (entry.operator_id, entry.state_name) == ("op", "pending-files")


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

    def _write(self, sizes: Sequence[tuple[str, int]], *, publishes_all: bool = False) -> Record:
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
            publishes_all=publishes_all,
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
        self._decide(self._write([], publishes_all=True))
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
