"""The API of keyed streams: each method adds a step to a pipeline, or refuses its arguments."""

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sluice import (
    Collect,
    Count,
    EventTime,
    KafkaSource,
    ListState,
    MapState,
    Session,
    Skip,
    Sliding,
    Sum,
    Tumbling,
    ValueState,
)
from sluice.runtime.contracts.keyed import KeyBy, KeyedFunction
from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.pipeline import Pipeline, Step
from sluice.runtime.job.stream import KeyedStream, Stream
from sluice.runtime.keyed.declarations import ApproxDistinct
from sluice.runtime.keyed.operators.deduplicate import Deduplication
from sluice.runtime.keyed.operators.interval_join import IntervalJoin
from sluice.runtime.keyed.operators.windows import WindowAggregation

OUTPUT = pa.schema([("value", pa.string())])


def stream(topic: str = "orders", **more: Any) -> Stream:
    more.setdefault("time", EventTime("kafka"))
    return Stream(Pipeline(KafkaSource(bootstrap_servers="b:9092", topics=[topic], **more)))


def keyed(**more: Any) -> KeyedStream:
    return stream().key_by("key", **more)


def last(made: Stream) -> Step:
    return made._pipeline.steps[-1]  # noqa: SLF001


def nothing(key: Any, rows: Any, state: Any, timers: Any) -> None:
    return None


class TestKeys:
    def test_columns_and_functions_are_keys(self) -> None:
        assert last(keyed()).keyed == KeyBy(columns=("key",))
        several = last(stream().key_by(["a", "b"], partitions=8)).keyed
        assert several == KeyBy(columns=("a", "b"), partitions=8)
        assert last(stream().key_by(len, partitioned=True)).keyed == KeyBy(
            function=len, partitioned=True
        )

    @pytest.mark.parametrize("key", [(), [1], [""][:0], 3, None, {"key"}, pc.field("key")])
    def test_no_key_is_refused(self, key: Any) -> None:
        with pytest.raises(ConfigError, match="has no key"):
            stream().key_by(key)

    @pytest.mark.parametrize("more", [{"partitions": 0}, {"partitions": 4, "partitioned": True}])
    def test_partitions_are_of_a_repartition_topic(self, more: Any) -> None:
        with pytest.raises(ConfigError, match="number of partitions"):
            keyed(**more)

    def test_the_output_of_a_keyed_function_is_not_partitioned_by_another_key(self) -> None:
        counts = keyed().aggregate(n=Count())
        with pytest.raises(ConfigError, match="not partitioned by another key"):
            counts.key_by("n", partitioned=True)
        assert isinstance(counts.key_by("n"), KeyedStream)


EVERY: dict[str, Callable[[], Stream]] = {
    "aggregate": lambda: keyed().aggregate(n=Count(), total=Sum("x")),
    "deduplicate": lambda: keyed().deduplicate(within="10 m", on="event_time"),
    "window": lambda: keyed().window(Tumbling("10 s"), on="event_time").aggregate(n=Count()),
    "join": lambda: keyed().join(stream("b").key_by("key"), within="5 m", on="event_time"),
    "process": lambda: keyed().process(nothing, output=OUTPUT, state={"a": ValueState(pa.int64())}),
}


