"""What functions count and drop: in the records, bounded, and reported once for each decision."""

import dataclasses
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from pyspark import TaskContext

from sluice import KafkaSink, KafkaSource
from sluice.runtime.checkpoint.format.committable_kinds import installed_kinds
from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    Progress,
    RegionFailed,
)
from sluice.runtime.coordinator.policy.handlers import GlobalCheckpointHandler
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    DropLimitError,
    StreamError,
    UnsupportedFormatError,
)
from sluice.runtime.functions.at_most_once import (
    DropBudget,
    DropLimit,
    Drops,
    decode_drops,
    dropped_in_all,
    drops_after,
    encode_drops,
)
from sluice.runtime.functions.record_counts import decode_totals, encode_totals
from sluice.runtime.graph.job_graph import require_chained
from sluice.runtime.job.job import Job as StartingJob
from sluice.runtime.model.acknowledgement import RecordCounts, RegionTimes, StageTimes
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.model.splits import BatchKey, SplitRange
from sluice.runtime.service.metrics import CheckpointMetrics
from sluice.runtime.service.service_client import CoordinatorAddress
from sluice.runtime.spark.tasks.region_tasks import Chain, RegionTasks, TaskResult, results_of
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver, split
from tests.kit.coordinator.starting_job import Job, record

VERSION_1 = Path(__file__).parents[3] / "data" / "record-counts-v1.json"
COUNTS = RecordCounts(read=12, skipped=3, dead_lettered=2, counters={"rejected": 4})
_ENDS = (State.MARKED, State.ABORTED)
NO_NUMBERS = b'{"read":1,"skipped":0,"dead_lettered":0,"counters":[1]}'


def test_version_1_is_read_for_ever() -> None:
    entry = encode_totals(COUNTS, operator_id="op")
    old = dataclasses.replace(entry, payload=VERSION_1.read_bytes())
    assert decode_totals(old) == COUNTS
    assert json.loads(entry.payload) == json.loads(VERSION_1.read_bytes())


def test_people_see_what_a_record_counts() -> None:
    """`sluice checkpoint inspect`; and a start knows the kind."""
    entry = encode_totals(COUNTS, operator_id="op")
    assert installed_kinds().describe(entry) == {
        "read": 12,
        "skipped": 3,
        "dead_lettered": 2,
        "counters": {"rejected": 4},
    }


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"read":"1"}', NO_NUMBERS])
def test_damaged_counts_are_named(payload: bytes) -> None:
    entry = encode_totals(COUNTS, operator_id="op")
    with pytest.raises(DamagedCheckpointError):
        decode_totals(dataclasses.replace(entry, payload=payload))
    with pytest.raises(UnsupportedFormatError):
        decode_totals(dataclasses.replace(entry, version=2))
    with pytest.raises(ConfigError):
        RecordCounts(read=-1)
    with pytest.raises(ConfigError):
        RecordCounts(counters={"rejected": -1})


def acknowledge(
    driver: CoreDriver,
    end: int,
    *,
    region: str = "main",
    attempt_id: int = 0,
    after_s: float = 0.0,
) -> None:
    """A batch with counts and times, and with totals in its region's record."""
    barrier = driver.poll(end, region=region, attempt_id=attempt_id)
    driver.clock.advance(after_s)
    batch = BatchKey(region=region, attempt_id=attempt_id, batch_id=end)
    ack = driver.acknowledgement(batch, barrier)
    totals = (encode_totals(COUNTS, operator_id="parse"),)
    of_region = dataclasses.replace(ack.region, operator_states=totals)
    stages = StageTimes(read_s=0.5, flush_s=0.25)
    ack = dataclasses.replace(ack, region=of_region, counts={"parse": COUNTS}, stages=stages)
    driver.tell(Acknowledged(ack=ack))


def told(driver: CoreDriver, state: State) -> list[dict[str, RecordCounts]]:
    """Counts of each checkpoint that came so far."""
    reports = driver.seen(Progress)
    return [dict(progress.counts) for progress in reports if progress.state is state]


