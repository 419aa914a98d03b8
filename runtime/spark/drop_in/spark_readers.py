"""``spark.read`` and ``spark.readStream``: `load` refuses wrong options of the drop-in formats.

PySpark has no hook for this. Spark creates a Python data source in another process, and says only
when the query runs whether it reads a stream. So `sluice.install` replaces both `load` methods.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader

__all__ = ["check_loads"]


def check_loads(check: Callable[..., object], *, format_name: str) -> None:
    """From now on ``load`` calls ``check(options, stream=…)`` for this format. Safe to repeat."""
    _wrap(DataFrameReader, check, format_name, stream=False)
    _wrap(DataStreamReader, check, format_name, stream=True)


def _wrap(reader: Any, check: Callable[..., object], format_name: str, *, stream: bool) -> None:  # noqa: ANN401 - two classes without a common base
    original = getattr(reader.load, "__wrapped__", reader.load)

    @functools.wraps(original)
    def load(self: Any, *args: Any, **kwargs: Any) -> DataFrame:  # noqa: ANN401 - as Spark's own
        frame: DataFrame = original(self, *args, **kwargs)
        if self._jreader.source().lower() == format_name:
            check(_options(frame, stream=stream), stream=stream)
        return frame

    reader.load = load


def _options(frame: DataFrame, *, stream: bool) -> Mapping[str, str]:
    """The options that Spark has put into the plan of a loaded frame."""
    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - not in Python
    relation = plan.collectLeaves().head()
    found = relation.extraOptions() if stream else relation.options()
    return dict(found.asCaseSensitiveMap())
