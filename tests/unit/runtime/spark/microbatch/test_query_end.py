"""The end of a query, its next batch, replays, and state descriptions."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sluice.runtime.errors import FencedError, WaitedTooLongError
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.spark.microbatch.query_end import state_mismatch, stop_query
from sluice.runtime.spark.microbatch.spark_state import StateDescriber
from sluice.runtime.spark.microbatch.stateful_batches import (
    ReplayProgress,
    late_rows,
    repeats_its_result,
    tasks_done,
    wants_another,
)
from tests.kit.files.fake_file_system import Disk, FakeFileSystem
from tests.kit.waiting import PATIENCE_S, wait_for


def split(start: int, end: int) -> SplitRange:
    return SplitRange(
        source_id="s", topic="in", topic_id="id", partition=0, start_offset=start, end_offset=end
    )


@pytest.mark.parametrize(
    ("mode", "ranges", "repeats"),
    [
        ("complete", [(3, 3), (4, 4)], True),
        ("complete", [(3, 3), (4, 5)], False),
        ("append", [(3, 3)], False),
        ("update", [(3, 3)], False),
    ],
)
def test_a_whole_result_is_not_written_again_where_nothing_has_changed_it(
    mode: str, ranges: list[tuple[int, int]], repeats: bool
) -> None:
    """A batch that a sink has asked for, or that was due at a start, gives no rows then."""
    assert repeats_its_result(mode, [split(*each) for each in ranges]) is repeats


def test_a_query_that_nobody_has_yet_may_want_a_batch() -> None:
    """Its first one may run before its start has returned; one more that gives nothing is right."""
    assert wants_another(None, cast(DataFrame, None))


class Execution:
    """As much as is asked of the run of a query that has just run a batch: its tracker knows the
    watermark of the batch before, its plan what the batch's own records have seen."""

    def __init__(self, *, seen_ms: int, due_ms: int) -> None:
        self.watermark_ms = 1000
        self.seen_ms = seen_ms
        self.due_ms = due_ms

    def streamingQuery(self) -> "Execution":
        return self

    def lastExecution(self) -> "Execution":
        return self

    def executedPlan(self) -> int:
        return self.seen_ms

    def watermarkTracker(self) -> "Execution":
        return self

    def updateWatermark(self, plan: int) -> None:
        self.watermark_ms = max(self.watermark_ms, plan)

    def currentWatermark(self) -> int:
        return self.watermark_ms

    def shouldRunAnotherBatch(self, said: dict[str, Any]) -> bool:
        return int(said.get("batchWatermarkMs", 0)) >= self.due_ms


class Jvm:
    """Spark's classes, by whatever packages they are in."""

    def __getattr__(self, name: str) -> "Jvm":
        return self

    def apply(self, said: str) -> Any:
        return json.loads(said)


@pytest.mark.parametrize(("seen_ms", "is_wanted"), [(7000, True), (3000, False), (0, False)])
def test_a_plan_is_asked_with_the_watermark_that_its_own_records_have_moved(
    seen_ms: int, *, is_wanted: bool
) -> None:
    """With the one before, a window that they have closed would be given by the batch of the next
    record: where none comes, never."""
    query = SimpleNamespace(_jsq=Execution(seen_ms=seen_ms, due_ms=5000))
    frame = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=SimpleNamespace(_jvm=Jvm())))
    wanted = wants_another(cast(StreamingQuery, query), cast(DataFrame, frame))
    assert wanted is is_wanted


def test_what_is_done_is_reported_when_it_has_changed() -> None:
    looks: Iterator[int | OSError] = iter([3, 3, OSError("the session is away"), 4])
    told: list[int] = []
    seen = threading.Event()

    def done() -> int:
        found = next(looks, None)
        if isinstance(found, OSError):
            raise found
        if found is None:
            seen.set()
            return 4
        return found

    with ReplayProgress(done, told.append, interval_s=0.001):
        wait_for(seen.is_set, poll_s=0.001)
    assert told == [3, 4]


def test_nothing_is_reported_an_attempt_that_is_over() -> None:
    told: list[int] = []

    def refuse(done: int) -> None:
        told.append(done)
        raise FencedError("a newer life", {}, "Stop.")

    with ReplayProgress(lambda: len(told), refuse, interval_s=0.001) as replay:
        wait_for(lambda: not replay.is_reporting, poll_s=0.001)
    assert told == [0]


