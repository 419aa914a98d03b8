"""The drop-in source: ``spark.readStream`` with ``format("sluice-kafka")``.

Spark's trigger is the barrier here, and Spark's offset log the checkpoint of the position. The
offset is self-contained (`offsets`): a replay reads exactly what the first try read.
"""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from sluice.connectors.kafka.kafka_drop_in_batch import (
    KafkaBatchReader,
    open_enumerator,
    split_reader,
    tasks_of,
)
from sluice.connectors.kafka.records.columns import columns_with, schema_ddl
from sluice.connectors.kafka.source.enumerator.enumerator import KafkaSplitEnumerator
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.runtime.errors import ConfigError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model import offsets
from sluice.runtime.model.splits import Barrier, SplitRange
from sluice.runtime.process.worker_memory import tidy_after_task
from sluice.runtime.service.drop_in_client import DropInClient

__all__ = ["KafkaSourceFormat", "KafkaStreamReader"]

_TIMEOUT_S = 30.0
_START_TIMEOUT_S = 15.0  # an unreachable cluster is reported within 30 s
_DISCOVERY_INTERVAL_S = 10.0
_REGION = "query"
_SHOWN = 2000  # characters of an offset
# Given as the default limit, so that a limit of "all" can only come from trigger(once=True).
_NO_LIMIT = (1 << 63) - 1


class KafkaSourceFormat(DataSource):
    """The reading half of the format; `kafka_drop_in` adds the writing half."""

    service: DropInClient | None = None

    @classmethod
    def name(cls) -> str:
        """The name for ``format(…)``."""
        return "sluice-kafka"

    def schema(self) -> str:
        """Columns and types of Spark's own ``kafka`` source. Spark calls this when it analyses a
        load, also one by SQL, and does not say whether that is a stream.

        Raises:
            ConfigError: the options are wrong for a frame and for a stream; or Spark creates a
                table, whose later reads get none of its options.
        """
        if "provider" in self.options:  # a property of each table
            raise ConfigError(
                "Spark passes a table's options to no Python data source",
                {"format": self.name()},
                "Use CREATE TEMPORARY VIEW … USING, or load() and createOrReplaceTempView().",
            )
        try:
            SourceOptions.of(self.options, bounded=False, stream=True)
        except ConfigError:
            SourceOptions.of(self.options, bounded=True, stream=False)
        headers = str(self.options.get("includeHeaders", "false")).strip().lower() == "true"
        return schema_ddl(columns_with(headers=headers))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A bounded read."""
        service = None if self.service is None else self.service.address
        return KafkaBatchReader(self.options, tuple(schema.names), service)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream."""
        return KafkaStreamReader(
            SourceOptions.of(self.options, bounded=False, stream=True), tuple(schema.names)
        )


