"""The Job API: sources, functions and sinks under one barrier checkpoint coordinator.

``Job("orders", spark, checkpoint_dir=…).source(KafkaSource(…)).map_batches(fn).sink(KafkaSink(…))``
only describes; `Job.run` checks, starts and watches it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Never

import pyarrow as pa

from runtime.checkpoint.plan import CheckpointSettings, OnLost
from runtime.checkpoint.progress import ProgressListener
from runtime.contracts import Sink, Source
from runtime.errors import ConfigError
from runtime.interpreter import use_this_interpreter
from runtime.spelling import refuse_misspelt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from runtime.spark.engine import JobResult

__all__ = ["BatchFunction", "FrameFunction", "Job", "Pipeline", "Step", "Stream"]

use_this_interpreter()

BatchFunction = Callable[[pa.RecordBatch], pa.RecordBatch]
FrameFunction = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A function between a source and its sinks.

    Attributes:
        kind: ``map_batches`` or ``transform``.
        name, uid: of the operator.
        function: Arrow function or frame function, by ``kind``.
        output_mode: Spark's output mode for a stateful transform.
        deterministic: the user's word that a replay gives the same rows (rules 11 and 21).
    """

    kind: str
    name: str
    uid: str | None
    function: BatchFunction | FrameFunction
    output_mode: str = "update"
    deterministic: bool = True


@dataclass(slots=True)
class Pipeline:
    """One source, the functions behind it, and its sinks: one region."""

    source: Source
    steps: list[Step] = field(default_factory=list)
    sinks: list[Sink] = field(default_factory=list)

    @property
    def is_chained(self) -> bool:
        """Whether one worker can read, apply and write, with no hop through the JVM."""
        return all(step.kind == "map_batches" for step in self.steps)


class Stream:
    """What a source or a function yields; methods add to the pipeline and return it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def map_batches(
        self, function: BatchFunction, *, name: str | None = None, uid: str | None = None
    ) -> Stream:
        """Apply a function from Arrow batch to Arrow batch in the worker that reads and writes.

        The batch has the source's columns; what it returns needs ``value`` and may have ``key``,
        ``topic``, ``partition``, ``headers`` and ``timestamp``, which the sink honours. The
        function is sent to the workers once, when the region starts, with the variables it uses.
        """
        return self._add("map_batches", function, name, uid)

    def transform(
        self,
        function: FrameFunction,
        *,
        name: str | None = None,
        uid: str | None = None,
        output_mode: str = "update",
        deterministic: bool = True,
    ) -> Stream:
        """Apply any DataFrame code: SQL, joins, windows, ``transformWithState``.

        Args:
            output_mode: ``append``, ``update`` or ``complete``, as Spark's for stateful frames.
            deterministic: False says that a replay may give other rows. With state or several
                sinks that cannot be exactly-once and is refused.
        """
        return self._add("transform", function, name, uid, output_mode, deterministic)

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
        output_mode: str = "update",
        deterministic: bool = True,
    ) -> Stream:
        pipeline = self._pipeline
        if pipeline.sinks:
            raise ConfigError(
                "a function is added behind a sink",
                {"source": pipeline.source.name, "function": kind},
                "Add functions first, sinks last; start another pipeline for another branch.",
            )
        if pipeline.steps and pipeline.steps[-1].kind != kind:
            raise ConfigError(
                "map_batches and transform cannot follow each other in one pipeline",
                {"source": pipeline.source.name, "have": pipeline.steps[-1].kind, "added": kind},
                "Inside a transform, use DataFrame.mapInArrow for Arrow functions.",
            )
        default = f"{pipeline.source.name}-{kind}"
        if pipeline.steps:
            default += f"-{len(pipeline.steps) + 1}"
        pipeline.steps.append(
            Step(
                kind=kind,
                name=name or default,
                uid=uid,
                function=function,
                output_mode=output_mode,
                deterministic=deterministic,
            )
        )
        return self


class Job:
    """Sources, functions and sinks with one checkpoint directory. Driver.

    Args:
        name: recorded in the checkpoints; another name's directory is refused.
        spark: the session that runs the regions.
        checkpoint_dir: directory or Hadoop URI (``file``, ``hdfs``) of the checkpoints.
        interval_s: from one barrier to the next, at least; > 0.
        timeout_s: a checkpoint that is not complete after it is aborted; > 0.
        min_pause_s: between the end of a checkpoint and the next barrier; >= 0.
        tolerable_failures: failed or expired checkpoints in a row after which the job goes on, by
            restarting the region; one more ends it, as does an error that would come again; >= 0.
        retained: decided checkpoints kept; >= 1.
        discovery_interval_s: how often the sources look for new partitions and topics; None: never.
        on_lost: ``fail`` or ``repair`` a decided transaction that the broker has aborted.
        restore_from: start from this checkpoint instead of the last one. What later ones had read
            is read and written again; damaged ones above it are passed over once committed.
        host: address at which executors reach this process.
        listeners: told of every checkpoint; they only listen.
    Raises:
        ConfigError: a setting is misspelt, missing or out of range.
    """

    def __init__(
        self,
        name: str,
        spark: SparkSession,
        *,
        checkpoint_dir: str = "",
        interval_s: float = 1.0,
        timeout_s: float = 600.0,
        min_pause_s: float = 0.0,
        tolerable_failures: int = 3,
        retained: int = 3,
        discovery_interval_s: float | None = 10.0,
        on_lost: str = "fail",
        restore_from: int | None = None,
        host: str = "127.0.0.1",
        listeners: Sequence[ProgressListener] = (),
        **misspelt: Never,
    ) -> None:
        refuse_misspelt(misspelt, Job.__init__, of="Job")
        if not checkpoint_dir:
            raise ConfigError(
                "a job needs a directory for its checkpoints",
                {"job": name, "setting": "checkpoint_dir"},
                "Give a directory of its own, or an hdfs: URI.",
            )
        self.name = name
        self.spark = spark
        self.checkpoint_dir = checkpoint_dir
        self.settings = CheckpointSettings(
            interval_s=interval_s,
            timeout_s=timeout_s,
            min_pause_s=min_pause_s,
            tolerable_failures=tolerable_failures,
            retained=retained,
            discovery_interval_s=discovery_interval_s,
            on_lost=_on_lost(on_lost),
        )
        self.restore_from = restore_from
        self.host = host
        self.listeners = tuple(listeners)
        self._pipelines: list[Pipeline] = []

    @property
    def pipelines(self) -> Sequence[Pipeline]:
        """What has been described so far."""
        return tuple(self._pipelines)

    def source(self, source: Source) -> Stream:
        """Begin a pipeline."""
        pipeline = Pipeline(source)
        self._pipelines.append(pipeline)
        return Stream(pipeline)

    def run(self) -> JobResult:
        """Run until every source has reached its end, or the job fails, or Ctrl-C.

        On a terminal, progress is shown on standard error.

        Returns:
            What was done, once everything committed is visible to readers.

        Raises:
            StreamError: the job cannot start, or failed; nothing undecided became visible.
            SystemExit: 130 after Ctrl-C, 143 after SIGTERM, once the regions have stopped and what
                was undecided is aborted; start again to go on.
        """
        from runtime.spark.engine import run_job

        return run_job(self)


def _on_lost(text: str) -> OnLost:
    try:
        return OnLost(text)
    except ValueError as err:
        raise ConfigError(
            "on_lost has a value that does not exist",
            {"on_lost": text, "known": ", ".join(choice.value for choice in OnLost)},
            "Use fail, or repair where the records are a function of the ranges read.",
        ) from err
