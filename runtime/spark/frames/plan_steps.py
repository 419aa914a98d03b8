"""The steps of a streaming plan: the streams that it reads, and the steps that keep state.

Steps are the operators of Spark's analysed logical plan, as py4j objects.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

__all__ = [
    "Step",
    "Steps",
    "begins_with_state",
    "changes_with_records_alone",
    "initial_states",
    "is_stateful",
    "keeps_state",
    "modules_for",
    "modules_needed",
    "repeats_whole_result",
    "streams_read",
    "unrepeatable_below_state",
    "unrepeatable_in",
]

Step = Any
"""A logical operator of Spark's."""

_WITH = "WithCTE"
_NAMED = "CTERelationRef"
_JOIN = "Join"
_SAMPLE = "Sample"
_AGGREGATE = "AggregateExpression"

# Steps that keep no state between batches. Any other step counts as stateful. That is safe, and
# costs a stateless frame only a directory that is kept over the attempts of its region.
_STATELESS = frozenset(
    {
        "ArrowEvalPython",
        "BatchEvalPython",
        "CollectMetrics",
        "EventTimeWatermark",
        "Expand",  # of an unpivot, and below the aggregation of a cube
        "Filter",
        "FlatMapGroupsInArrow",
        "FlatMapGroupsInPandas",
        "Generate",
        "LocalLimit",  # the global one above it counts
        "MapInArrow",
        "MapInPandas",
        "MapPartitions",
        "Project",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sample",
        "Sort",  # within partitions, or of a whole result, above the aggregation that keeps it
        "StreamingRelationV2",
        "SubqueryAlias",
        "Union",
        "UnresolvedHint",
        "View",
    }
)

# Steps with a state that changes with records alone. Any other step may have timeouts, or wait for
# a watermark, as a join does. That is safe, and costs only a repeated result.
_TIMELESS = frozenset(
    {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "GlobalLimit"}
)

# Steps that may have an initial state; their function runs over it in the first batch.
_BEGINNING = frozenset(
    {"FlatMapGroupsWithState", "TransformWithState", "TransformWithStateInPySpark"}
)

# A step whose state store protocol needs a package that PySpark does not depend on.
_BY_PROTOBUF = "TransformWithStateInPySpark"
_PROTOBUF = "google.protobuf"


class Steps:
    """The steps of one frame's plan, as Spark runs them: a query named by a ``WITH`` is part of the
    plan at each use of its name, and nowhere else. Driver."""

    def __init__(self, frame: DataFrame) -> None:
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark has no public way
        self._root = plan
        self._named: dict[int, Step] = {}

    def streaming(self) -> Iterator[Step]:
        """The steps of a stream, from the last one to the sources."""
        return self._below(self._root, only_streaming=True)

    def below(self, step: Step) -> Iterator[Step]:
        """All steps below one of them, including tables; call it after `streaming`."""
        return (each for child in _all(step.children()) for each in self._below(child))

    def _below(self, step: Step, *, only_streaming: bool = False) -> Iterator[Step]:
        if only_streaming and not step.isStreaming():
            return
        name = step.nodeName()
        if name == _WITH:
            self._named |= {each.id(): each.child() for each in _all(step.cteDefs())}
            inner = [step.plan()]
        elif name == _NAMED and step.cteId() in self._named:
            inner = [self._named[step.cteId()]]
        else:
            yield step
            inner = list(_all(step.children()))
        for each in inner:
            yield from self._below(each, only_streaming=only_streaming)


def keeps_state(step: Step) -> bool:
    """Whether Spark keeps state for a step of a stream between two batches."""
    if step.nodeName() == _JOIN:  # a stream joined with a table keeps no state
        streams = [child for child in _all(step.children()) if child.isStreaming()]
        return len(streams) > 1
    return str(step.nodeName()) not in _STATELESS


def changes_with_records_alone(step: Step) -> bool:
    """Whether the whole result of a stateful step, as in complete mode, changes only if records
    arrive."""
    return str(step.nodeName()) in _TIMELESS


def modules_for(step: Step) -> Iterator[str]:
    """Modules that Spark's Python processes import for a step of a stream, and that are installed
    with neither PySpark nor Sluice."""
    if step.nodeName() == _BY_PROTOBUF:
        yield _PROTOBUF


def begins_with_state(step: Step) -> bool:
    """Whether a step of a stream has an initial state."""
    return str(step.nodeName()) in _BEGINNING and bool(step.hasInitialState())


def unrepeatable_in(step: Step) -> Iterator[str]:
    """Expressions of a step that may return another value when the same rows are read again.

    These are random numbers, functions that are declared nondeterministic, and functions of a row's
    position in its task. Aggregates are excluded: `first` or `collect_list` choose among the rows.
    If there is another state above, a replay may choose other rows (docs/guide/functions.md).
    """
    if step.nodeName() == _SAMPLE:
        yield _SAMPLE.lower()
    for expression in _all(step.expressions()):
        yield from _unrepeatable(expression)


def _unrepeatable(expression: Any) -> Iterator[str]:  # noqa: ANN401 - a py4j object
    if expression.deterministic() or expression.getClass().getSimpleName() == _AGGREGATE:
        return
    inner = [name for child in _all(expression.children()) for name in _unrepeatable(child)]
    if inner or not all(child.deterministic() for child in _all(expression.children())):
        yield from inner
    else:
        yield str(expression.sql())


def _all(sequence: Any) -> Iterator[Any]:  # noqa: ANN401 - a Scala sequence
    return (sequence.apply(at) for at in range(sequence.size()))


def streams_read(frame: DataFrame) -> tuple[str, ...]:
    """The format of every stream that a frame reads, with repetitions."""
    leaves = (step for step in Steps(frame).streaming() if step.children().isEmpty())
    return tuple(str(leaf.sourceName()) for leaf in leaves)


def is_stateful(frame: DataFrame) -> bool:
    """Whether a streaming frame keeps state; decided on its analyzed plan, before it starts."""
    return any(keeps_state(step) for step in Steps(frame).streaming())


def repeats_whole_result(frame: DataFrame) -> bool:
    """Whether a state's whole result, as in complete mode, stays the same without records."""
    states = [step for step in Steps(frame).streaming() if keeps_state(step)]
    return bool(states) and all(changes_with_records_alone(step) for step in states)


def modules_needed(frame: DataFrame) -> tuple[str, ...]:
    """Modules that the frame's steps need in addition to PySpark's own."""
    found = (name for step in Steps(frame).streaming() for name in modules_for(step))
    return tuple(dict.fromkeys(found))


def initial_states(frame: DataFrame) -> tuple[str, ...]:
    """The steps with an initial state, by Spark's names."""
    return tuple(
        str(step.nodeName()) for step in Steps(frame).streaming() if begins_with_state(step)
    )


def unrepeatable_below_state(frame: DataFrame) -> tuple[str, ...]:
    """Expressions below a state that may return another value in a replay."""
    steps = Steps(frame)
    states = [step for step in steps.streaming() if keeps_state(step)]
    below = (step for state in states for step in steps.below(state))
    return tuple(dict.fromkeys(found for step in below for found in unrepeatable_in(step)))
