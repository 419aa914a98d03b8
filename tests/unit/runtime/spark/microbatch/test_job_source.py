"""The source of a Job's region as Spark's source runner calls it, without Spark."""

import json
import pickle
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from sluice.runtime.errors import FencedError, UnreachableError
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
from sluice.runtime.spark.microbatch.region_start import initial_offset

GENERATION = 3
LIMIT = ReadAllAvailable()


def split(partition: int, start: int, end: int) -> SplitRange:
    """A range of one partition."""
    return SplitRange(
        source_id="s",
        topic="orders",
        topic_id="id",
        partition=partition,
        start_offset=start,
        end_offset=end,
    )


def barrier(checkpoint_id: int, *splits: SplitRange) -> Barrier:
    """The cut of a checkpoint."""
    return Barrier(checkpoint_id=checkpoint_id, region="main", attempt_id=GENERATION, splits=splits)


def logged(cut: Barrier) -> dict[str, Any]:
    """The offset of a cut, as it comes back out of Spark's log."""
    found: dict[str, Any] = json.loads(json.dumps(offsets.encode(cut)))
    return found


RESTORED = RegionRecord(
    region="main", attempt_id=2, batch_id=4, splits=(split(0, 40, 50), split(1, 7, 7))
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
    client = Client(barrier(8, split(0, 50, 90)))
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
    end = logged(barrier(9, split(0, 50, 90), split(1, 7, 10)))
    starts = [
        reader().initialOffset(),
        logged(barrier(8, split(0, 40, 50), split(1, 7, 7))),
        logged(barrier(2, split(0, 0, 1))),
    ]
    client = Client(UnreachableError("gone", {}, "Wait."))
    found = [
        io_executor(reader(client, chained=chained).partitions(start, end)) for start in starts
    ]
    assert found[0] == [(9, (split(0, 50, 90),)), (9, (split(1, 7, 10),))]
    assert found[1:] == [found[0]] * 2
    assert client.asked == []


@pytest.mark.parametrize("left", [(split(0, 50, 70),), ()], ids=["a part", "nothing"])
def test_a_batch_that_is_run_once_more_reads_what_the_driver_found_left_of_it(
    left: tuple[SplitRange, ...],
) -> None:
    """Its log may have been truncated meanwhile."""
    whole = barrier(9, split(0, 50, 90))
    made = reader(chained=False, replayed=replace(whole, splits=left))
    start = made.initialOffset()
    assert io_executor(made.partitions(start, logged(whole))) == [(9, (part,)) for part in left]
    for later in (barrier(10, split(0, 50, 90)), replace(whole, attempt_id=GENERATION + 1)):
        found = io_executor(made.partitions(start, logged(later)))
        assert found == [(later.checkpoint_id, (split(0, 50, 90),))]


def test_a_chained_batch_has_as_many_tasks_as_the_plan_says() -> None:
    """One that Spark processes has a task for each split, as with its own source."""
    end = logged(barrier(9, split(0, 50, 90), split(1, 7, 10), split(2, 0, 5)))
    start = reader().initialOffset()
    assert len(reader(tasks=2).partitions(start, end)) == 2
    assert len(reader(tasks=2, chained=False).partitions(start, end)) == 3


def test_where_all_cores_are_known_few_records_make_no_more_tasks_than_run_at_once() -> None:
    """Each would be a transaction, too. Splits with much to read have a task of their own."""
    made = reader(tasks=2, chained=False, shares=True)
    start = made.initialOffset()
    few = logged(barrier(9, split(0, 50, 90), split(1, 7, 10), split(2, 0, 5), split(3, 4, 4)))
    read = [part for _, hand in io_executor(made.partitions(start, few)) for part in hand]
    assert len(made.partitions(start, few)) == 2
    assert sorted(part.partition for part in read) == [0, 1, 2]
    much = logged(barrier(9, *(split(number, 0, 200_000) for number in range(3))))
    assert len(made.partitions(start, much)) == 3


def test_start_offsets_once_nothing_is_read_up_to_an_initial_offset_or_between_equal_ones() -> None:
    """Batch 0 is empty, also when Spark replays it; so is a batch that a barrier did not move."""
    made = reader()
    initial = made.initialOffset()
    later = logged(barrier(9, split(0, 50, 90)))
    assert made.partitions(initial, initial) == []
    assert made.partitions(later, initial) == []
    assert made.partitions(later, dict(later)) == []
    assert made.partitions(initial, logged(barrier(9, split(0, 90, 90)))) == []


def test_latest_offset_is_the_barrier_that_is_due() -> None:
    """Asked for this region's run alone; whole, so that the batch needs nothing else
    (`restore-by-attempt`)."""
    due = barrier(8, split(0, 50, 90))
    client = Client(due)
    made = reader(client)
    assert offsets.decode(made.latestOffset(made.initialOffset(), LIMIT)) == due
    assert client.asked == [("main", GENERATION)]


@pytest.mark.parametrize("answer", [None, UnreachableError("no answer", {}, "Wait.")])
def test_start_offsets_once_no_barrier_leaves_spark_where_it_is(answer: Exception | None) -> None:
    """None due, or the coordinator is late: the start unchanged, and Spark runs no batch."""
    made = reader(Client(answer))
    start = made.initialOffset()
    assert made.latestOffset(start, LIMIT) == start
    later = logged(barrier(8, split(0, 50, 90)))
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
