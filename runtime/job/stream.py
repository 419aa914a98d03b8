"""Streams of a described job: what users call between a source and its sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Never, Self

import pyarrow as pa

from sluice.runtime.contracts import DeserializingSource, Sink, Source
from sluice.runtime.contracts.keyed import KeyBy
from sluice.runtime.contracts.operators import TimedSource
from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.function_context import takes_context
from sluice.runtime.functions.operator_state import OperatorState
from sluice.runtime.graph.pipeline import BatchFunction, FrameFunction, Pipeline, Step
from sluice.runtime.job.broadcast_stream import BroadcastStream, steps_of
from sluice.runtime.keyed.broadcast import LatestRows
from sluice.runtime.keyed.declarations import Aggregate, State, Window, require_names
from sluice.runtime.keyed.operators.aggregate import Aggregation
from sluice.runtime.keyed.operators.deduplicate import Deduplication
from sluice.runtime.keyed.operators.interval_join import IntervalJoin
from sluice.runtime.keyed.operators.process import Process, ProcessFunction, TimerFunction
from sluice.runtime.keyed.operators.windows import WindowAggregation
from sluice.runtime.model.on_error import OnError, policy_of
from sluice.runtime.model.output_modes import checked_mode, require_one_mode
from sluice.runtime.model.timestamps import Duration, duration_ms

__all__ = ["KeyedStream", "Stream", "WindowedStream", "own_steps"]


class Stream:
    """A stream of records from a source or a function.

    Methods add to the pipeline of its source: functions first, sinks last. For another branch,
    start again with ``job.source(…)``.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def map_batches(
        self,
        function: BatchFunction,
        *,
        name: str | None = None,
        uid: str | None = None,
        on_error: OnError = "fail",
        deterministic: bool = True,
        state: OperatorState | None = None,
        broadcast: BroadcastStream | Mapping[str, BroadcastStream] | None = None,
    ) -> Stream:
        """Apply a function from Arrow batch to Arrow batch in the worker that reads and writes.

        The batch has the source's columns; the result needs ``value`` and may have ``key``,
        ``topic``, ``partition``, ``headers`` and ``timestamp``, which the sink uses. The function
        is sent to the workers once, when the region starts, with the variables it uses.

        Args:
            on_error: ``fail``; ``skip`` or a `Skip`: a record that it raises for is left out and
                counted; `DeadLetters`: written to another topic in the output's transaction. Then
                it and all functions before it must be deterministic and row-wise
                (``docs/guide/functions.md``).
            deterministic: False says that a replay may give other rows. Then a lost transaction
                stops the job, also with ``on_lost="repair"``; with several sinks, or with
                ``skip`` or dead letters, it is refused.
            state: rows that the function keeps in each region, as ``ctx.state``; the function takes
                a second parameter, ``ctx``. All functions with ``on_error`` come before it.
            broadcast: a broadcast stream, whose table the function reads as ``ctx.broadcast``; or
                several by name: ``ctx.broadcast["rules"]``.
        """
        policy, tables = policy_of(on_error), steps_of(broadcast)
        if state is not None or tables:
            _require_context(function, name or "", state)
        if policy is not None and not deterministic:
            raise ConfigError(
                "a function that is not deterministic cannot skip records",
                {"source": self._pipeline.source.name, "function": name, "on_error": on_error},
                "Use on_error='fail': the failing records are found by a second call.",
            )
        if policy is not None and any(map(_has_state, self._pipeline.steps)):
            raise ConfigError(
                "a function with on_error follows a keyed function",
                {"source": self._pipeline.source.name, "function": name, "on_error": on_error},
                "Put functions with on_error before key_by: their batch passes them again.",
            )
        self._append(
            "map_batches",
            name,
            uid,
            function=function,
            deterministic=deterministic,
            policy=policy,
            state=state,
            broadcasts=tables,
        )
        return Stream(self._pipeline)

    def broadcast(
        self,
        *,
        key: str | Sequence[str],
        wait: bool = False,
        name: str | None = None,
        uid: str | None = None,
    ) -> BroadcastStream:
        """Keep the latest row of each key as a table, which functions of other streams of the job
        read: ``stream.map_batches(function, broadcast=rules)``.

        The table is the same in all tasks for a whole epoch: a version that a checkpoint has
        decided before. A row removes its key if its ``value`` is null, or, without such a column,
        all columns beside the key. Before the first row the table has no columns.

        Args:
            key: column or columns. Records with one key must be in one partition.
            wait: tasks that read the table read no record before it has its first row.
        """
        self.key_by(key, partitioned=True)
        columns = (key,) if isinstance(key, str) else tuple(key)
        self._append("broadcast", name, uid, keyed=LatestRows(columns=columns), waits=wait)
        return BroadcastStream(self._pipeline.steps[-1])

    def transform(
        self,
        function: FrameFunction,
        *,
        name: str | None = None,
        uid: str | None = None,
        output_mode: str | None = None,
        deterministic: bool = True,
        force_rescale: bool = False,
    ) -> Stream:
        """Apply any DataFrame code: SQL, joins, windows, ``transformWithState``.

        Args:
            output_mode: ``append``, ``update`` or ``complete``, as Spark's for stateful frames. The
                transforms of a pipeline are one query with one mode: all transforms that set a mode
                must set the same one, and it applies to all. Without any setting it is ``update``.
            deterministic: False says that a replay may give other rows. With state or several
                sinks that cannot be exactly-once and is refused.
            force_rescale: run it in ``Job(regions=N)`` regions, each over its own splits. By
                default it is one region, because Spark's planner may combine rows of any two
                splits. With force_rescale a later ``repartition``, for example, combines only rows
                of one region. Refused for a frame that keeps state.
        Raises:
            ConfigError: there is no such output mode, or another transform of this pipeline has
                another one.
        """
        mode = None if output_mode is None else checked_mode(output_mode)
        return self._append(
            "transform",
            name,
            uid,
            function=function,
            output_mode=mode,
            deterministic=deterministic,
            force_rescale=force_rescale,
        )

    def sink(self, sink: Sink) -> Stream:
        """Write this stream; may be called again for further sinks of the same records."""
        self._pipeline.sinks.append(sink)
        return self

    def key_by(
        self,
        key: str | Sequence[str] | Callable[[pa.RecordBatch], pa.Array],
        *,
        partitioned: bool = False,
        partitions: int | None = None,
        name: str | None = None,
        uid: str | None = None,
    ) -> KeyedStream:
        """Give each row a key. Functions with state follow.

        Args:
            key: a column, several columns, or a function that takes a batch of n rows and returns
                an array of n keys. A struct is a key of several columns. Keys are text, bytes,
                numbers, times, bools or decimals. Null is a key, too.
            partitioned: True: all records of a key are already in one partition of the source's
                topic. Else results are wrong: a task finds only keys in two of its own partitions.
                False: rows pass through a repartition topic of the job.
            partitions: number of partitions of a new repartition topic; >= 1. None: four for each
                region, rounded up to a power of two, at least 16.
        Raises:
            ConfigError: there is no key, or the stream has functions with state and
                ``partitioned``: their rows belong to the partitions of the earlier key.
        """
        columns = _key_columns(key)
        if partitions is not None and (partitioned or partitions < 1):
            raise ConfigError(
                "this number of partitions cannot be used",
                {"partitions": partitions, "partitioned": partitioned},
                "Leave it out, or set 1 or more without partitioned=True.",
            )
        if partitioned and any(_has_state(step) for step in self._pipeline.steps):
            raise ConfigError(
                "the output of a keyed function is not partitioned by another key",
                {"source": self._pipeline.source.name, "key": key},
                "Leave partitioned out: the rows pass through a repartition topic.",
            )
        key_by = KeyBy(
            columns=columns,
            function=key if callable(key) else None,
            partitioned=partitioned,
            partitions=partitions,
        )
        self._append("key_by", name, uid, keyed=key_by)
        return KeyedStream(self._pipeline)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as any attribute
            if name in _KEYED:
                raise _MissingCallError(
                    f"{name} needs a key, and the stream has none",
                    {"source": self._pipeline.source.name},
                    f'Call key_by("column").{name}(…).',
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _append(self, kind: str, name: str | None, uid: str | None, **fields: Any) -> Self:  # noqa: ANN401 - of a `Step`
        pipeline = self._pipeline
        if not all(isinstance(text, str | None) for text in (name, uid)):
            raise ConfigError(
                "the name or uid of a function is no text",
                {"function": kind, "name": name, "uid": uid},
                "Give text. A result of aggregate cannot be called name or uid.",
            )
        _require_no_sink(pipeline, kind)
        is_frame = kind == "transform"
        if is_frame and own_steps(pipeline.source):
            raise ConfigError(
                "a source with deserializers or an event time feeds a transform",
                {"source": pipeline.source.name, "added": kind},
                "Leave them out, and use from_json, from_avro and withWatermark in the transform.",
            )
        if pipeline.steps and (pipeline.steps[-1].kind == "transform") != is_frame:
            raise ConfigError(
                "map_batches and transform cannot follow each other in one pipeline",
                {"source": pipeline.source.name, "have": pipeline.steps[-1].kind, "added": kind},
                "Use DataFrame.mapInArrow for Arrow functions inside a transform.",
            )
        default = f"{pipeline.source.name}-{kind}"
        if pipeline.steps:
            default += f"-{len(pipeline.steps) + 1}"
        pipeline.steps.append(Step(kind=kind, name=name or default, uid=uid, **fields))
        require_one_mode((each.name, each.output_mode) for each in pipeline.steps)
        return self


class _MissingCallError(ConfigError, AttributeError):
    """A method needs a call of another one before it."""


_KEYED = frozenset({"aggregate", "deduplicate", "window", "join", "process"})


class KeyedStream(Stream):
    """A stream whose rows have a key; see `Stream.key_by`.

    All its functions keep their state for each key, exactly once: state and output of an epoch
    become valid together.
    """

    def aggregate(
        self,
        *unnamed: Never,
        name: str | None = None,
        uid: str | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """Aggregate all rows of each key so far; each changed key comes out once in an epoch.

        Args:
            aggregates: by the name of their column: ``count=Count(), total=Sum("amount")``.
        Returns:
            Rows with the columns of the key, and one column for each aggregate. A key of a function
            has the column ``key``.
        Raises:
            ConfigError: there is no aggregate, or one without a name.
        """
        require_names(aggregates, Aggregate, what="aggregate", unnamed=unnamed)
        self._append("aggregate", name, uid, keyed=Aggregation(aggregates=aggregates))
        return Stream(self._pipeline)

    def deduplicate(
        self,
        *,
        within: Duration,
        on: str | None = None,
        name: str | None = None,
        uid: str | None = None,
    ) -> KeyedStream:
        """Pass on the first row of each key, and forget the key after ``within``.

        Args:
            within: the time from the barrier of the first row until the next row passes; > 0. In
                event time, a row passes unless a row of its key has passed that is less than
                ``within`` earlier or later.
            on: the column of event time: a timestamp, a date, or milliseconds since 1970. A row is
                late if the watermark is past its time plus ``within``, or if it has no time. Late
                rows are counted and left out. None: the processing time of barriers.
        """
        if on is not None:
            self._require_time("deduplicate")
        keyed = Deduplication(within_ms=_positive_ms(within, "within"), on=on)
        return self._append("deduplicate", name, uid, keyed=keyed)

    def window(
        self,
        window: Window,
        *,
        on: str,
        allowed_lateness: Duration = 0,
        late_topic: str | None = None,
        emit: str = "close",
    ) -> WindowedStream:
        """Group the rows of each key into windows of event time.

        A window closes at the first barrier whose watermark is at its end or later. A row is late
        if the barriers before its epoch have closed all its windows, and the allowed lateness is
        over too. Late rows are counted. A row without a time is late.

        Args:
            window: a `Tumbling`, `Sliding` or `Session`. A late row that touches an open session
                belongs to it. Sessions that touch become one.
            on: the column of event time: a timestamp, a date, or milliseconds since 1970.
            allowed_lateness: how long a closed window still takes rows. It comes out again at the
                barrier after them; >= 0.
            late_topic: late rows are written there, in the epoch's transaction. None: only counted.
            emit: ``close``: a window comes out when it closes. ``update``: each changed window
                comes out at each barrier.
        Raises:
            ConfigError: a setting is out of range.
        """
        if not isinstance(window, Window):
            raise ConfigError(
                "window needs a Tumbling, a Sliding or a Session",
                {"window": repr(window)},
                'Write window(Tumbling("1 minute"), on="event_time").',
            )
        if emit not in ("close", "update"):
            raise ConfigError("emit has no such value", {"emit": emit}, "Use close or update.")
        self._require_time("window")
        lateness_ms = duration_ms(allowed_lateness, setting="allowed_lateness")
        return WindowedStream(
            self._pipeline,
            partial(
                WindowAggregation,
                window=window,
                on=on,
                lateness_ms=lateness_ms,
                late_topic=late_topic,
                updates=emit == "update",
            ),
        )

    def join(
        self,
        other: KeyedStream,
        *,
        within: Duration | tuple[Duration, Duration],
        on: str,
        how: str = "inner",
        other_on: str | None = None,
        suffixes: tuple[str, str] | None = None,
        name: str | None = None,
        uid: str | None = None,
    ) -> KeyedStream:
        """Join rows of two streams with the same key whose times are close.

        A row before the watermark of the last barrier is late, and so is one without a time. Late
        rows are counted and left out.

        Args:
            other: the right side, of another source of this job. Both sides are keyed without
                ``partitioned``: they share one repartition topic.
            within: the most by which a right row is earlier or later than its left row, both
                bounds included. A pair: earlier by the first, later by the second.
            on: the column of event time, of both sides.
            how: ``inner``, or ``left``. With ``left``, a left row without a match comes out with
                nulls, at the first barrier whose watermark has passed its interval.
            other_on: the column of event time of the right side. None: ``on``.
            suffixes: for columns beside the key that both sides have, such as
                ``("_left", "_right")``. None: such columns are refused.
        Returns:
            Rows with the columns of both sides; the key's columns once.
        Raises:
            ConfigError: a setting is out of range, or a stream is not directly after ``key_by``.
        """
        if how not in ("inner", "left"):
            raise ConfigError("there is no such join", {"how": how}, "Use inner or left.")
        early, late = within if isinstance(within, tuple) else (within, within)
        keyed = IntervalJoin(
            before_ms=duration_ms(early, setting="within"),
            after_ms=duration_ms(late, setting="within"),
            on=(on, other_on or on),
            is_left=how == "left",
            suffixes=suffixes,
        )
        pipelines = self._pipeline, other._pipeline
        for pipeline in pipelines:
            _require_shared_topic(pipeline)
        self._require_time("join")
        other._require_time("join")
        return self._append("join", name, uid, keyed=keyed, other=pipelines[1])

    def process(
        self,
        function: ProcessFunction,
        *,
        output: pa.Schema,
        state: Mapping[str, State] | None = None,
        on_timer: TimerFunction | None = None,
        name: str | None = None,
        uid: str | None = None,
    ) -> Stream:
        """Call a function with the rows of one key, its state and its timers.

        ``function(key, rows, state, timers)`` is called once for each key of a chunk of rows. The
        chunk ends at the latest at the barrier. It returns rows of ``output``, as a RecordBatch, a
        Table, a dict or a list of dicts, or None.

        Args:
            function: ``key`` is the key as a Python value, a tuple if it has several columns.
                ``rows`` is a RecordBatch, in the order of the split. ``state.last.value`` reads and
                sets a declared `ValueState`; a `ListState` and a `MapState` are a list and a dict;
                each has ``clear()``. `Timers` sets and deletes timers, and has the time.
            output: schema of the rows that both functions return.
            state: declared states by name.
            on_timer: ``on_timer(key, time_ms, state, timers)`` is called at the first barrier whose
                watermark, or processing time, is at the timer's time or later. Timers fire in the
                order of their times, each once.
        Raises:
            ConfigError: a function or a state cannot be used.
        """
        if state:
            require_names(state, State, what="state")
            if any(each.ttl_time == "event" for each in state.values()):
                self._require_time("process, with a state whose ttl_time is event")
        keyed = Process(
            function=function, on_timer=on_timer, states=dict(state or {}), output=output
        )
        self._append("process", name, uid, keyed=keyed)
        return Stream(self._pipeline)

    def _require_time(self, kind: str) -> None:
        """Without watermarks no window would ever close, and no state would leave."""
        source = self._pipeline.source
        if isinstance(source, TimedSource) and source.event_time is None:
            raise ConfigError(
                "a function needs event time, and the source has none",
                {"source": source.name, "function": kind},
                'Give the source a time: KafkaSource(…, time=EventTime("kafka")).',
            )


class WindowedStream:
    """A keyed stream in windows; see `KeyedStream.window`."""

    def __init__(self, pipeline: Pipeline, function: Callable[..., WindowAggregation]) -> None:
        self._pipeline = pipeline
        self._function = function

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as any attribute
            if not name.startswith("_") and hasattr(KeyedStream, name):
                raise _MissingCallError(
                    f"{name} follows window, which needs an aggregate",
                    {"source": self._pipeline.source.name},
                    f"Call window(…).aggregate(count=Count()).{name}(…).",
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def aggregate(
        self,
        *unnamed: Never,
        name: str | None = None,
        uid: str | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """Aggregate the rows of each window of each key.

        Args:
            aggregates: as in `KeyedStream.aggregate`.
        Returns:
            Rows with ``window_start`` and ``window_end`` (timestamps in milliseconds, UTC; the end
            is not part of the window), the columns of the key, and one for each aggregate.
        """
        require_names(aggregates, Aggregate, what="aggregate", unnamed=unnamed)
        keyed = self._function(aggregates=aggregates)
        stream = Stream(self._pipeline)
        return stream._append("window", name, uid, keyed=keyed)  # noqa: SLF001 - its own stream


def _has_state(step: Step) -> bool:
    return step.keyed is not None and not isinstance(step.keyed, KeyBy)


def _key_columns(key: object) -> tuple[str, ...]:
    """The columns that a key names; none: it is a function."""
    if callable(key):
        return ()
    named = (key,) if isinstance(key, str) else key
    columns = tuple(named) if isinstance(named, Sequence) else ()
    if not columns or not all(isinstance(column, str) for column in columns):
        raise ConfigError(
            "a keyed stream has no key",
            {"key": repr(key)},
            "Name a column, or a list of columns, or give a function of a batch.",
        )
    return columns


def _positive_ms(given: Duration, setting: str) -> int:
    return duration_ms(given, setting=setting, may_be_zero=False)


def _require_shared_topic(side: Pipeline) -> None:
    key_by = side.steps[-1].keyed if side.steps else None
    if not isinstance(key_by, KeyBy) or key_by.partitioned or side.sinks:
        raise ConfigError(
            "a side of a join is not a key_by without partitioned=True",
            {"source": side.source.name},
            "Write left.key_by(…).join(right.key_by(…), …); both share a repartition topic.",
        )


def own_steps(source: Source) -> list[Step]:
    """Adds the functions that a source runs before all functions of its pipeline."""
    if not isinstance(source, DeserializingSource):
        return []
    return [
        Step(
            kind="map_batches",
            name=each.name,
            uid=each.uid,
            function=each.function,
            policy=each.policy,
        )
        for each in source.functions
    ]


def _require_no_sink(pipeline: Pipeline, kind: str) -> None:
    if pipeline.sinks or pipeline.broadcast is not None:
        raise ConfigError(
            "a function cannot follow a sink",
            {"source": pipeline.source.name, "function": kind},
            "Add functions first, sinks last; start another pipeline for another branch.",
        )


def _require_context(function: BatchFunction, name: str, state: object) -> None:
    if not isinstance(state, OperatorState | None) or not takes_context(function):
        raise ConfigError(
            "a function with state or broadcast lacks its context parameter",
            {
                "function": name or getattr(function, "__name__", "map_batches"),
                "state": repr(state),
            },
            "Write function(batch, ctx), and use ctx.state or ctx.broadcast there; pass "
            "state=OperatorState(schema).",
        )
