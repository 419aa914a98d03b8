"""Rule `lease-guards-outputs` in virtual time: what a decision waits for, and the end of a
watch."""

from collections.abc import Callable, Mapping
from typing import cast

import pytest

from sluice.runtime.contracts import SinkCoordinator
from sluice.runtime.errors import FencedError
from sluice.runtime.ownership.lease_watch import _RETRY_FOR_S, LeaseWatch
from tests.kit.threads.switched_threads import Process, Switched

_FENCED = FencedError("another job uses this prefix", {}, "Stop one of them.")
_INTERVAL_S = 5.0
_PAUSE_S = 600.0


class Job:
    """A process with one record.

    Args:
        look: what a renewal does.

    Attributes:
        looks: renewals that have ended.
    """

    def __init__(self, look: Callable[["Job"], None]) -> None:
        self.switched = Switched(lambda _: 0)
        self.process = Process("job")
        self.looks = 0
        self._look = look

    def renew(self) -> None:
        """See `SinkCoordinator.renew`."""
        try:
            self._look(self)
        finally:
            self.looks += 1

    def pause_in(self, after_s: float) -> None:
        """Its host sleeps then, for long."""

        def pause() -> None:
            self.switched.sleep(after_s)
            self.process.stopped_until_s = self.switched.now_s + _PAUSE_S

        self.switched.spawn(pause, process=Process("host"), name="sleep")

    def live(self, main: Callable[[LeaseWatch], None]) -> None:
        with self.switched.in_modules("sluice.runtime.ownership.lease_watch"):
            sinks = cast(Mapping[str, SinkCoordinator], {"sink": self})
            clock = self.switched.clock

            def run() -> None:
                owners = LeaseWatch(sinks, interval_s=_INTERVAL_S, age_clock=clock)
                owners.start()
                main(owners)
                owners.stop(timeout_s=0.0)

            thread = self.switched.spawn(run, process=self.process, name="main")
            try:
                assert self.switched.run(lambda: not thread.is_alive(), most_turns=10_000)
            finally:
                self.switched.end()


def test_lease_guards_outputs_a_decision_waits_from_the_beginning_after_a_pause() -> None:
    """Its patience had nearly run out when the host slept, and another job has the record since:
    the look that finds it was paused, too."""

    def look(job: Job) -> None:
        job.switched.sleep(_RETRY_FOR_S - 0.5)  # that is over while the host sleeps
        job.switched.sleep(6.0)
        raise _FENCED

    def main(owners: LeaseWatch) -> None:
        job.pause_in(_RETRY_FOR_S - 1.0)
        with pytest.raises(FencedError):
            owners.require()

    job = Job(look)
    job.live(main)
    assert job.looks == 1


def test_lease_guards_outputs_a_decision_waits_so_long_and_no_longer_for_a_look_that_hangs() -> (
    None
):
    took_s = list[float]()

    def main(owners: LeaseWatch) -> None:
        began_s = job.switched.now_s
        owners.require()
        took_s.append(job.switched.now_s - began_s)

    job = Job(lambda job: job.switched.sleep(_PAUSE_S))
    job.live(main)
    assert took_s == [pytest.approx(_RETRY_FOR_S, abs=0.5)]


@pytest.mark.parametrize(("timeout_s", "looks"), [(60.0, 1), (1.0, 0)])
def test_the_end_of_a_watch_waits_for_a_look_under_way(timeout_s: float, looks: int) -> None:
    """Its client is closed after that. But not for ever, for it may hang."""

    def main(owners: LeaseWatch) -> None:
        job.switched.sleep(_INTERVAL_S + 0.5)
        owners.stop(timeout_s=timeout_s)
        assert job.looks == looks

    job = Job(lambda job: job.switched.sleep(3.0))
    job.live(main)
