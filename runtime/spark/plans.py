"""What kind of frame the user's code made: what it reads, and whether it keeps state."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

__all__ = ["is_stateful", "streams_read"]

# Logical operators of a streaming plan that keep nothing between batches. Whatever is not listed
# counts as stateful: that is never wrong, a stateless frame then only runs some empty batches.
_STATELESS = frozenset(
    {
        "ArrowEvalPython",
        "BatchEvalPython",
        "CollectMetrics",
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "MapInArrow",
        "MapInPandas",
        "MapPartitions",
        "Project",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sample",
        "StreamingRelationV2",
        "SubqueryAlias",
        "Union",
        "UnresolvedHint",
        "View",
        "WithCTE",
    }
)


def streams_read(frame: DataFrame) -> tuple[str, ...]:
    """The format of every stream that a frame reads, one that it reads twice twice."""
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark has no public way
    leaves = (node for node in _streaming_nodes(plan) if node.children().isEmpty())
    return tuple(str(leaf.sourceName()) for leaf in leaves)


def is_stateful(frame: DataFrame) -> bool:
    """Whether a streaming frame keeps state; decided on its analyzed plan, before it starts."""
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark has no public way
    return any(not _is_stateless(node) for node in _streaming_nodes(plan))


def _streaming_nodes(node: Any) -> Iterator[Any]:  # noqa: ANN401 - a py4j object
    if node.isStreaming():
        yield node
        children = node.children()
        for index in range(children.size()):
            yield from _streaming_nodes(children.apply(index))


def _is_stateless(node: Any) -> bool:  # noqa: ANN401 - a py4j object
    if node.nodeName() != "Join":
        return str(node.nodeName()) in _STATELESS
    children = node.children()
    streaming = [children.apply(i).isStreaming() for i in range(children.size())]
    return streaming.count(True) < 2  # a stream joined with a table keeps no state
