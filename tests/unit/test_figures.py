"""The benchmark's table says what was reached, and does not flatter."""

import io

import pytest
from rich.console import Console

from benchmarks.figures import Figure, table


def figure(**changes: object) -> Figure:
    given = {"what": "rate", "runs": [3.0, 1.0, 2.0], "unit": "records/s", **changes}
    return Figure(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("least", "most", "reached"),
    [(None, None, None), (2.0, None, True), (2.1, None, False), (None, 1.9, False), (1, 3, True)],
)
def test_a_goal_is_judged_by_the_median(
    least: float | None, most: float | None, reached: bool | None
) -> None:
    assert figure().median == 2.0
    assert figure(least=least, most=most).is_reached is reached


def test_the_table_shows_every_run_and_the_machine() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    for part in table([figure(least=9.0, goal=">= 9")], [("cores", "2")]):
        console.print(part)
    text = console.export_text()
    for shown in ("rate", "2 records/s", "3 1 2", ">= 9", "missed", "cores"):
        assert shown in text
