"""How tests read through a Kafka source: as driver and executor do, without Spark."""

import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sluice import KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.contracts import SplitEnumerator
from sluice.runtime.model.splits import SplitRange

__all__ = ["TIMEOUT_S", "Splits", "all_rows", "bounds", "cut", "rows", "source", "start", "values"]

TIMEOUT_S = 300.0
Splits = tuple[SplitRange, ...]


def source(kafka: EmbeddedKafka, topic: str, **arguments: Any) -> KafkaSource:
    """A source over one topic, or what the arguments say."""
    if not {"pattern", "partitions"} & set(arguments):
        arguments["topics"] = [topic]
    return KafkaSource(bootstrap_servers=kafka.bootstrap, **arguments)


def start(made: KafkaSource) -> tuple[SplitEnumerator, Splits]:
    """Its enumerator, and the positions where it starts."""
    enumerator = made.enumerator("s")
    return enumerator, enumerator.resolve_start(timeout_s=TIMEOUT_S)


def cut(enumerator: SplitEnumerator, positions: Splits, *, most: int | None = None) -> Splits:
    """The next ranges."""
    return enumerator.cut(positions, max_records=most, timeout_s=TIMEOUT_S)


def rows(made: KafkaSource, splits: Sequence[SplitRange]) -> list[dict[str, Any]]:
    """What an executor reads of ranges."""
    # Through pickle, as the reader reaches an executor.
    reader = pickle.loads(pickle.dumps(made.reader()))
    batches: list[pa.RecordBatch] = list(reader.read(splits))
    return [row for batch in batches for row in batch.to_pylist()]


def all_rows(made: KafkaSource) -> list[dict[str, Any]]:
    """Everything from the start to the end that is there."""
    enumerator, positions = start(made)
    return rows(made, cut(enumerator, positions))


def values(found: Sequence[dict[str, Any]]) -> list[bytes | None]:
    """Of rows."""
    return [row["value"] for row in found]


def bounds(splits: Splits) -> dict[int, tuple[int, int]]:
    """Start and end by partition."""
    return {split.partition: (split.start_offset, split.end_offset) for split in splits}
