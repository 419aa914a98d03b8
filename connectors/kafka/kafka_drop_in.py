"""The format ``sluice-kafka``: reader and writer in one data source, carrying its service."""

from collections.abc import Callable, Mapping

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from sluice.connectors.kafka.kafka_drop_in_source import KafkaSourceFormat
from sluice.connectors.kafka.kafka_sink import KafkaSink
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.runtime.contracts import DropInSink
from sluice.runtime.errors import ConfigError
from sluice.runtime.spark.drop_in.drop_in_writer import DropInStreamWriter, refuse_frame

__all__ = [
    "FORMAT",
    "KafkaFormat",
    "check_kafka_write",
    "check_source",
    "kafka_sink",
]

FORMAT = "sluice-kafka"


class KafkaFormat(KafkaSourceFormat):
    """Spark's data source of ``format("sluice-kafka")``; `with_service` adds the service."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The transactional sink; see `DropInStreamWriter`."""
        del overwrite  # Spark passes True for output mode complete; a topic cannot be overwritten
        check_kafka_write(self.options, schema, mode="append")
        return DropInStreamWriter(FORMAT, self.options, self.service)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse a frame: after `sluice.install`, ``save()`` does not reach this method."""
        refuse_frame(FORMAT)


def check_source(options: Mapping[str, str], *, stream: bool) -> None:
    """ConfigError for wrong options of ``spark.read`` or ``spark.readStream``."""
    SourceOptions.of(options, bounded=not stream, stream=stream)


def check_kafka_write(options: Mapping[str, str], schema: StructType, *, mode: str) -> None:
    """See `sluice.runtime.spark.drop_in.spark_writers.FormatCheck`; save modes as Spark's sink."""
    if mode in ("overwrite", "ignore"):
        raise ConfigError(
            "this save mode is not allowed for Kafka",
            {"format": FORMAT, "mode": mode},
            "Use append, or leave the mode out.",
        )
    KafkaSink.from_options(options, schema)


def kafka_sink(options: Mapping[str, str], setting: Callable[[str], str]) -> DropInSink:
    """A query's sink; the same whatever its session has set."""
    del setting
    return KafkaSink.from_options(options)
