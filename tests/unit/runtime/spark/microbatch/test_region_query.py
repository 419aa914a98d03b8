"""The query of a region, from its start."""

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from sluice.runtime.contracts import WriterFactory
from sluice.runtime.errors import (
    DamagedCheckpointError,
    DeliveryError,
    FencedError,
    StorageUnreachableError,
    StreamError,
)
from sluice.runtime.functions.at_most_once import DropBudget, DropLimit
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.functions.split_clocks import SplitClocks
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.graph.pipeline import Pipeline
from sluice.runtime.keyed.kept_state import KeyedBatchResult
from sluice.runtime.model import offsets
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.checkpoint_record import CheckpointRecord, RegionRecord, StateSnapshot
from sluice.runtime.model.event_time import EventTime, Monotonic
from sluice.runtime.model.splits import Barrier, BatchKey
from sluice.runtime.model.state.keyed_state import Due, KeyedState
from sluice.runtime.spark.microbatch.event_times import EventTimes
from sluice.runtime.spark.microbatch.region_start import (
    delete_vanished,
    location_of,
    make_ready,
    replayed,
    require_rewindable,
)
from sluice.runtime.spark.microbatch.spark_state import StateDescriber
from sluice.runtime.spark.tasks.region_tasks import TaskResult
from sluice.runtime.storage.file_system import Entry
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.coordinator.region_simulation import (
    Answers,
    CountingWriter,
    RegionWorld,
    barrier,
    split,
    written,
)
from tests.kit.fakes import ManualClock
from tests.kit.files.fake_file_system import Disk, FakeFileSystem

KEY = BatchKey(region="main", attempt_id=3, batch_id=1)


def test_callback_after_commit_the_callback_returns_once_its_batch_is_committed_on_record() -> None:
    """Its return makes Spark write its commit log."""
    world = RegionWorld()
    assert world.batch(1, barrier()).runs == 1
    assert world.coordinator.told == [("acknowledged", KEY), ("committed", KEY)]


@pytest.mark.parametrize("repeats", [True, False])
def test_a_whole_result_that_a_timeout_may_have_changed_is_written(repeats: bool) -> None:
    """In a batch without records; where records alone change it, it would be the same again."""
    world = RegionWorld(mode="complete", repeats_result=repeats)
    quiet = replace(barrier(), splits=(split(5, 5),))
    batch = world.batch(1, quiet)
    assert (batch.runs, batch.is_hidden) == (1, repeats)
    assert not world.batch(2, barrier(8)).is_hidden, "records have come"


def test_ids_never_reused_sink_tasks_of_a_transform_share_no_worker_with_readers() -> None:
    """Spark keys its workers by their environment; each with a sink task keeps ids."""
    batch = RegionWorld().batch(1, barrier())
    assert batch.sink_environment
    assert not batch.sparkSession.sparkContext.environment


def test_callback_after_commit_the_callback_raises_when_its_batch_is_not_committed() -> None:
    """Briefly, for Spark; the typed error is kept and reported."""
    world = RegionWorld()
    refusal = world.coordinator.refusal = FencedError("not wanted", {}, "Restart.")
    with pytest.raises(RuntimeError, match=r"^region main: FencedError$"):
        world.batch(1, barrier())
    assert world.coordinator.told[-1] == ("failed", refusal)
    assert world.query.failure() is refusal


def _of_a_worker() -> RuntimeError:
    return RuntimeError(
        "\n  An exception was thrown from the Python worker.\nTraceback (most recent call last):\n"
        '  File "f.py", line 1, in f\nValueError: not this time\n'
    )


def test_what_a_function_raised_is_an_error_of_its_region_as_in_the_other_engine() -> None:
    world, error = RegionWorld(), _of_a_worker()
    with pytest.raises(RuntimeError, match=r"^region main: RuntimeError$"):
        world.batch(1, barrier(), error=error)
    found = world.query.failure()
    assert world.coordinator.told[-1] == ("failed", found)
    assert type(found) is StreamError
    assert "[region=main attempt_id=3 error=ValueError: not this time " in str(found)
    assert "raised_at=f.py:1 in f source_ranges=in-0[3,5) " in str(found)
    assert found.__cause__ is error


