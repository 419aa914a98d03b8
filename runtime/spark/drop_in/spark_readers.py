"""``spark.read`` and ``spark.readStream``: `load` refuses wrong options of the drop-in formats.

PySpark has no hook for this. Spark creates a Python data source in another process, and says only
when the query runs whether it reads a stream. So `sluice.install` replaces both `load` methods.
"""

import functools
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader

from sluice.runtime.spark.drop_in.spark_writers import options_of

__all__ = ["check_loads"]


def check_loads(check: Callable[..., object], *, format_name: str) -> None:
    """From now on ``load`` calls ``check(options, stream=…)`` for this format. Safe to repeat."""
    _wrap(DataFrameReader, check, format_name, stream=False)
    _wrap(DataStreamReader, check, format_name, stream=True)


def _wrap(reader: Any, check: Callable[..., object], format_name: str, *, stream: bool) -> None:  # noqa: ANN401 - two classes without a common base
    original = getattr(reader.load, "__wrapped__", reader.load)

    @functools.wraps(original)
    def load(  # Spark's own signature
        self: Any,  # noqa: ANN401 - of both classes
        path: str | list[str] | None = None,
        format: str | None = None,  # noqa: A002 - Spark's name
        schema: Any = None,  # noqa: ANN401 - any schema that Spark takes
        **options: Any,  # noqa: ANN401 - any value that Spark takes
    ) -> DataFrame:
        if format is not None:
            self.format(format)
        self.options(**options)
        if self._jreader.source().lower() == format_name:
            given = options_of(self._jreader, self._spark)
            check(given if path is None else {**given, "path": str(path)}, stream=stream)
        frame: DataFrame = original(self, path, schema=schema)
        return frame

    reader.load = load