def test_the_tasks_of_all_jobs_of_a_query_are_counted() -> None:
    stages: dict[int, Any] = {
        7: SimpleNamespace(numCompletedTasks=2),
        8: SimpleNamespace(numCompletedTasks=3),
        9: None,
    }
    jobs = {1: SimpleNamespace(stageIds=[7, 8]), 2: None, 3: SimpleNamespace(stageIds=[8, 9])}
    tracker = SimpleNamespace(
        getJobIdsForGroup={"run-1": [1, 2, 3]}.get, getJobInfo=jobs.get, getStageInfo=stages.get
    )
    context = SimpleNamespace(
        getLocalProperty={"spark.jobGroup.id": "run-1"}.get, statusTracker=lambda: tracker
    )
    assert tasks_done(cast(SparkContext, context))() == 5


def test_nobody_looks_any_more_once_the_batch_has_run() -> None:
    looks: list[int] = []

    def done() -> int:
        looks.append(1)
        return 0

    with ReplayProgress(done, lambda _done: None, interval_s=3600.0) as replay:
        wait_for(lambda: looks, poll_s=0.001)
    wait_for(lambda: len(looks) > 100 or not replay.is_reporting, poll_s=0.001)
    assert not replay.is_reporting
    assert len(looks) == 1


class JavaError:
    """As py4j has it; a class is asked for its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._target_id = "o1"
        self._gateway_client = None

    def getClass(self) -> "JavaError":
        return self

    def getSimpleName(self) -> str:
        return self.name


def raised(name: str) -> Py4JJavaError:
    return Py4JJavaError("An error occurred", JavaError(name))


@dataclass
class Query:
    """Spark's handle: each stop has the next answer, and the last one's from then on."""

    answers: list[Callable[[], None]]
    asked: int = field(default=0)

    def stop(self) -> None:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        answer()


def joined() -> None:
    """Its thread has ended."""


def too_short() -> None:
    """The user's own limit is over, and its thread continues."""
    raise raised("TimeoutException")


def stop(query: Query, *, timeout_s: float = PATIENCE_S) -> None:
    stop_query(cast(StreamingQuery, query), region="orders", timeout_s=timeout_s)


@pytest.fixture
def never() -> Iterator[Callable[[], None]]:
    """A wait without a limit, as Spark's default is; over with the test."""
    over = threading.Event()
    yield lambda: cast(None, over.wait(PATIENCE_S))
    over.set()


def test_callback_after_commit_a_limit_of_the_users_is_not_the_end_of_the_wait() -> None:
    """A callback may take longer, and a next attempt beside it would write with it."""
    query = Query([too_short, too_short, joined])
    stop(query)
    assert query.asked == 3


def test_callback_after_commit_a_query_that_never_stops_is_reported_by_its_region(
    never: Callable[[], None],
) -> None:
    """Spark would wait for ever, and the job with it, without a word."""
    with pytest.raises(WaitedTooLongError, match=r"did not stop .*region=orders"):
        stop(Query([never]), timeout_s=0.01)


def test_callback_after_commit_so_is_one_of_which_spark_says_so_again_and_again() -> None:
    with pytest.raises(WaitedTooLongError, match="did not stop"):
        stop(Query([too_short]), timeout_s=0.01)


def test_what_a_stop_fails_of_otherwise_is_raised_as_it_is() -> None:
    query = Query([lambda: (_ for _ in ()).throw(raised("IllegalStateException"))])
    with pytest.raises(Py4JJavaError):
        stop(query)
    assert query.asked == 1


_STORES = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 3}]


def _metadata(version: int, name: str, stores: Sequence[Mapping[str, object]] = _STORES) -> bytes:
    said = {"operatorInfo": {"operatorId": 0, "operatorName": name}, "stateStoreInfo": stores}
    return f"v{version}\n{json.dumps(said)}".encode()


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"metadata": _metadata(1, "stateStoreSave")}, "stateStoreSave"),
        (
            {
                "v2/9": _metadata(2, "older"),
                "v2/10": _metadata(2, "transformWithStateInPySparkExec"),
                "v2/.10.crc": b"\x00",
            },
            "transformWithStateInPySparkExec",
        ),
    ],
)
def test_operators_are_reported_whatever_version_their_metadata_has(
    files: dict[str, bytes], named: str
) -> None:
    disk = Disk()
    disk.files |= {
        f"spark/main/state-0/state/0/_metadata/{name}": data for name, data in files.items()
    }
    told = StateDescriber(FakeFileSystem(disk), "spark/main/state-0").after(4)
    assert told.operators == ((0, named),)
    assert (told.state_version, told.state_partitions) == (5, 3)


def _struct(name: str) -> dict[str, object]:
    return {"type": "struct", "fields": [{"name": name, "type": "long", "nullable": True}]}


