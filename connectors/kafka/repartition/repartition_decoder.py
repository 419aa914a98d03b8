"""Makes rows of the messages of a repartition topic. Executor."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.connectors.kafka.repartition.repartition_messages import (
    Message,
    decoded,
    partitions_of_keys,
    without_keys,
)
from sluice.runtime.contracts import SIDE_COLUMN, DecodedRows, JobTopic
from sluice.runtime.errors import SourceChangedError
from sluice.runtime.model.state.wide_indexes import with_wide_indexes

__all__ = ["RepartitionDecoder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionDecoder:
    """Picklable.

    Attributes:
        topic: its name.
        run: its partitions and key groups, and which messages this run reads.
        sides: of the topic: 1 or 2.
    """

    topic: str
    run: JobTopic
    sides: int

    def __call__(self, records: pa.RecordBatch) -> Iterator[DecodedRows]:
        """The rows of all messages, without those of batches that were rewound.

        Each batch has rows of one side. The order of each side's rows is kept in a partition.

        Raises:
            SourceChangedError: a record is no message of this format, or its rows were divided by
                another number of key groups.
        """
        found = [m for m in decoded(records, self.topic) if m.rows is not None and self._has(m)]
        for side in range(self.sides):
            mine = [message for message in found if message.origin.side == side]
            for _, together in groupby(mine, key=_schema):
                yield self._merged(list(together), side)

    def _has(self, message: Message) -> bool:
        batch = message.origin.batch
        return message.origin.is_copied or self.run.lineage.has(
            batch.region, batch.attempt_id, batch.batch_id
        )

    def _merged(self, messages: Sequence[Message], side: int) -> DecodedRows:
        found = (message.rows for message in messages)
        rows = [with_wide_indexes(each) for each in found if each is not None]
        batch, keys, key_schema = without_keys(pa.concat_batches(rows))
        self._require_places(messages, keys, np.cumsum([0, *(len(each) for each in rows[:-1])]))
        if self.sides > 1:
            batch = batch.append_column(SIDE_COLUMN, pa.array(np.full(len(batch), side, np.int8)))
        partitions = np.repeat(
            np.array([message.partition for message in messages], np.int32),
            [each.num_rows for each in rows],
        )
        return DecodedRows(batch, self.topic, partitions, keys, key_schema)

    def _require_places(
        self, messages: Sequence[Message], keys: pa.LargeBinaryArray, firsts: npt.NDArray[np.int64]
    ) -> None:
        """Refuse rows that are not in the partition with the state of their key. All rows of a
        message were divided alike, so its first one is a sample of them."""
        wanted = partitions_of_keys(keys.take(pa.array(firsts)), self.run)
        for message, partition in zip(messages, wanted.tolist(), strict=True):
            if message.partition != partition:
                raise SourceChangedError(
                    "a repartition topic has rows outside of the partition of their key",
                    {
                        "topic": self.topic,
                        "partition": message.partition,
                        "offset": message.offset,
                        "belongs_to": partition,
                        "key_groups": self.run.max_parallelism,
                    },
                    "Report this, and restore the job from an older savepoint into a new "
                    "checkpoint directory: keys may have begun without their state.",
                )


def _schema(message: Message) -> pa.Buffer:
    assert message.rows is not None
    return message.rows.schema.serialize()  # with metadata: the schema of the keys
