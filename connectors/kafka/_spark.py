"""The format ``sluice-kafka``: reader and writer in one data source, carrying its service."""

from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StructType

from connectors.kafka._spark_sink import KafkaStreamWriter
from connectors.kafka._spark_source import KafkaSourceFormat
from connectors.kafka.sink import KafkaSink
from runtime.contracts import Sink
from runtime.service.drop_in_client import DropInClient

__all__ = ["KafkaFormat", "kafka_format", "kafka_sink_of"]


class KafkaFormat(KafkaSourceFormat):
    """What Spark makes for each ``format("sluice-kafka")``; `kafka_format` gives it a service."""

    service: DropInClient | None = None

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The transactional sink; see `KafkaStreamWriter`."""
        del overwrite  # Spark passes True for output mode complete; Kafka has nothing to overwrite
        return KafkaStreamWriter(self.options, schema, self.service)


def kafka_format(service: DropInClient) -> type[KafkaFormat]:
    """A class that Spark pickles whole: address and token pass through no option."""

    class SluiceKafka(KafkaFormat):
        pass

    SluiceKafka.service = service
    return SluiceKafka


def kafka_sink_of(options: Mapping[str, str]) -> Sink:
    """The sink that the options of ``writeStream`` describe."""
    return KafkaSink.from_options(options)