def test_counts_are_reported_once_for_each_decided_checkpoint() -> None:
    """An epoch that was given up counts when it is read again, once."""
    driver = CoreDriver(FAST)
    driver.tick()
    assert driver.poll(3) is not None
    driver.tell(RegionFailed(region="main", attempt_id=0, error=StreamError("x", {}, "")))
    attempt_id = driver.restart()
    driver.tick(1.0)
    acknowledge(driver, 3, attempt_id=attempt_id)
    driver.tick(1.0)
    acknowledge(driver, 5, attempt_id=attempt_id)
    assert told(driver, State.MARKED) == [{"parse": COUNTS}, {"parse": COUNTS}]


def test_the_times_of_a_region_come_with_the_end_of_its_checkpoint() -> None:
    """Also with an abort: its slow stage may be the reason."""
    driver = CoreDriver(dataclasses.replace(FAST, handler=GlobalCheckpointHandler()), regions=TWO)
    driver.tick()
    acknowledge(driver, 3, after_s=2.0)
    times = RegionTimes(read_s=0.5, flush_s=0.25, acknowledged_s=2.0)
    driver.tick(10.0)
    assert [dict(p.stages) for p in driver.seen(Progress) if p.state in _ENDS] == [{"main": times}]
    assert not any(p.stages for p in driver.seen(Progress) if p.state not in _ENDS)


def test_a_function_that_counted_may_leave_the_job() -> None:
    """No start is refused for counts, unlike for a position or a transaction."""
    (region,) = record(1).regions
    counted = dataclasses.replace(
        region, operator_states=(encode_totals(COUNTS, operator_id="parse"),)
    )
    old = record(1, regions=(counted,))
    assert Job(record(0), old, committed=(0, 1)).start().record.checkpoint_id == 1


def test_metrics_count_what_is_committed_on_record_and_nothing_else() -> None:
    """An aborted attempt's records come again; each state of a checkpoint is reported once."""
    registry = CollectorRegistry()
    metrics = CheckpointMetrics(registry)
    for state in State:
        metrics.on_progress(
            Progress(
                checkpoint_id=1,
                kind=CheckpointKind.CHECKPOINT,
                requested_by="interval",
                state=state,
                counts={"parse": COUNTS},
            )
        )
    found = {
        outcome: registry.get_sample_value(
            "sluice_function_records_total", {"operator": "parse", "outcome": outcome}
        )
        for outcome in ("read", "skipped", "dead_lettered")
    }
    assert found == {"read": 12.0, "skipped": 3.0, "dead_lettered": 2.0}


VERSION_1_DROPPED = Path(__file__).parents[3] / "data" / "dropped-ranges-v1.json"
DROPS = Drops(in_all=42, ranges=(("orders", 0, 10, 20), ("orders", 3, 5, 7)))


# --- on record ------------------------------------------------------------------------------------


def test_version_1_is_read_for_ever_dropped() -> None:
    entry = encode_drops(DROPS, operator_id="op")
    assert decode_drops(dataclasses.replace(entry, payload=VERSION_1_DROPPED.read_bytes())) == DROPS
    assert json.loads(entry.payload) == json.loads(VERSION_1_DROPPED.read_bytes())


def test_people_see_what_was_dropped() -> None:
    """`sluice checkpoint inspect`; and a start knows the kind."""
    found = installed_kinds().describe(encode_drops(DROPS, operator_id="op"))
    assert found == {"in_all": 42, "ranges": DROPS.ranges}


@pytest.mark.parametrize("payload", [b"", b"{}", b'{"in_all":1,"ranges":[["t",0,1]]}'])
def test_damaged_drops_are_named(payload: bytes) -> None:
    entry = encode_drops(DROPS, operator_id="op")
    with pytest.raises(DamagedCheckpointError):
        decode_drops(dataclasses.replace(entry, payload=payload))
    with pytest.raises(UnsupportedFormatError):
        decode_drops(dataclasses.replace(entry, version=2))


def test_the_sum_continues_and_the_ranges_are_those_of_the_epoch() -> None:
    """Nothing stands there before the first drop; the sum stays when nothing is dropped."""
    assert drops_after((), ()) == ()
    first = drops_after((), (split(0, 5, 9), split(1, 0, 3)))
    assert [decode_drops(entry) for entry in first] == [
        Drops(in_all=7, ranges=(("input", 0, 5, 9), ("input", 1, 0, 3)))
    ]
    assert [entry.operator_id for entry in first] == ["source"]
    (second,) = drops_after(first, ())
    assert decode_drops(second) == Drops(in_all=7, ranges=())
    assert dropped_in_all((second, *drops_after((), (split(0, 0, 2),)))) == 9


