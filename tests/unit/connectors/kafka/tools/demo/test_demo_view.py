"""What the demo says in the end: clean or not, and where not."""

import pytest
from rich.console import Console

from sluice.connectors.kafka.tools.demo.demo_view import Outcome
from sluice.runtime.checker import History, Record
from tests.kit.memory_checker import check, check_prefix


def record(offset: int) -> Record:
    return Record("orders", 0, offset, None, b"order %d" % offset, (), 0)


def history(offsets: list[int]) -> History:
    found = History()
    for offset in offsets:
        found.append(record(offset))
    return found


def outcome(there: list[int], *, seen: list[int]) -> Outcome:
    return Outcome(
        verdict=check(history([0, 1, 2]), history(there)),
        prefix=check_prefix(history(seen), history(there)),
        sent=3,
        visible_at_kill=1,
        elapsed_s=1.0,
        peak_rate=3,
        recovery_s=1.0,
        spark_start_s=0.5,
    )


def shown(found: Outcome) -> str:
    console = Console(width=200, highlight=False)
    with console.capture() as capture:
        console.print(found.title())
        console.print(found.table())
    return capture.get()


def test_a_clean_run_says_so() -> None:
    """And names no place."""
    text = shown(outcome([0, 1, 2], seen=[0, 1]))
    assert text.startswith("exactly once")
    assert "orders" not in text


@pytest.mark.parametrize(
    ("there", "seen", "fault", "place"),
    [
        ([0, 2], [0], "lost", "orders-0@1"),
        ([0, 1, 2], [1], "readers saw only a prefix, nothing torn", "orders-0@"),
    ],
)
def test_a_fault_is_shown_with_its_place(
    there: list[int], seen: list[int], fault: str, place: str
) -> None:
    """A count alone helps nobody to look."""
    text = shown(outcome(there, seen=seen))
    assert text.startswith("NOT exactly once")
    (line,) = [line for line in text.splitlines() if fault in line]
    assert place in line
