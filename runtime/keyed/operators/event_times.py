"""Event times of rows, and rows that are late."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.runtime.contracts.keyed import KeyedRows, OperatorScope
from sluice.runtime.errors import ConfigError
from sluice.runtime.keyed.missing_columns import require_columns
from sluice.runtime.model.event_time import times_ms

__all__ = ["LateRows", "selected", "times_of"]


def times_of(batch: pa.RecordBatch, column: str) -> pa.Int64Array:
    """The rows' times in milliseconds since 1970, rounded down; null: a row has none.

    Raises:
        ConfigError: the column is missing, or has no times.
    """
    (values,) = require_columns(batch, [column]).columns
    return times_ms(values, rows=batch.num_rows, name=column)


def selected(rows: KeyedRows, places: npt.NDArray[np.int64]) -> KeyedRows:
    """Some of the rows."""
    at = pa.array(places)
    return KeyedRows(
        batch=rows.batch.take(at),
        splits=rows.splits[places],
        keys=rows.keys.take(at),
        key_schema=rows.key_schema,
    )


class LateRows:
    """Counts late rows, and writes them to a topic. Executor, the task's thread.

    Args:
        topic: None: they are only counted.
    """

    def __init__(self, scope: OperatorScope, *, topic: str | None) -> None:
        self._scope = scope
        self._topic = topic
        self._checked: pa.Schema | None = None

    def note(self, batch: pa.RecordBatch, late: npt.NDArray[np.bool_]) -> None:
        """Note the rows for which ``late`` is True.

        Raises:
            ConfigError: rows like these can be no records of the topic, late or not.
        """
        count = int(late.sum())
        if count:
            self._scope.count_late(count)
        is_new = self._checked is None or not batch.schema.equals(self._checked)
        if self._topic is None or not (count or is_new):
            return
        names = [name for name in batch.schema.names if name != "partition"]  # of the source
        rows = batch.select(names).take(pa.array(np.flatnonzero(late)))
        try:
            self._scope.write_late(self._topic, rows)
        except ConfigError as err:
            raise ConfigError(
                "late rows cannot be written to their topic",
                {"late_topic": self._topic, "error": err.args[0], **err.args[1]},
                "Keep key and value as bytes or text before window, or leave late_topic out.",
            ) from err
        self._checked = batch.schema
