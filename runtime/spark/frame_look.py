"""What is known of a pipeline's frame before the job begins: told by one that never runs."""

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from runtime.contracts import FrameSink
from runtime.errors import ConfigError
from runtime.job import Pipeline
from runtime.spark.frames import chained_schema, source_frame, transformed
from runtime.spark.job_source import probe_for
from runtime.spark.plans import is_stateful, streams_read
from runtime.spark.pruning import columns_read, kept_by

__all__ = ["FrameLook", "look_at"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLook:
    """What a pipeline's frame is like.

    Attributes:
        keeps_state: between batches.
        columns: of the source, that it reads; None: all.
    """

    keeps_state: bool
    columns: frozenset[str] | None = None


def look_at(spark: SparkSession, pipeline: Pipeline) -> FrameLook:
    """Make the pipeline's frame over a source that never runs, and look at it.

    Raises:
        ConfigError: it reads another stream, too, or its rows do not suit a sink of files.
    """
    if pipeline.is_chained:
        if any(isinstance(sink, FrameSink) for sink in pipeline.sinks):
            _check_files(pipeline, spark.createDataFrame([], chained_schema(pipeline)))
        return FrameLook(keeps_state=False)
    probe = probe_for(pipeline.source.schema_ddl())
    frame = transformed(source_frame(spark, probe).load(), pipeline)
    read = streams_read(frame)
    if read not in ((), (probe.name(),)):
        others = set(read) - {probe.name()}
        raise ConfigError(
            "a transform reads another stream than its source, or its source twice",
            {"source": pipeline.source.name, "others": ",".join(sorted(others)) or "none"},
            "A checkpoint holds one position of one source in each pipeline. Make the other one a "
            "source of the job, or read the records once, with their columns twice.",
        )
    _check_files(pipeline, frame)
    columns = columns_read(kept_by(frame, pipeline.sinks)) if read else None
    return FrameLook(keeps_state=is_stateful(frame), columns=columns)


def _check_files(pipeline: Pipeline, frame: DataFrame) -> None:
    for sink in pipeline.sinks:
        if isinstance(sink, FrameSink):
            sink.check_frame(frame)