def _schema_file(*names: str) -> bytes:
    """Structs between bytes that differ from version to version."""
    structs = (json.dumps(_struct(name), separators=(",", ":")).encode() for name in names)
    return b"\x00\x02v2" + b"\x00\x00\x00\x01\x00\xa2".join([b"", *structs])


def test_schemas_are_reported_with_the_store_of_the_operator_that_they_are_of() -> None:
    """Keys stand in front of values; a store without a schema has none."""
    join = [{"storeName": name, "numPartitions": 2} for name in ("left", "right", "empty")]
    below = "spark/main/state-0/state"
    disk = Disk()
    disk.files |= {
        f"{below}/0/0/_metadata/schema": _schema_file("key", "value"),
        f"{below}/0/_metadata/metadata": _metadata(1, "stateStoreSave"),
        f"{below}/1/0/1.changelog": b"",
        f"{below}/2/_metadata/metadata": _metadata(1, "symmetricHashJoin", join),
        f"{below}/2/0/left/_metadata/schema": _schema_file("at", "row"),
        f"{below}/2/0/empty/_metadata/schema": b"",
    }
    told = StateDescriber(FakeFileSystem(disk), "spark/main/state-0").after(4)
    assert told.operators == ((0, "stateStoreSave"), (2, "symmetricHashJoin"))
    assert json.loads(told.state_schema) == [
        {"operator": 0, "store": "default", "schemas": [_struct("key"), _struct("value")]},
        {"operator": 2, "store": "left", "schemas": [_struct("at"), _struct("row")]},
        {"operator": 2, "store": "empty", "schemas": []},
    ]
    assert json.loads(told.key_schema) == [
        {"operator": 0, "store": "default", "schemas": [_struct("key")]},
        {"operator": 2, "store": "left", "schemas": [_struct("at")]},
    ]


class Plan:
    """A physical plan, as py4j shows it."""

    def __init__(self, late: int | None, *children: "Plan") -> None:
        self._late, self._children = late, children

    def metrics(self) -> Any:
        metric = SimpleNamespace(value=lambda: self._late)
        found = SimpleNamespace(isDefined=lambda: self._late is not None, get=lambda: metric)
        return SimpleNamespace(get=lambda name: name == "numRowsDroppedByWatermark" and found)

    def children(self) -> Any:
        return SimpleNamespace(size=lambda: len(self._children), apply=self._children.__getitem__)


def test_late_rows_of_all_stateful_operators_are_counted() -> None:
    """With the watermark that they were later than; nothing before the query has begun."""
    plan = Plan(None, Plan(2, Plan(None)), Plan(3))
    execution = SimpleNamespace(
        lastExecution=lambda: SimpleNamespace(executedPlan=lambda: plan),
        watermarkTracker=lambda: SimpleNamespace(currentWatermark=lambda: 7000),
    )
    query = SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: execution))
    assert late_rows(cast(StreamingQuery, query)) == (5, 7000)
    assert late_rows(None) == (0, 0)


def test_partitions_of_repartitioned_state_and_schemas_of_variables_are_reported() -> None:
    """Spark leaves metadata of version 1 as it is; only the offset log has the new number. An
    operator with variables has schema files of its own, one for each change."""
    below = "spark/main/state-0"
    disk = Disk()
    disk.files |= {
        f"{below}/state/0/_metadata/metadata": _metadata(1, "stateStoreSave"),
        f"{below}/offsets/4": b'v2\n{"conf":{"spark.sql.shuffle.partitions":"7"}}\n-',
        f"{below}/state/0/_stateSchema/default/2_a": _schema_file("key", "old"),
        f"{below}/state/0/_stateSchema/default/10_b": _schema_file("key", "value"),
    }
    told = StateDescriber(FakeFileSystem(disk), below).after(4)
    assert told.state_partitions == 7
    assert json.loads(told.state_schema)[0]["schemas"] == [_struct("key"), _struct("value")]


def test_a_state_of_another_schema_is_named_with_both() -> None:
    """As Spark 4.3 says it, also inside the error of the stream."""
    schemas = (
        "Existing value_schema=StructType(StructField(count,LongType,true)) and new "
        "value_schema=StructType(StructField(max,BinaryType,true))."
    )
    spark = (
        f"[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match.\n{schemas}"
        "\nIf you want to force running the query, please set x. SQLSTATE: XXKST"
    )
    for text in (spark, f"[STREAM_FAILED] Query terminated with exception: {spark}\nat x"):
        found = state_mismatch(RuntimeError(text), region="orders")
        assert found is not None
        where = found.args[1]
        assert where["condition"] == "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"
        assert where["spark"] == f"Provided value schema does not match. {schemas}"
    assert state_mismatch(RuntimeError("[STREAM_FAILED] another"), region="orders") is None
