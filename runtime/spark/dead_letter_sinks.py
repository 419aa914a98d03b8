"""Which sink of a pipeline takes its dead letters, and whether there is one. Pure."""

import re
from collections.abc import Mapping, Sequence

from runtime.contracts import DeadLetterSink, Sink
from runtime.dead_letters import NEEDED_COLUMNS
from runtime.errors import ConfigError
from runtime.job import Pipeline
from runtime.on_error import DeadLetters

__all__ = ["dead_letter_sink", "require_dead_letters_possible", "taking_dead_letters"]

_NESTED = re.compile(r"<[^<>]*>")  # the innermost type arguments of a DDL


def require_dead_letters_possible(pipeline: Pipeline) -> None:
    """Before anything is started.

    Raises:
        ConfigError: no sink can take dead letters, or the source does not read what they need.
    """
    topics = _topics(pipeline)
    if not topics:
        return
    where = {"source": pipeline.source.name, "topics": ",".join(topics)}
    if _taker(pipeline.sinks) is None:
        raise ConfigError(
            "dead letters are asked for in a pipeline without a Kafka sink",
            where | {"sinks": ",".join(sink.name for sink in pipeline.sinks)},
            "They are written in the transaction of the output: add a Kafka sink, or use "
            "on_error='skip'.",
        )
    columns = _column_names(pipeline.source.schema_ddl())
    missing = [name for name in NEEDED_COLUMNS if name not in columns]
    if missing:
        raise ConfigError(
            "the source does not read what dead letters need",
            where | {"missing": ",".join(missing), "columns": ",".join(columns)},
            "Let the source read these columns, too.",
        )


def dead_letter_sink(pipeline: Pipeline, sinks: Mapping[str, Sink]) -> str | None:
    """The operator id of the sink in whose transactions dead letters are written, if there are any.

    Args:
        sinks: of the pipeline, in its order, by operator id.
    """
    taker = _taker(list(sinks.values())) if _topics(pipeline) else None
    return None if taker is None else list(sinks)[taker[0]]


def taking_dead_letters(pipeline: Pipeline) -> list[Sink]:
    """The pipeline's sinks, of which one takes its dead letters, if there may be any."""
    topics, sinks = _topics(pipeline), list(pipeline.sinks)
    taker = _taker(sinks) if topics else None
    if taker is not None:
        at, sink = taker
        for other in sinks:
            if isinstance(other, DeadLetterSink):
                other.with_dead_letters(topics)  # refused where one of them is its own
        sinks[at] = sink.with_dead_letters(topics)
    return sinks


def _taker(sinks: Sequence[Sink]) -> tuple[int, DeadLetterSink] | None:
    """The first that can, of those that promise most."""
    able = [(at, sink) for at, sink in enumerate(sinks) if isinstance(sink, DeadLetterSink)]
    return min(able, key=lambda found: not found[1].is_exactly_once, default=None)


def _topics(pipeline: Pipeline) -> tuple[str, ...]:
    policies = (step.policy for step in pipeline.steps)
    return tuple(dict.fromkeys(p.topic for p in policies if isinstance(p, DeadLetters)))


def _column_names(ddl: str) -> list[str]:
    """Names in a DDL of columns, of which some may be structs."""
    flat = ddl
    while (shorter := _NESTED.sub("", flat)) != flat:
        flat = shorter
    return [column.split()[0].strip("`") for column in flat.split(",")]
