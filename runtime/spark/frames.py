"""A pipeline's frame: its source by a data source of ours, then the user's functions."""

from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.readwriter import DataStreamReader

from runtime.job import FrameFunction, Pipeline

__all__ = ["output_mode", "source_frame", "transformed"]


def source_frame(spark: SparkSession, data_source: type[DataSource]) -> DataStreamReader:
    """Register the data source and begin a stream that reads it."""
    spark.dataSource.register(data_source)
    return spark.readStream.format(data_source.name())


def transformed(frame: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The frame behind the pipeline's `transform`; a chained pipeline's functions run in tasks."""
    if not pipeline.is_chained:
        for step in pipeline.steps:
            frame = cast(FrameFunction, step.function)(frame)
    return frame


def output_mode(pipeline: Pipeline) -> str:
    """Spark's output mode of a stateful frame."""
    return pipeline.steps[-1].output_mode if pipeline.steps else "append"
