"""What kind of frame the user's code made: what it reads, whether it keeps state, and of what."""

from pyspark.sql import DataFrame

from runtime.spark.plan_steps import (
    Steps,
    begins_with_state,
    changes_with_records_alone,
    keeps_state,
    modules_for,
    unrepeatable_in,
)

__all__ = [
    "initial_states",
    "is_stateful",
    "modules_needed",
    "repeats_whole_result",
    "streams_read",
    "unrepeatable_below_state",
]


def streams_read(frame: DataFrame) -> tuple[str, ...]:
    """The format of every stream that a frame reads, one that it reads twice twice."""
    leaves = (step for step in Steps(frame).streaming() if step.children().isEmpty())
    return tuple(str(leaf.sourceName()) for leaf in leaves)


def is_stateful(frame: DataFrame) -> bool:
    """Whether a streaming frame keeps state; decided on its analyzed plan, before it starts."""
    return any(keeps_state(step) for step in Steps(frame).streaming())


def repeats_whole_result(frame: DataFrame) -> bool:
    """Whether a state's whole result, as in complete mode, is the same again without records."""
    states = [step for step in Steps(frame).streaming() if keeps_state(step)]
    return bool(states) and all(changes_with_records_alone(step) for step in states)


def modules_needed(frame: DataFrame) -> tuple[str, ...]:
    """Modules that its steps need beside PySpark's own."""
    found = (name for step in Steps(frame).streaming() for name in modules_for(step))
    return tuple(dict.fromkeys(found))


def initial_states(frame: DataFrame) -> tuple[str, ...]:
    """The steps, by Spark's names, that are given a state to begin with."""
    return tuple(
        str(step.nodeName()) for step in Steps(frame).streaming() if begins_with_state(step)
    )


def unrepeatable_below_state(frame: DataFrame) -> tuple[str, ...]:
    """Expressions that decide what comes to a state, and may decide otherwise in a replay."""
    steps = Steps(frame)
    states = [step for step in steps.streaming() if keeps_state(step)]
    below = (step for state in states for step in steps.below(state))
    return tuple(dict.fromkeys(found for step in below for found in unrepeatable_in(step)))
