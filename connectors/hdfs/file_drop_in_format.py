"""The format ``sluice-files``: a sink class that holds the address of its service."""

from collections.abc import Callable, Mapping

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sluice.connectors.hdfs.file_drop_in import FileDropIn, FileDropInSink, UploadDropInSink
from sluice.connectors.hdfs.writing.task_saver import default_fs, session_task_files
from sluice.runtime.contracts import DropInSink
from sluice.runtime.spark.drop_in.drop_in_format import WriteOnlyFormat
from sluice.runtime.storage.file_system_opening import is_object_store

__all__ = ["FilesFormat", "file_sink"]


class FilesFormat(WriteOnlyFormat):
    """Spark makes one for each ``format("sluice-files")``."""

    format_name = "sluice-files"
    other_formats = "Use Spark's own format, such as spark.read.parquet(…)."

    @classmethod
    def check_rows(cls, options: Mapping[str, str], schema: StructType) -> None:
        # The check needs no real time zone; `file_sink` reads the query's.
        FileDropIn.from_options(options, session_zone="UTC").check(
            to_arrow_schema(schema, timezone="UTC")
        )


def file_sink(options: Mapping[str, str], setting: Callable[[str], str]) -> DropInSink:
    """A query's sink; made in the user's process, which has the JVM."""
    zone = setting("spark.sql.session.timeZone")
    checked = FileDropIn.from_options(options, session_zone=zone, default_fs=default_fs())
    if is_object_store(checked.target):
        return UploadDropInSink(options=checked)
    return FileDropInSink(options=checked, files=session_task_files(checked.target))
