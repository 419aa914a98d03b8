"""Writes one task's rows into data files of a table, with a bound on memory."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice.connectors.iceberg.table.client_errors import client_errors_translated
from sluice.connectors.iceberg.table.writing_plan import WritingPlan
from sluice.connectors.iceberg.writing.file_statistics import file_statistics, nan_counts
from sluice.connectors.iceberg.writing.partition_rows import Partition, PartitionRows, SortedRows
from sluice.connectors.iceberg.writing.row_alignment import (
    RowAlignment,
    require_known,
    unknown_columns,
)
from sluice.connectors.iceberg.writing.upsert_rows import UpsertRows, require_key, upsert_key
from sluice.connectors.iceberg.written_files import WrittenFile
from sluice.runtime.failpoints import failpoint

if TYPE_CHECKING:
    from pyiceberg.io.fileformat import FileFormatWriter

__all__ = ["DataFileWriter"]

_MOST_OPEN = 64
_ROW_GROUP_BYTES = 32 << 20
_MOST_BUFFERED_BYTES = 256 << 20
_TARGET_BYTES = "write.target-file-size-bytes"
_DEFAULT_TARGET_BYTES = 512 << 20


class DataFileWriter:
    """Splits rows by partition and writes a file for each. Python worker, one thread, one batch.

    Rows wait in memory for a row group; rows of a table with a sort order wait for their file. If
    rows go to more partitions than may be open, it finishes the fullest file; later rows of that
    partition get another file.

    Upserts: all rows wait, and the last one of each key is kept. A run ends with the epoch or when
    too many rows wait: data files, and delete files with the same keys. Rows of a later run replace
    those of an earlier one; see `sluice.connectors.iceberg.committing.row_delta`.

    Args:
        plan: of the table; with ``equality_ids`` it upserts.
        evolved: returns the plan of the table after it has got such columns; None: columns that
            the table lacks are refused.
        name: returns the name of the next file.
        announce: keeps the location of a file on record before the file is made.
    """

    def __init__(
        self,
        plan: WritingPlan,
        *,
        evolved: Callable[[Sequence[pa.Field]], WritingPlan] | None,
        name: Callable[[int], str],
        announce: Callable[[str], None],
    ) -> None:
        self._evolved = evolved
        self._name = name
        self._announce = announce
        self._open: dict[Partition, _OpenFile] = {}  # by `_as_key`
        self._finished: list[WrittenFile] = []
        self._deletes: list[WrittenFile] = []
        self._upserts: UpsertRows | None = None
        self._run = 0
        self._begun = 0
        self._seen: pa.Schema | None = None
        self._use(plan)

    @property
    def plan(self) -> WritingPlan:
        """That its files follow."""
        return self._plan

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows.

        Raises:
            ConfigError: rows that the table cannot hold.
            StreamError: the store failed; the attempt has failed.
        """
        if not batch.num_rows:
            return
        if self._seen is None or not self._seen.equals(batch.schema):
            self._meet(batch.schema)
        rows = self._alignment.align(batch)
        if self._upserts is None:
            self._append(rows)
        elif self._upserts.add(rows):
            self._end_run()

    def finish(self) -> tuple[tuple[WrittenFile, ...], tuple[WrittenFile, ...]]:
        """Finish all files; returns data and delete files, none without rows. Raises as `write`."""
        self._end_run()
        return tuple(self._finished), tuple(self._deletes)

    def abandon(self) -> None:
        """Leave all files to the sweep; never raises."""
        self._open.clear()

    def _append(self, aligned: pa.RecordBatch) -> None:
        for partition, rows in self._partitions.split(aligned):
            key = _as_key(partition)
            file = self._open.get(key)
            if file is None:
                self._make_room(_MOST_OPEN - 1)
                file = self._open[key] = self._opened(partition)
            file.add(rows)
            if file.written_bytes >= self._target_bytes:
                self._finish(key)
        self._make_room(_MOST_OPEN)

    def _end_run(self) -> None:
        """Finish all files that are open; with upserts, write what waits, and the deletes."""
        if self._upserts:
            rows = self._upserts.take()
            self._append(rows)
            for partition, keys in self._partitions.split(rows):
                file = self._opened(partition, key=self._upserts.key)
                file.add(keys.select(self._upserts.key))
                self._deletes.append(file.finish())
            self._run += 1
        while self._open:
            self._finish(next(iter(self._open)))

    def _use(self, plan: WritingPlan) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        self._plan = plan
        self._target_bytes = int(plan.properties.get(_TARGET_BYTES, _DEFAULT_TARGET_BYTES))
        self._alignment = RowAlignment(target=schema_to_pyarrow(plan.schema), table=plan.table)
        self._partitions = PartitionRows(spec=plan.spec, schema=plan.schema, table=plan.table)
        self._sorted = SortedRows(order=plan.sort_order, schema=plan.schema)
        if plan.equality_ids:
            key = upsert_key(plan)
            self._upserts = UpsertRows(key, most_bytes=_MOST_BUFFERED_BYTES // 2)

    def _meet(self, schema: pa.Schema) -> None:
        """Prepare for batches of another schema."""
        if self._upserts is not None:
            require_key(schema, self._upserts.key, table=self._plan.table)
        unknown = unknown_columns(schema, self._alignment.target)
        if unknown and self._evolved is not None:
            before = self._plan
            plan = self._evolved(unknown)
            if plan.schema != before.schema:
                self._end_run()  # rows of one file have one schema
            # All files of a committable follow one spec; a later attempt takes the newest.
            self._use(replace(before, schema=plan.schema))
            unknown = unknown_columns(schema, self._alignment.target)
        require_known(unknown, self._alignment.target, table=self._plan.table)
        self._seen = schema

    def _opened(self, partition: Partition, *, key: Sequence[str] = ()) -> "_OpenFile":
        """A new file; with ``key`` a delete file of these columns."""
        from pyiceberg.partitioning import PartitionKey
        from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
        from pyiceberg.typedef import Record

        number, self._begun = self._begun, self._begun + 1
        place = None
        if partition:
            place = PartitionKey([], self._plan.spec, self._plan.schema)
            # Else it refuses two fields of one column.
            vars(place)["partition"] = Record(*partition)
        location = self._plan.locations.new_data_location(self._name(number), place)
        self._announce(location)
        plan, order = self._plan, self._sorted
        if key:
            plan = replace(plan, schema=plan.schema.select(*key))
            order = SortedRows(order=UNSORTED_SORT_ORDER, schema=plan.schema)
        return _OpenFile(
            plan=plan, location=location, partition=partition, order=order, run=self._run
        )

    def _make_room(self, most_open: int) -> None:
        while len(self._open) > most_open or self._buffered_bytes() > _MOST_BUFFERED_BYTES:
            self._finish(max(self._open, key=lambda key: self._open[key].buffered_bytes))

    def _buffered_bytes(self) -> int:
        return sum(file.buffered_bytes for file in self._open.values())

    def _finish(self, key: Partition) -> None:
        self._finished.append(self._open[key].finish())
        del self._open[key]


def _as_key(partition: Partition) -> Partition:
    """Equal for rows of one file: in Iceberg -0.0 is not 0.0, and NaN is NaN. Not so in Python."""
    return tuple(value.hex() if isinstance(value, float) else value for value in partition)


@dataclass(slots=True, kw_only=True)
class _OpenFile:
    """One data or delete file, or the rows that it will get.

    Attributes:
        plan: of the table; its schema is that of the file.
        location: of the file.
        partition: of all its rows.
        order: of its rows.
        run: see `WrittenFile`.
        written_bytes: in memory, of all rows so far.
        buffered_bytes: of the rows that wait.
    """

    plan: WritingPlan
    location: str
    partition: Partition
    order: SortedRows
    run: int
    written_bytes: int = 0
    buffered_bytes: int = 0
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _nans: Counter[str] = field(default_factory=Counter)
    _writer: "FileFormatWriter | None" = None

    def add(self, rows: pa.RecordBatch) -> None:
        """Append; writes a row group when there are enough rows."""
        self._waiting.append(rows)
        self.written_bytes += rows.nbytes
        self.buffered_bytes += rows.nbytes
        if self.buffered_bytes >= _ROW_GROUP_BYTES and not self.order.is_needed:
            self._flush()

    def finish(self) -> WrittenFile:
        """Write the rest and close; returns the file with its statistics."""
        self._flush()
        assert self._writer is not None  # a file is opened for rows
        with self._translated("finish a data file"):
            found = self._writer.close()
            written = vars(self._writer)["_writer"]  # else the footer would be read again
            length_bytes = len(self.plan.io.new_input(self.location))
        failpoint("after-data-file")
        return WrittenFile(
            path=self.location,
            length_bytes=length_bytes,
            partition=self.partition,
            sort_order_id=self.order.order.order_id if self.order.is_needed else None,
            run=self.run,
            **file_statistics(found, written.writer.metadata, self.plan.schema, self._nans),
        )

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting).combine_chunks()
        self._waiting, self.buffered_bytes = [], 0
        if self.order.is_needed:
            rows = self.order.sort(rows)
        with self._translated("write a data file"):
            if self._writer is None:
                failpoint("before-data-file")
                self._writer = _file_writer(self.plan, self.location)
            self._writer.write(rows)
        self._nans.update(nan_counts(rows))

    def _translated(self, action: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
        return client_errors_translated(action, {"file": self.location})


def _file_writer(plan: WritingPlan, location: str) -> "FileFormatWriter":
    from pyiceberg.io.fileformat import FileFormatFactory
    from pyiceberg.manifest import FileFormat

    return FileFormatFactory.get(FileFormat.PARQUET).create_writer(
        plan.io.new_output(location), plan.schema, dict(plan.properties)
    )
