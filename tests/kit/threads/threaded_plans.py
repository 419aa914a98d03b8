"""What befalls the runs of a job, by a plan, and what must hold; see `tests.kit.threads.threaded_runs`."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random

from sluice.runtime.model.checkpoint_record import Verdict
from tests.kit.threads.switched_threads import Thread
from tests.kit.threads.threaded_runs import START_S, Run, Runs
from tests.kit.threads.threaded_tasks import LOST_S, Faults

EVENTS = (
    "another run",
    "cut off",
    "fail",
    "freeze",
    "freeze driver",
    "go back",
    "jump",
    "kill",
    "kill driver",
    "kill job",
    "land",
    "no brokers",
    "no markers",
    "no store",
    "partition",
    "raise",
    "stop driver",
    "stop job",
    "stop thread",
    "stop worker",
)
FAULTS = {
    "break": 8,
    "confirm": 15,
    "lose_answer": 10,
    "lose_end": 4,
    "lose_hand": 6,
    "lose_question": 10,
    "lose_record": 12,
}
_TURNS = 12_000
_LOOK_TURNS = 200
_MOST_PARTITIONS = 7
_MOST_RUNS = 6
_LATER_RUNS = 6
_LONGEST_CALM_S = 400.0
_LONGEST_END_S = 120.0
_LONGEST_UNLED_S = 30.0  # a question that is not answered, and a step of an elder's that hangs
_LONGEST_START_S = START_S + 20.0
_LONGEST_TRY_S = 11.0


@dataclass(frozen=True)
class Plan:
    """What befalls a job.

    Attributes:
        seed: of everything that is drawn.
        events: of those above.
        faults: see `tests.kit.threads.threaded_tasks.Faults`.
        level: the cluster's ``transaction.version``.
        sinks: how many.
        moves: splits go from region to region.
        rescales: each run has other regions.
        suspends: a region that fails often hangs until somebody asks for it.
        counts: functions skip the records that they fail for.
        leader_is_seen: tasks can read who leads.
        ending: what becomes of the last driver.
        patience: turns until readers must see all, and until all must have ended.
    """

    seed: int
    events: tuple[str, ...] = EVENTS
    faults: tuple[str, ...] = tuple(FAULTS)
    level: int = 2
    sinks: int = 1
    moves: bool = False
    rescales: bool = False
    suspends: bool = False
    counts: bool = False
    leader_is_seen: bool = True
    ending: str = "good"
    patience: int = 300_000


class _World:
    """One job, by a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = Random(plan.seed)
        faults = Faults(self.random.randrange, {name: FAULTS[name] for name in plan.faults})
        self.runs = Runs(
            self.random,
            faults,
            level=plan.level,
            sinks=plan.sinks,
            moves=plan.moves,
            rescales=plan.rescales,
            suspends=plan.suspends,
            counts=plan.counts,
        )
        self.runs.leader_is_seen = plan.leader_is_seen
        self.later_runs = 0

    def whole(self) -> None:
        """Troubled times, calm ones, and the end."""
        runs = self.runs
        runs.switched.spawn(self._befalls, process=runs.people, name="events")
        self._turns(_TURNS, until=lambda: False)
        self._calm_down()
        began_s = runs.switched.now_s
        runs.switched.spawn(self._keeps_up, process=runs.people, name="keeper")
        self._turns(self.plan.patience, until=lambda: runs.is_all_seen)
        assert runs.is_all_seen, f"readers wait: {_where(runs.switched.living)}"
        took_s = runs.switched.now_s - began_s
        assert took_s <= _LONGEST_CALM_S, f"readers have waited for {took_s} s"
        self._elders_end()
        self._end()

    def _turns(self, most: int, *, until: Callable[[], bool]) -> None:
        for _ in range(most // _LOOK_TURNS):
            self.runs.switched.run(lambda: False, most_turns=_LOOK_TURNS)
            self.runs.require_order()
            self._require_starts()
            if until():
                return

    def _require_starts(self) -> None:
        """Undisturbed, each comes to its end."""
        for run in self.runs.runs:
            if run.is_over or run.is_disturbed or run.started_s is not None:
                continue
            takes_s = self.runs.switched.now_s - run.began_s
            assert takes_s <= _LONGEST_START_S, f"a start takes {takes_s} s"

    # --- what happens -----------------------------------------------------------------------------

    def _befalls(self) -> None:
        runs, random = self.runs, self.random
        while True:
            runs.switched.sleep(random.choice([0.05, 0.1, 0.3, 1.0]))
            if runs.faults.are_off:
                return
            for partition in runs.logs:
                runs.logs[partition] += random.randrange(8)
            if self.plan.events and not random.randrange(2):
                self._happens(random.choice(self.plan.events))
            if not any(map(_attempts, runs.runs)) and not random.randrange(6):
                runs.begin()

    def _happens(self, event: str) -> None:
        run = self.random.choice(self.runs.runs[-3:])
        if event in ("another run", "go back"):
            self._begins(event)
        elif event == "no markers":  # partitions' leaders are away
            self._without_markers()
        elif event in ("jump", "land", "partition", "raise", "stop thread"):
            self._happens_to_all(event)
        elif event in ("fail", "freeze", "kill", "stop worker"):
            self._happens_to_task(event, run)
        elif not run.is_over:
            run.is_disturbed = True
            self._happens_to_driver(event, run)

    def _begins(self, event: str) -> None:
        runs = self.runs
        if len(runs.runs) < _MOST_RUNS:
            records = runs.directory.records.values()
            decided = [r.checkpoint_id for r in records if r.verdict is Verdict.DECIDED]
            goes_back = event == "go back" and decided
            runs.begin(self.random.choice(decided) if goes_back else None)

    def _happens_to_all(self, event: str) -> None:
        runs, random = self.runs, self.random
        late, ends = runs.directory.late, runs.broker.late
        if event == "jump":  # the machine had no core for anybody
            for run in runs.runs:
                run.is_disturbed = True
            runs.switched.now_s += random.choice([0.1, 0.5, 1.1, 3.0, 12.0])
        elif event == "land" and late and random.randrange(2):
            runs.directory.land(random.randrange(len(late)))
        elif event == "land" and ends:
            runs.broker.land_late_request(random.randrange(len(ends)))
        elif event == "partition" and len(runs.logs) < _MOST_PARTITIONS:
            runs.logs[len(runs.logs)] = random.randrange(8)
        elif event == "raise" and (found := self._left()):
            random.choice(found).raises = MemoryError()
        elif event == "stop thread":
            thread = random.choice(runs.switched.living)
            for run in runs.runs:
                run.is_disturbed |= thread.process is run.driver
            self._stop(thread, [0.05, 0.3, 1.0, 2.2, 5.0, 12.0])

    def _happens_to_task(self, event: str, run: Run) -> None:
        if not run.attempts:
            return
        attempt = run.attempts[self.random.choice(list(run.attempts))]
        if event == "fail":
            attempt.fails = True
        elif event == "freeze":
            attempt.worker.stopped_until_s = inf
        elif event == "kill":
            attempt.worker.is_killed = True
        elif event == "stop worker":
            attempt.worker.stopped_until_s = self._soon([0.5, 1.0, 2.5, 8.0, 15.0, 40.0])

    def _happens_to_driver(self, event: str, run: Run) -> None:
        if event == "cut off":
            self._for_a_while(run, "is_cut_off", is_so=True)
        elif event == "no store":
            self._for_a_while(run, "has_store", is_so=False)
        elif event == "no brokers":
            self._for_a_while(run, "has_brokers", is_so=False)
        elif event == "freeze driver":
            run.driver.stopped_until_s = inf
        elif event == "stop driver":
            run.driver.stopped_until_s = self._soon([0.5, 2.0, 7.0, 12.0, 30.0, 90.0])
        elif event == "kill driver":
            run.driver.is_killed = True
        elif event == "kill job":  # of a local session: with all its workers
            run.driver.is_killed = True
            for attempt in run.attempts.values():
                attempt.worker.is_killed = True
        elif event == "stop job":
            run.is_stopping = True

    def _without_markers(self) -> None:
        runs = self.runs
        runs.broker.hold_markers = True
        for run in runs.runs:
            run.is_disturbed = True
        until_s = self._soon([0.1, 0.5, 2.0, 7.0, 40.0])

        def ends() -> None:
            runs.switched.sleep(until_s - runs.switched.now_s)
            self._write_markers()

        runs.switched.spawn(ends, process=runs.people, name="markers")

    def _write_markers(self) -> None:
        self.runs.broker.hold_markers = False
        self.runs.broker.write_markers()

    def _for_a_while(self, run: Run, what: str, *, is_so: bool) -> None:
        setattr(run, what, is_so)
        until_s = self._soon([0.5, 2.0, 7.0, 20.0, 70.0])

        def ends() -> None:
            self.runs.switched.sleep(until_s - self.runs.switched.now_s)
            setattr(run, what, not is_so)

        self.runs.switched.spawn(ends, process=self.runs.people, name=f"ends {what}")

    def _stop(self, thread: Thread, seconds: list[float]) -> None:
        thread.stopped_until_s = self._soon(seconds)

    def _soon(self, seconds: list[float]) -> float:
        return self.runs.switched.now_s + self.random.choice(seconds)

    # --- calm -------------------------------------------------------------------------------------

    def _calm_down(self) -> None:
        """All that is frozen wakes, but for tasks."""
        runs = self.runs
        runs.faults.are_off = True
        self._write_markers()
        while runs.directory.late:
            runs.directory.land(0)
        while runs.broker.late:
            runs.broker.land_late_request()
        for run in runs.runs:
            run.is_cut_off, run.has_store, run.has_brokers = False, True, True
            run.driver.stopped_until_s = 0.0
        for thread in runs.switched.living:
            thread.stopped_until_s = 0.0
            if thread.process.stopped_until_s < inf:
                thread.process.stopped_until_s = 0.0

    def _keeps_up(self) -> None:
        """A cluster manager starts the job again where it has ended."""
        while True:
            if self.runs.runs[-1].is_over and self.later_runs < _LATER_RUNS:
                self.later_runs += 1
                self.runs.begin()
            elif self.plan.suspends and self.runs.runs[-1].listens:
                self.runs.runs[-1].resume()
            self.runs.switched.sleep(1.0)

    def _elders_end(self) -> None:
        runs = self.runs
        self.later_runs = _LATER_RUNS  # one that begins now would be the newest
        began_s = runs.switched.now_s
        if self.plan.leader_is_seen:
            runs.switched.run(lambda: not self._elders(tasks=True), most_turns=self.plan.patience)
            took_s = runs.switched.now_s - began_s
            assert took_s <= _LONGEST_UNLED_S, f"tasks of elders went on for {took_s} s"
        runs.switched.run(lambda: not self._elders(), most_turns=self.plan.patience)
        assert not self._elders(), f"elders go on: {_where(self._elders())}"
        took_s = runs.switched.now_s - began_s
        assert took_s <= _LONGEST_END_S, f"elders went on for {took_s} s"

    def _elders(self, *, tasks: bool = False) -> list[Thread]:
        """Threads of runs that have a successor, or of their tasks alone."""
        newest = self._newest()
        elders = [run for run in self.runs.runs if run is not newest]
        theirs = {attempt.worker for run in elders for attempt in run.attempts.values()}
        if not tasks:
            theirs |= {run.driver for run in elders}
        return [
            thread
            for thread in self.runs.switched.living
            if thread.process in theirs
            and "pool" not in thread.name
            and "service" not in thread.name
            and thread.process.stopped_until_s < inf
        ]

    def _newest(self) -> Run:
        started = [run for run in self.runs.runs if run.started is not None]
        return max(started, key=lambda run: run.started.attempt_id if run.started else -1)

    # --- the end ----------------------------------------------------------------------------------

    def _end(self) -> None:
        """However it comes: no thread of a task continues but those that keep idle producers."""
        runs = self.runs
        for partition in runs.logs:
            runs.logs[partition] += 5
        runs.switched.run(lambda: False, most_turns=self.random.randrange(300))
        last = self._newest()
        longest_s = LOST_S + 3 * _LONGEST_TRY_S
        if self.plan.ending == "good":
            last.is_stopping = True
        elif self.plan.ending == "killed":
            last.driver.is_killed = True
        else:
            last.driver.stopped_until_s = inf
        began_s = runs.switched.now_s

        def is_over() -> bool:
            return not self._left() and (self.plan.ending != "good" or last.has_ended)

        runs.switched.run(is_over, most_turns=self.plan.patience)
        assert is_over(), f"they go on: {_where(self._left())}"
        took_s = runs.switched.now_s - began_s
        assert took_s <= longest_s, f"{self.plan.ending}: {took_s}"

    def _left(self) -> list[Thread]:
        """Threads of tasks that can move."""
        return [t for t in self.runs.tasks if t.process.stopped_until_s < inf]


def _attempts(run: Run) -> bool:
    return not run.is_over and run.driver.stopped_until_s < inf


def _where(threads: list[Thread]) -> list[tuple[str, str]]:
    return [(thread.name, thread.at) for thread in threads]


def pass_by(plan: Plan) -> Runs:
    """All of it; raises AssertionError where something does not hold."""
    world = _World(plan)
    try:
        world.whole()
    finally:
        world.runs.close()
    return world.runs
