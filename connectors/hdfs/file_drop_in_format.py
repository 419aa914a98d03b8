"""The format ``sluice-files``: a sink class that holds the address of its service."""

from collections.abc import Callable, Mapping

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sluice.connectors.hdfs.file_drop_in import FileDropIn, FileDropInSink, UploadDropInSink
from sluice.connectors.hdfs.writing.task_saver import default_fs, session_task_files
from sluice.runtime.contracts import TaskSink
from sluice.runtime.errors import ConfigError
from sluice.runtime.service.drop_in_client import DropInClient
from sluice.runtime.spark.drop_in.drop_in_writer import DropInStreamWriter, refuse_frame
from sluice.runtime.storage.file_system_opening import is_object_store

__all__ = ["FORMAT", "FilesFormat", "check_file_write", "file_sink", "files_format"]

FORMAT = "sluice-files"


class FilesFormat(DataSource):
    """Spark makes one for each ``format("sluice-files")``; `files_format` sets the service."""

    service: DropInClient | None = None

    @classmethod
    def name(cls) -> str:
        """Spark's name of the format."""
        return FORMAT

    def schema(self) -> StructType | str:
        """Refuse a reader: the format only writes."""
        raise ConfigError(
            "this format only writes",
            {"format": FORMAT},
            "Read the files with Spark's own format, such as spark.read.parquet(…).",
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse a frame: `save` is taken over where the format is installed."""
        refuse_frame(FORMAT)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The sink; see `DropInStreamWriter`."""
        mode = "complete" if overwrite else "append"
        check_file_write(self.options, schema, mode=mode)
        return DropInStreamWriter(FORMAT, self.options, self.service)


def check_file_write(options: Mapping[str, str], schema: StructType, *, mode: str) -> None:
    """See `sluice.runtime.spark.drop_in.spark_writers.FormatCheck`."""
    if mode == "complete":
        raise ConfigError(
            "this sink has no output mode complete",
            {"format": FORMAT},
            "Use update or append: in complete mode each batch would add the whole result again.",
        )
    if mode in ("overwrite", "ignore", "errorifexists"):
        raise ConfigError(
            "this sink only adds files",
            {"format": FORMAT, "mode": mode},
            'Write with mode("append"), or use Spark\'s own formats.',
        )
    # The check needs no real time zone; `file_sink` reads the query's.
    FileDropIn.from_options(options, session_zone="UTC").check(
        to_arrow_schema(schema, timezone="UTC")
    )


def files_format(service: DropInClient) -> type[FilesFormat]:
    """A class that Spark pickles whole, so that address and token are in no option."""

    class SluiceFiles(FilesFormat):
        pass

    SluiceFiles.service = service
    return SluiceFiles


def file_sink(options: Mapping[str, str], setting: Callable[[str], str]) -> TaskSink:
    """A query's sink; made in the user's process, which has the JVM."""
    zone = setting("spark.sql.session.timeZone")
    checked = FileDropIn.from_options(options, session_zone=zone, default_fs=default_fs())
    if is_object_store(checked.target):
        return UploadDropInSink(options=checked)
    return FileDropInSink(options=checked, files=session_task_files(checked.target))
