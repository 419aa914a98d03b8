"""A region's batch callback as Spark calls it."""

import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from runtime import offsets
from runtime.checkpoint.failures import PERMANENT_ERRORS
from runtime.contracts import (
    AttemptRegistry,
    Coordinator,
    FrameWriter,
    RegionRegistration,
    StagedFrame,
    TaskScope,
)
from runtime.counts import decode_totals
from runtime.errors import ConfigError, FencedError, PoisonRecordsError, StreamError
from runtime.event_time import EventTime
from runtime.model import (
    Acknowledgement,
    Barrier,
    BatchKey,
    RecordCounts,
    Redistribution,
    RegionRecord,
    SplitRange,
    StateEntry,
)
from runtime.on_error import DeadLetters
from runtime.poison import ChainedFunction
from runtime.service.client import CoordinatorAddress
from runtime.spark.event_times import EventTimes
from runtime.spark.passing import Passing
from runtime.spark.region import RegionQuery, RegionSpec
from runtime.spark.tasks import RegionTasks, TaskResult
from tests.fake_file_system import Disk, FakeFileSystem

LOCATION = "spark/main/3"
ADDRESS = CoordinatorAddress(address="http://x", token="t", leader_session_id="s", job_uid="j")


@dataclass
class Context:
    """Spark's context: what the environment of a Python function is copied from."""

    environment: dict[str, str] = field(default_factory=dict)

    def getLocalProperty(self, key: str) -> str:
        return "run"

    def statusTracker(self) -> "Context":
        return self

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return []


@dataclass
class Session:
    """Spark's session, as far as it is asked."""

    sparkContext: Context = field(default_factory=Context)


@dataclass
class Batch:
    """The frame that Spark hands to the callback; counts what is run of it."""

    results: tuple[TaskResult, ...] = (TaskResult(),)
    runs: int = 0
    noops: int = 0
    is_hidden: bool = False
    error: Exception | None = None
    on_run: Callable[[], None] = lambda: None
    sparkSession: Session = field(default_factory=Session)
    sink_environment: dict[str, str] = field(default_factory=dict)

    def where(self, condition: str) -> "Batch":
        self.is_hidden = True  # the one condition is that of `without_rows`
        return self

    def mapInArrow(self, task: object, schema: str) -> "Batch":
        self.sink_environment = dict(self.sparkSession.sparkContext.environment)
        return self

    def collect(self) -> list[list[bytes]]:
        self.runs += 1
        self.on_run()
        if self.error is not None:
            raise self.error
        return [[pickle.dumps(result)] for result in self.results]

    @property
    def write(self) -> "Batch":
        return self

    def format(self, name: str) -> "Batch":
        assert name == "noop"
        return self

    def mode(self, name: str) -> "Batch":
        return self

    def save(self) -> None:
        self.noops += 1


@dataclass
class Frame:
    """The region's frame, and the query that it becomes; keeps the callback."""

    id: str = "query-id"
    isActive: bool = True
    error: Exception | None = None
    callback: Callable[[DataFrame, int], None] = field(default=lambda *_: None)

    @property
    def writeStream(self) -> "Frame":
        return self

    def foreachBatch(self, callback: Callable[[DataFrame, int], None]) -> "Frame":
        self.callback = callback
        return self

    def queryName(self, name: str) -> "Frame":
        return self

    def outputMode(self, mode: str) -> "Frame":
        return self

    def option(self, name: str, value: str) -> "Frame":
        return self

    def start(self) -> "Frame":
        return self

    def exception(self) -> Exception | None:
        return self.error


@dataclass
class CountingWriter:
    """A frame writer whose state is how many frames it has written."""

    given: list[tuple[StateEntry, ...]] = field(default_factory=list)

    def write(self, frame: object, scope: TaskScope, registry: AttemptRegistry) -> StagedFrame:
        self.given.append(scope.operator_states)
        return StagedFrame(rows=0, operator_states=(written("files", len(self.given)),))

    def require_writable(self, *, job_uid: str, operator_id: str) -> None:
        """Always."""

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class Answers:
    """An accumulator that no task adds to."""

    value: Any = field(default_factory=list)


@dataclass
class Decisions:
    """A coordinator that commits at once, or says why not."""

    decided: set[BatchKey] = field(default_factory=set)
    told: list[object] = field(default_factory=list)
    refusal: StreamError | None = None
    region: RegionRecord | None = None
    counts: list[Mapping[str, RecordCounts]] = field(default_factory=list)
    decide_by_s: float | None = None
    registered: list[RegionRegistration] = field(default_factory=list)

    def is_committed(self, batch: BatchKey) -> bool:
        raise NotImplementedError

    def is_decided(self, batch: BatchKey) -> bool:
        return batch in self.decided

    def acknowledge(self, ack: Acknowledgement) -> None:
        self.region = ack.region
        self.decide_by_s = ack.decide_by_s
        self.counts.append(ack.counts)
        self.told.append(("acknowledged", ack.batch))

    def await_committed(self, batch: BatchKey, *, timeout_s: float | None = None) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.told.append(("committed", batch))

    def register_region(self, registration: RegionRegistration) -> None:
        self.registered.append(registration)

    def fail(self, region: str, generation: int, error: BaseException) -> None:
        self.told.append(("failed", error))


