"""The format ``sluice-files``: a sink, carrying its service."""

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sluice.connectors.hdfs.file_drop_in import FileDropIn, FileDropInSink
from sluice.connectors.hdfs.writing.task_saver import default_fs, session_task_files
from sluice.runtime.contracts import TaskSink
from sluice.runtime.errors import ConfigError
from sluice.runtime.service.drop_in_client import DropInClient
from sluice.runtime.spark.drop_in.active_queries import ActiveQuery
from sluice.runtime.spark.drop_in.drop_in_writer import DropInStreamWriter, refuse_frame

__all__ = ["FORMAT", "FilesFormat", "file_sink", "files_format"]

FORMAT = "sluice-files"


class FilesFormat(DataSource):
    """What Spark makes for each ``format("sluice-files")``; `files_format` gives it a service."""

    service: DropInClient | None = None

    @classmethod
    def name(cls) -> str:
        """Spark's name of the format."""
        return FORMAT

    def schema(self) -> StructType | str:
        """Asked for by who reads."""
        raise ConfigError(
            "this format is written, and not read",
            {"format": FORMAT},
            "Read the files by Spark's own format for them, spark.read.parquet(…) for example.",
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Of a frame that is no stream."""
        refuse_frame(FORMAT, instead="Spark's own formats")

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The sink; see `DropInStreamWriter`."""
        if overwrite:
            raise ConfigError(
                "files are not written in output mode complete",
                {"format": FORMAT},
                "Each batch would add the whole result again: use append, as Spark's files do.",
            )
        # The query's zone is asked for where the tasks' files are made; here any one will do.
        FileDropIn.from_options(self.options, session_zone="UTC").check(
            to_arrow_schema(schema, timezone="UTC")
        )
        return DropInStreamWriter(FORMAT, self.options, self.service)


def files_format(service: DropInClient) -> type[FilesFormat]:
    """A class that Spark pickles whole: address and token pass through no option."""

    class SluiceFiles(FilesFormat):
        pass

    SluiceFiles.service = service
    return SluiceFiles


def file_sink(options: Mapping[str, str], query: ActiveQuery) -> TaskSink:
    """A query's sink; made in the user's process, because there is the JVM to ask."""
    zone = query.setting("spark.sql.session.timeZone")
    checked = FileDropIn.from_options(options, session_zone=zone, default_fs=default_fs())
    return FileDropInSink(options=checked, files=session_task_files(checked.target))
