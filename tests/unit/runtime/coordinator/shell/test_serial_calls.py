"""Which calls of a sink or source may run at a time, and in which order they wait."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations_with_replacement
from types import SimpleNamespace
from typing import cast

import pytest

from sluice.runtime.contracts import SinkContext, SinkCoordinator, SplitEnumerator, SweepView
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.shell.source_service import CallQueue, SerialSource
from tests.kit.threads.switched_threads import Process, Switched
from tests.kit.waiting import PATIENCE_S, join, wait_for

_TAKES_S = 0.5  # of virtual time
_WAIT_S = 60.0
_MOST_TURNS = 1_000
_VIEW = SweepView(job_uid="j", attempt_ids={}, protected=(), orphans=())
_CONTEXT = SinkContext(
    job_uid="j", job_name="j", operator_id="o", checkpoint_uri="u", leader_session_id="s"
)

Calls = dict[str, Callable[[], object]]


class Slow:
    """A connector's object, each of whose methods takes its time.

    Attributes:
        overlaps: methods that were under way together.
        ended: as many as have.
    """

    def __init__(self, switched: Switched) -> None:
        self.overlaps: set[tuple[str, ...]] = set()
        self.ended = 0
        self._switched = switched
        self._under_way: list[str] = []

    def methods(self, *names: str) -> SimpleNamespace:
        return SimpleNamespace(**{name: self._method(name) for name in names})

    def _method(self, name: str) -> Callable[..., None]:
        def call(*_: object, **__: object) -> None:
            self.overlaps |= {tuple(sorted((name, other))) for other in self._under_way}
            self._under_way.append(name)
            self._switched.sleep(_TAKES_S)
            self._under_way.remove(name)
            self.ended += 1

        return call


@pytest.fixture
def switched() -> Iterator[Switched]:
    made = Switched(lambda _: 0)
    with made.in_modules(
        "sluice.runtime.coordinator.committing.sink_committer",
        "sluice.runtime.coordinator.shell.source_service",
    ):
        yield made
        made.end()


def overlaps_of(switched: Switched, slow: Slow, calls: Calls) -> set[tuple[str, ...]]:
    pairs = list(combinations_with_replacement(sorted(calls), 2))
    for pair in pairs:
        for name in pair:
            switched.spawn(calls[name], process=Process("driver"), name=name)
        assert switched.run(lambda: not switched.living, most_turns=_MOST_TURNS), pair
    assert slow.ended == 2 * len(pairs)
    return slow.overlaps


def test_calls_of_a_sink_overlap_only_where_its_contract_says_so(switched: Switched) -> None:
    """Sweeps come from several threads, and an end may find any call still under way; neither a
    commit nor a renewal waits for a sweep."""
    slow = Slow(switched)
    bare = slow.methods("check", "claim", "sweep", "renew", "close")
    bare.committer = slow.methods("commit")
    sink = SerialSink(cast(SinkCoordinator, bare))

    def commit() -> None:
        with sink.committing() as committer:
            committer.commit([], timeout_s=_WAIT_S, after_crash=False)

    committing: Calls = {"commit": commit}
    renewing: Calls = {"renew": sink.renew}
    rest: Calls = {
        "check": lambda: sink.check(timeout_s=_WAIT_S),
        "claim": lambda: sink.claim(_CONTEXT, timeout_s=_WAIT_S),
        "sweep": lambda: sink.sweep(_VIEW, timeout_s=_WAIT_S),
    }
    found = overlaps_of(switched, slow, {**committing, **renewing, **rest, "close": sink.close})
    assert found == {
        tuple(sorted((one, other)))
        for group, others in ((committing, rest), (committing, renewing), (renewing, rest))
        for one in group
        for other in others
    }


def test_calls_of_a_source_never_overlap(switched: Switched) -> None:
    """Its regions cut it in threads of their own, and others look how far after they are."""
    slow = Slow(switched)
    in_time = ("resolve_start", "discover")
    of_splits = ("restore", "readable", "replayable", "measure")
    at_once = ("is_finished", "committed", "lag_records")
    bare = slow.methods(*in_time, *of_splits, *at_once, "cut", "fixed_ends", "close")
    source = SerialSource(cast(SplitEnumerator, bare))
    calls: Calls = {
        "cut": lambda: source.cut([], max_records=None, timeout_s=_WAIT_S),
        "fixed_ends": source.fixed_ends,
        "close": source.close,
    }
    for name in in_time:
        calls[name] = partial(getattr(source, name), timeout_s=_WAIT_S)
    for name in of_splits:
        calls[name] = partial(getattr(source, name), [], timeout_s=_WAIT_S)
    for name in at_once:
        calls[name] = partial(getattr(source, name), [])
    assert overlaps_of(switched, slow, calls) == set()


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
