"""How a courier wakes its task, and how it ends with it; the coordinator is played."""

import threading
import time
from dataclasses import replace

import pytest

from sluice.runtime.continuous import checkpoint_client as module
from sluice.runtime.continuous.checkpoint_client import Courier
from sluice.runtime.continuous.task_messages import NextBarrier
from sluice.runtime.errors import FencedError
from tests.fakes import ManualClock
from tests.unit.test_courier import PlayedEpoch, PlayedLink, _barrier, _courier, _taken
from tests.waiting import PATIENCE_S, join, wait_for


@pytest.mark.parametrize(
    "answer", [_barrier(4), FencedError("over", {}, ""), NextBarrier(barrier=None, is_over=True)]
)
def test_a_task_that_rests_is_woken_by_what_its_courier_has_heard(
    answer: NextBarrier | Exception,
) -> None:
    """A barrier waits for no pause of the task's, and neither does the end."""
    rests = threading.Event()
    link = PlayedLink(answers=[answer])
    courier = _courier(link, ManualClock())
    asked = link.next_barrier

    def once_it_rests(*who: object, **what: object) -> NextBarrier:
        assert rests.wait(PATIENCE_S)
        wait_for(lambda: courier._changed._waiters, poll_s=0.001)  # type: ignore[attr-defined]  # noqa: SLF001
        return asked(*who, **what)  # type: ignore[arg-type]

    link.next_barrier = once_it_rests  # type: ignore[method-assign]
    task = threading.Thread(target=courier.wait, args=(2 * PATIENCE_S,), daemon=True)
    courier.start()
    task.start()
    rests.set()
    join(task)
    courier.close()


def test_a_task_that_rests_does_so_until_its_time_is_up() -> None:
    """Each look at few records costs as much as one at many."""
    courier = _courier(PlayedLink(), ManualClock())
    began_s = time.monotonic()
    courier.wait(0.05)
    assert time.monotonic() - began_s >= 0.05


def _ends_at_once(courier: Courier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_JOIN_S", PATIENCE_S)
    courier.close()
    assert not courier._thread.is_alive()  # noqa: SLF001 - nobody else has it


def test_a_courier_that_waits_for_an_epoch_ends_with_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that has failed ends none any more; what was acknowledged before is let go."""
    link = PlayedLink(answers=[_barrier(4), _barrier(5)])
    courier = _courier(link, ManualClock())
    epoch = PlayedEpoch(4)
    courier.start()
    _taken(courier)
    courier.hand_over(epoch)
    assert _taken(courier).checkpoint_id == 5
    _ends_at_once(courier, monkeypatch)
    assert epoch.events == ["pre-commit", "release"]
    assert courier.take() is None, "and has met no error in that"


def test_a_courier_that_asks_ends_with_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the answer that it waits for, whatever that tells."""
    link = PlayedLink()
    courier = _courier(link, ManualClock())
    nothing = NextBarrier(barrier=None)
    link.next_barrier = lambda *_, **__: nothing  # type: ignore[method-assign]
    courier.start()
    _ends_at_once(courier, monkeypatch)
    assert not courier.is_over, "nobody has said so"


def test_a_life_that_is_stopped_behind_its_barrier_waits_for_no_epoch() -> None:
    """Its task may be about to write for long."""
    link = PlayedLink(answers=[replace(_barrier(4), to_commit=(3,))])  # then it is over
    courier = _courier(link, ManualClock())
    courier.start()
    _taken(courier)
    wait_for(lambda: courier.is_over)
    courier.close()
    assert link.acks == []
