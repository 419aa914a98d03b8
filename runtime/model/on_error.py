"""What becomes of a record for which a function raises: the job fails, or goes on without it."""

from dataclasses import dataclass

from sluice.runtime.errors import ConfigError

__all__ = ["ALWAYS_LET_THROUGH", "DeadLetters", "OnError", "Policy", "Skip", "policy_of"]

ALWAYS_LET_THROUGH = 100
"""So many failed records of an epoch are within every `max_ratio`: small epochs have no ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Leave the record out, and count it.

    Attributes:
        max_ratio: more than this part of an epoch's records, and more than `ALWAYS_LET_THROUGH`:
            the job fails, and nothing of the epoch becomes visible; in (0, 1], 1: no limit.
    """

    max_ratio: float = 0.5

    def __post_init__(self) -> None:
        _require_ratio(self.max_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """Write the record to another topic, in the transaction of the epoch's output, and count it.

    Attributes:
        topic: must exist; neither the output nor a topic that the pipeline reads.
        max_ratio: as of `Skip`.
    """

    topic: str
    max_ratio: float = 0.5

    def __post_init__(self) -> None:
        _require_ratio(self.max_ratio)


Policy = Skip | DeadLetters
OnError = str | Policy
"""As users say it: ``fail``, ``skip``, or a policy with its settings."""


def policy_of(given: OnError) -> Policy | None:
    """The policy; None: the first error fails the task.

    Raises:
        ConfigError: there is no such policy.
    """
    if isinstance(given, Skip | DeadLetters):
        return given
    if given == "fail":
        return None
    if given == "skip":
        return Skip()
    raise ConfigError(
        "on_error has a value that does not exist",
        {"on_error": given, "known": "fail, skip, Skip(…), DeadLetters(topic=…)"},
        "Dead letters need a topic: on_error=DeadLetters(topic=…), from sluice.",
    )


def _require_ratio(max_ratio: float) -> None:
    if not 0 < max_ratio <= 1:
        raise ConfigError(
            "the part of an epoch that may fail is out of range",
            {"max_ratio": max_ratio},
            "Give a number above 0 and up to 1; 1: as many as there are.",
        )