def test_a_refused_record_of_a_transform_has_the_ranges_of_its_epoch() -> None:
    """Its task sees rows of Spark's plan, without their ranges."""
    world = RegionWorld()
    error = DeliveryError("Kafka: refused", {"code": "INVALID_TIMESTAMP"}, "Clamp it.")
    with pytest.raises(RuntimeError, match="DeliveryError"):
        world.batch(1, barrier(), error=error)
    assert error.args[1]["source_ranges"] == "in-0[3,5)"


def test_late_rows_are_counted_for_each_epoch_and_are_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says how far the watermark is ahead: one record from the future makes all others late."""
    told = iter([(3, 90_000), (0, 0), (2, 90_000)])
    module = "sluice.runtime.spark.microbatch.region_query"
    monkeypatch.setattr(f"{module}.late_rows", lambda _: next(told))
    monkeypatch.setattr(f"{module}.wants_another", lambda *_: False)
    monkeypatch.setattr(StateDescriber, "after", lambda *_: None)
    world = RegionWorld(stateful=True)
    for batch_id in (1, 2, 3):
        world.batch(batch_id, barrier(6 + batch_id))
    assert [counts.get("windows") for counts in world.coordinator.counts] == [
        RecordCounts(late=3),
        None,
        RecordCounts(late=2),
    ]
    assert [m for m in caplog.messages if "later than the watermark" in m] == [
        "Spark dropped rows that are later than the watermark; raise its delay, or filter "
        "timestamps from the future before withWatermark: region=main operator=windows rows=3 "
        "watermark=1970-01-01T00:01:30+00:00 ahead_of_clock_s=90"
    ]


def test_what_ends_a_query_between_two_batches_is_an_error_of_its_region() -> None:
    """Spark reports it when it is asked; without an end there is no error."""
    world = RegionWorld()
    assert world.query.failure() is None
    world.frame.error = _of_a_worker()
    found = world.query.failure()
    assert type(found) is StreamError
    assert "region=main attempt_id=3 error=ValueError: not this time" in str(found)
    assert found.__cause__ is world.frame.error


def test_a_process_that_is_reported_to_end_is_no_failed_batch() -> None:
    world, end = RegionWorld(), cast(Exception, KeyboardInterrupt())
    with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
        world.batch(1, barrier(), error=end)
    assert world.query.failure() is end


def test_callback_after_commit_what_a_stop_raises_is_no_failure() -> None:
    """The callback is woken by it, and must not return normally."""
    world = RegionWorld()
    world.coordinator.refusal = FencedError("stopped", {}, "Restart.")
    world.query.prepare_stop()
    with pytest.raises(RuntimeError):
        world.batch(1, barrier())
    assert ("failed", world.coordinator.refusal) not in world.coordinator.told
    assert world.query.error is None


@pytest.mark.parametrize(("stateful", "noops"), [(False, 0), (True, 1)])
def test_batch_identity_and_stateful_replay_a_replay_of_a_decided_batch_writes_nothing(
    stateful: bool, noops: int
) -> None:
    """It is known by its batch id, whatever checkpoint its offset hints at; state runs whole."""
    world = RegionWorld(stateful=stateful)
    world.coordinator.decided.add(KEY)
    replayed = world.batch(1, barrier(checkpoint_id=99))
    assert (replayed.runs, replayed.noops) == (0, noops)
    assert world.coordinator.told == []
    assert world.query.registration().replayed is None, "it is over"


def test_callback_after_commit_no_replay_of_state_returns_after_a_newer_run_has_begun() -> None:
    """Spark would log the batch. The newer run may have gone back, and have another batch there."""
    world = RegionWorld(stateful=True)
    world.coordinator.decided.add(KEY)
    world.coordinator.refusal = FencedError("taken over", {}, "Keep the newer run.")
    with pytest.raises(RuntimeError, match="FencedError"):
        world.batch(1, barrier())
    assert world.coordinator.told == [("failed", world.coordinator.refusal)]


@pytest.mark.parametrize(
    ("chained", "sinks", "mapped"), [(True, 1, 0), (False, 1, 1), (False, 0, 0)]
)
def test_rows_on_their_way_into_files_are_written_by_the_other_sinks_once(
    chained: bool, sinks: int, mapped: int
) -> None:
    """A chained task has written them as it read them: once more, each would be there twice."""
    told = TaskResult(ranges=barrier().splits, records_out=5, task="0.0")
    world = RegionWorld(
        files=CountingWriter(rows=5),
        chained=chained,
        answers=(told,),
        factories=dict.fromkeys(["kafka"][:sinks], cast(WriterFactory, object())),
    )
    assert world.batch(1, barrier()).mapped == mapped
    assert ("acknowledged", KEY) in world.coordinator.told


def test_a_batch_that_leaves_out_more_than_it_may_is_not_acknowledged() -> None:
    world = RegionWorld(chained=True, drops=DropBudget(DropLimit(per_checkpoint=2), {}))
    world.batch(1, barrier(), results=(TaskResult(ranges=barrier().splits, dropped=True),))
    more = replace(barrier(8), splits=(split(5, 8),))
    with pytest.raises(RuntimeError, match="DropLimitError"):
        world.batch(2, more, results=(TaskResult(ranges=more.splits, dropped=True),))
    told = cast(list[tuple[str, Any]], world.coordinator.told)
    assert [key for what, key in told if what == "acknowledged"] == [KEY]


@pytest.mark.parametrize("rows", [4, 5])
def test_a_batch_whose_files_hold_other_rows_than_its_tasks_answer_for_is_not_acknowledged(
    rows: int,
) -> None:
    """Spark logs an answer that it could not deliver, and calls the task done: its transaction
    would be in no decision."""
    told = TaskResult(ranges=barrier().splits, records_out=5, task="0.0")
    world = RegionWorld(files=CountingWriter(rows=rows), chained=True, answers=(told,))
    if rows == 5:
        world.batch(1, barrier())
    else:
        with pytest.raises(RuntimeError, match="IllegalTransitionError"):
            world.batch(1, barrier())
    assert (("acknowledged", KEY) in world.coordinator.told) is (rows == 5)


@pytest.mark.parametrize("error", [None, OSError("Spark's JVM is away")])
def test_an_attempt_that_was_stopped_holds_no_files_open(error: Exception | None) -> None:
    """Also where Spark does not answer any more: its successor has writers of its own."""
    writer = CountingWriter()
    world = RegionWorld(files=writer)
    with (
        patch("sluice.runtime.spark.microbatch.region_query.stop_query", side_effect=error) as stop,
        nullcontext() if error is None else pytest.raises(OSError, match="is away"),
    ):
        world.query.stop()
    stop.assert_called_once()
    assert writer.closed == 1


@pytest.mark.parametrize("is_logged", [True, False])
def test_a_stop_waits_for_sparks_log_of_the_last_batch_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, *, is_logged: bool
) -> None:
    """It would interrupt it, loudly; a Spark that never writes it must not hold up the end."""
    world, clock = RegionWorld(), ManualClock()
    world.batch(1, barrier())

    def sleep(seconds: float) -> None:
        clock.advance(seconds)
        assert clock.now_s < began_s + 60.0, "it waits for ever"
        if is_logged and clock.now_s > began_s + 1.0:
            world.disk.files["spark/main/3/commits/1"] = b"v1\n{}"

    began_s, times = clock.now_s, SimpleNamespace(monotonic=clock, sleep=sleep)
    monkeypatch.setattr("sluice.runtime.spark.microbatch.query_end.time", times)
    with patch("sluice.runtime.spark.microbatch.region_query.stop_query") as stop:
        world.query.stop()
    stop.assert_called_once()
    assert clock.now_s - began_s == pytest.approx(1.0 if is_logged else 5.0, abs=0.1)


@pytest.mark.parametrize("error", [None, StorageUnreachableError("away", {}, "Start it.")])
def test_a_next_attempt_has_to_be_able_to_stage_its_files(error: StreamError | None) -> None:
    """They may lie on another file system than the checkpoints; nothing of it stays open."""
    writer = CountingWriter(error=error)
    world = RegionWorld(files=writer)
    before = dict(world.disk.files)
    with nullcontext() if error is None else pytest.raises(StorageUnreachableError):
        world.query.require_writable()
    assert writer.asked == [("j", "files")]
    assert writer.closed == 1
    assert world.disk.files == before


def test_start_offsets_once_the_empty_first_batch_needs_no_decision() -> None:
    """It only lets Spark log the starting position."""
    world = RegionWorld()
    assert world.batch(0, barrier(), initial=True).runs == 0
    assert world.coordinator.told == []


def test_restore_by_attempt_an_undecided_batch_of_an_earlier_attempt_is_never_written() -> None:
    """It should have been rewound; its range belongs to the new attempt's own barriers."""
    world = RegionWorld()
    with pytest.raises(RuntimeError, match="FencedError"):
        world.batch(1, barrier(attempt_id=2))
    assert [what for what, _ in cast(list[Any], world.coordinator.told)] == ["failed"]