def split(start: int, end: int) -> SplitRange:
    return SplitRange(
        source_id="s", topic="in", topic_id="id", partition=0, start_offset=start, end_offset=end
    )


def written(operator_id: str, count: int) -> StateEntry:
    return StateEntry(
        operator_id=operator_id,
        state_name="count",
        kind="count",
        version=1,
        redistribution=Redistribution.SPLIT,
        payload=b"%d" % count,
    )


def barrier(checkpoint_id: int = 7, *, generation: int = 3) -> Barrier:
    return Barrier(
        checkpoint_id=checkpoint_id, region="main", generation=generation, splits=(split(3, 5),)
    )


class World:
    """One region whose query has started."""

    def __init__(
        self,
        *,
        stateful: bool = False,
        mode: str = "update",
        repeats_result: bool = False,
        files: CountingWriter | None = None,
        restored: tuple[StateEntry, ...] = (),
        functions: tuple[ChainedFunction, ...] = (),
        event_times: EventTimes | None = None,
    ) -> None:
        self.now_ms = 0
        self.disk = Disk()
        self.coordinator = Decisions()
        self.frame = Frame()
        tasks = RegionTasks(address=ADDRESS, job_uid="j", region="main", generation=3, factories={})
        spec = RegionSpec(
            tasks=tasks,
            location=LOCATION,
            source_name="source_s",
            chained=False,
            stateful=stateful,
            output_mode=mode,
            repeats_result=repeats_result,
            files={} if files is None else {"files": cast(FrameWriter, files)},
            passing=None if files is None else Passing(columns=None, answers=cast(Any, Answers())),
            operator_states=restored,
            functions=functions,
            event_times=event_times,
        )
        fs = FakeFileSystem(self.disk, uri="file:///checkpoints")
        self.query = RegionQuery(
            spec, cast(Coordinator, self.coordinator), fs, wall_ms=lambda: self.now_ms
        )
        self.query.start(cast(DataFrame, self.frame))

    def batch(
        self,
        batch_id: int,
        given: Barrier,
        *,
        initial: bool = False,
        results: tuple[TaskResult, ...] = (TaskResult(),),
        error: Exception | None = None,
        lasts_ms: int = 0,
    ) -> Batch:
        """Spark logs the offset, then calls back."""
        offset = json.dumps(offsets.encode(given, initial=initial))
        entry = f"v2\n{{}}\nsource_s:{offset}"
        self.disk.files[f"{LOCATION}/offsets/{batch_id}"] = entry.encode()
        made = Batch(results=results, error=error, on_run=lambda: self._pass(lasts_ms))
        self.frame.callback(cast(DataFrame, made), batch_id)
        return made

    def _pass(self, passed_ms: int) -> None:
        self.now_ms += passed_ms


KEY = BatchKey(region="main", generation=3, batch_id=1)


def test_a_life_says_where_its_source_runner_asks() -> None:
    """Where nobody ever asks, the coordinator can name the address that was to be reached."""
    assert World().query.registration().address == ADDRESS.address


def test_rule_12_the_callback_returns_once_its_batch_is_committed_on_record() -> None:
    """Its return makes Spark write its commit log."""
    world = World()
    assert world.batch(1, barrier()).runs == 1
    assert world.coordinator.told == [("acknowledged", KEY), ("committed", KEY)]


@pytest.mark.parametrize("repeats", [True, False])
def test_a_whole_result_that_a_timeout_may_have_changed_is_written(repeats: bool) -> None:
    """In a batch without records; where records alone change it, it would be the same again."""
    world = World(mode="complete", repeats_result=repeats)
    quiet = replace(barrier(), splits=(split(5, 5),))
    batch = world.batch(1, quiet)
    assert (batch.runs, batch.is_hidden) == (1, repeats)
    assert not world.batch(2, barrier(8)).is_hidden, "records have come"


def test_rule_4_sink_tasks_of_a_transform_share_no_worker_with_readers() -> None:
    """Spark keys its workers by their environment; each with a sink task keeps ids."""
    batch = World().batch(1, barrier())
    assert batch.sink_environment
    assert not batch.sparkSession.sparkContext.environment


