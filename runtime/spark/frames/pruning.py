"""Removes unused columns: they pass through Spark neither from the source nor to the sinks.

Spark's optimizer passes the used columns to Spark's own columnar sources, but not to a Python data
source, where every column costs time in each of four conversions. So this module runs the optimizer
once, before the job begins, and the source makes only the columns that are read. The user's
function still sees all columns; if it reads one that was not made, the query fails.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sluice.runtime.contracts import SelectiveSink, Sink

__all__ = ["columns_read", "in_full", "kept_by"]

log = logging.getLogger(__name__)

_PASSES_ALL = "Filter"
_CHOOSES = "Project"


def columns_read(frame: DataFrame) -> frozenset[str] | None:
    """Columns of its one streaming source that a frame reads; None: all, or unknown.

    The optimizer puts a projection on the columns that it found to be read, directly above the
    source or above filters. If there is another operator, the frame reads all columns.
    """
    session = frame.sparkSession._jsparkSession  # noqa: SLF001 - PySpark has no public way
    analyzed = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public way
    try:
        path = list(_way_to_source(session.sessionState().optimizer().execute(analyzed)))
    except Py4JJavaError as err:
        log.info("unused columns are not removed: error=%s", err.java_exception)
        return None
    names: set[str] = set()
    for node in reversed(path[:-1]):
        kind = node.nodeName()
        if kind not in (_PASSES_ALL, _CHOOSES):
            return None
        names.update(_names(node.references().toSeq()))
        if kind == _CHOOSES:
            return frozenset(names)
    return None


def _way_to_source(plan: Any) -> Iterator[Any]:  # noqa: ANN401 - py4j objects
    """From the root to the source, which is the last; a frame reads one stream, once."""
    node = plan
    while True:
        yield node
        children = node.children()
        streams = [
            children.apply(at) for at in range(children.size()) if children.apply(at).isStreaming()
        ]
        if not streams:
            return
        (node,) = streams


def _names(attributes: Any) -> Iterator[str]:  # noqa: ANN401 - a Scala sequence
    for at in range(attributes.size()):
        yield attributes.apply(at).name()


def in_full(frame: DataFrame, schema: StructType) -> DataFrame:
    """``frame`` with all columns of ``schema``; columns that it does not have must not be read.

    Spark's optimizer removes them again. If a function makes another plan than in the analysis and
    reads them, the query fails with the reason.
    """
    made = set(frame.columns)
    if made == set(schema.names):
        return frame
    return frame.select(
        *(
            F.col(field.name)
            if field.name in made
            else F.raise_error(F.lit(_refusal(field.name))).cast(field.dataType).alias(field.name)
            for field in schema.fields
        )
    )


def _refusal(column: str) -> str:
    return (
        f"The source does not read the column {column}, because the transform did not use it when "
        "the job began. Name the source's columns: KafkaSource(columns=[...])."
    )


def kept_by(frame: DataFrame, sinks: Sequence[Sink]) -> DataFrame:
    """The columns of ``frame`` that at least one sink uses; all if a sink does not declare them."""
    used: set[str] = set()
    for sink in sinks:
        if not isinstance(sink, SelectiveSink):
            return frame
        used.update(sink.columns_used)
    return frame.select(*_quoted(kept)) if (kept := _chosen(frame.columns, used)) else frame


def _chosen(names: Sequence[str], used: Collection[str]) -> list[str]:
    """The used columns, compared without case, because the sink checks the case; empty: keep all
    columns."""
    if len({name.lower() for name in names}) < len(names):
        return []  # the name would be ambiguous for Spark
    wanted = {name.lower() for name in used}
    kept = [name for name in names if name.lower() in wanted]
    return kept if len(kept) < len(names) else []


def _quoted(names: Sequence[str]) -> Iterator[str]:
    return (f"`{name}`" for name in names)
