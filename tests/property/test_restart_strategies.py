"""Restart strategies over random failures, against what their documentation says in words."""

from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.failover.restart_strategies import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    Restarts,
    RestartStrategy,
)

seconds = st.floats(0.0, 500.0, allow_nan=False)
gaps = st.lists(st.tuples(seconds, st.floats(0.0, 1.0, exclude_max=True)), max_size=30)


def run(
    strategy: RestartStrategy, gaps_between: list[tuple[float, float]]
) -> tuple[list[float], list[Restarts]]:
    """A region that gaps_between so long after each restart; when it failed, and what followed. One
    failure more than restarts: the region was given up."""
    past, now_s = Restarts(), 0.0
    failures_s, restarts = list[float](), list[Restarts]()
    for lived_s, draw in gaps_between:
        now_s = (past.due_s or now_s) + lived_s
        failures_s.append(now_s)
        after = strategy.after_failure(past, now_s, draw=draw)
        if after is None:
            break
        assert after.due_s is not None
        assert after.due_s >= now_s
        restarts.append(after)
        past = after
    return failures_s, restarts


@given(gaps_between=gaps, attempts=st.integers(0, 5), delay_s=seconds)
def test_fixed_delay_restarts_so_often_and_no_more(
    gaps_between: list[tuple[float, float]], attempts: int, delay_s: float
) -> None:
    """The first so many failures are followed by a restart, after the delay."""
    failures_s, restarts = run(FixedDelayRestart(attempts=attempts, delay_s=delay_s), gaps_between)
    assert len(restarts) == min(len(gaps_between), attempts)
    for at_s, restart in zip(failures_s, restarts, strict=False):
        assert restart.due_s == at_s + delay_s


@given(
    gaps_between=gaps,
    initial_s=st.floats(0.1, 10.0),
    multiplier=st.floats(1.0, 4.0),
    jitter=st.floats(0.0, 1.0),
    reset_s=st.floats(1.0, 400.0),
    limit=st.none() | st.integers(1, 4),
)
def test_exponential_delay_grows_within_its_bounds(
    gaps_between: list[tuple[float, float]],
    initial_s: float,
    multiplier: float,
    jitter: float,
    reset_s: float,
    limit: int | None,
) -> None:
    """Each delay is its backoff, more or less by the jitter, at most the longest; the backoff
    grows, or begins again after the threshold; only the limit in a row ends it."""
    strategy = ExponentialDelayRestart(
        initial_backoff_s=initial_s,
        max_backoff_s=30.0,
        backoff_multiplier=multiplier,
        jitter_factor=jitter,
        reset_backoff_threshold_s=reset_s,
        attempts_before_reset_backoff=limit,
    )
    failures_s, restarts = run(strategy, gaps_between)
    in_a_row, backoff_s, due_s = 0, 0.0, float("-inf")
    for number, at_s in enumerate(failures_s):
        is_first = at_s - due_s >= reset_s
        in_a_row = 1 if is_first else in_a_row + 1
        backoff_s = initial_s if is_first else min(backoff_s * multiplier, 30.0)
        if number == len(restarts):
            assert limit is not None
            assert in_a_row == limit + 1
            return
        assert limit is None or in_a_row <= limit
        due_s = restarts[number].due_s or 0.0
        least_s = min(backoff_s * (1 - jitter), 30.0)
        most_s = min(backoff_s * (1 + jitter), 30.0)
        assert least_s - 1e-6 <= due_s - at_s <= most_s + 1e-6


@given(gaps_between=gaps, most=st.integers(1, 5), interval_s=st.floats(1.0, 400.0), delay_s=seconds)
def test_failure_rate_gives_up_at_the_first_interval_with_too_many(
    gaps_between: list[tuple[float, float]], most: int, interval_s: float, delay_s: float
) -> None:
    """And at no other moment: counted again for each failure, over the whole history."""
    strategy = FailureRateRestart(
        max_failures_per_interval=most, failure_rate_interval_s=interval_s, delay_s=delay_s
    )
    failures_s, restarts = run(strategy, gaps_between)
    for number, at_s in enumerate(failures_s):
        in_interval = sum(at_s - interval_s <= before_s for before_s in failures_s[: number + 1])
        assert (in_interval > most) == (number == len(restarts))