def test_rule_12_the_callback_raises_when_its_batch_is_not_committed() -> None:
    """Briefly, for Spark; the typed error is kept and reported."""
    world = World()
    refusal = world.coordinator.refusal = FencedError("not wanted", {}, "Restart.")
    with pytest.raises(RuntimeError, match=r"^region main: FencedError$"):
        world.batch(1, barrier())
    assert world.coordinator.told[-1] == ("failed", refusal)
    assert world.query.failure() is refusal


def _of_a_worker() -> RuntimeError:
    """As PySpark raises what one of Spark's Python workers did."""
    return RuntimeError(
        "\n  An exception was thrown from the Python worker.\nTraceback (most recent call last):\n"
        '  File "f.py", line 1, in f\nValueError: not this time\n'
    )


def test_what_a_function_raised_is_an_error_of_its_region_as_in_the_other_engine() -> None:
    """Whoever catches errors of Sluice gets it, whatever engine runs the region."""
    world, error = World(), _of_a_worker()
    with pytest.raises(RuntimeError, match=r"^region main: RuntimeError$"):
        world.batch(1, barrier(), error=error)
    found = world.query.failure()
    assert world.coordinator.told[-1] == ("failed", found)
    assert type(found) is StreamError
    assert "[region=main generation=3 error=ValueError: not this time traceback=" in str(found)
    assert found.__cause__ is error


def test_what_ends_a_query_between_two_batches_is_an_error_of_its_region() -> None:
    """Spark tells it when it is asked; without an end there is no error."""
    world = World()
    assert world.query.failure() is None
    world.frame.error = _of_a_worker()
    found = world.query.failure()
    assert type(found) is StreamError
    assert "region=main generation=3 error=ValueError: not this time" in str(found)
    assert found.__cause__ is world.frame.error


def test_a_process_that_is_told_to_end_is_no_failed_batch() -> None:
    """Nobody takes it for an error of the function."""
    world, end = World(), cast(Exception, KeyboardInterrupt())
    with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
        world.batch(1, barrier(), error=end)
    assert world.query.failure() is end


def test_rule_12_what_a_stop_raises_is_no_failure() -> None:
    """The callback is woken by it, and must not return normally."""
    world = World()
    world.coordinator.refusal = FencedError("stopped", {}, "Restart.")
    world.query.prepare_stop()
    with pytest.raises(RuntimeError):
        world.batch(1, barrier())
    assert ("failed", world.coordinator.refusal) not in world.coordinator.told
    assert world.query.error is None


@pytest.mark.parametrize(("stateful", "noops"), [(False, 0), (True, 1)])
def test_rules_8_and_21_a_replay_of_a_decided_batch_writes_nothing(
    stateful: bool, noops: int
) -> None:
    """It is known by its batch id, whatever checkpoint its offset hints at; state runs whole."""
    world = World(stateful=stateful)
    world.coordinator.decided.add(KEY)
    replayed = world.batch(1, barrier(checkpoint_id=99))
    assert (replayed.runs, replayed.noops) == (0, noops)
    assert world.coordinator.told == []
    assert world.query.registration().replayed is None, "it is over"


def test_rule_15_the_empty_first_batch_needs_no_decision() -> None:
    """It only lets Spark log the starting position."""
    world = World()
    assert world.batch(0, barrier(), initial=True).runs == 0
    assert world.coordinator.told == []


def test_rule_9_an_undecided_batch_of_an_earlier_life_is_never_written() -> None:
    """It should have been rewound; its range belongs to the new life's own barriers."""
    world = World()
    with pytest.raises(RuntimeError, match="FencedError"):
        world.batch(1, barrier(generation=2))
    assert [what for what, _ in cast(list[Any], world.coordinator.told)] == ["failed"]


def test_a_writer_gets_its_state_of_the_last_decided_record() -> None:
    """Of its own operator; what a batch answered that is not decided, nobody sees again."""
    writer = CountingWriter()
    world = World(files=writer, restored=(written("files", 9), written("other", 1)))
    world.coordinator.refusal = FencedError("not wanted", {}, "Restart.")
    with pytest.raises(RuntimeError):
        world.batch(1, barrier())
    world.coordinator.refusal = None
    world.batch(1, barrier())
    world.batch(2, barrier(8))
    assert writer.given == [(written("files", 9),)] * 2 + [(written("files", 2),)]
    assert world.coordinator.region is not None
    assert world.coordinator.region.operator_states == (written("files", 3),)


def test_rule_23_a_batch_must_be_decided_before_its_first_transaction_grows_old() -> None:
    """Of all its tasks: those of the first wave began long before the last one ended."""
    world = World()
    told = tuple(TaskResult(decide_by_s=moment_s) for moment_s in (900.0, 100.0, None))
    world.batch(1, barrier(), results=told)
    assert world.coordinator.decide_by_s == 100.0
    world.batch(2, barrier(8), results=(TaskResult(),))
    assert world.coordinator.decide_by_s is None


