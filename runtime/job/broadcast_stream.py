"""A broadcast stream as users hold it."""

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.pipeline import Step

__all__ = ["BroadcastStream", "steps_of"]


@dataclass(frozen=True, slots=True)
class BroadcastStream:
    """A table of the latest row of each key, for functions of the same job: the result of
    ``job.source(…).broadcast(key=…)``.

    Attributes:
        step: the last one of its pipeline.
    """

    step: Step


def steps_of(
    broadcast: BroadcastStream | Mapping[str, BroadcastStream] | None,
) -> dict[str, Step]:
    """The steps of broadcast streams, by the names under which a function reads them.

    Raises:
        ConfigError: it is something else.
    """
    if broadcast is None:
        return {}
    named = broadcast if isinstance(broadcast, Mapping) else {"": broadcast}
    wrong = [name for name, each in named.items() if not isinstance(each, BroadcastStream)]
    if wrong or not named or (isinstance(broadcast, Mapping) and "" in named):
        raise ConfigError(
            "broadcast is no broadcast stream, and no mapping of names to some",
            {"given": repr(broadcast)[:100]},
            "Pass the result of job.source(…).broadcast(key=…), or {'rules': rules}.",
        )
    return {name: each.step for name, each in named.items()}