# --- bounds ---------------------------------------------------------------------------------------


def test_a_checkpoint_drops_no_more_than_its_bound_over_all_regions() -> None:
    budget = DropBudget(DropLimit(per_checkpoint=10), {})
    budget.claim("a", 1, [split(0, 0, 6)])
    with pytest.raises(DropLimitError, match=r"left=4 ranges=input-1:\[0,5\)"):
        budget.claim("b", 1, [split(1, 0, 5)])
    budget.claim("b", 1, [split(1, 0, 4)])
    budget.claim("b", 2, [split(1, 0, 10)])


def test_a_bound_below_what_is_dropped_already_refuses_drops_and_nothing_else() -> None:
    budget = DropBudget(DropLimit(per_checkpoint=10, in_all=50), {"a": 100})
    budget.claim("a", 1, [])
    with pytest.raises(DropLimitError, match="left=0"):
        budget.claim("a", 2, [split(0, 0, 1)])


def test_a_claim_of_a_batch_that_was_given_up_is_gone() -> None:
    budget = DropBudget(DropLimit(per_checkpoint=10, in_all=10), {"a": 0, "b": 0})
    budget.claim("a", 1, [split(0, 0, 10)])
    budget.claim("a", 2, [split(0, 0, 10)])
    budget.restored("a", 0)
    assert budget.left() == 10
    budget.claim("b", 2, [split(1, 0, 7)])
    budget.restored("b", 7)
    assert budget.left() == 3


def test_a_job_drops_no_more_than_its_bound_in_all() -> None:
    budget = DropBudget(DropLimit(per_checkpoint=10, in_all=25), {"a": 5, "gone": 1})
    assert budget.left() == 10
    budget.claim("a", 1, [split(0, 0, 10)])
    budget.committed("a")
    assert budget.left() == 9
    with pytest.raises(DropLimitError):
        budget.claim("a", 2, [split(0, 10, 20)])
    budget.claim("a", 2, [split(0, 10, 19)])
    budget.committed("a")
    assert budget.left() == 0
    budget.claim("a", 3, [])


# --- reported -------------------------------------------------------------------------------------


def acknowledge_dropped(driver: CoreDriver, end: int, *, attempt_id: int = 0) -> None:
    barrier = driver.poll(end, attempt_id=attempt_id)
    batch = BatchKey(region="main", attempt_id=attempt_id, batch_id=end)
    ack = driver.acknowledgement(batch, barrier)
    states = drops_after(driver.core._state.regions["main"].record.operator_states, barrier.splits)  # noqa: SLF001
    of_region = dataclasses.replace(ack.region, operator_states=states)
    driver.tell(
        Acknowledged(ack=dataclasses.replace(ack, region=of_region, dropped=barrier.splits))
    )


def test_drops_are_reported_once_for_each_decided_checkpoint() -> None:
    """To listeners, metrics and in the status; an epoch that was given up has dropped nothing."""
    driver = CoreDriver(dataclasses.replace(FAST, drop_limit=DropLimit(per_checkpoint=10)))
    driver.tick()
    assert driver.poll(3) is not None
    driver.tell(RegionFailed(region="main", attempt_id=0, error=StreamError("x", {}, "")))
    attempt_id = driver.restart()
    driver.tick(1.0)
    acknowledge_dropped(driver, 3, attempt_id=attempt_id)
    driver.tick(1.0)
    acknowledge_dropped(driver, 5, attempt_id=attempt_id)
    reports = driver.seen(Progress)
    marked = [progress.dropped for progress in reports if progress.state is State.MARKED]
    assert marked == [(split(0, 0, 3),), (split(0, 3, 5),)]
    registry = CollectorRegistry()
    metrics = CheckpointMetrics(registry)
    for progress in reports:
        metrics.on_progress(progress)
    assert registry.get_sample_value("sluice_offsets_dropped_total") == 5
    status = driver.status()
    assert (status.regions[0].dropped, status.drop_limit) == (5, DropLimit(per_checkpoint=10))


# --- in a task ------------------------------------------------------------------------------------


class Reader:
    """A source's reader that reports that it was asked."""

    def __init__(self) -> None:
        self.read_splits: list[SplitRange] = []

    def read(self, splits: Any) -> Iterator[pa.RecordBatch]:
        self.read_splits += splits
        yield pa.record_batch({"value": [b"v"]})


