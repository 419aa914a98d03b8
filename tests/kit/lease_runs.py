"""Runs that share one lease, in virtual time: what befalls them, and what they decide."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from sluice.runtime.contracts import SinkContext, SinkCoordinator
from sluice.runtime.errors import FencedError, UnreachableError
from sluice.runtime.ownership.lease import RENEWAL_INTERVAL_S, Lease, LeasedOutput, LeaseRecord
from sluice.runtime.ownership.lease_watch import LeaseWatch
from tests.kit.threads.virtual_threads import Process, Timeline

_OWNED = LeasedOutput(kind="transactional id prefix", name="orders", remedy="Take another one.")
_STEP_S = 1.0
_JOIN_S = 10.0
_TICK_S = 0.125  # what comes later is later


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What happens to one call of the store.

    Attributes:
        before_s: the process hangs, and then asks.
        during_s: it hangs from the moment at which it has asked.
        is_asleep: because its host sleeps; else it was stopped.
        landing_s: until the record is read, or replaced.
        answer_s: from then on.
        happens: whether it is read, or replaced.
        is_answered: else it raises UnreachableError.
    """

    before_s: float = 0.0
    during_s: float = 0.0
    is_asleep: bool = False
    landing_s: float = 0.125
    answer_s: float = 0.125
    happens: bool = True
    is_answered: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """A process hangs from a moment on, wherever its threads are."""

    at_s: float
    for_s: float
    is_asleep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run, and what happens to it.

    Attributes:
        uri: of its checkpoint directory; a restart has that of the run before.
        begins_s: when.
        ends_s: when somebody stops it, if anybody does.
        is_killed: in place of being stopped.
        usual: every call that nothing happens to.
        calls: what happens to others, by their number.
        freezes: of its process.
    """

    uri: str = "file:/a"
    begins_s: float = 0.0
    ends_s: float | None = None
    is_killed: bool = False
    usual: Call = Call()
    calls: Mapping[int, Call] = field(default_factory=dict)
    freezes: Sequence[Freeze] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """An answered one: when it began, read and was answered, and whose record it found."""

    began_s: float
    read_s: float
    heard_s: float
    session: str | None


@dataclass(slots=True, kw_only=True)
class _Records:
    """The record, and each that was written: (seconds, session)."""

    record: LeaseRecord | None = None
    written: list[tuple[float, str | None]] = field(default_factory=list)


def _holder(record: LeaseRecord | None) -> str | None:
    return None if record is None or record.is_ended else record.session


class _Store:
    """The record, as one process reaches it: each call does what it does at one moment."""

    def __init__(self, world: "World", run: "Run") -> None:
        self._world = world
        self._run = run
        self._calls = 0

    def read(self) -> LeaseRecord | None:
        """See `LeaseStore.read`."""
        found = list[LeaseRecord | None]()
        times = self._ask(lambda: found.append(self._world.records.record))
        session = _holder(found[0])
        self._run.looks.append(
            Look(began_s=times[0], read_s=times[1], heard_s=times[2], session=session)
        )
        return found[0]

    def write(self, record: LeaseRecord) -> None:
        """See `LeaseStore.write`."""
        self._ask(lambda: self._world.put(record))

    def close(self) -> None:
        """See `LeaseStore.close`."""

    def _ask(self, act: Callable[[], None]) -> tuple[float, float, float]:
        plan, timeline, process = self._run.plan, self._world.timeline, self._run.process
        call = plan.calls.get(self._calls, plan.usual)
        self._calls += 1
        if call.before_s:
            process.freeze(call.before_s, is_asleep=call.is_asleep)
            timeline.wait(0.0)
        began_s = timeline.now_s
        if call.during_s:
            process.freeze(call.during_s, is_asleep=call.is_asleep)
        timeline.land(call.landing_s)
        landed_s = timeline.now_s
        if call.happens:
            act()
        timeline.wait(call.answer_s)
        if not (call.happens and call.is_answered):
            raise UnreachableError("no broker answers", {}, "Start one.")
        return began_s, landed_s, timeline.now_s


class _Sink:
    """As both sinks renew."""

    claim: Lease | None = None
    is_renewing = False

    def renew(self) -> None:
        """See `SinkCoordinator.renew`."""
        if self.claim is None:
            return
        self.is_renewing = True
        try:
            self.claim.renew()
        finally:
            self.is_renewing = False


class Run:
    """One run of a job: it starts, decides every second, and ends.

    Attributes:
        took_s: when its start had the record.
        decided_s: when it decided, or swept.
        ended_s: when it stopped deciding.
        ended_by: ``refused`` or ``unreachable`` in its start, ``fenced``, ``sealed``, ``stopped``,
            ``killed``.
        looks: its answered ones.
    """

    def __init__(self, world: "World", number: int, plan: RunPlan) -> None:
        self.plan = plan
        self.session = f"s{number}"
        self.process = Process(world.timeline)
        self.took_s: float | None = None
        self.decided_s: list[float] = []
        self.ended_s: float | None = None
        self.ended_by: str | None = None
        self.looks: list[Look] = []
        self._world = world

    def __repr__(self) -> str:
        return f"{self.session}(took={self.took_s} ended={self.ended_s} by={self.ended_by})"

    def live(self) -> None:
        """The driver's main thread."""
        self._world.timeline.wait(self.plan.begins_s)
        self._world.begun.append(self)
        sink = _Sink()
        watch = LeaseWatch(
            cast(Mapping[str, SinkCoordinator], {"sink": sink}),
            interval_s=RENEWAL_INTERVAL_S,
            age_clock=self.process.age,
        )
        watch.start()
        claim = self._claim()
        try:
            claim.acquire()
        except FencedError:
            self._end("refused")
        except UnreachableError:
            self._end("unreachable")
        else:
            sink.claim = claim
            self.took_s = self._world.timeline.now_s
            self._go_on(watch)
        watch.stop(timeout_s=_JOIN_S)
        if sink.claim is not None and not sink.is_renewing:
            try:
                claim.release()
            except UnreachableError:
                return

    def kill(self) -> None:
        """As by SIGKILL."""
        self.process.is_killed = True
        if self.ended_s is None:
            self._end("killed")

    def _claim(self) -> Lease:
        context = SinkContext(
            job_uid="u1",
            job_name="job",
            operator_id="op",
            checkpoint_uri=self.plan.uri,
            leader_session_id=self.session,
            attempt_id=self._world.begun.index(self),
        )
        return Lease(
            _Store(self._world, self),
            context,
            _OWNED,
            clock=self.process.monotonic,
            sleep=self.process.sleep,
            slept=self.process.slept,
        )

    def _go_on(self, watch: LeaseWatch) -> None:
        now = self._world.timeline
        try:
            self.process.sleep(_TICK_S)
            watch.require_renewed()
            self.decided_s.append(now.now_s)  # its first sweep
            self.process.sleep(_TICK_S)
            watch.expire()
            while self.plan.ends_s is None or self.plan.is_killed or now.now_s < self.plan.ends_s:
                watch.require()
                if self._is_sealed():
                    self._end("fenced")
                    return
                self.decided_s.append(now.now_s)
                self.process.sleep(_STEP_S)
        except FencedError:
            self._end("fenced")
        else:
            self._end("stopped")

    def _is_sealed(self) -> bool:
        """Whether a younger run of the same directory has begun; that finds no record of ours."""
        others = [run for run in self._world.begun if run.plan.uri == self.plan.uri]
        return others[-1] is not self

    def _end(self, how: str) -> None:
        self.ended_s, self.ended_by = self._world.timeline.now_s, how


