"""Analyses a pipeline's frame before the job begins, over a source that never runs."""

import importlib.util
import logging
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from sluice.runtime.contracts import CheckedSink
from sluice.runtime.errors import ConfigError, MissingRequirementError
from sluice.runtime.graph.pipeline import Pipeline
from sluice.runtime.model.output_modes import COMPLETE
from sluice.runtime.spark.frames.plan_steps import PlanSteps
from sluice.runtime.spark.frames.pruning import columns_read, kept_by
from sluice.runtime.spark.frames.region_frames import (
    chained_schema,
    output_mode,
    source_frame,
    transformed,
)
from sluice.runtime.spark.microbatch.job_source import probe_for

__all__ = ["PlanAnalysis", "analyse_plan", "require_modules"]

log = logging.getLogger(__name__)

_PACKAGES = {"google.protobuf": "protobuf"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnalysis:
    """Facts about a pipeline's frame.

    Attributes:
        stateful_kinds: the steps that keep state between batches, by Spark's names.
        repeats_result: whether the whole result of its state, as in complete mode, changes with
            records alone; False: a timeout may also change it.
        columns: source columns that it reads; None: all.
        modules: Python modules that its steps need in addition to PySpark's own.
    """

    stateful_kinds: tuple[str, ...] = ()
    repeats_result: bool = False
    columns: frozenset[str] | None = None
    modules: tuple[str, ...] = ()

    @property
    def keeps_state(self) -> bool:
        """Whether it keeps state between batches."""
        return bool(self.stateful_kinds)


def analyse_plan(spark: SparkSession, pipeline: Pipeline) -> PlanAnalysis:
    """Build the pipeline's frame over a source that never runs, and analyse its plan.

    Raises:
        ConfigError: the frame reads no stream, or a second one.
        ConfigError: its state begins with initial values, or could differ after a replay.
        ConfigError: it has ``complete`` mode but no state, or a file sink refuses its rows.
    """
    _warn_of_replays(pipeline)
    if pipeline.is_chained:
        if any(isinstance(sink, CheckedSink) for sink in pipeline.sinks):
            _check_files(pipeline, spark.createDataFrame([], chained_schema(pipeline)))
        return PlanAnalysis()
    probe = probe_for(pipeline.source.schema_ddl())
    frame = transformed(source_frame(spark, probe).load(), pipeline)
    steps = PlanSteps(frame)
    read = steps.streams_read
    if not read:
        raise ConfigError(
            "a transform returns rows that do not come from its source",
            {"source": pipeline.source.name},
            "Derive them from the DataFrame that its function receives.",
        )
    if read != (probe.name(),):
        others = set(read) - {probe.name()}
        raise ConfigError(
            "a transform reads a second stream, or its source twice",
            {"source": pipeline.source.name, "others": ",".join(sorted(others)) or "none"},
            "Make the other stream a source of the job, or select the columns twice from one read: "
            "a pipeline has one source, and a checkpoint one position of it.",
        )
    _require_own_state(pipeline, steps)
    _require_repeatable(pipeline, steps)
    _check_files(pipeline, frame)
    if not steps.keeps_state:
        _require_nothing_whole(pipeline)
    return PlanAnalysis(
        stateful_kinds=steps.stateful_kinds,
        repeats_result=steps.repeats_whole_result,
        columns=columns_read(kept_by(frame, pipeline.sinks)),
        modules=steps.modules_needed,
    )


def require_modules(analysis: PlanAnalysis) -> None:
    """Refuse a frame if a module that its steps need is not installed: Spark's workers would crash
    again and again, without this reason.

    Raises:
        MissingRequirementError: with the packages to install.
    """
    missing = [name for name in analysis.modules if not _is_installed(name)]
    if missing:
        raise MissingRequirementError(
            "a transform needs a package that is not installed",
            {"modules": ",".join(missing)},
            f"Run `pip install {' '.join(_PACKAGES.get(name, name) for name in missing)}` here "
            "and on the hosts of Spark's executors.",
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing, too
        return False


def _warn_of_replays(pipeline: Pipeline) -> None:
    functions = [step.name for step in pipeline.steps if not step.deterministic]
    if functions:
        log.warning(
            "functions may return other records in a replay, so a decided transaction that a "
            "broker has aborted cannot be repaired, and stops the job: source=%s functions=%s",
            pipeline.source.name,
            ",".join(functions),
        )


def _require_repeatable(pipeline: Pipeline, steps: PlanSteps) -> None:
    """If Spark has not committed the state of a decided batch, it replays the batch
    (`stateful-replay`). The replay must bring the same rows to the state."""
    found = steps.unrepeatable_below_state
    if found:
        raise ConfigError(
            "a nondeterministic expression feeds a state",
            {"source": pipeline.source.name, "expressions": ", ".join(found)},
            "Use a function of the record instead, such as xxhash64(topic, partition, offset), or "
            "write the rows to a topic, and build the state in a second pipeline. Declare a "
            "deterministic UDTF with asDeterministic(). A replay could otherwise bring other "
            "records to the state than to the output.",
        )


def _require_own_state(pipeline: Pipeline, steps: PlanSteps) -> None:
    """The first batch of a region's first attempt is no epoch: it reads nothing, and runs into
    ``noop``. Rows that a function returns there for its initial state would be lost."""
    found = steps.initial_states
    if found:
        raise ConfigError(
            "a state has initial values",
            {"source": pipeline.source.name, "steps": ", ".join(found)},
            "Remove initialState: its rows would be lost, because its batch is in no checkpoint. "
            "Write its values as records to a topic that the source also reads, or join the "
            "records with its table before the state.",
        )


def _require_nothing_whole(pipeline: Pipeline) -> None:
    """A frame without a state runs in ``append``, which equals ``update``: the rows of each record
    are returned once. Without a state there is no whole result for ``complete``."""
    if output_mode(pipeline) == COMPLETE:
        raise ConfigError(
            "a transform without a state has output mode complete",
            {"source": pipeline.source.name, "output_mode": COMPLETE},
            "Aggregate in it, or remove output_mode: each record's rows are then written once.",
        )


def _check_files(pipeline: Pipeline, frame: DataFrame) -> None:
    for sink in pipeline.sinks:
        if isinstance(sink, CheckedSink):
            sink.check_frame(frame)
