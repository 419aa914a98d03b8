"""Data sources of the drop-in: a class holds the address of its service, so that no option does."""

import abc
from collections.abc import Mapping
from typing import ClassVar, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from sluice.runtime.errors import ConfigError
from sluice.runtime.service.drop_in_client import DropInClient
from sluice.runtime.spark.drop_in.drop_in_writer import DropInStreamWriter, refuse_frame

__all__ = ["WriteOnlyFormat", "with_service"]

F = TypeVar("F", bound=DataSource)


def with_service(kind: type[F], service: DropInClient) -> type[F]:
    """A subclass that Spark pickles whole, with address and token; ``kind`` has ``service``."""
    return type(kind.__name__, (kind,), {"service": service})


class WriteOnlyFormat(DataSource, abc.ABC):
    """Spark makes one for each ``format(…)`` of a sink that only appends.

    Attributes:
        format_name: Spark's name of it.
        other_formats: what reads the sink's output, and overwrites it; begins with a verb.
        service: set by `with_service`.
    """

    format_name: ClassVar[str]
    other_formats: ClassVar[str]
    service: ClassVar[DropInClient | None] = None

    @classmethod
    def name(cls) -> str:
        return cls.format_name

    @classmethod
    def check(cls, options: Mapping[str, str], schema: StructType, *, mode: str) -> None:
        """See `sluice.runtime.spark.drop_in.spark_writers.FormatCheck`."""
        if mode == "complete":
            raise ConfigError(
                "this sink has no output mode complete",
                {"format": cls.format_name},
                "Use update or append: in complete mode each batch would add the whole result "
                "again.",
            )
        if mode in ("overwrite", "ignore", "errorifexists"):
            raise ConfigError(
                "this sink only appends",
                {"format": cls.format_name, "mode": mode},
                f'Write with mode("append"). To overwrite: {cls.other_formats}',
            )
        cls.check_rows(options, schema)

    @classmethod
    @abc.abstractmethod
    def check_rows(cls, options: Mapping[str, str], schema: StructType) -> None:
        """Raise ConfigError for wrong options or columns."""

    def schema(self) -> StructType | str:
        """Refuse a reader: the format only writes."""
        raise ConfigError(
            "this format only writes", {"format": self.format_name}, self.other_formats
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse a frame: `save` is taken over where the format is installed."""
        refuse_frame(self.format_name)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The sink; see `DropInStreamWriter`. Spark passes True for output mode complete."""
        self.check(self.options, schema, mode="complete" if overwrite else "append")
        return DropInStreamWriter(self.format_name, self.options, self.service)
