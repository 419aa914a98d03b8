"""Policies for a record for which a function raises: fail the job, skip the record, or write it
elsewhere."""

from dataclasses import dataclass

from sluice.runtime.errors import ConfigError

__all__ = ["ALWAYS_LET_THROUGH", "DeadLetters", "OnError", "Policy", "Skip", "policy_of"]

ALWAYS_LET_THROUGH = 100
"""So many failed records of an epoch are within every `max_ratio`: a small epoch has no useful
ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Leave the record out, and count it.

    Attributes:
        max_ratio: the job fails, and nothing of the epoch becomes visible, if more than this part
            of its records fails, and more than `ALWAYS_LET_THROUGH`; in (0, 1], 1: no limit.
    """

    max_ratio: float = 0.5

    def __post_init__(self) -> None:
        _require_ratio(self.max_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """Write the record to another topic, in the transaction of the epoch's output, and count it.

    Attributes:
        topic: must exist; neither the output nor a topic that the pipeline reads.
        max_ratio: as in `Skip`.
    """

    topic: str
    max_ratio: float = 0.5

    def __post_init__(self) -> None:
        _require_ratio(self.max_ratio)


Policy = Skip | DeadLetters
OnError = str | Policy
"""In the form of the user's argument: ``fail``, ``skip``, or a policy with its settings."""


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
        "Use 'fail', 'skip', Skip(…) or DeadLetters(topic=…). Dead letters need a topic.",
    )


def _require_ratio(max_ratio: float) -> None:
    if not 0 < max_ratio <= 1:
        raise ConfigError(
            "the permitted part of failed records is out of range",
            {"max_ratio": max_ratio},
            "Give a number above 0 and up to 1; 1 sets no limit.",
        )
