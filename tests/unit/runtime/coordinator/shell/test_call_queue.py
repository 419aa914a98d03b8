"""Who waits for a source has it in turn, and no longer than it said."""

import threading

import pytest

from sluice.runtime.coordinator.shell.source_service import CallQueue
from tests.kit.waiting import PATIENCE_S, join, wait_for


def waiting(turns: CallQueue) -> int:
    return len(turns._waiting)  # noqa: SLF001


def test_who_comes_often_does_not_come_before_who_waits() -> None:
    turns, order = CallQueue(), list[int]()

    def wait(number: int) -> None:
        with turns.taken():
            order.append(number)

    turns.acquire()
    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=wait, args=[number]))
        threads[-1].start()
        wait_for(lambda n=number: waiting(turns) == n + 1, poll_s=0.001)
    turns.release()
    with turns.taken():  # at once again
        order.append(5)
    join(*threads)
    assert order == [0, 1, 2, 3, 4, 5]


def test_a_thread_that_has_it_has_it_again_and_gives_it_back_as_often() -> None:
    turns, got = CallQueue(), list[bool]()

    def ask() -> None:
        got.append(turns.acquire(0.01))
        if got[-1]:
            turns.release()

    def asked() -> bool:
        thread = threading.Thread(target=ask)
        thread.start()
        join(thread)
        return got[-1]

    with turns.taken():
        with turns.taken():
            assert not asked()
        assert not asked()
    assert asked()
    assert waiting(turns) == 0


def test_who_is_interrupted_while_it_waits_keeps_nobody_out() -> None:
    turns = CallQueue()

    class Interrupted(threading.Event):
        def __init__(self, *, has_its_turn: bool) -> None:
            super().__init__()
            self._has_its_turn = has_its_turn

        def wait(self, timeout: float | None = None) -> bool:
            if self._has_its_turn:
                holder.release()
            raise KeyboardInterrupt

    class Holder:
        def __init__(self) -> None:
            self.go_on, self.holds, self.left = (threading.Event() for _ in range(3))
            self.thread = threading.Thread(target=self._hold)
            self.thread.start()
            assert self.holds.wait(PATIENCE_S)

        def _hold(self) -> None:
            with turns.taken():
                self.holds.set()
                assert self.go_on.wait(PATIENCE_S)
            self.left.set()

        def release(self) -> None:
            self.go_on.set()
            assert self.left.wait(PATIENCE_S)
            join(self.thread)

    for has_its_turn in (False, True):
        holder = Holder()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "sluice.runtime.coordinator.shell.source_service.threading.Event",
                lambda: Interrupted(has_its_turn=has_its_turn),  # noqa: B023
            )
            with pytest.raises(KeyboardInterrupt):
                turns.acquire()
        if not has_its_turn:
            holder.release()
        assert waiting(turns) == 0
        assert turns.acquire(0.0)
        turns.release()