def _require_ours(logged: Mapping[str, Any], read_to: Mapping[str, Any]) -> None:
    """Refuse a checkpoint location of Spark's own Kafka source.

    Args:
        read_to: the end of the last finished batch, as Spark's source has it.
    Raises:
        ConfigError: the offsets are those of Spark's source; names where to start instead.
    """
    if "format" in logged or not logged or not all(isinstance(n, dict) for n in logged.values()):
        return  # ours, or unknown
    raise ConfigError(
        "Sluice cannot resume from a checkpoint of Spark's Kafka source",
        {"read_to": json.dumps(read_to)[:_SHOWN]},
        "Give the query a new checkpointLocation, and its source these startingOffsets. Spark's "
        "log has them in full, in offsets/.",
    )


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``. All but `read` runs in one long-lived driver-side Python process."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        # Spark passes the limit of each trigger itself.
        self._max_offsets = options.max_offsets
        self._options = replace(
            options,
            max_offsets=None,
            discovery_interval_s=options.discovery_interval_s or _DISCOVERY_INTERVAL_S,
        )
        self._split_reader = split_reader(options, columns)
        self._begin()

    def _begin(self) -> None:
        self._made: KafkaSplitEnumerator | None = None
        self._run = uuid.uuid4().hex
        self._initial: dict[str, Any] | None = None
        self._initial_given = False
        self._restored = False
        self._cut_here = False
        self._published: tuple[SplitRange, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        names = ("_max_offsets", "_options", "_split_reader")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._begin()

    def initialOffset(self) -> dict[str, Any]:
        """Return the starting position as numbers; Spark calls twice, it is resolved once
        (`start-offsets-once`)."""
        if self._initial is None:
            barrier = Barrier(
                checkpoint_id=0,
                region=_REGION,
                attempt_id=0,
                splits=self._enumerator.resolve_start(timeout_s=_START_TIMEOUT_S),
            )
            # ``run`` marks a position that this process has resolved, not one from Spark's log.
            self._initial = {**offsets.encode(barrier, initial=True), "run": self._run}
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger``."""
        return ReadMaxRows(self._max_offsets or _NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end: the query reads all present records, in one or more batches."""
        self._enumerator.fix_ends(timeout_s=_TIMEOUT_S)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the next end; ``start`` itself if nothing is new, and Spark runs no batch.

        The first answer is the initial offset, so that batch 0 is empty and the log keeps the
        resolved numbers before the first record is read (`start-offsets-once`).
        """
        once = isinstance(limit, ReadAllAvailable)
        if not once and not self._initial_given and start.get("run") == self._run:
            self._initial_given = True
            return start
        positions = self._positions(start)
        failpoint("before-cut")
        new = self._enumerator.discover(timeout_s=_TIMEOUT_S)
        # An empty range ends an availableNow query.
        cut = self._enumerator.cut_to_ends(
            (*positions, *new),
            max_records=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            timeout_s=_TIMEOUT_S,
            at_once=once,
        )
        failpoint("after-cut")
        self._cut_here = True
        if not new and all(split.is_empty for split in cut):
            # Spark reports a committed batch only with the next one; lag tools need it now.
            self._publish(positions)
            return start
        barrier = Barrier(
            checkpoint_id=int(start["checkpoint"]) + 1, region=_REGION, attempt_id=0, splits=cut
        )
        return offsets.encode(barrier)

    def _positions(self, start: Mapping[str, Any]) -> tuple[SplitRange, ...]:
        _require_ours(start, start)
        forgotten = self._options.forgotten
        positions = tuple(s for s in offsets.decode(start).splits if s.topic not in forgotten)
        if not self._restored and start.get("run") != self._run:
            self._enumerator.restore(positions, timeout_s=_START_TIMEOUT_S)
        self._restored = True
        return positions

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Tasks of a batch, from ``end`` alone: a replay's ``start`` may differ
        (`restore-by-attempt`, `start-offsets-once`).

        Equal offsets mean that the batch has no records of this source.
        """
        if offsets.is_initial(end) or start == end:
            return []
        _require_ours(end, start)
        ranges = offsets.decode(end).splits
        if not self._cut_here:
            # A batch of an earlier process, from Spark's log, is read again as it was. Its sink
            # knows whether it has decided it; this process does not.
            ranges = self._enumerator.replayable(ranges, timeout_s=_TIMEOUT_S, is_decided=False)
        return [InputPartition(task) for task in tasks_of(self._options, ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Executor side."""
        yield from self._split_reader.read(partition.value)
        tidy_after_task()

    def commit(self, end: dict[str, Any]) -> None:
        """The batch is committed: publish group offsets."""
        self._publish(offsets.decode(end).splits)

    def _publish(self, positions: tuple[SplitRange, ...]) -> None:
        if positions != self._published:
            self._enumerator.committed(positions)
            self._published = positions

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Ends of the partitions as last seen, for Spark's progress; as Spark's own source."""
        found: dict[str, dict[str, int]] = {}
        ends = {} if self._made is None else self._made.latest()
        for (topic, number), end in sorted(ends.items()):
            found.setdefault(topic, {})[str(number)] = end
        return found or None

    def stop(self) -> None:
        """The query ends."""
        if self._made is not None:
            self._made.close()
            self._made = None

    @property
    def _enumerator(self) -> KafkaSplitEnumerator:
        if self._made is None:
            self._made = open_enumerator(self._options, bounded=False)
        return self._made