def _run(
    attempt: int, *, most: int, monkeypatch: pytest.MonkeyPatch, end: int = 9
) -> tuple[TaskResult, int]:
    context = SimpleNamespace(
        partitionId=lambda: 2, attemptNumber=lambda: attempt, getLocalProperty=lambda _name: "7"
    )
    monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: context))
    reader = Reader()
    tasks = RegionTasks(
        address=CoordinatorAddress(
            address="http://127.0.0.1:1", token="t", leader_session_id="s", job_uid="j"
        ),
        job_uid="j",
        region="main",
        attempt_id=1,
        factories={},
    )
    chain = Chain(tasks=tasks, reader=reader, functions=(), job_name="j", most_dropped=most)
    rows = [
        batch.column("result").to_pylist() for batch in chain.copy_ranges(3, (split(0, 5, end),))
    ]
    return results_of(rows)[0], len(reader.read_splits)


@pytest.mark.parametrize(
    ("attempt", "most", "dropped"),
    [(0, 100, False), (1, 100, True), (3, 4, True), (1, 3, False), (1, 0, False)],
    ids=["first", "second", "just", "too much", "exact"],
)
def test_a_second_attempt_drops_what_it_may_and_reads_what_it_may_not(
    attempt: int, most: int, dropped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, reads = _run(attempt, most=most, monkeypatch=monkeypatch)
    assert (result.dropped, reads) == (dropped, 0 if dropped else 1)
    assert result.ranges == (split(0, 5, 9),)
    assert result.task == f"2.{attempt}"
    assert result.committables == ()


@pytest.mark.parametrize("most", [0, 100])
def test_a_second_attempt_without_offsets_drops_nothing(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have to end windows and to fire timers."""
    result, _ = _run(1, most=most, monkeypatch=monkeypatch, end=5)
    assert not result.dropped


# --- as users say it ------------------------------------------------------------------------------


def _job(**settings: Any) -> StartingJob:
    return StartingJob("j", cast(Any, None), checkpoint_dir="/c", **settings)


def test_approximate_recovery_needs_a_bound_and_nothing_else_takes_one() -> None:
    with pytest.raises(ConfigError, match="max_dropped_records"):
        _job(recovery="approximate")
    with pytest.raises(ConfigError, match="max_dropped_in_all"):
        _job(recovery="single-point", max_dropped_in_all=7)
    for wrong in ({"max_dropped_records": 0}, {"max_dropped_records": 1, "max_dropped_in_all": 0}):
        with pytest.raises(ConfigError, match="out of range"):
            _job(recovery="approximate", **wrong)
    assert _job(recovery="region").spec.settings.drop_limit is None


def test_a_transform_is_refused_by_name() -> None:
    job = _job(recovery="approximate", max_dropped_records=5)
    source = KafkaSource(bootstrap_servers="b:1", topics=["in"], name="orders")
    job.source(source).transform(lambda frame: frame).sink(
        KafkaSink(bootstrap_servers="b:1", topic="out", transactional_id_prefix="p")
    )
    with pytest.raises(ConfigError, match=r"transform.*sources=orders"):
        require_chained(job.spec.pipelines)


def test_keyed_state_is_refused_by_name() -> None:
    """A dropped range would make it wrong for good."""
    job = _job(recovery="approximate", max_dropped_records=5)
    source = KafkaSource(bootstrap_servers="b:1", topics=["in"], name="orders")
    job.source(source).key_by("key", partitioned=True).deduplicate(within="1 m").sink(
        KafkaSink(bootstrap_servers="b:1", topic="out", transactional_id_prefix="p")
    )
    with pytest.raises(ConfigError, match=r"keyed state.*sources=orders"):
        require_chained(job.spec.pipelines)


def test_the_log_names_the_ranges(caplog: pytest.LogCaptureFixture) -> None:
    from sluice.runtime.coordinator.shell.action_dispatcher import _log_failures

    driver = CoreDriver(FAST)
    driver.tick()
    acknowledge_dropped(driver, 3)
    (marked,) = (r for r in driver.seen(Progress) if r.state is State.MARKED)
    with caplog.at_level(logging.WARNING):
        _log_failures(marked)
    assert "offsets=3 ranges=input-0:[0,3)" in caplog.text
