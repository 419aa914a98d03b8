"""How often a producer gives its statistics: less often where epochs are long."""

import pytest

from sluice.connectors.kafka.sink.producers.preparation import StatisticsPace


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def paced(gap_s: float, *, epochs: int = 10, open_s: float | None = None) -> int:
    """Of the last of so many producers, one for each epoch."""
    clock = Clock()
    pace = StatisticsPace(clock)
    for _ in range(epochs):
        found = pace.next_ms()
        clock.now_s += gap_s
        if open_s is not None:
            pace.note_open(open_s)
    return found


@pytest.mark.parametrize(
    ("gap_s", "expected_ms"), [(0.001, 10), (0.1, 40), (0.5, 200), (1.0, 250), (60.0, 250)]
)
def test_a_producer_is_ready_within_a_part_of_an_epoch(gap_s: float, expected_ms: int) -> None:
    assert paced(gap_s) == expected_ms


@pytest.mark.parametrize(
    ("gap_s", "open_s", "expected_ms"),
    [(1.0, 0.95, 250), (1.0, 0.2, 80), (1.0, 0.001, 20), (0.1, 0.09, 36), (0.02, 0.001, 10)],
)
def test_a_transaction_that_starts_late_in_its_epoch_is_reported_before_its_commit(
    gap_s: float, open_s: float, expected_ms: int
) -> None:
    """With keyed state it starts at the barrier, and its commit would wait for statistics."""
    assert paced(gap_s, open_s=open_s) == expected_ms


def test_the_first_producers_of_a_task_are_made_at_once_and_say_nothing_of_its_epochs() -> None:
    assert paced(0.0, epochs=3) == 20


def test_one_short_epoch_between_long_ones_changes_nothing() -> None:
    clock = Clock()
    pace = StatisticsPace(clock)
    for gap_s in (0.5, 0.5, 0.5, 0.01, 0.5, 0.5):
        found = pace.next_ms()
        clock.now_s += gap_s
    assert found == 200