def test_a_writer_gets_its_state_of_the_last_decided_record() -> None:
    writer = CountingWriter()
    world = RegionWorld(files=writer, restored=(written("files", 9), written("other", 1)))
    world.coordinator.refusal = FencedError("not wanted", {}, "Restart.")
    with pytest.raises(RuntimeError):
        world.batch(1, barrier())
    world.coordinator.refusal = None
    world.batch(1, barrier())
    world.batch(2, barrier(8))
    assert writer.given == [(written("files", 9),)] * 2 + [(written("files", 2),)]
    assert world.coordinator.region is not None
    assert world.coordinator.region.operator_states == (written("files", 3),)


def test_transaction_timeout_a_batch_must_be_decided_before_its_first_transaction_grows_old() -> (
    None
):
    world = RegionWorld()
    told = tuple(TaskResult(decide_by_s=moment_s) for moment_s in (900.0, 100.0, None))
    world.batch(1, barrier(), results=told)
    assert world.coordinator.decide_by_s == 100.0
    world.batch(2, barrier(8), results=(TaskResult(),))
    assert world.coordinator.decide_by_s is None


@pytest.mark.parametrize(("silent_ms", "expected"), [(0, 5), (59_999, 5), (60_000, 7)])
@pytest.mark.parametrize("lasts_ms", [1_000, 61_000])
def test_only_silence_that_the_cut_has_seen_makes_a_split_idle(
    silent_ms: int, expected: int, lasts_ms: int
) -> None:
    told = EventTimes(
        settings=EventTime("kafka", idle_after="1 m"), reported=cast(Any, Answers(value={}))
    )
    world = RegionWorld(event_times=told)
    world.now_ms = 1_000_000
    busy = replace(split(3, 5), watermark_ms=7)
    empty = replace(
        split(9, 9), partition=1, watermark_ms=5, idle_since_ms=world.now_ms - silent_ms
    )
    world.batch(1, replace(barrier(), splits=(busy, empty)), lasts_ms=lasts_ms)
    assert world.coordinator.region is not None
    assert world.coordinator.region.least_watermark_ms == expected


