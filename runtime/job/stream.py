"""Streams of a described job: what users call between a source and its sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sluice.runtime.contracts import DeserializingSource, Sink, Source
from sluice.runtime.contracts.keyed import KeyBy
from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.function_context import takes_context
from sluice.runtime.functions.operator_state import OperatorState
from sluice.runtime.graph.pipeline import BatchFunction, FrameFunction, Pipeline, Step
from sluice.runtime.job.broadcast_stream import BroadcastStream, steps_of
from sluice.runtime.keyed.broadcast import LatestRows
from sluice.runtime.model.on_error import OnError, Policy, policy_of
from sluice.runtime.model.output_modes import checked_mode, require_one_mode

__all__ = ["Stream", "own_steps"]


class Stream:
    """A stream of records from a source or a function; methods add to the pipeline and return
    it."""

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
                all functions of the pipeline must be deterministic and row-wise
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
        return self._add(
            "map_batches",
            function,
            name,
            uid,
            deterministic=deterministic,
            policy=policy,
            state=state,
            broadcasts=tables,
        )

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
        pipeline = self._pipeline
        _require_no_sink(pipeline, "broadcast")
        columns = (key,) if isinstance(key, str) else tuple(key)
        begin = f"{pipeline.source.name}-key_by"
        key_by = KeyBy(columns=columns, partitioned=True)
        step = Step(
            kind="broadcast",
            name=name or f"{pipeline.source.name}-broadcast",
            uid=uid,
            keyed=LatestRows(columns=columns),
            waits=wait,
        )
        pipeline.steps += [Step(kind="key_by", name=begin, uid=None, keyed=key_by), step]
        return BroadcastStream(step)

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
            The transforms of a pipeline are one query with one mode: all transforms that set a mode
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
        return self._add("transform", function, name, uid, mode, deterministic, force_rescale)

    def sink(self, sink: Sink) -> Stream:
        """Write this stream; may be called again for further sinks of the same records."""
        self._pipeline.sinks.append(sink)
        return self

    def _add(
        self,
        kind: str,
        function: BatchFunction | FrameFunction,
        name: str | None,
        uid: str | None,
        output_mode: str | None = None,
        deterministic: bool = True,
        force_rescale: bool = False,
        policy: Policy | None = None,
        state: OperatorState | None = None,
        broadcasts: Mapping[str, Step] | None = None,
    ) -> Stream:
        pipeline = self._pipeline
        _require_no_sink(pipeline, kind)
        if kind != "map_batches" and own_steps(pipeline.source):
            raise ConfigError(
                "a source with deserializers feeds a transform",
                {"source": pipeline.source.name, "added": kind},
                "Leave them out, and use from_json or from_avro in the transform.",
            )
        if pipeline.steps and pipeline.steps[-1].kind != kind:
            raise ConfigError(
                "map_batches and transform cannot follow each other in one pipeline",
                {"source": pipeline.source.name, "have": pipeline.steps[-1].kind, "added": kind},
                "Use DataFrame.mapInArrow for Arrow functions inside a transform.",
            )
        default = f"{pipeline.source.name}-{kind}"
        if pipeline.steps:
            default += f"-{len(pipeline.steps) + 1}"
        step = Step(
            kind=kind,
            name=name or default,
            uid=uid,
            function=function,
            output_mode=output_mode,
            deterministic=deterministic,
            force_rescale=force_rescale,
            policy=policy,
            state=state,
            broadcasts=broadcasts or {},
        )
        pipeline.steps.append(step)
        require_one_mode((each.name, each.output_mode) for each in pipeline.steps)
        return self


def _require_no_sink(pipeline: Pipeline, kind: str) -> None:
    if pipeline.sinks or pipeline.broadcast is not None:
        raise ConfigError(
            "a function cannot follow a sink",
            {"source": pipeline.source.name, "function": kind},
            "Add functions first, sinks last; start another pipeline for another branch.",
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
