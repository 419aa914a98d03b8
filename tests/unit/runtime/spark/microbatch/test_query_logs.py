"""Spark's query logs, and the source that reads barriers."""

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from sluice.runtime.errors import DamagedCheckpointError, FencedError, UnreachableError
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.graph.pipeline import Pipeline
from sluice.runtime.model import offsets
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import Barrier, SplitRange
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient
from sluice.runtime.spark.microbatch.job_source import (
    CopyRanges,
    JobStreamReader,
    ReadRanges,
    SourcePlan,
    probe_for,
)
from sluice.runtime.spark.microbatch.query_logs import (
    LoggedBatch,
    PlannedFiles,
    newest_attempt_id,
    require_logged,
)
from sluice.runtime.spark.microbatch.region_start import initial_offset, make_ready
from tests.kit.files.fake_file_system import Disk, FakeFileSystem
from tests.unit.runtime.job.test_job_pieces import StubSource

FOREIGN = 'rate:{"seconds": 7}'
_TWICE = "are doubled: batch_id=2"


def split(start: int, end: int, *, partition: int = 0) -> SplitRange:
    return SplitRange(
        source_id="s",
        topic="orders",
        topic_id="id",
        partition=partition,
        start_offset=start,
        end_offset=end,
    )


def logged(
    *batches: tuple[SplitRange, ...], foreign: str = FOREIGN, at_ms: int = 0
) -> FakeFileSystem:
    """An offset log with these batches, beside a source that is not ours."""
    disk = Disk()
    for number, splits in enumerate(batches):
        plan = json.dumps({"batchTimestampMs": at_ms})
        lines = ["v2", plan, f"ours:{offset_of(splits)}", foreign]
        disk.files[f"offsets/{number}"] = "\n".join(lines).encode()
    return FakeFileSystem(disk)


def offset_of(splits: tuple[SplitRange, ...]) -> str:
    barrier = Barrier(checkpoint_id=1, region="query", attempt_id=0, splits=splits)
    return json.dumps(offsets.encode(barrier))


def ranges_read(fs: FakeFileSystem, batch_id: int) -> tuple[SplitRange, ...]:
    before = LoggedBatch.read(fs, batch_id - 1, planned=None)
    return LoggedBatch.read(fs, batch_id, planned=None).ranges_since(before)


def digest_of(fs: FakeFileSystem) -> str:
    return LoggedBatch.read(fs, 0, planned=PlannedFiles(fs)).others_sha256


def test_a_batch_reads_what_its_offset_says() -> None:
    fs = logged((split(0, 5),), (split(5, 9), split(0, 4, partition=1)))
    assert ranges_read(fs, 0) == (split(0, 5),)
    assert ranges_read(fs, 1) == (split(5, 9), split(0, 4, partition=1))


def test_a_batch_without_records_repeats_the_offset_and_reads_nothing() -> None:
    """Rule `batch-identity`: a watermark query runs such a batch to emit what it closes; reading
    the range into its record again would look like records that are written twice."""
    read = (split(5, 9), split(0, 4, partition=1))
    fs = logged((split(0, 5),), read, read, (split(9, 12), split(4, 4, partition=1)))
    assert ranges_read(fs, 2) == (split(9, 9), split(4, 4, partition=1))
    assert ranges_read(fs, 3) == (split(9, 12), split(4, 4, partition=1))


def test_a_batch_that_is_not_logged_has_no_ranges() -> None:
    assert ranges_read(logged(), 3) == ()


def decided(batch_id: int, *splits: SplitRange) -> RegionRecord:
    """The region as the last decided checkpoint has it."""
    return RegionRecord(region="query", attempt_id=1, batch_id=batch_id, splits=splits)


def test_a_log_that_holds_the_decided_batch_may_be_gone_on_with() -> None:
    """Also when Spark has planned the next one, and before anything was decided."""
    fs = logged((split(0, 5),), (split(5, 9),))
    for record in (
        decided(0, split(0, 5)),
        decided(1, split(9, 9)),
        RegionRecord(region="query", attempt_id=0),
    ):
        require_logged(fs, record)


