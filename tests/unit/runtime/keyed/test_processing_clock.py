"""The clock of rows whose barrier has not come: the driver's, continued by the time since then."""

from sluice.runtime.keyed.processing_clock import ProcessingClock


class Host:
    """Clocks that a test sets."""

    def __init__(self) -> None:
        self.wall_s, self.monotonic_s = 1_000.0, 5.0
        self.clock = ProcessingClock(lambda: self.wall_s, lambda: self.monotonic_s)


def test_before_the_first_barrier_it_is_the_clock_of_the_host() -> None:
    host = Host()
    host.monotonic_s += 2
    assert host.clock.now_ms() == 1_002_000


def test_a_barrier_brings_the_clock_of_the_driver() -> None:
    """That of the host is an hour ahead, and is set meanwhile."""
    host = Host()
    host.clock.note_barrier(400_000)
    host.wall_s = 9_000.0
    assert host.clock.now_ms() == 400_000
    host.monotonic_s += 10_800
    assert host.clock.now_ms() == 400_000 + 10_800_000


def test_it_stands_still_while_the_barrier_of_the_rows_is_known() -> None:
    host = Host()
    host.clock.stop_at(400_000)
    host.monotonic_s += 60
    assert host.clock.now_ms() == 400_000
    host.clock.note_barrier(400_000)
    host.monotonic_s += 1
    assert host.clock.now_ms() == 401_000
