"""Deadlines, and lookups that are repeated until their result is complete."""

import pytest

from sluice.connectors.kafka.client.retry import ABSENCE_S, CompletionRetry, Deadline
from tests.kit.source.fake_source_cluster import FakeClock


def test_a_request_after_the_deadline_has_a_short_timeout_all_the_same() -> None:
    clock = FakeClock()
    deadline = Deadline(2.0, clock)
    clock.pass_time(1.5)
    assert (deadline.left_s, deadline.request_s, deadline.is_over) == (0.5, 0.5, False)
    clock.pass_time(1.0)
    assert deadline.left_s == -0.5
    assert deadline.request_s == 0.1
    assert deadline.is_over


@pytest.mark.parametrize("missing_for", [0, 1, 3])
def test_a_lookup_is_repeated_until_nothing_is_missing(missing_for: int) -> None:
    clock, missing = FakeClock(), ["a"] * missing_for
    retry = CompletionRetry(clock, clock.pass_time)

    def find() -> tuple[int, list[str]]:
        return len(missing), [missing.pop()] if missing else []

    assert retry.until_complete(find) == (0, [])


def test_the_first_lookup_takes_no_time_of_the_retries() -> None:
    """A slow first answer must not be the only one."""
    clock = FakeClock()
    lookups: list[float] = []

    def find() -> tuple[int, list[str]]:
        if not lookups:
            clock.pass_time(10 * ABSENCE_S)
        lookups.append(clock())
        return len(lookups), ["a"]

    found, missing = CompletionRetry(clock, clock.pass_time).until_complete(find)
    assert missing == ["a"]
    assert found == len(lookups) > 2
    assert ABSENCE_S <= lookups[-1] - lookups[0] < ABSENCE_S + 1
