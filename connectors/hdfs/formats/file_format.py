"""The interface of a file format in a task: it takes batches and writes the bytes of one file."""

from typing import BinaryIO, Protocol

import pyarrow as pa

__all__ = ["FileFormat", "FormatWriter"]


class FormatWriter(Protocol):
    """Writes one file. Python worker, one thread; holds a bounded part of the file in memory."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows; they reach the stream with this call or a later one.

        Raises:
            ConfigError: the rows do not fit the schema that the file was opened with.
        """
        ...

    def close(self) -> int:
        """Write the remaining rows and the footer; returns the rows of the file.

        The stream stays open: its owner flushes and closes it. A writer that is not closed leaves a
        file that readers refuse, or one with fewer rows.
        """
        ...

    def abandon(self) -> None:
        """Write nothing more, not even when this object is garbage-collected; never raises."""
        ...


class FileFormat(Protocol):
    """How rows become a file. A picklable value, made on the driver and used in tasks."""

    @property
    def extension(self) -> str:
        """End of a file's name as Spark's own writer has it, ``.snappy.parquet``."""
        ...

    def check(self, schema: pa.Schema) -> None:
        """Refuse a schema that this format cannot hold, before any row is read.

        Raises:
            ConfigError: names the column, its type, and what to do.
        """
        ...

    def open(self, stream: BinaryIO, schema: pa.Schema) -> FormatWriter:
        """Begin a file of rows of this schema.

        Raises:
            ConfigError: as `check`.
        """
        ...
