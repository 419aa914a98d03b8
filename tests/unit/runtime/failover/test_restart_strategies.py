"""Restart strategies: whether and when a region that failed begins again. Pure."""

import math
from collections.abc import Iterable
from typing import Any

import pytest

from sluice.runtime.errors import ConfigError
from sluice.runtime.failover.attempt_history import AttemptHistory
from sluice.runtime.failover.restart_strategies import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    Restarts,
    RestartStrategy,
)


def delays(
    strategy: RestartStrategy, failures_s: Iterable[float], *, draw: float = 0.5
) -> list[float | None]:
    """Delay of each restart; None, the last one, where the region is given up."""
    past, found = Restarts(), list[float | None]()
    for at_s in failures_s:
        after = strategy.after_failure(past, at_s, draw=draw)
        if after is None or after.due_s is None:
            return [*found, None]
        found.append(round(after.due_s - at_s, 6))
        past = after
    return found


def test_fixed_delay_gives_up_after_so_many_attempts_however_far_apart() -> None:
    """As Flink's: the count of a run is never reset."""
    strategy = FixedDelayRestart(attempts=3, delay_s=10.0)
    assert delays(strategy, [0.0, 1e4, 2e4, 3e4]) == [10.0, 10.0, 10.0, None]
    assert delays(FixedDelayRestart(attempts=0), [5.0]) == [None]


def test_exponential_delay_grows_to_its_longest_and_never_gives_up_by_itself() -> None:
    """1, 2, 4, 5, 5, …"""
    strategy = ExponentialDelayRestart(max_backoff_s=5.0, backoff_multiplier=2.0)
    assert delays(strategy, [10.0 * n for n in range(6)]) == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0]


def test_exponential_delay_begins_again_after_a_time_without_a_failure() -> None:
    """Counted from the restart, not from the failure: a long delay is no success."""
    strategy = ExponentialDelayRestart(
        initial_backoff_s=8.0, backoff_multiplier=2.0, reset_backoff_threshold_s=100.0
    )
    assert delays(strategy, [0.0, 107.0]) == [8.0, 16.0], "it had run for 99 s"
    assert delays(strategy, [0.0, 108.0, 109.0]) == [8.0, 8.0, 16.0]


def test_exponential_delay_gives_up_after_so_many_attempts_in_a_row() -> None:
    """A time without a failure between them begins the count again."""
    strategy = ExponentialDelayRestart(
        attempts_before_reset_backoff=2, backoff_multiplier=1.0, reset_backoff_threshold_s=100.0
    )
    assert delays(strategy, [0.0, 10.0, 200.0, 210.0, 220.0]) == [1.0, 1.0, 1.0, 1.0, None]


def test_what_has_no_limit_is_said_so() -> None:
    """Delays that always grow, and failures that are never forgotten; no delay is endless."""
    strategy = ExponentialDelayRestart(
        max_backoff_s=math.inf, backoff_multiplier=10.0, reset_backoff_threshold_s=math.inf
    )
    assert delays(strategy, [0.0, 1e6, 2e6, 3e6]) == [1.0, 10.0, 100.0, 1000.0]
    with pytest.raises(ConfigError, match="initial_backoff_s"):
        ExponentialDelayRestart(initial_backoff_s=math.inf, max_backoff_s=math.inf)


@pytest.mark.parametrize(("draw", "delay_s"), [(0.0, 7.5), (0.5, 10.0), (0.9, 12.0)])
def test_jitter_spreads_restarts_around_the_delay(draw: float, delay_s: float) -> None:
    """By at most its part of it, never beyond the longest; what grows is the delay without it."""
    strategy = ExponentialDelayRestart(
        initial_backoff_s=10.0, max_backoff_s=21.0, backoff_multiplier=2.0, jitter_factor=0.25
    )
    assert delays(strategy, [0.0], draw=draw) == [delay_s]
    assert delays(strategy, [0.0, 50.0], draw=draw)[1] == min(2 * delay_s, 21.0)


def test_failure_rate_gives_up_at_one_failure_too_many_in_its_interval() -> None:
    """As many failures as come, further apart than that."""
    strategy = FailureRateRestart(
        max_failures_per_interval=2, failure_rate_interval_s=60.0, delay_s=3.0
    )
    assert delays(strategy, [0.0, 50.0, 61.0, 111.0, 172.0]) == [3.0] * 5
    assert delays(strategy, [0.0, 30.0, 60.0]) == [3.0, 3.0, None]


def test_a_rate_remembers_no_more_failures_than_it_counts() -> None:
    """A region may fail for years."""
    strategy = FailureRateRestart(max_failures_per_interval=3, failure_rate_interval_s=60.0)
    past = Restarts()
    for number in range(1_000):
        after = strategy.after_failure(past, 25.0 * number, draw=0.5)
        assert after is not None
        past = after
        assert len(past.failures_s) <= 3


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (FixedDelayRestart, {"attempts": -1}),
        (FixedDelayRestart, {"delay_s": -0.1}),
        (ExponentialDelayRestart, {"initial_backoff_s": 0.0}),
        (ExponentialDelayRestart, {"max_backoff_s": 0.5}),
        (ExponentialDelayRestart, {"backoff_multiplier": 0.9}),
        (ExponentialDelayRestart, {"reset_backoff_threshold_s": 0.0}),
        (ExponentialDelayRestart, {"jitter_factor": 1.1}),
        (ExponentialDelayRestart, {"attempts_before_reset_backoff": 0}),
        (FailureRateRestart, {"max_failures_per_interval": 0}),
        (FailureRateRestart, {"failure_rate_interval_s": 0.0}),
        (FailureRateRestart, {"delay_s": -1.0}),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(kind: Any, wrong: dict[str, Any]) -> None:
    """Before anything starts."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        kind(**wrong)


def test_a_history_reports_how_long_a_region_was_away() -> None:
    """All attempts that ended before the one that committed waited for it, each from its own end."""
    history = AttemptHistory()
    history.ended(0, RuntimeError("first line\nsecond line"), 10.0)
    history.ended(4, ValueError(), 15.0)
    history.committed(4, 16.0)
    history.committed(7, 20.0)
    history.committed(7, 30.0)
    first, second = history.attempts
    assert (first.attempt_id, first.why, first.committed_after_s) == (
        0,
        "RuntimeError: first line",
        6.0,
    )
    assert (second.attempt_id, second.why, second.committed_after_s) == (4, "ValueError", 5.0)


def test_a_history_keeps_its_newest_and_counts_all() -> None:
    """Also long errors do not make it large."""
    history = AttemptHistory()
    for attempt_id in range(1_000):
        history.ended(attempt_id, RuntimeError("x" * 10_000), float(attempt_id))
    assert history.count == 1_000
    assert [attempt.attempt_id for attempt in history.attempts] == list(range(980, 1_000))
    assert all(len(attempt.why) <= 300 for attempt in history.attempts)