def test_a_batch_has_the_times_that_its_tasks_observed_and_its_barriers_watermark() -> None:
    """A range that no task read keeps its times; times on record never go back."""
    time = EventTime("at", strategy=Monotonic(), idle_after="1 m")
    clocks = SplitClocks(time, lambda rows: rows["at"])
    observing = ChainedFunction(name="time", operator_id="t", function=clocks)
    world = RegionWorld(functions=(observing,), chained=True)
    first, second = split(3, 5), replace(split(9, 9), partition=1, watermark_ms=7)
    told = replace(first, watermark_ms=40, largest_timestamp_ms=40)
    keyed = KeyedBatchResult(state=KeyedState(), due=Due(), key_samples=())
    world.batch(
        1,
        replace(
            barrier(), splits=(first, second), watermark_ms=5, new_state=KeyedState(), time_ms=1
        ),
        results=(TaskResult(ranges=(first, second), times=(told,), keyed=keyed),),
    )
    region = world.coordinator.region
    assert region is not None
    assert [(s.watermark_ms, s.barrier_watermark_ms) for s in region.splits] == [(40, 5), (7, 5)]
    assert region.least_watermark_ms == 7


def test_a_batch_of_a_keyed_region_without_splits_is_acknowledged_with_no_state() -> None:
    """Its sinks or the end of the job may want a batch, which has no tasks then."""
    world = RegionWorld(chained=True)
    world.batch(1, replace(barrier(), splits=(), new_state=KeyedState()), results=())
    assert world.coordinator.region is not None
    assert world.coordinator.region.keyed_state == KeyedState()


