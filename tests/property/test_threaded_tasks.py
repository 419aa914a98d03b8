"""Continuous tasks and their driver, thread by thread (rules 4, 5 and 18).

Whoever is held up, stopped or killed between any two steps, and whatever is asked twice, readers
see each record once and in order, and no thread outlives its task.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.kafka.slots import SlotBook, SlotEvent
from runtime.continuous.courier import Courier
from runtime.continuous.messages import EpochResult
from runtime.continuous.native_commits import NativeCommits
from runtime.errors import StreamError, UnreachableError
from tests.switched_threads import Thread
from tests.threaded_driver import Threads
from tests.threaded_tasks import LOST_S, Faults, PlayedLink

_EVENTS = (
    "fail",
    "freeze",
    "jump",
    "kill",
    "land",
    "raise",
    "stop driver",
    "stop thread",
    "stop worker",
)
_FAULTS = {"break": 8, "confirm": 15, "lose_answer": 10, "lose_end": 4, "lose_question": 10}
_TURNS = 2_500
_TO_THE_END = 60_000
_LOOK_TURNS = 100
_MUTANT_SEEDS = 30
_GOOD_END_S = 15.0
_LONGEST_TRY_S = 11.0


@dataclass(frozen=True)
class Plan:
    """What befalls a job.

    Attributes:
        seed: of everything that is drawn.
        events: of those above.
        faults: see `tests.threaded_tasks.Faults`.
        level: the cluster's ``transaction.version``.
        sinks: how many.
        moves: splits go from region to region.
        ending: what becomes of the driver in the end.
    """

    seed: int
    events: tuple[str, ...] = _EVENTS
    faults: tuple[str, ...] = tuple(_FAULTS)
    level: int = 2
    sinks: int = 1
    moves: bool = False
    ending: str = "good"


_plans = st.builds(
    Plan,
    seed=st.integers(0, 2**32),
    events=st.lists(st.sampled_from(_EVENTS), unique=True).map(tuple),
    faults=st.lists(st.sampled_from(sorted(_FAULTS)), unique=True).map(tuple),
    level=st.sampled_from([0, 2]),
    sinks=st.integers(1, 2),
    moves=st.booleans(),
    ending=st.sampled_from(["good", "killed", "frozen"]),
)


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    """Thousands of lives have much to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class _Run:
    """One job, by a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = Random(plan.seed)
        faults = Faults(self.random.randrange, {name: _FAULTS[name] for name in plan.faults})
        self.threads = Threads(
            self.random, faults, level=plan.level, sinks=plan.sinks, moves=plan.moves
        )

    def whole(self) -> None:
        """Troubled times, calm ones, and the end."""
        threads = self.threads
        threads.switched.spawn(self._befalls, process=threads.people, name="events")
        self._turns(_TURNS, until=lambda: False)
        self._calm_down()
        self._turns(_TO_THE_END, until=lambda: threads.is_all_seen)
        assert threads.is_all_seen, f"readers wait: {_where(threads.switched.living)}"
        self._end()

    def _turns(self, most: int, *, until: Callable[[], bool]) -> None:
        """Looks take longer than turns."""
        for _ in range(most // _LOOK_TURNS):
            self.threads.switched.run(lambda: False, most_turns=_LOOK_TURNS)
            self.threads.require_order()
            if until():
                return

    def _befalls(self) -> None:
        threads, random = self.threads, self.random
        while True:
            threads.switched.sleep(random.choice([0.05, 0.1, 0.3, 1.0]))
            if threads.faults.are_off:
                return
            for partition in threads.logs:
                threads.logs[partition] += random.randrange(8)
            if self.plan.events and not random.randrange(2):
                self._happens(random.choice(self.plan.events))

    def _happens(self, event: str) -> None:
        threads, random, late = self.threads, self.random, self.threads.broker.late
        life = threads.lives[random.choice(list(threads.lives))]
        now_s = threads.switched.now_s
        if event == "fail":
            life.fails = True
        elif event == "freeze":
            life.worker.stopped_until_s = inf
        elif event == "jump":  # the machine had no core for anybody
            threads.switched.now_s += random.choice([0.1, 0.5, 1.1, 3.0, 12.0])
        elif event == "kill":
            life.worker.is_killed = True
        elif event == "land" and late:
            threads.broker.land_late_request(random.randrange(len(late)))
        elif event == "raise" and (found := self._left()):  # wherever that is
            random.choice(found).raises = MemoryError()
        elif event == "stop driver":
            threads.driver.stopped_until_s = now_s + random.choice([0.5, 2.0, 12.0])
        elif event == "stop thread":
            thread = random.choice(threads.switched.living)
            thread.stopped_until_s = now_s + random.choice([0.05, 0.3, 1.0, 2.2, 5.0, 12.0])
        elif event == "stop worker":
            life.worker.stopped_until_s = now_s + random.choice([0.5, 1.0, 2.5, 8.0, 15.0, 40.0])

    def _calm_down(self) -> None:
        threads = self.threads
        threads.faults.are_off = True
        while threads.broker.late:
            threads.broker.land_late_request()
        for thread in threads.switched.living:
            thread.stopped_until_s = 0.0
            if thread.process.stopped_until_s < inf:
                thread.process.stopped_until_s = 0.0

    def _end(self) -> None:
        """However it comes: no thread of a task goes on but those that keep idle producers."""
        threads = self.threads
        for partition in threads.logs:
            threads.logs[partition] += 5
        threads.switched.run(lambda: False, most_turns=self.random.randrange(300))
        longest_s = LOST_S + 3 * _LONGEST_TRY_S  # before, at the end, and of a registration
        if self.plan.ending == "good":
            longest_s = _GOOD_END_S
            threads.end_lives()
        elif self.plan.ending == "killed":
            threads.driver.is_killed = True
        else:
            threads.driver.stopped_until_s = inf
        began_s = threads.switched.now_s
        threads.switched.run(lambda: not self._left(), most_turns=_TO_THE_END)
        assert not self._left(), f"they go on: {_where(self._left())}"
        took_s = threads.switched.now_s - began_s
        assert took_s <= longest_s, f"{self.plan.ending}: {took_s}"

    def _left(self) -> list[Thread]:
        """Threads of tasks that can move."""
        return [
            thread
            for thread in self.threads.switched.living
            if self.threads.is_task(thread) and thread.process.stopped_until_s < inf
        ]


def _where(threads: list[Thread]) -> list[tuple[str, str]]:
    return [(thread.name, thread.at) for thread in threads]


def _run(plan: Plan) -> Threads:
    run = _Run(plan)
    try:
        run.whole()
    finally:
        run.threads.close()
    return run.threads


@settings(max_examples=10)
@given(_plans)
def test_rule_18_whatever_threads_do_readers_see_each_record_once_and_in_order(plan: Plan) -> None:
    """And what is decided is committed, by whomever; what is not, by nobody."""
    _run(plan)


def test_threads_are_held_up_and_both_sides_commit() -> None:
    """Or those runs prove little."""
    found = [_run(Plan(seed)) for seed in range(5)]
    requests = [request for threads in found for request in threads.broker.requests]
    by_hand = {identity for identity, is_commit, _ in requests if is_commit}
    decided = {identity for threads in found for identity in threads.decided}
    assert len(decided - by_hand) > 30, "tasks commit"
    assert len(decided & by_hand) > 5, "and so does the driver"
    assert sum(life.generation > 0 for threads in found for life in threads.lives.values()) > 2
    assert all(any(threads.faults.seen[name] for threads in found) for name in _FAULTS)


# --- the runs would notice a broken rule ----------------------------------------------------------


def _ids_before_the_mark(patch: pytest.MonkeyPatch) -> None:
    """An id is taken again as soon as its epoch is told."""
    record = SlotBook.record

    def spent_is_over(self: SlotBook, slot: int, event: SlotEvent) -> None:
        record(self, slot, SlotEvent.ABORTED if event is SlotEvent.SPEND else event)

    patch.setattr(SlotBook, "record", spent_is_over)


def _a_lost_answer_is_an_answer(patch: pytest.MonkeyPatch) -> None:
    """An epoch is told once, whether anybody has heard it or not."""
    tells = PlayedLink.acknowledge_epoch

    def once(self: PlayedLink, result: EpochResult) -> None:
        with contextlib.suppress(UnreachableError):
            tells(self, result)

    patch.setattr(PlayedLink, "acknowledge_epoch", once)


def _asked_is_committed(patch: pytest.MonkeyPatch) -> None:
    """A task that was asked to commit is believed to have done so."""

    def believed(self: NativeCommits, lives: Mapping[str, int], *, timeout_s: float) -> Any:
        self._changed.wait_for(lambda: False, timeout_s)
        found = self._living(lives)
        return frozenset(e for life in found for told in life.told.values() for e in told)

    patch.setattr(NativeCommits, "await_answers", believed)


def _nobody_tells_the_courier(patch: pytest.MonkeyPatch) -> None:
    """It waits for an epoch of a task that has ended."""
    patch.setattr(Courier, "close", lambda _: None)


_BROKEN = {
    "ids before the mark": (_ids_before_the_mark, "not over"),
    "a lost answer is an answer": (_a_lost_answer_is_an_answer, "partition"),
    "asked is committed": (_asked_is_committed, "aborted and decided"),
    "nobody tells the courier": (_nobody_tells_the_courier, "they go on"),
}


@pytest.mark.parametrize("name", _BROKEN)
def test_threads_notice_a_broken_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what goes wrong then."""
    breaks, what = _BROKEN[name]
    breaks(monkeypatch)
    found = (_failure(Plan(seed)) for seed in range(_MUTANT_SEEDS))
    assert any(failure and what in failure for failure in found)


def _failure(plan: Plan) -> str:
    try:
        _run(plan)
    except (AssertionError, StreamError) as err:
        return f"{type(err).__name__}: {err}"
    return ""
