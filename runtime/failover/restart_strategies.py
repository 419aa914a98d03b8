"""Whether and when a failed region restarts: fixed delay, exponential delay, failure rate.

Names, settings and meaning are those of Flink's restart strategies, per region instead of per job.
Pure: the inputs are the history, the clock and a random draw; the result is the time of the
restart.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from sluice.runtime.errors import ConfigError

__all__ = [
    "ExponentialDelayRestart",
    "FailureRateRestart",
    "FixedDelayRestart",
    "RestartStrategy",
    "Restarts",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """The memory of a strategy about one region, within one run of the job.

    Attributes:
        count: restarts so far that count towards the strategy's limit.
        due_s: clock from which the newest restart may happen; None before the first.
        backoff_s: delay of the newest one, before jitter.
        failures_s: clock of the failures that a rate still counts, oldest first.
    """

    count: int = 0
    due_s: float | None = None
    backoff_s: float = 0.0
    failures_s: tuple[float, ...] = ()


class RestartStrategy(Protocol):
    """How often, and after which delay, a failed region restarts."""

    def after_failure(self, past: Restarts, now_s: float, *, draw: float) -> Restarts | None:
        """The next restart, or None: the region has failed for good.

        Args:
            past: what the last call for this region returned; a new one at first.
            now_s: monotonic seconds.
            draw: random, in [0, 1); for strategies that spread their restarts.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelayRestart(RestartStrategy):
    """A fixed number of restarts in one run of the job, each after the same delay.

    Attributes:
        attempts: restarts in one run; the next failure is final; >= 0.
        delay_s: from the failure to the restart; >= 0.
    """

    attempts: int = 1
    delay_s: float = 1.0

    def __post_init__(self) -> None:
        _require({"attempts": self.attempts >= 0, "delay_s": 0 <= self.delay_s < math.inf})

    def after_failure(self, past: Restarts, now_s: float, *, draw: float) -> Restarts | None:
        del draw
        if past.count >= self.attempts:
            return None
        return Restarts(count=past.count + 1, due_s=now_s + self.delay_s, backoff_s=self.delay_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDelayRestart(RestartStrategy):
    """Delays that grow with each failure, and are reset after a time without one.

    Attributes:
        initial_backoff_s: the first delay; > 0.
        max_backoff_s: the longest delay with jitter; at least the first; `math.inf`: no limit.
        backoff_multiplier: growth from one delay to the next; >= 1.
        reset_backoff_threshold_s: this long after a restart without a failure, the next failure
            counts as the first; > 0; `math.inf`: never.
        jitter_factor: random change of a delay by up to this share, so that regions that failed
            together restart at different times; in [0, 1].
        attempts_before_reset_backoff: restarts in a row without a reset; the next failure is final;
            None: no limit.
    """

    initial_backoff_s: float = 1.0
    max_backoff_s: float = 60.0
    backoff_multiplier: float = 1.5
    reset_backoff_threshold_s: float = 3600.0
    jitter_factor: float = 0.1
    attempts_before_reset_backoff: int | None = None

    def __post_init__(self) -> None:
        limit = self.attempts_before_reset_backoff
        _require(
            {
                "initial_backoff_s": 0 < self.initial_backoff_s < math.inf,
                "max_backoff_s": self.max_backoff_s >= self.initial_backoff_s,
                "backoff_multiplier": 1 <= self.backoff_multiplier < math.inf,
                "reset_backoff_threshold_s": self.reset_backoff_threshold_s > 0,
                "jitter_factor": 0 <= self.jitter_factor <= 1,
                "attempts_before_reset_backoff": limit is None or limit >= 1,
            }
        )

    def after_failure(self, past: Restarts, now_s: float, *, draw: float) -> Restarts | None:
        is_first = past.due_s is None or now_s - past.due_s >= self.reset_backoff_threshold_s
        count = 1 if is_first else past.count + 1
        limit = self.attempts_before_reset_backoff
        if limit is not None and count > limit:
            return None
        grown_s = past.backoff_s * self.backoff_multiplier
        backoff_s = self.initial_backoff_s if is_first else min(grown_s, self.max_backoff_s)
        jitter_s = backoff_s * self.jitter_factor * (2 * draw - 1)
        delay_s = min(backoff_s + jitter_s, self.max_backoff_s)
        return Restarts(count=count, due_s=now_s + delay_s, backoff_s=backoff_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRateRestart(RestartStrategy):
    """A maximum rate of failures; each restart after the same delay.

    Attributes:
        max_failures_per_interval: one more failure within the interval is final; >= 1.
        failure_rate_interval_s: length of the interval before each failure; > 0.
        delay_s: from the failure to the restart; >= 0.
    """

    max_failures_per_interval: int = 1
    failure_rate_interval_s: float = 60.0
    delay_s: float = 1.0

    def __post_init__(self) -> None:
        _require(
            {
                "max_failures_per_interval": self.max_failures_per_interval >= 1,
                "failure_rate_interval_s": 0 < self.failure_rate_interval_s < math.inf,
                "delay_s": 0 <= self.delay_s < math.inf,
            }
        )

    def after_failure(self, past: Restarts, now_s: float, *, draw: float) -> Restarts | None:
        del draw
        since_s = now_s - self.failure_rate_interval_s
        failures_s = (*(at_s for at_s in past.failures_s if at_s >= since_s), now_s)
        if len(failures_s) > self.max_failures_per_interval:
            return None
        return Restarts(
            count=past.count + 1,
            due_s=now_s + self.delay_s,
            backoff_s=self.delay_s,
            failures_s=failures_s,
        )


def _require(settings: dict[str, bool]) -> None:
    wrong = [name for name, is_right in settings.items() if not is_right]
    if wrong:
        raise ConfigError(
            "a setting of a restart strategy is out of range",
            {"settings": ",".join(wrong)},
            "Use a value within the range in the docstring of the strategy.",
        )
