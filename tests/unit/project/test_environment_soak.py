"""The verdict on a soak: what grows is named, what only moves is not."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.environment.soak import MEASURES, Sample, growth

_QUIET = Sample(
    at_s=0.0,
    faults=0,
    driver=100,
    driver_mib=600.0,
    driver_files=300,
    driver_threads=120,
    workers_mib=1500.0,
    workers_files=500,
    workers_threads=200,
    ids_per_process=3,
    records=0,
)


def _samples(count: int, change: Callable[[int], dict[str, float]]) -> Sequence[Sample]:
    return [
        replace(_QUIET, at_s=10.0 * number, faults=number // 6, **change(number))  # type: ignore[arg-type]
        for number in range(count)
    ]


def test_what_moves_up_and_down_is_flat() -> None:
    """And what fills in the first minutes, then stays."""
    assert not growth(_samples(60, lambda n: {"driver_mib": 600 + 50 * (n % 3)}))
    assert not growth(_samples(60, lambda n: {"driver_mib": min(300 + 40 * n, 700)}))


@pytest.mark.parametrize("name", MEASURES)
def test_a_leak_is_named(name: str) -> None:
    """Each measure by itself, in steps of 1 % of where it began, or of one."""
    began = getattr(_QUIET, name)
    grown = growth(_samples(120, lambda n: {name: began + n * max(1, began // 100)}))
    assert [line.partition(":")[0] in MEASURES[name].title for line in grown] == [True]


def test_attempts_of_a_driver_are_not_mixed() -> None:
    """A new driver begins small; only the longest life counts."""
    first = _samples(20, lambda n: {"driver_mib": 100.0})
    second = [replace(sample, driver=200) for sample in _samples(60, lambda n: {})]
    assert not growth([*first, *second])


def test_too_little_is_no_verdict() -> None:
    """A soak of a minute proves nothing."""
    assert "no sample" in growth([])[0]
    assert "too few" in growth(_samples(8, lambda n: {}))[0]