@pytest.mark.parametrize(
    ("record", "batches", "committed", "told"),
    [
        (None, 1, 0, []),
        (None, 3, 2, [_TWICE]),
        (None, 3, 3, []),
        (0, 1, 0, []),
        (0, 1, 1, []),
        (0, 2, 1, []),
        (0, 3, 2, ["batch_ids=1-1", _TWICE]),
        (0, 3, 3, ["batch_ids=1-2"]),
        (1, 3, 2, []),
    ],
)
def test_batches_that_somebody_else_may_have_written_are_reported(
    record: int | None,
    batches: int,
    committed: int,
    told: Sequence[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As where the records below `sluice/` are deleted, or Spark's own sink wrote until now, or in
    between."""
    fs = logged(*[(split(0, 5),)] * batches)
    for number in range(committed):
        fs.replace(f"commits/{number}", b"v1")
    last = RegionRecord(region="query", attempt_id=0, batch_id=record, splits=(split(0, 5),))
    require_logged(fs, replace(last, other_offsets_sha256=digest_of(fs)))
    assert len(caplog.records) == len(told)
    assert all(what in caplog.text for what in told)


def test_a_decided_batch_that_spark_has_forgotten_is_not_run_with_other_records() -> None:
    """Spark does not sync its log, so a power cut may take what our decision is about."""
    record = decided(1, split(5, 9))
    with pytest.raises(DamagedCheckpointError, match="offsets/1"):
        require_logged(logged((split(0, 5),)), record)
    with pytest.raises(DamagedCheckpointError, match="logged_end=12 decided_end=9"):
        require_logged(logged((split(0, 5),), (split(5, 12),)), record)


def test_a_partition_found_between_two_plans_of_a_decided_batch_is_not_passed_over() -> None:
    found = split(0, 4, partition=1)
    with pytest.raises(
        DamagedCheckpointError, match="split=orders-1 logged_end=4 decided_end=none"
    ):
        require_logged(logged((split(0, 5),), (split(5, 9), found)), decided(1, split(5, 9)))


def test_a_split_that_reads_nothing_need_not_be_on_record() -> None:
    """It is empty, or repeats what the batch before has read."""
    empty, repeated = split(4, 4, partition=1), split(0, 4, partition=1)
    record = decided(1, split(5, 9))
    require_logged(logged((split(0, 5),), (split(5, 9), empty)), record)
    require_logged(logged((split(0, 5), repeated), (split(5, 9), repeated)), record)


def test_a_record_that_knows_nothing_of_a_source_says_nothing_of_its_splits() -> None:
    """Older ones have two sources of one topic under one id."""
    lines = ["v1", "{}", offset_of((split(0, 9),)), offset_of((split(0, 5, partition=1),))]
    fs = FakeFileSystem(Disk(files={"offsets/0": "\n".join(lines).encode()}))
    require_logged(fs, decided(0, split(0, 9), split(0, 5, partition=1)))
    require_logged(fs, decided(0))


def test_a_stateful_region_continues_only_after_the_batch_that_was_decided() -> None:
    """The same in a Job, where a decided batch that is replayed runs into nothing."""
    region = Region(
        name="r", pipeline=Pipeline(StubSource()), source_id="s", sinks={}, stateful=True
    )
    record = decided(1, split(5, 9))
    for end in (9, 12):
        lines = ["v2", "{}", f"source_s:{offset_of((split(5, end),))}"]
        fs = FakeFileSystem(Disk(files={"at/offsets/1": "\n".join(lines).encode()}))
        if end == 9:
            make_ready(fs, region, "at", record, attempt_id=1)
        else:
            with pytest.raises(DamagedCheckpointError, match="logged_end=12"):
                make_ready(fs, region, "at", record, attempt_id=1)
    with pytest.raises(DamagedCheckpointError, match="restore_from"):
        make_ready(FakeFileSystem(Disk()), region, "at", record, attempt_id=1)


def test_batch_identity_another_plan_of_a_source_that_is_not_ours_is_refused() -> None:
    """Its positions are nowhere else: what the new plan has more would be skipped. A new plan of
    the same offsets, at another time, is the same batch."""
    decided = RegionRecord(
        region="query",
        attempt_id=0,
        batch_id=0,
        splits=(split(0, 5),),
        other_offsets_sha256=digest_of(logged((split(0, 5),))),
    )
    require_logged(logged((split(0, 5),), at_ms=7), decided)
    planned_anew = logged((split(0, 5),), foreign='rate:{"seconds": 8}')
    with pytest.raises(DamagedCheckpointError, match="other formats"):
        require_logged(planned_anew, decided)


def test_a_decision_of_an_older_sluice_says_nothing_of_other_sources_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    older = RegionRecord(region="query", attempt_id=0, batch_id=0, splits=(split(0, 5),))
    require_logged(logged((split(0, 5),)), older)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "batch_id=0" in record.getMessage()
    caplog.clear()
    fs = FakeFileSystem(
        Disk(files={"offsets/0": f"v1\n{{}}\n{offset_of((split(0, 5),))}".encode()})
    )
    require_logged(fs, older)
    assert not caplog.records, "it reads no other source"


def test_whose_a_log_is_reports_its_newest_batch_whatever_lies_beside_it() -> None:
    """Hadoop's checksums, Spark's temporary files, lines of other formats, and torn ones."""

    def of(attempt_id: int) -> str:
        found = Barrier(checkpoint_id=1, region="main", attempt_id=attempt_id, splits=())
        return json.dumps(offsets.encode(found))

    def newest(*lines: str) -> int:
        files = {
            "9": "\n".join(["v2", "{}", f"ours:{of(7)}"]),
            "10": "\n".join(["v2", "{}", *lines]),
            ".10.crc": "crc",
            ".11.6a3f.tmp": f"v2\n{{}}\nours:{of(8)}",
        }
        disk = Disk(files={f"at/offsets/{name}": text.encode() for name, text in files.items()})
        return newest_attempt_id(FakeFileSystem(disk), "at")

    others = ["rate:7", FOREIGN, 'torn:{"checkpoint": 1, "gener', "-"]
    assert newest(f"ours:{of(3)}", *others) == newest(*others, f"ours:{of(3)}") == 3
    assert newest(*others) == -1


# --- sources of files -----------------------------------------------------------------------------


def _file(name: str, number: int) -> str:
    return json.dumps({"path": f"file:///in/{name}", "timestamp": 7, "batchId": number})


def _with_files(logs: dict[str, list[str]], *, offset: int = 8, by_name: bool = False) -> str:
    """The digest of a batch with a source of files, whose own log has these entries."""
    lines = [offset_of((split(0, 5),)), json.dumps({"logOffset": offset})]
    if by_name:
        lines = [f"ours:{lines[0]}", f"files:{lines[1]}"]
    disk = Disk()
    text = "\n".join(["v2" if by_name else "v1", "{}", *lines])
    disk.files["offsets/0"] = text.encode()
    for name, files in logs.items():
        where = f"sources/{'files' if by_name else 1}/{name}"
        disk.files[where] = "\n".join(["v1", *files]).encode()
    return digest_of(FakeFileSystem(disk))


@pytest.mark.parametrize("by_name", [False, True], ids=["by place", "by name"])
def test_batch_identity_the_same_number_of_other_files_is_another_plan(*, by_name: bool) -> None:
    """Spark's source of files keeps a log of its own, which is not synced, too: where its last
    entry is lost, the next plan gives its number to whatever files there are then."""
    decided = _with_files({"8": [_file("a", 8), _file("b", 8)]}, by_name=by_name)
    assert decided == _with_files(
        {"7": [_file("x", 7)], "8": [_file("b", 8), _file("a", 8)], "9": [_file("c", 9)]},
        by_name=by_name,
    )
    assert decided != _with_files({"8": [_file("a", 8), _file("c", 8)]}, by_name=by_name)
    assert decided != _with_files({}, by_name=by_name)
    assert decided != _with_files({"8": [_file("a", 8)]}, offset=9, by_name=by_name)


def test_entries_that_spark_has_merged_since_are_the_same_plan() -> None:
    """Every tenth entry has all files so far, and older ones are deleted some time later."""
    decided = _with_files({"8": [_file("a", 8)]})
    merged = {"9.compact": [_file("x", 7), _file("a", 8), _file("c", 9)]}
    assert _with_files(merged) == decided
    later = {"19.compact": [_file("x", 7), _file("a", 8), _file("c", 9)]}
    assert _with_files(later) == decided
    assert _with_files({"7.compact": [_file("x", 7)]}) != decided
    own = {"9.compact": [_file("a", 8), _file("c", 9)]}
    assert _with_files(own, offset=9) == _with_files({"9": [_file("c", 9)]}, offset=9)


def test_what_a_source_of_files_has_planned_is_read_once_while_it_has_no_news() -> None:
    """Its newest entry may hold all files that it ever read; a later life reads it again."""
    disk = Disk(files={"sources/1/9.compact": f"v1\n{_file('a', 8)}\n{_file('b', 9)}".encode()})
    planned = PlannedFiles(FakeFileSystem(disk))
    assert planned.of("1", 9) == (_file("b", 9),)
    del disk.files["sources/1/9.compact"]
    assert planned.of("1", 9) == (_file("b", 9),)
    assert planned.of("0", 9) == planned.of("1", 10) == ()
    assert PlannedFiles(FakeFileSystem(disk)).of("1", 9) == ()


def test_lines_of_a_merged_entry_that_are_no_files_of_ours_are_passed_over() -> None:
    """Torn, or of another shape: the digest is then another one, and a start refuses that."""
    torn = ["{", "[8]", _file("a", 8)]
    disk = Disk(files={"sources/1/9.compact": "\n".join(["v1", *torn]).encode()})
    assert PlannedFiles(FakeFileSystem(disk)).of("1", 8) == (_file("a", 8),)


def test_a_log_that_cannot_be_seen_for_a_moment_is_looked_at_again() -> None:
    """As on a mount that is away: a decision that goes by nothing could not be started from."""
    disk = Disk(files={})
    planned = PlannedFiles(FakeFileSystem(disk))
    assert planned.of("1", 9) == ()
    disk.files["sources/1/9"] = f"v1\n{_file('b', 9)}".encode()
    assert planned.of("1", 9) == (_file("b", 9),)


def test_the_order_of_sources_by_name_is_that_of_a_map() -> None:
    def digest(*others: str, version: str = "v2") -> str:
        lines = [version, "{}", f"ours:{offset_of((split(0, 5),))}", *others]
        fs = FakeFileSystem(Disk(files={"offsets/0": "\n".join(lines).encode()}))
        return digest_of(fs)

    assert digest("a:7", "b:8") == digest("b:8", "a:7")
    assert digest("a:7", "b:8") != digest("a:8", "b:7")
    assert digest("7", "8", version="v1") != digest("8", "7", version="v1")


GENERATION = 3
LIMIT = ReadAllAvailable()


def split_source(partition: int, start: int, end: int) -> SplitRange:
    return SplitRange(
        source_id="s",
        topic="orders",
        topic_id="id",
        partition=partition,
        start_offset=start,
        end_offset=end,
    )


def barrier(checkpoint_id: int, *splits: SplitRange) -> Barrier:
    return Barrier(checkpoint_id=checkpoint_id, region="main", attempt_id=GENERATION, splits=splits)


def logged_source(cut: Barrier) -> dict[str, Any]:
    """The offset of a cut, as it comes back out of Spark's log."""
    found: dict[str, Any] = json.loads(json.dumps(offsets.encode(cut)))
    return found


RESTORED = RegionRecord(
    region="main", attempt_id=2, batch_id=4, splits=(split_source(0, 40, 50), split_source(1, 7, 7))
)


@dataclass
class Client:
    """The coordinator, as far as it is asked: one answer for every question."""

    answer: Barrier | Exception | None = None
    asked: list[tuple[str, int]] = field(default_factory=list)

    def poll_barrier(self, region: str, attempt_id: int, *, wait_s: float) -> Barrier | None:
        self.asked.append((region, attempt_id))
        assert wait_s < 1, "Spark asks again and again; it must not wait here"
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def reader(
    client: Client | None = None,
    *,
    chained: bool = True,
    tasks: int = 2,
    shares: bool = False,
    replayed: Barrier | None = None,
) -> Any:
    """A reader of the region, restored from checkpoint 7."""
    read = ReadRanges(reader=cast(Any, None), parallelism=tasks if shares else None)
    plan = SourcePlan(
        format_name="sluice-job",
        address=CoordinatorAddress(
            address="http://127.0.0.1:1", token="t", leader_session_id="l", job_uid="u"
        ),
        region="main",
        attempt_id=GENERATION,
        initial_offset=initial_offset(RESTORED, attempt_id=GENERATION, after=7),
        ranges=CopyRanges(chain=pickle.dumps(None), parallelism=tasks) if chained else read,
        schema="value binary",
        replayed=replayed,
    )
    return JobStreamReader(plan, client=cast(CoordinatorClient, client or Client()))


def io_executor(found: Any) -> list[object]:
    return [partition.value for partition in found]


def test_start_offsets_once_the_initial_offset_is_the_restored_position_in_numbers() -> None:
    client = Client(barrier(8, split_source(0, 50, 90)))
    made = reader(client)
    first = made.initialOffset()
    assert first["splits"] == {"orders-0": [50, 50], "orders-1": [7, 7]}
    assert (first["checkpoint"], first["attempt_id"]) == (7, GENERATION)
    assert offsets.is_initial(first)
    assert made.initialOffset() == first
    assert client.asked == []


@pytest.mark.parametrize("chained", [True, False])
def test_restore_by_attempt_the_tasks_of_a_batch_follow_from_its_end_alone(
    *, chained: bool
) -> None:
    """Rules `restore-by-attempt` and `start-offsets-once`: Spark replays a batch from its log,
    perhaps with another start beside it and in another process, and the coordinator knows the
    range no more."""
    end = logged_source(barrier(9, split_source(0, 50, 90), split_source(1, 7, 10)))
    starts = [
        reader().initialOffset(),
        logged_source(barrier(8, split_source(0, 40, 50), split_source(1, 7, 7))),
        logged_source(barrier(2, split_source(0, 0, 1))),
    ]
    client = Client(UnreachableError("gone", {}, "Wait."))
    found = [
        io_executor(reader(client, chained=chained).partitions(start, end)) for start in starts
    ]
    assert found[0] == [(9, (split_source(0, 50, 90),)), (9, (split_source(1, 7, 10),))]
    assert found[1:] == [found[0]] * 2
    assert client.asked == []


@pytest.mark.parametrize("left", [(split_source(0, 50, 70),), ()], ids=["a part", "nothing"])
def test_a_batch_that_is_run_once_more_reads_what_the_driver_found_left_of_it(
    left: tuple[SplitRange, ...],
) -> None:
    """Its log may have been truncated meanwhile."""
    whole = barrier(9, split_source(0, 50, 90))
    made = reader(chained=False, replayed=replace(whole, splits=left))
    start = made.initialOffset()
    assert io_executor(made.partitions(start, logged_source(whole))) == [
        (9, (part,)) for part in left
    ]
    for later in (barrier(10, split_source(0, 50, 90)), replace(whole, attempt_id=GENERATION + 1)):
        found = io_executor(made.partitions(start, logged_source(later)))
        assert found == [(later.checkpoint_id, (split_source(0, 50, 90),))]


def test_where_all_cores_are_known_few_records_make_no_more_tasks_than_run_at_once() -> None:
    """Each would be a transaction, too. Splits with much to read have a task of their own."""
    made = reader(tasks=2, chained=False, shares=True)
    start = made.initialOffset()
    few = logged_source(
        barrier(
            9,
            split_source(0, 50, 90),
            split_source(1, 7, 10),
            split_source(2, 0, 5),
            split_source(3, 4, 4),
        )
    )
    read = [part for _, hand in io_executor(made.partitions(start, few)) for part in hand]
    assert len(made.partitions(start, few)) == 2
    assert sorted(part.partition for part in read) == [0, 1, 2]
    much = logged_source(barrier(9, *(split_source(number, 0, 200_000) for number in range(3))))
    assert len(made.partitions(start, much)) == 3


def test_start_offsets_once_nothing_is_read_up_to_an_initial_offset_or_between_equal_ones() -> None:
    """Batch 0 is empty, also when Spark replays it; so is a batch that a barrier did not move."""
    made = reader()
    initial = made.initialOffset()
    later = logged_source(barrier(9, split_source(0, 50, 90)))
    assert made.partitions(initial, initial) == []
    assert made.partitions(later, initial) == []
    assert made.partitions(later, dict(later)) == []
    assert made.partitions(initial, logged_source(barrier(9, split_source(0, 90, 90)))) == []


@pytest.mark.parametrize("answer", [None, UnreachableError("no answer", {}, "Wait.")])
def test_start_offsets_once_no_barrier_leaves_spark_where_it_is(answer: Exception | None) -> None:
    """None due, or the coordinator is late: the start unchanged, and Spark runs no batch."""
    made = reader(Client(answer))
    start = made.initialOffset()
    assert made.latestOffset(start, LIMIT) == start
    later = logged_source(barrier(8, split_source(0, 50, 90)))
    assert made.latestOffset(later, LIMIT) == later


def test_a_fenced_region_is_reported_so() -> None:
    """Another life or another coordinator has taken over: the query ends, and does not wait."""
    made = reader(Client(FencedError("another one leads", {}, "Stop.")))
    with pytest.raises(FencedError):
        made.latestOffset(made.initialOffset(), LIMIT)


def test_jobs_that_start_at_once_do_not_look_at_each_others_columns() -> None:
    """A session knows a data source by its name, and the last one that has it: a frame was made
    over what the other job had registered in between, and missed its columns."""
    named = {ddl: probe_for(ddl).name() for ddl in ("value binary", "key binary, value binary")}
    assert len(set(named.values())) == 2
    assert all(probe_for(ddl).name() == name for ddl, name in named.items()), "and grow no list"
