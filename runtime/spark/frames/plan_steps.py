"""The steps of a streaming plan: the streams that it reads, and the steps that keep state.

Steps are the operators of Spark's analysed logical plan, as py4j objects.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

__all__ = ["PlanSteps"]

_Step = Any  # a logical operator of Spark's

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


class PlanSteps:
    """The steps of one frame's plan, as Spark runs them: a query named by a ``WITH`` is part of the
    plan at each use of its name, and nowhere else. Driver."""

    def __init__(self, frame: DataFrame) -> None:
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark has no public way
        self._named: dict[int, _Step] = {}
        # The steps of the stream, from the last one to the sources; their kinds; the stateful ones.
        self._steps = list(self._below(plan, only_streaming=True))
        self._kinds = [str(step.nodeName()) for step in self._steps]
        self._states = [step for step in self._steps if _keeps_state(step)]

    @property
    def streams_read(self) -> tuple[str, ...]:
        """The format of every stream that the frame reads, with repetitions."""
        leaves = (step for step in self._steps if step.children().isEmpty())
        return tuple(str(leaf.sourceName()) for leaf in leaves)

    @property
    def keeps_state(self) -> bool:
        """Whether Spark keeps state for the frame between two batches."""
        return bool(self._states)

    @property
    def stateful_kinds(self) -> tuple[str, ...]:
        """The steps that keep state, by Spark's names."""
        return tuple(str(step.nodeName()) for step in self._states)

    @property
    def repeats_whole_result(self) -> bool:
        """Whether a state's whole result, as in complete mode, stays the same without records."""
        kinds = set(self.stateful_kinds)
        return bool(kinds) and kinds <= _TIMELESS

    @property
    def modules_needed(self) -> tuple[str, ...]:
        """Modules that Spark's Python processes import for the steps, and that are installed with
        neither PySpark nor Sluice."""
        return (_PROTOBUF,) if _BY_PROTOBUF in self._kinds else ()

    @property
    def initial_states(self) -> tuple[str, ...]:
        """The steps with an initial state, by Spark's names."""
        kinds = zip(self._kinds, self._steps, strict=True)
        return tuple(kind for kind, step in kinds if kind in _BEGINNING and step.hasInitialState())

    @property
    def unrepeatable_below_state(self) -> tuple[str, ...]:
        """Expressions below a state that may return another value when the same rows are read
        again.

        These are random numbers, functions that are declared nondeterministic, and functions of a
        row's position in its task. Aggregates are excluded: `first` or `collect_list` choose among
        the rows. If there is another state above, a replay may choose other rows
        (docs/guide/functions.md).
        """
        children = (child for state in self._states for child in _all(state.children()))
        below = (step for child in children for step in self._below(child))
        return tuple(dict.fromkeys(found for step in below for found in _unrepeatable_in(step)))

    def _below(self, step: _Step, *, only_streaming: bool = False) -> Iterator[_Step]:
        """A step and all below it, including tables."""
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


def _keeps_state(step: _Step) -> bool:
    if step.nodeName() == _JOIN:  # a stream joined with a table keeps no state
        return sum(bool(child.isStreaming()) for child in _all(step.children())) > 1
    return str(step.nodeName()) not in _STATELESS


def _unrepeatable_in(step: _Step) -> Iterator[str]:
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
