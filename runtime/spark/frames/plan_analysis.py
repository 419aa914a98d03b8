"""What is known of a pipeline's frame before the job begins: told by one that never runs."""

import importlib.util
import logging
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from sluice.runtime.contracts import FrameSink
from sluice.runtime.errors import ConfigError, MissingRequirementError
from sluice.runtime.graph.pipeline import Pipeline
from sluice.runtime.model.output_modes import COMPLETE
from sluice.runtime.spark.frames.plan_steps import (
    initial_states,
    is_stateful,
    modules_needed,
    repeats_whole_result,
    streams_read,
    unrepeatable_below_state,
)
from sluice.runtime.spark.frames.pruning import columns_read, kept_by
from sluice.runtime.spark.frames.region_frames import (
    chained_schema,
    output_mode,
    source_frame,
    transformed,
)
from sluice.runtime.spark.microbatch.job_source import probe_for

__all__ = ["PlanAnalysis", "look_at", "require_modules"]

log = logging.getLogger(__name__)

_PACKAGES = {"google.protobuf": "protobuf"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnalysis:
    """What a pipeline's frame is like.

    Attributes:
        keeps_state: between batches.
        repeats_result: the whole result of its state, as in complete mode, changes with records
            alone; False: a timeout may change it, too.
        columns: of the source, that it reads; None: all.
        modules: that its steps need beside PySpark's own.
    """

    keeps_state: bool
    repeats_result: bool = False
    columns: frozenset[str] | None = None
    modules: tuple[str, ...] = ()


def look_at(spark: SparkSession, pipeline: Pipeline) -> PlanAnalysis:
    """Make the pipeline's frame over a source that never runs, and look at it.

    Raises:
        ConfigError: it reads no stream, or another one, too, or its state would differ from what
            was written if a batch is run again, or is given to it, or its rows do not suit a sink
            of files, or without a state it is to give its whole result.
    """
    _warn_of_replays(pipeline)
    if pipeline.is_chained:
        if any(isinstance(sink, FrameSink) for sink in pipeline.sinks):
            _check_files(pipeline, spark.createDataFrame([], chained_schema(pipeline)))
        return PlanAnalysis(keeps_state=False)
    probe = probe_for(pipeline.source.schema_ddl())
    frame = transformed(source_frame(spark, probe).load(), pipeline)
    read = streams_read(frame)
    if not read:
        raise ConfigError(
            "a transform gives rows that come of no stream",
            {"source": pipeline.source.name},
            "Make them of the DataFrame that its function is given.",
        )
    if read != (probe.name(),):
        others = set(read) - {probe.name()}
        raise ConfigError(
            "a transform reads another stream than its source, or its source twice",
            {"source": pipeline.source.name, "others": ",".join(sorted(others)) or "none"},
            "A checkpoint holds one position of one source in each pipeline. Make the other one a "
            "source of the job, or read the records once, with their columns twice.",
        )
    _require_own_state(pipeline, frame)
    _require_repeatable(pipeline, frame)
    _check_files(pipeline, frame)
    keeps_state = is_stateful(frame)
    if not keeps_state:
        _require_nothing_whole(pipeline)
    return PlanAnalysis(
        keeps_state=keeps_state,
        repeats_result=repeats_whole_result(frame),
        columns=columns_read(kept_by(frame, pipeline.sinks)),
        modules=modules_needed(frame),
    )


def require_modules(look: PlanAnalysis) -> None:
    """Refuse a frame whose steps need what is not installed: Spark would say that a worker of its
    own has crashed, again and again.

    Raises:
        MissingRequirementError: it is not; says what to install.
    """
    missing = [name for name in look.modules if not _is_installed(name)]
    if missing:
        raise MissingRequirementError(
            "a transform needs a package that is not installed",
            {"modules": ",".join(missing)},
            f"pip install {' '.join(_PACKAGES.get(name, name) for name in missing)}, here and "
            "where Spark's executors run.",
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package that it would be in
        return False


def _warn_of_replays(pipeline: Pipeline) -> None:
    functions = [step.name for step in pipeline.steps if not step.deterministic]
    if functions:
        log.warning(
            "functions may give other records in a replay: source=%s functions=%s. What is not "
            "decided is read again all the same; a decided transaction that a broker has aborted "
            "cannot be written again, and stops the job with its ranges.",
            pipeline.source.name,
            ",".join(functions),
        )


def _require_repeatable(pipeline: Pipeline, frame: DataFrame) -> None:
    """A batch that is decided is run once more where Spark has not committed its state
    (`stateful-replay`): what comes to that must be what has come to the rows that were written."""
    found = unrepeatable_below_state(frame)
    if found:
        raise ConfigError(
            "a state is fed by an expression that may give something else in a replay",
            {"source": pipeline.source.name, "expressions": ", ".join(found)},
            "Records could be in the result and not in the state, or the other way round. Take a "
            "function of the record in its place, such as xxhash64(topic, partition, offset); or "
            "write the rows to a topic, and keep the state of that. A UDTF that always gives the "
            "same for the same arguments is to say so: asDeterministic().",
        )


def _require_own_state(pipeline: Pipeline, frame: DataFrame) -> None:
    """The first batch of a region's first life is no epoch: it reads nothing, and runs into
    ``noop``. What a function gives there for the state that it begins with would be lost."""
    found = initial_states(frame)
    if found:
        raise ConfigError(
            "a state is given something to begin with",
            {"source": pipeline.source.name, "steps": ", ".join(found)},
            "Its rows would be lost: the batch that takes it in is no part of a checkpoint. Leave "
            "out initialState, and write what it holds as records to a topic that the source "
            "reads, too; or join the records with its table in front of the state.",
        )


def _require_nothing_whole(pipeline: Pipeline) -> None:
    """A frame without a state runs in ``append``, which ``update`` is the same as: each record's
    rows are given once. Nobody keeps the whole result that ``complete`` asks for."""
    if output_mode(pipeline) == COMPLETE:
        raise ConfigError(
            "a transform that keeps no state is to give its whole result",
            {"source": pipeline.source.name, "output_mode": COMPLETE},
            "Aggregate in it, or leave output_mode out: each record's rows are then given once.",
        )


def _check_files(pipeline: Pipeline, frame: DataFrame) -> None:
    for sink in pipeline.sinks:
        if isinstance(sink, FrameSink):
            sink.check_frame(frame)