def test_a_batch_whose_tasks_bring_no_keyed_state_has_none() -> None:
    """The coordinator refuses it. With the state of before, windows would be lost in silence."""
    world = RegionWorld(chained=True)
    asked = replace(barrier(), new_state=KeyedState(), time_ms=1)
    world.batch(1, asked, results=(TaskResult(ranges=asked.splits),))
    assert world.coordinator.region is not None
    assert world.coordinator.region.keyed_state is None


LOCATION = "spark/main/3"


def logs(*batches: int) -> dict[str, bytes]:
    """Spark's logs of these batches, and a state file."""
    offset = offsets.encode(Barrier(checkpoint_id=1, region="main", attempt_id=2, splits=()))
    entry = "\n".join(["v2", "{}", f"source_s:{json.dumps(offset)}"]).encode()
    names = [*(f"commits/{batch}" for batch in batches), "metadata", "state/0/1.zip"]
    found = dict.fromkeys(names, b"x") | {f"offsets/{batch}": entry for batch in batches}
    return {f"spark/main/state/{name}": data for name, data in found.items()}


def state_at(location: str) -> StateSnapshot:
    return StateSnapshot(
        provider="rocksdb",
        checkpoint_format_version=2,
        state_version=10,
        state_partitions=1,
        location=f"{location}/state",
    )


def region(*, stateful: bool) -> Region:
    return Region(
        name="main", pipeline=cast(Pipeline, None), source_id="s", sinks={}, stateful=stateful
    )


def restored(batch_id: int | None) -> RegionRecord:
    return RegionRecord(region="main", attempt_id=2, batch_id=batch_id)


def test_restore_by_attempt_a_stateful_regions_logs_are_rewound_to_the_decision() -> None:
    disk = Disk()
    disk.files |= logs(8, 9, 10, 11)
    location = "spark/main/state"
    make_ready(FakeFileSystem(disk), region(stateful=True), location, restored(9), attempt_id=3)
    assert disk.files == logs(8, 9)


def test_restore_by_attempt_a_checkpoint_whose_batch_is_not_in_sparks_log_any_more_cannot_be_restored() -> (
    None
):
    """An earlier restore has removed it; of regions without state the record alone says all."""
    disk = Disk()
    disk.files |= logs(8, 9)
    fs, made = FakeFileSystem(disk), region(stateful=True)

    def of_batch(batch_id: int | None) -> CheckpointRecord:
        state = None if batch_id is None else state_at("spark/main/state")
        return record(regions=(replace(restored(batch_id), state=state),))

    for batch_id in (9, None):
        require_rewindable(fs, [made], of_batch(batch_id))
    require_rewindable(fs, [region(stateful=False)], of_batch(11))
    with pytest.raises(DamagedCheckpointError, match="does not hold the offset"):
        require_rewindable(fs, [made], of_batch(11))
    assert disk.files == logs(8, 9)


def test_a_decided_batch_that_spark_has_not_noted_as_done_is_run_once_more() -> None:
    """The last attempt ended between the decision and Spark's own log. One without state begins in a
    directory of its own, and so does one before its first decision: nothing is run again there."""
    disk = Disk()
    disk.files |= logs(8, 9)
    fs, location, made = FakeFileSystem(disk), "spark/main/state", region(stateful=True)
    assert replayed(fs, made, location, restored(9)) is None
    fs.delete(f"{location}/commits/9")
    again = replayed(fs, made, location, restored(9))
    assert again == Barrier(checkpoint_id=1, region="main", attempt_id=2, splits=())
    assert replayed(fs, made, location, restored(8)) is None
    assert replayed(fs, made, location, restored(None)) is None
    assert replayed(fs, region(stateful=False), location, restored(9)) is None


