"""The verdict on a soak: what grows is named, what only moves is not."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.bed.plot import draw
from tests.bed.soak import MEASURES, Sample, growth, read_samples

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


def test_lives_of_a_driver_are_not_mixed() -> None:
    """A new driver begins small; only the longest life counts."""
    first = _samples(20, lambda n: {"driver_mib": 100.0})
    second = [replace(sample, driver=200) for sample in _samples(60, lambda n: {})]
    assert not growth([*first, *second])


def test_too_little_is_no_verdict() -> None:
    """A soak of a minute proves nothing."""
    assert "no sample" in growth([])[0]
    assert "too few" in growth(_samples(8, lambda n: {}))[0]


def test_a_plot_has_a_panel_for_each_measure() -> None:
    """Well formed, with every title and a line in each."""
    text = draw(_samples(30, lambda n: {"records": n}), "a < b")
    tree = ElementTree.fromstring(text)
    titles = {found.text for found in tree.iter() if found.tag.endswith("text")}
    assert {measure.title for measure in MEASURES.values()} <= titles
    lines = [found for found in tree.iter() if found.tag.endswith("polyline")]
    assert len(lines) == len(MEASURES) + 1


def test_the_soak_that_is_kept_is_an_hour_long_and_flat_and_its_plot_shows_it() -> None:
    """What the report says of it hangs on no word of whoever has run it."""
    root = Path(__file__).parents[2]
    samples = read_samples(root / "tests" / "bed" / "soak-2026-11-26.jsonl")
    last = samples[-1]
    assert last.at_s >= 3600
    assert {sample.driver for sample in samples} == {last.driver}
    assert not growth(samples)
    title = f"{last.at_s / 60:.0f} minutes, {last.faults} faults, {last.records} records"
    drawn = draw(samples, f"Soak, pipeline copy: {title}")
    assert drawn == (root / "docs" / "soak-copy.svg").read_text("utf-8")
