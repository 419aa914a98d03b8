"""How a courier wakes its task, and how it ends with it; the coordinator is played."""

import threading
import time
from dataclasses import replace

import pytest

from sluice.runtime.continuous import checkpoint_client as module
from sluice.runtime.continuous.checkpoint_client import CheckpointClient
from sluice.runtime.continuous.task_messages import NextBarrier
from sluice.runtime.errors import FencedError
from tests.kit.fakes import ManualClock
from tests.kit.waiting import PATIENCE_S, join, wait_for
from tests.unit.runtime.continuous.test_checkpoint_client import (
    PlayedEpoch,
    PlayedLink,
    _barrier,
    _checkpoint_client,
    _taken,
)


@pytest.mark.parametrize(
    "answer", [_barrier(4), FencedError("over", {}, ""), NextBarrier(barrier=None, is_over=True)]
)
def test_a_task_that_rests_is_woken_by_what_its_courier_has_heard(
    answer: NextBarrier | Exception,
) -> None:
    """A barrier waits for no pause of the task's, and neither does the end."""
    rests = threading.Event()
    link = PlayedLink(answers=[answer])
    checkpoint_client = _checkpoint_client(link, ManualClock())
    asked = link.next_barrier

    def once_it_rests(*who: object, **what: object) -> NextBarrier:
        assert rests.wait(PATIENCE_S)
        wait_for(lambda: checkpoint_client._changed._waiters, poll_s=0.001)  # type: ignore[attr-defined]  # noqa: SLF001
        return asked(*who, **what)  # type: ignore[arg-type]

    link.next_barrier = once_it_rests  # type: ignore[method-assign]
    task = threading.Thread(target=checkpoint_client.wait, args=(2 * PATIENCE_S,), daemon=True)
    checkpoint_client.start()
    task.start()
    rests.set()
    join(task)
    checkpoint_client.close()


def test_a_task_that_rests_does_so_until_its_time_is_up() -> None:
    """Each look at few records costs as much as one at many."""
    checkpoint_client = _checkpoint_client(PlayedLink(), ManualClock())
    began_s = time.monotonic()
    checkpoint_client.wait(0.05)
    assert time.monotonic() - began_s >= 0.05


def _ends_at_once(checkpoint_client: CheckpointClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_JOIN_S", PATIENCE_S)
    checkpoint_client.close()
    assert not checkpoint_client._thread.is_alive()  # noqa: SLF001 - nobody else has it


def test_a_courier_that_waits_for_an_epoch_ends_with_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = PlayedLink(answers=[_barrier(4), _barrier(5)])
    checkpoint_client = _checkpoint_client(link, ManualClock())
    epoch = PlayedEpoch(4)
    checkpoint_client.start()
    _taken(checkpoint_client)
    checkpoint_client.submit_epoch(epoch)
    assert _taken(checkpoint_client).checkpoint_id == 5
    _ends_at_once(checkpoint_client, monkeypatch)
    assert epoch.events == ["pre-commit", "release"]
    assert checkpoint_client.take_barrier() is None, "and has met no error in that"


def test_a_courier_that_asks_ends_with_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    link = PlayedLink()
    checkpoint_client = _checkpoint_client(link, ManualClock())
    nothing = NextBarrier(barrier=None)
    link.next_barrier = lambda *_, **__: nothing  # type: ignore[method-assign]
    checkpoint_client.start()
    _ends_at_once(checkpoint_client, monkeypatch)
    assert not checkpoint_client.is_over, "nobody has said so"


def test_an_attempt_that_is_stopped_after_its_barrier_waits_for_no_epoch() -> None:
    """Its task may be about to write for long."""
    link = PlayedLink(answers=[replace(_barrier(4), to_commit=(3,))])  # then it is over
    checkpoint_client = _checkpoint_client(link, ManualClock())
    checkpoint_client.start()
    _taken(checkpoint_client)
    wait_for(lambda: checkpoint_client.is_over)
    checkpoint_client.close()
    assert link.acks == []
