"""A pipeline's frame: its source as a Python data source, then the user's functions."""

from collections.abc import Mapping
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from sluice.runtime.contracts import TaskSink, TypedWriterFactory, WriterFactory
from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.function_states import FunctionStates
from sluice.runtime.graph.pipeline import FrameFunction, Pipeline, Step
from sluice.runtime.model.output_modes import mode_of_query

__all__ = [
    "arrow_schema",
    "chained_schema",
    "output_mode",
    "source_frame",
    "transformed",
    "writer_factories",
]


def source_frame(spark: SparkSession, data_source: type[DataSource]) -> DataStreamReader:
    """Register the data source and begin a stream that reads it."""
    spark.dataSource.register(data_source)
    return spark.readStream.format(data_source.name())


def transformed(frame: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The frame after the pipeline's `transform`; a chained pipeline's functions run in tasks.

    Raises:
        ConfigError: a function does not return a frame.
    """
    if not pipeline.is_chained:
        for step in pipeline.steps:
            frame = _checked(cast(FrameFunction, step.function)(frame), step)
    return frame


def _checked(made: object, step: Step) -> DataFrame:
    if isinstance(made, DataFrame):
        return made
    raise ConfigError(
        "a transform's function did not return a DataFrame",
        {"function": step.name, "returned": type(made).__name__},
        "Return the changed DataFrame: the job writes it, and starts its query.",
    )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow types that Spark expects from a Python data source for rows of ``schema``."""
    return to_arrow_schema(schema, timezone="UTC")


def chained_schema(pipeline: Pipeline) -> StructType:
    """The columns that a chained pipeline's functions return for an empty batch.

    Raises:
        ConfigError: a function fails for an empty batch, or returns a type unknown to Spark.
    """
    ddl = pipeline.source.schema_ddl()
    schema = arrow_schema(cast(StructType, StructType.fromDDL(ddl)))
    batch = pa.RecordBatch.from_pylist([], schema=schema)
    try:
        for step in pipeline.steps:
            (function,) = FunctionStates([step.chained("")]).functions
            batch = cast(pa.RecordBatch, function.call(batch)[0])
        found = batch.schema
    except Exception as err:
        raise ConfigError(
            "a function fails for an empty batch, so its columns are unknown",
            {"error": f"{type(err).__name__}: {err}", "columns": ddl},
            "Let the function return an empty batch for an empty batch.",
        ) from err
    return _spark_columns(found)


def writer_factories(pipeline: Pipeline, sinks: Mapping[str, TaskSink]) -> dict[str, WriterFactory]:
    """The factories of a pipeline's sinks, by operator id, for rows as its functions declare."""
    made = {i: sink.writer_factory() for i, sink in sinks.items()}
    typed = {i: each for i, each in made.items() if isinstance(each, TypedWriterFactory)}
    if not typed or not pipeline.is_chained:
        return made
    rows = arrow_schema(chained_schema(pipeline))
    return made | {i: each.for_rows(rows) for i, each in typed.items()}


def _spark_columns(schema: pa.Schema) -> StructType:
    try:
        return from_arrow_schema(schema)
    except Exception as err:
        raise ConfigError(
            "the functions return a column of a type that Spark cannot write",
            {"error": f"{type(err).__name__}: {err}", "columns": str(schema)},
            "Cast it in the last function; a dictionary, for example, to its values.",
        ) from err


def output_mode(pipeline: Pipeline) -> str:
    """Spark's output mode of a stateful frame."""
    return mode_of_query(step.output_mode for step in pipeline.steps)