PARSE = ChainedFunction(
    name="parse",
    operator_id="id-parse",
    function=lambda batch: batch,
    policy=DeadLetters(topic="dead"),
)


def counted(read: int, dead_lettered: int) -> TaskResult:
    """A task's answer."""
    counts = RecordCounts(read=read, dead_lettered=dead_lettered)
    return TaskResult(
        counts={"id-parse": counts},
        examples={"id-parse": "in-0@3 ValueError: no"},
        failed_rows={"id-parse": dead_lettered},
    )


def totals(world: World) -> RecordCounts:
    """What the last acknowledged record says in all."""
    assert world.coordinator.region is not None
    (entry,) = world.coordinator.region.operator_states
    assert entry.operator_id == "id-parse"
    return decode_totals(entry)


@pytest.mark.parametrize(("silent_ms", "expected"), [(0, 5), (59_999, 5), (60_000, 7)])
@pytest.mark.parametrize("lasts_ms", [1_000, 61_000])
def test_only_silence_that_the_cut_has_seen_makes_a_split_idle(
    silent_ms: int, expected: int, lasts_ms: int
) -> None:
    """While a long batch runs nobody looks for records."""
    told = EventTimes(settings=EventTime(idle_timeout_ms=60_000), told=cast(Any, Answers(value={})))
    world = World(event_times=told)
    world.now_ms = 1_000_000
    busy = replace(split(3, 5), watermark_ms=7)
    empty = replace(
        split(9, 9), partition=1, watermark_ms=5, idle_since_ms=world.now_ms - silent_ms
    )
    world.batch(1, replace(barrier(), splits=(busy, empty)), lasts_ms=lasts_ms)
    assert world.coordinator.region is not None
    assert world.coordinator.region.least_watermark_ms == expected


def test_counts_of_the_tasks_travel_with_the_acknowledgement() -> None:
    """Of this batch, by the function's name; in all, in the region's record, where an attempt
    that was not decided leaves nothing."""
    world = World(functions=(PARSE,))
    world.coordinator.refusal = FencedError("not wanted", {}, "Restart.")
    with pytest.raises(RuntimeError):
        world.batch(1, barrier(), results=(counted(5, 1),))
    world.coordinator.refusal = None
    world.batch(1, barrier(), results=(counted(5, 1), counted(7, 2)))
    assert world.coordinator.counts[-1] == {"parse": RecordCounts(read=12, dead_lettered=3)}
    assert totals(world) == RecordCounts(read=12, dead_lettered=3)
    world.batch(2, barrier(8), results=(counted(1, 1),))
    assert world.coordinator.counts[-1] == {"parse": RecordCounts(read=1, dead_lettered=1)}
    assert totals(world) == RecordCounts(read=13, dead_lettered=4)


def test_a_batch_without_tasks_keeps_the_totals() -> None:
    """A sink may ask for one when there are no records."""
    world = World(functions=(PARSE,))
    world.batch(1, barrier(), results=(counted(5, 1),))
    world.batch(2, barrier(8), results=())
    assert world.coordinator.counts[-1] == {"parse": RecordCounts()}
    assert totals(world) == RecordCounts(read=5, dead_lettered=1)


def test_functions_without_a_policy_leave_the_record_as_it_was() -> None:
    """So an older version still reads it."""
    world = World(functions=(replace(PARSE, policy=None),))
    world.batch(1, barrier())
    assert world.coordinator.counts == [{}]
    assert world.coordinator.region is not None
    assert world.coordinator.region.operator_states == ()


def test_an_epoch_with_too_many_failures_is_never_acknowledged() -> None:
    """Over all its tasks; the error says what failed first, for the dead letters are gone."""
    world = World(functions=(PARSE,))
    with pytest.raises(RuntimeError, match="PoisonRecordsError"):
        world.batch(1, barrier(), results=(counted(100, 70), counted(50, 50)))
    [(what, error)] = cast(list[Any], world.coordinator.told)
    assert what == "failed"
    assert isinstance(error, PoisonRecordsError)
    assert isinstance(error, PERMANENT_ERRORS)
    assert "read=150 failed=120" in str(error)
    assert "in-0@3 ValueError: no" in str(error)


def test_a_batch_of_the_pipelines_own_dead_letters_is_not_run() -> None:
    """The topic may match a source's pattern."""
    policy = DeadLetters(topic="in")
    world = World(functions=(replace(PARSE, policy=policy),))
    with pytest.raises(RuntimeError, match="ConfigError"):
        world.batch(1, barrier())
    [(what, error)] = cast(list[Any], world.coordinator.told)
    assert what == "failed"
    assert isinstance(error, ConfigError)
