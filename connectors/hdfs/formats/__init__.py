"""File formats that a Python worker writes without a JVM, as Spark's own writers would."""

from sluice.connectors.hdfs.formats.choice import FORMAT_NAMES, OPTIONS, file_format, format_name
from sluice.connectors.hdfs.formats.file_format import FileFormat, FormatWriter

__all__ = ["FORMAT_NAMES", "OPTIONS", "FileFormat", "FormatWriter", "file_format", "format_name"]
