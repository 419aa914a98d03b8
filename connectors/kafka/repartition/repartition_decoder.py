"""Makes rows of the messages of a repartition topic. Executor."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa

from sluice.connectors.kafka.repartition.repartition_messages import (
    Message,
    decoded,
    without_keys,
)
from sluice.runtime.contracts import SIDE_COLUMN, DecodedRows
from sluice.runtime.model.state.batch_lineage import BatchLineage
from sluice.runtime.model.state.wide_indexes import with_wide_indexes

__all__ = ["RepartitionDecoder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionDecoder:
    """Picklable.

    Attributes:
        topic: its name.
        lineage: which messages this run reads.
        sides: of the topic: 1 or 2.
    """

    topic: str
    lineage: BatchLineage
    sides: int

    def __call__(self, records: pa.RecordBatch) -> Iterator[DecodedRows]:
        """The rows of all messages, without those of batches that were rewound.

        Each batch has rows of one side. The order of each side's rows is kept in a partition.
        """
        found = [m for m in decoded(records, self.topic) if m.rows is not None and self._has(m)]
        for side in range(self.sides):
            mine = [message for message in found if message.origin.side == side]
            for _, together in groupby(mine, key=_schema):
                yield self._merged(list(together), side)

    def _has(self, message: Message) -> bool:
        batch = message.origin.batch
        return message.origin.is_copied or self.lineage.has(
            batch.region, batch.attempt_id, batch.batch_id
        )

    def _merged(self, messages: Sequence[Message], side: int) -> DecodedRows:
        found = (message.rows for message in messages)
        rows = [with_wide_indexes(each) for each in found if each is not None]
        batch, keys, key_schema = without_keys(pa.concat_batches(rows))
        if self.sides > 1:
            batch = batch.append_column(SIDE_COLUMN, pa.array(np.full(len(batch), side, np.int8)))
        partitions = np.repeat(
            np.array([message.partition for message in messages], np.int32),
            [each.num_rows for each in rows],
        )
        return DecodedRows(batch, self.topic, partitions, keys, key_schema)


def _schema(message: Message) -> pa.Buffer:
    assert message.rows is not None
    return message.rows.schema.serialize()  # with metadata: the schema of the keys
