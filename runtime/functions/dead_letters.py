"""Records that a function failed for, as rows for a dead-letter topic. Pure.

A dead letter has the source record's key and value, byte for byte. It has the record's headers if
the source reads them, and then the headers below. Their names and meanings are frozen, because
users' programs read them. A value is UTF-8 text, a number in decimal digits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from sluice.runtime.model.arrow_leaves import column_index
from sluice.runtime.model.json_text import well_formed

__all__ = [
    "ERROR_CLASS",
    "ERROR_MESSAGE",
    "JOB",
    "MOST_MESSAGE_CHARACTERS",
    "NEEDED_COLUMNS",
    "OPERATOR",
    "SOURCE_OFFSET",
    "SOURCE_PARTITION",
    "SOURCE_TIMESTAMP",
    "SOURCE_TOPIC",
    "Failure",
    "dead_letter_rows",
]

ERROR_CLASS = "sluice.error.class"
"""The exception's class, with its module unless it is a built-in one."""
ERROR_MESSAGE = "sluice.error.message"
"""The exception as text, truncated to `MOST_MESSAGE_CHARACTERS`; may be empty."""
SOURCE_TOPIC = "sluice.source.topic"
SOURCE_PARTITION = "sluice.source.partition"
SOURCE_OFFSET = "sluice.source.offset"
SOURCE_TIMESTAMP = "sluice.source.timestamp"
"""The record's timestamp in milliseconds since 1970; absent if it has none or it is not read."""
JOB = "sluice.job"
"""The job's name."""
OPERATOR = "sluice.operator"
"""The function's name."""

MOST_MESSAGE_CHARACTERS = 1_000
NEEDED_COLUMNS = ("key", "value", "topic", "partition", "offset")
"""Required columns of the source. ``headers`` and ``timestamp`` are kept if the source has them."""

_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A record that a function raised for.

    Attributes:
        row: of the source's batch.
        operator: name of the function.
        error_class, error_message: of the exception, well-formed.
    """

    row: int
    operator: str
    error_class: str
    error_message: str

    @classmethod
    def of(cls, error: Exception, *, row: int, operator: str) -> "Failure":
        """Copies the texts: the exception itself would keep its whole stack in memory."""
        kind = type(error)
        name = kind.__qualname__
        named = name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"
        return cls(
            row=row,
            operator=operator,
            error_class=well_formed(named),
            error_message=well_formed(_text(error)[:MOST_MESSAGE_CHARACTERS]),
        )


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - `__str__` is the user's code, and may raise as well
        return ""


def dead_letter_rows(
    batch: pa.RecordBatch, failures: Sequence[Failure], *, job_name: str
) -> pa.RecordBatch:
    """The failed rows of a source's batch, in the columns of a sink and in the given order.

    The column ``offset`` is not part of a record; errors of the sink name the position with it.
    """
    rows = batch.take(pa.array([failure.row for failure in failures], pa.int64()))
    ours = _headers(rows, failures, job_name)
    headers = [[*original, *added] for original, added in zip(_originals(rows), ours, strict=True)]
    return pa.RecordBatch.from_pydict(
        {
            "key": rows.column("key"),
            "value": rows.column("value"),
            "offset": rows.column("offset"),
            "headers": pa.array(headers, _HEADERS),
        }
    )


def _headers(
    rows: pa.RecordBatch, failures: Sequence[Failure], job_name: str
) -> list[list[tuple[str, bytes]]]:
    topics, partitions = rows.column("topic").to_pylist(), rows.column("partition").to_pylist()
    offsets, times = rows.column("offset").to_pylist(), _timestamps_ms(rows)
    made: list[list[tuple[str, bytes]]] = []
    for row, failure in enumerate(failures):
        named: dict[str, object] = {
            ERROR_CLASS: failure.error_class,
            ERROR_MESSAGE: failure.error_message,
            SOURCE_TOPIC: topics[row],
            SOURCE_PARTITION: partitions[row],
            SOURCE_OFFSET: offsets[row],
            SOURCE_TIMESTAMP: times[row],
            JOB: job_name,
            OPERATOR: failure.operator,
        }
        made.append([(name, _utf8(value)) for name, value in named.items() if value is not None])
    return made


def _utf8(value: object) -> bytes:
    return well_formed(str(value)).encode()


def _timestamps_ms(rows: pa.RecordBatch) -> list[int | None]:
    index = column_index(rows.schema, "timestamp")
    if index is None or not pa.types.is_timestamp(rows.schema.field(index).type):
        return [None] * rows.num_rows
    kind = pa.timestamp("ms", rows.schema.field(index).type.tz)
    found = rows.column(index).cast(kind, safe=False).cast(pa.int64()).to_pylist()
    return [None if time is None or time < 0 else time for time in found]  # -1: it has none


def _originals(rows: pa.RecordBatch) -> list[list[tuple[str, bytes | None]]]:
    index = column_index(rows.schema, "headers")
    if index is None:
        return [[] for _ in range(rows.num_rows)]
    return [
        [(entry["key"], entry["value"]) for entry in entries or ()]
        for entries in rows.column(index).to_pylist()
    ]
