"""Candidates of one job, in virtual time: what befalls them, and what they decide."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.runtime.election.leader_election import Candidate
from sluice.runtime.election.lease_chain import ELECTION, LeaseChain
from sluice.runtime.election.lease_record import LeaseRecord
from sluice.runtime.election.store_election import StoreElection
from sluice.runtime.errors import LeadershipLostError, StorageError
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault
from tests.kit.lease_runs import Freeze
from tests.kit.threads.virtual_threads import Process, Timeline

DURATION_S = 6.0
_STEP_S = 1.0
_MODULE = "sluice.runtime.election.store_election"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePlan:
    """A candidate, and what happens to it.

    Attributes:
        begins_s: when.
        ends_s: when a person stops it; None: no person does.
        is_killed: in place of being stopped.
        call_s: each call of the store takes so long.
        slow: calls that take longer, by their number.
        faults: of writing calls, by their number.
        blind_s: from when to when the store answers it nothing.
        freezes: of its process.
    """

    begins_s: float = 0.0
    ends_s: float | None = None
    is_killed: bool = False
    call_s: float = 0.0625
    slow: Mapping[int, float] = field(default_factory=dict)
    faults: Mapping[int, Fault] = field(default_factory=dict)
    blind_s: tuple[float, float] = (0.0, 0.0)
    freezes: Sequence[Freeze] = ()


class Slots:
    """The checkpoint slots: each takes one record for ever."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bool]] = []  # session, and whether it is a fencing record

    def publish(self, slot: int, session: str, *, is_fence: bool) -> bool:
        """Whether the slot was free."""
        if slot != len(self.records):
            return False
        self.records.append((session, is_fence))
        return True


class Run:
    """One candidate: it campaigns, fences as a start does, decides every second, and ends.

    Attributes:
        session: once it was elected.
        elected_s, fenced_s, ended_s: when.
        ended_by: ``lost``, ``fenced``, ``stopped``, ``killed``.
        decided_s: when it decided.
    """

    def __init__(self, world: "World", number: int, plan: CandidatePlan) -> None:
        self.plan = plan
        self.number = number
        self.process = Process(world.timeline)
        self.session: str | None = None
        self.elected_s: float | None = None
        self.fenced_s: float | None = None
        self.ended_s: float | None = None
        self.ended_by = ""
        self.decided_s: list[float] = []
        self._world = world
        self._calls = self._writes = 0
        self._lost: list[LeadershipLostError] = []

    def __repr__(self) -> str:
        return (
            f"r{self.number}(elected={self.elected_s} fenced={self.fenced_s} "
            f"ended={self.ended_s} by={self.ended_by})"
        )

    @property
    def is_stopped(self) -> bool:
        """Whether a person wants its end by now."""
        ends_s = self.plan.ends_s
        return ends_s is not None and not self.plan.is_killed and self._now_s >= ends_s

    def live(self) -> None:
        """The driver's main thread."""
        self._world.timeline.wait(self.plan.begins_s)
        election = self._election()
        try:
            self._campaign(election)
            if self.session is not None:
                election.report_loss(self._lost.append)
                self._lead(election, self.session)
        except LeadershipLostError:
            self._end("lost")
        else:
            self._end("stopped")
        election.resign()

    def kill(self) -> None:
        """As by SIGKILL."""
        self.process.is_killed = True
        if self.ended_s is None:
            self._end("killed")

    def _election(self) -> StoreElection:
        fs = FakeFileSystem(
            self._world.disk, turn=self._turn, fault=self._fault, is_unreadable=self._is_blind
        )
        return StoreElection(
            LeaseChain(fs),
            Candidate(host="h", pid=self.number),
            duration_s=DURATION_S,
            clock=self.process.monotonic,
            draw=lambda: 0.5,
        )

    def _campaign(self, election: StoreElection) -> None:
        while self.session is None and not self.is_stopped:
            self.session = election.campaign(timeout_s=_STEP_S)
        if self.session is not None:
            self.elected_s = self._now_s

    def _lead(self, election: StoreElection, session: str) -> None:
        slots = self._world.slots
        while True:
            free = len(slots.records)
            self._world.timeline.wait(self.plan.call_s)
            if not self._is_elected(election):
                continue
            self._turn()
            if slots.publish(free, session, is_fence=True):
                break
        self.fenced_s = self._now_s
        while not self.is_stopped:
            free = free + 1
            self.process.sleep(_STEP_S)
            if self._lost:
                raise self._lost[0]
            if not slots.publish(free, session, is_fence=False):
                self._end("fenced")
                return
            self.decided_s.append(self._now_s)

    def _is_elected(self, election: StoreElection) -> bool:
        try:
            election.require_leading()
        except StorageError:
            return False  # the start tries again
        return True

    @property
    def _now_s(self) -> float:
        return self._world.timeline.now_s

    def _turn(self) -> None:
        self._calls += 1
        self._world.timeline.wait(self.plan.slow.get(self._calls, self.plan.call_s))

    def _fault(self, step: str) -> Fault:
        del step
        self._writes += 1
        if self._is_blind(""):
            return Fault.REFUSED
        return self.plan.faults.get(self._writes, Fault.NONE)

    def _is_blind(self, step: str) -> bool:
        del step
        begins_s, ends_s = self.plan.blind_s
        return begins_s <= self._now_s < ends_s

    def _end(self, how: str) -> None:
        if self.ended_s is None:
            self.ended_s, self.ended_by = self._now_s, how


class World:
    """All candidates, one disk, and the slots.

    Args:
        late_s: when requests that were under way land.
    """

    def __init__(
        self, plans: Sequence[CandidatePlan], *, until_s: float, late_s: Sequence[float] = ()
    ) -> None:
        self.timeline = Timeline(until_s=until_s)
        self.disk = _WatchedDisk()
        self.slots = Slots()
        self.runs = [Run(self, number, plan) for number, plan in enumerate(plans, 1)]
        self._late_s = late_s

    def pass_by(self) -> None:
        """All of it."""
        with self.timeline.in_module(_MODULE):
            for at_s in self._late_s:
                self._at(at_s, self.disk.land_late_steps)
            for run in self.runs:
                run.process.spawn(run.live)
                for freeze in run.plan.freezes:
                    self._freeze(run, freeze)
                if run.plan.is_killed and run.plan.ends_s is not None:
                    self._at(run.plan.ends_s, run.kill)
            self.timeline.run()

    @property
    def created(self) -> list[LeaseRecord]:
        """Every lease record that was ever created, in this order."""
        return [LeaseRecord.decode(data, {}) for data in self.disk.created]

    def _freeze(self, run: Run, freeze: Freeze) -> None:
        self._at(freeze.at_s, lambda: run.process.freeze(freeze.for_s, is_asleep=freeze.is_asleep))

    def _at(self, at_s: float, act: Callable[[], object]) -> None:
        def later() -> None:
            self.timeline.wait(at_s)
            act()

        self.timeline.spawn(later)


@dataclass(slots=True)
class _WatchedDisk(Disk):
    """Also keeps each record that a process has created in the election's directory."""

    created: list[bytes] = field(default_factory=list)

    def place(self, temporary: str, path: str) -> bool:
        """See `Disk.place`."""
        placed = Disk.place(self, temporary, path)
        if placed and path.startswith(f"{ELECTION}/lease-"):
            self.created.append(self.files[path])
        return placed
