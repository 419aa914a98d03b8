"""Durations as Spark writes them."""

from datetime import timedelta

import pytest

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.timestamps import Duration, duration_ms


@pytest.mark.parametrize(
    ("given", "expected_ms"),
    [
        ("10 seconds", 10_000),
        ("5m", 300_000),
        ("1 hour 30 minutes", 5_400_000),
        ("INTERVAL 2 days", 172_800_000),
        ("250 ms", 250),
        ("1.5 s", 1_500),
        (2, 2_000),
        (0.5, 500),
        (timedelta(weeks=1), 604_800_000),
        (0, 0),
    ],
)
def test_a_duration_is_text_seconds_or_a_timedelta(given: Duration, expected_ms: int) -> None:
    assert duration_ms(given, setting="idle_after") == expected_ms


@pytest.mark.parametrize(
    "given", ["", "5", "5 moons", "s 5", "5 s and", -1, True, float("inf"), timedelta(-1)]
)
def test_a_text_that_is_no_duration_is_refused(given: Duration) -> None:
    with pytest.raises(ConfigError, match="duration"):
        duration_ms(given, setting="idle_after")


def test_zero_is_refused_where_a_duration_must_be_above_it() -> None:
    with pytest.raises(ConfigError, match=r"value='0 s'.*more than zero.*units: ms, s, m"):
        duration_ms("0 s", setting="idle_after", may_be_zero=False)