class TestFunctions:
    @pytest.mark.parametrize("kind", EVERY)
    def test_each_adds_a_picklable_keyed_function(self, kind: str) -> None:
        step = last(EVERY[kind]())
        assert step.kind == kind
        assert step.name.endswith(f"-{kind}-2")
        function = pickle.loads(pickle.dumps(step.keyed))
        assert isinstance(function, type(step.keyed))
        names = [table.name for table in function.tables]
        assert len(names) == len(set(names)) > 0

    def test_settings_reach_the_functions(self) -> None:
        function = last(keyed().deduplicate(within=0.5, on="t", name="n", uid="u"))
        assert (function.name, function.uid) == ("n", "u")
        assert function.keyed == Deduplication(within_ms=500, on="t")
        made = keyed().window(
            Session("1 m"), on="t", allowed_lateness="2 s", late_topic="late", emit="update"
        )
        assert last(made.aggregate(n=Count())).keyed == WindowAggregation(
            window=Session("1 m"),
            aggregates={"n": Count()},
            on="t",
            lateness_ms=2_000,
            late_topic="late",
            updates=True,
        )

    def test_a_join_has_the_pipeline_of_its_other_side(self) -> None:
        right = stream("b").key_by("key")
        step = last(keyed().join(right, within=("1 m", "5 m"), on="t", other_on="at", how="left"))
        assert step.other is right._pipeline  # noqa: SLF001
        assert step.keyed == IntervalJoin(
            before_ms=60_000, after_ms=300_000, on=("t", "at"), is_left=True
        )

    def test_deduplicated_and_joined_streams_are_keyed_still(self) -> None:
        assert isinstance(keyed().deduplicate(within=1), KeyedStream)
        assert isinstance(EVERY["join"](), KeyedStream)
        assert not isinstance(EVERY["aggregate"](), KeyedStream)
        assert not isinstance(keyed().map_batches(lambda batch: batch), KeyedStream)

    def test_functions_follow_and_precede_map_batches(self) -> None:
        made = stream().map_batches(lambda b: b).key_by("key").aggregate(n=Count())
        steps = made.map_batches(lambda b: b)._pipeline.steps  # noqa: SLF001
        assert [step.kind for step in steps] == [
            "map_batches",
            "key_by",
            "aggregate",
            "map_batches",
        ]


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no aggregate": (lambda: keyed().aggregate(), "no aggregate"),
    "no object": (lambda: keyed().aggregate(n="count"), "no aggregate"),  # type: ignore[arg-type]
    "aggregate without a key": (
        lambda: stream().aggregate(n=Count()),  # type: ignore[attr-defined]
        "aggregate needs a key",
    ),
    "aggregate without a name": (
        lambda: keyed().aggregate(Count()),  # type: ignore[arg-type]
        "each aggregate needs a name",
    ),
    "windows without an aggregate": (
        lambda: keyed().window(Tumbling(1), on="t").map_batches(len),  # type: ignore[attr-defined]
        "map_batches follows window, which needs an aggregate",
    ),
    "taken name": (lambda: keyed().aggregate(name=Count(), n=Count()), "is no text"),  # type: ignore[arg-type]
    "no window": (lambda: keyed().window("10 s", on="t"), "needs a Tumbling"),  # type: ignore[arg-type]
    "emit": (lambda: keyed().window(Tumbling(1), on="t", emit="often"), "emit has no such value"),
    "how": (
        lambda: keyed().join(keyed(), within=1, on="t", how="outer"),
        "no such join",
    ),
    "partitioned join": (
        lambda: keyed().join(keyed(partitioned=True), within=1, on="t"),
        "is not a key_by without",
    ),
    "late key": (
        lambda: keyed().deduplicate(within=1).join(keyed(), within=1, on="t"),
        "is not a key_by without",
    ),
    "no duration": (lambda: keyed().deduplicate(within="soon"), "duration"),
    "zero": (lambda: keyed().deduplicate(within=0), "duration"),
    "window size": (lambda: Tumbling(0), "duration"),
    "slide": (lambda: Sliding("1 s", "2 s"), "slide"),
    "offset": (lambda: Tumbling("1 s", "1 s"), "offset"),
    "most": (lambda: Collect("x", most=0), "at least one"),
    "error": (lambda: ApproxDistinct("x", error=0.5), "out of range"),
    "type": (lambda: ValueState(int), "without Arrow types"),
    "ttl": (lambda: ListState(pa.int64(), ttl=0), "duration"),
    "ttl_time": (lambda: MapState(pa.int64(), pa.int64(), ttl=1, ttl_time="x"), "no known clock"),
    "states": (lambda: keyed().process(nothing, output=OUTPUT, state={"a": 1}), "no state"),  # type: ignore[dict-item]
    "transform": (
        lambda: stream(time=None).key_by("key").transform(lambda frame: frame),
        "cannot follow each other",
    ),
    "policy": (
        lambda: keyed().aggregate(n=Count()).map_batches(len, on_error=Skip()),  # type: ignore[arg-type]
        "follows a keyed function",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        call()


def test_a_stream_still_lacks_what_it_lacks() -> None:
    """Tools that look for an attribute find none."""
    assert not hasattr(stream(), "aggregate")
    assert not hasattr(stream(), "group_by")
    assert not hasattr(keyed().window(Tumbling(1), on="t"), "group_by")


def test_a_source_without_a_time_feeds_no_function_of_time() -> None:
    def untimed() -> KeyedStream:
        return stream(time=None).key_by("key")

    untimed().deduplicate(within=1)
    for call in (
        lambda: untimed().window(Tumbling(1), on="t"),
        lambda: untimed().deduplicate(within=1, on="t"),
        lambda: untimed().join(keyed(), within=1, on="t"),
        lambda: keyed().join(untimed(), within=1, on="t"),
        lambda: untimed().process(
            nothing,
            output=OUTPUT,
            state={"last": ValueState(pa.int64(), ttl=1, ttl_time="event")},
        ),
    ):
        with pytest.raises(ConfigError, match="needs event time"):
            call()


def test_keyed_functions_satisfy_their_contract() -> None:
    for make in EVERY.values():
        function: KeyedFunction = last(make()).keyed  # type: ignore[assignment]
        assert callable(function.open)
        assert function.late_topic is None