class World:
    """All runs, and people who delete the record.

    Args:
        deleted_s: when somebody does.

    Attributes:
        begun: runs in their order; each has sealed what the ones before do in its directory.
    """

    def __init__(
        self, plans: Sequence[RunPlan], *, until_s: float, deleted_s: Sequence[float] = ()
    ) -> None:
        self.timeline = Timeline(until_s=until_s)
        self.records = _Records()
        self.runs = [Run(self, number, plan) for number, plan in enumerate(plans, 1)]
        self.begun: list[Run] = []
        self._deleted_s = deleted_s

    def pass_by(self) -> None:
        """All of it."""
        with self.timeline.in_module("sluice.runtime.ownership.lease_watch"):
            for at_s in self._deleted_s:
                self._at(at_s, lambda: self.put(None))
            for run in self.runs:
                run.process.spawn(run.live)
                for freeze in run.plan.freezes:
                    self._freeze(run, freeze)
                if run.plan.is_killed and run.plan.ends_s is not None:
                    self._at(run.plan.ends_s, run.kill)
            self.timeline.run()

    def put(self, record: LeaseRecord | None) -> None:
        """Replace it, through the codec."""
        self.records.written.append((self.timeline.now_s, _holder(record)))
        self.records.record = None if record is None else LeaseRecord.decode(record.encode())

    def _freeze(self, run: Run, freeze: Freeze) -> None:
        self._at(freeze.at_s, lambda: run.process.freeze(freeze.for_s, is_asleep=freeze.is_asleep))

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        def later() -> None:
            self.timeline.wait(at_s)
            act()

        self.timeline.spawn(later)