@pytest.mark.parametrize(("stateful", "batch_id"), [(False, 9), (True, None)])
def test_restore_by_attempt_without_decided_state_nothing_of_an_older_attempt_is_left(
    stateful: bool, batch_id: int | None
) -> None:
    """A stateless region's place is in the record alone."""
    disk = Disk()
    disk.files |= logs(8, 9) | {"chk-000000000001/_metadata": b"kept"}
    made = region(stateful=stateful)
    make_ready(FakeFileSystem(disk), made, "spark/main/state", restored(batch_id), attempt_id=3)
    assert list(disk.files) == ["chk-000000000001/_metadata"]


def test_restore_by_attempt_an_attempt_before_the_first_decision_has_a_directory_of_its_own() -> (
    None
):
    """One that slept deletes its own and older ones; a newer one's stays, also with nothing in its
    log yet. From the first decision on the place is that of the state that is on record."""
    made = region(stateful=True)
    assert location_of(made, restored(None), attempt_id=3) == "spark/main/state-3"
    decided = replace(restored(9), state=state_at("spark/main/state-3"))
    assert location_of(made, decided, attempt_id=7) == "spark/main/state-3"

    disk = Disk()
    disk.files |= {f"spark/main/state-{number}/metadata": b"x" for number in (2, 3)}

    class Slept(FakeFileSystem):
        def delete(self, path: str) -> None:
            disk.files["spark/main/state-9/metadata"] = b"x"
            super().delete(path)

    make_ready(Slept(disk), made, "spark/main/state-3", restored(None), attempt_id=3)
    assert set(disk.files) == {"spark/main/state-9/metadata"}
    with pytest.raises(FencedError):
        make_ready(FakeFileSystem(disk), made, "spark/main/state-3", restored(None), attempt_id=3)


def test_logs_of_regions_that_are_no_more_are_deleted() -> None:
    """A job that is started with other numbers of regions would gather them for ever."""
    disk = Disk()
    disk.files |= {f"spark/{name}/3/offsets/1": b"" for name in ("main", "main-0", "main-1")}
    delete_vanished(FakeFileSystem(disk), {"main"}, attempt_id=3)
    assert set(disk.files) == {"spark/main/3/offsets/1"}


@pytest.mark.parametrize("batch_id", [9, None])
def test_restore_by_attempt_a_run_that_was_taken_over_leaves_the_newer_ones_state_alone(
    batch_id: int | None,
) -> None:
    disk = Disk()
    disk.files |= logs(9, 10, 11)
    before = dict(disk.files)
    with pytest.raises(FencedError, match=r"newer run.*If there is none, checkpoints were deleted"):
        make_ready(
            FakeFileSystem(disk),
            region(stateful=True),
            "spark/main/state",
            restored(batch_id),
            attempt_id=1,
        )
    assert disk.files == before


def test_restore_by_attempt_a_run_that_was_taken_over_deletes_older_lives_alone() -> None:
    """The newer run's query would fail without its log."""
    disk = Disk()
    attempts = {number: f"spark/main/{number}/offsets/1" for number in (2, 3, 4)}
    disk.files |= dict.fromkeys(attempts.values(), b"x") | logs(1)
    fs = FakeFileSystem(disk)
    make_ready(fs, region(stateful=False), "spark/main/3", restored(1), attempt_id=3)
    assert set(disk.files) == {attempts[4]}
    delete_vanished(fs, set(), attempt_id=3)
    assert set(disk.files) == {attempts[4]}
    delete_vanished(fs, set(), attempt_id=4)
    assert not disk.files


def test_restore_by_attempt_an_attempt_that_begins_while_older_ones_are_listed_keeps_its_logs() -> (
    None
):
    """The one that lists may sleep before it deletes."""
    disk = Disk()
    disk.files["spark/main/3/offsets/1"] = b"x"

    class Slept(FakeFileSystem):
        def entries(self, path: str) -> list[Entry]:
            found = super().entries(path)
            disk.files["spark/main/4/offsets/1"] = b"x"
            return found

    make_ready(Slept(disk), region(stateful=False), LOCATION, restored(1), attempt_id=3)
    assert set(disk.files) == {"spark/main/4/offsets/1"}
