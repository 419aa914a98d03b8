"""Rule `continuous-order` and design section 5: one committer, many regions, under failures,
crashes, lost answers.

Regions write ahead, are late, fail; some checkpoints complete some of them only; the process dies
at any request. What a reader sees is always a prefix of each region's records, made of work that a
decision names, and all of it in the end.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.coordinator.committing.commit_steps import (
    DecidedWork,
    SharedCommitters,
)
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.model.checkpoint_record import (
    RegionRecord,
    RegionStatus,
    StateEntry,
    committables_of,
)
from tests.kit.effort import examples
from tests.kit.fakes import FakeBroker, FakeSink, TransactionState, entry_of, identity_of

REGIONS = ("r0", "r1", "r2")
PLAN = JobPlan(
    name="job", regions=tuple(RegionPlan(name=name, sink_ids=("sink",)) for name in REGIONS)
)


class _DiedError(BaseException):
    """kill -9 between two requests."""


@dataclass(slots=True)
class _Record:
    """A decision: durable, and whether all of it is committed on record."""

    checkpoint_id: int
    regions: tuple[RegionRecord, ...]
    is_marked: bool = False


@dataclass(slots=True)
class _Region:
    """A region's attempt.

    Attributes:
        work: pre-committed and in no decision: (checkpoint id, committables, next value after it).
        next_value: to be written.
        decided_value: where it continues after an abort.
        decided_id: newest checkpoint that it completed.
    """

    number: int
    work: list[tuple[int, tuple[StateEntry, ...], int]] = field(default_factory=list)
    next_value: int = 0
    decided_value: int = 0
    decided_id: int = 0


class _World:
    """A broker, a checkpoint directory, and one coordinator after the other."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.broker = FakeBroker()
        self.records: list[_Record] = []
        self.regions = {name: _Region(number) for number, name in enumerate(REGIONS)}
        self.names = itertools.count()
        self.roughness = 0.0
        self.is_calm = False
        self.next_id = 1
        self.is_recovering = False
        self.start()

    def start(self) -> None:
        """A new process: it knows the directory, and nothing else."""
        sink = FakeSink(self.broker, may_reach=self._may_reach, is_answered=self._is_answered)
        self.committers = SharedCommitters({"sink": SerialSink(sink)}, PLAN)
        self.notified = 0

    def _may_reach(self) -> bool:
        if self.roughness and self.random.random() < 0.03:
            raise _DiedError
        return self.random.random() >= self.roughness

    def _is_answered(self) -> bool:
        return self.random.random() >= self.roughness

    # --- what may happen --------------------------------------------------------------------------

    def pre_commit(self, name: str) -> None:
        """A region ends an epoch: on time, ahead of the decision, or late for the last one."""
        region = self.regions[name]
        newest = max((found for found, _, _ in region.work), default=region.decided_id)
        is_late = region.decided_id < self.next_id - 1 and self.random.random() < 0.5
        checkpoint_id = max(newest + 1, self.next_id - 1 if is_late else self.next_id)
        if checkpoint_id > self.next_id + 1:
            return
        entries = []
        for _ in range(self.random.choice((1, 1, 2))):
            transaction = self.broker.init(f"t{next(self.names)}")
            self.broker.append(transaction, region.number, region.next_value)
            region.next_value += 1
            entries.append(entry_of(transaction))
        region.work.append((checkpoint_id, tuple(entries), region.next_value))
        if self.random.random() < 0.7:  # else the decision reports it first
            self.committers.of("sink").pre_committed(checkpoint_id, {name: entries})

    def decide(self, failed: Sequence[str]) -> None:
        """A checkpoint for all regions but the failed ones."""
        checkpoint_id, self.next_id = self.next_id, self.next_id + 1
        records = []
        for name, region in self.regions.items():
            if name in failed:
                records.append(self._carried(name, region))
                continue
            mine = [part for part in region.work if part[0] <= checkpoint_id]
            region.work = [part for part in region.work if part[0] > checkpoint_id]
            region.decided_id = checkpoint_id
            if mine:
                region.decided_value = mine[-1][2]
            named = tuple(entry for _, entries, _ in mine for entry in entries)
            records.append(RegionRecord(region=name, attempt_id=0, committables=named))
        self.records.append(_Record(checkpoint_id, tuple(records)))

    def _carried(self, name: str, region: _Region) -> RegionRecord:
        """As it stands in its last good checkpoint, with that one's committables."""
        for record in reversed(self.records):
            for found in record.regions:
                if found.region == name and found.status is RegionStatus.COMPLETED:
                    return RegionRecord(
                        region=name,
                        attempt_id=0,
                        status=RegionStatus.SKIPPED,
                        snapshot_id=record.checkpoint_id,
                        committables=found.committables,
                    )
        return RegionRecord(region=name, attempt_id=0, status=RegionStatus.SKIPPED, snapshot_id=0)

    def notify(self, *, again: bool = False) -> None:
        due = [r for r in self.records if not r.is_marked and r.checkpoint_id > self.notified]
        open_ones = [r for r in self.records if not r.is_marked and r not in due]
        if again and open_ones:
            due = [open_ones[0] if self.is_calm else self.random.choice(open_ones)]
        if not due:
            return
        record = due[0]
        decided = DecidedWork(checkpoint_id=record.checkpoint_id, regions=record.regions)
        crashed = self.is_recovering or self.random.random() < 0.5
        reports = self.committers.notify("sink", decided, timeout_s=1.0, after_crash=crashed)
        self.notified = max(self.notified, record.checkpoint_id)
        named = committables_of(record.regions)
        assert set(named) <= set(reports) or again
        done = {e for e, r in reports.items() if r.outcome is CommitOutcome.COMMITTED}
        assert not [r for r in reports.values() if r.outcome is CommitOutcome.ABORTED]
        is_oldest = record is next(r for r in self.records if not r.is_marked)
        record.is_marked = (
            is_oldest
            and set(named) <= done
            and all(
                report.outcome is CommitOutcome.COMMITTED
                for report in self.committers.follow_all(decided, timeout_s=1.0)
            )
        )
        if record.is_marked and self.is_recovering:
            self.is_recovering = any(not found.is_marked for found in self.records)

    def abort(self, name: str) -> None:
        """A region fails: its undecided work is thrown away and its range is read again."""
        region = self.regions[name]
        entries = [entry for _, mine, _ in region.work for entry in mine]
        reports = self.committers.of("sink").abort(entries, timeout_s=1.0)
        assert set(reports) == set(entries)
        self._discard(region)

    def crash(self) -> None:
        for region in self.regions.values():
            self._discard(region)
        self.start()
        self.is_recovering = any(not record.is_marked for record in self.records)

    def _discard(self, region: _Region) -> None:
        for _, mine, _ in region.work:
            for entry in mine:
                self.broker.end(identity_of(entry), commit=False)
        region.work, region.next_value = [], region.decided_value

    # --- what must hold ---------------------------------------------------------------------------

    def check(self) -> None:
        """Whatever a reader finds now is named by a decision, once, in order."""
        named = [e for record in self.records for e in committables_of(record.regions)]
        assert len(named) == len(set(named)), "a decision names what an older one named"
        for transaction in self.broker.transactions.values():
            is_named = entry_of(transaction) in named
            if transaction.state is TransactionState.COMMITTED:
                assert is_named, "published, and no decision names it"
            elif transaction.state is TransactionState.ABORTED:
                assert not is_named, "decided, and aborted"
        assert self.broker.aborts_of_committed == 0
        for region in self.regions.values():
            seen = self.broker.read_committed(region.number)
            assert seen == list(range(len(seen)))
        for name in REGIONS:
            self._check_order(name)

    def _check_order(self, name: str) -> None:
        """Rule `continuous-order`: no epoch of a region is visible before all of an older one
        is."""
        is_open = False
        for record in self.records:
            mine = [r for r in record.regions if r.region == name]
            states = [self.broker.transactions[identity_of(e)].state for e in committables_of(mine)]
            assert not (is_open and TransactionState.COMMITTED in states), "out of order"
            is_open = is_open or any(s is not TransactionState.COMMITTED for s in states)


_WEIGHTS = {
    "epoch": 8,
    "notify": 6,
    "notify again": 2,
    "pre_commit": 2,
    "decide": 2,
    "abort": 2,
    "crash": 1,
}
_STEPS = 30


@settings(max_examples=examples(50), deadline=None)
@given(seed=st.integers(0, 2**32 - 1), roughness=st.sampled_from((0.0, 0.3, 0.5)))
def test_continuous_order_held_work_is_never_lost_doubled_or_shown_before_its_decision(
    seed: int, roughness: float
) -> None:
    """Rule `continuous-order`: each region's decided epochs become visible in order, and all in
    the end."""
    world = _World(seed)
    world.roughness = roughness
    for what in world.random.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=_STEPS):
        try:
            _step(world, what, world.random.sample(REGIONS, world.random.choice((0, 0, 1, 2))))
        except _DiedError:
            world.crash()
        world.check()
    world.roughness, world.is_calm = 0.0, True
    _drain(world)
    for name in REGIONS:
        world.pre_commit(name)
    for _ in range(2):
        world.decide(())
    _drain(world)
    assert not world.broker.ongoing()
    for region in world.regions.values():
        assert world.broker.read_committed(region.number) == list(range(region.next_value))


def _drain(world: _World) -> None:
    """Nothing fails any more: every decision is committed on record."""
    for again in (False, True) * (len(world.records) + 1):
        world.notify(again=again)
        world.check()
    assert all(record.is_marked for record in world.records), "a checkpoint was never finished"


def _step(world: _World, what: str, names: Sequence[str]) -> None:
    if what == "crash":
        world.crash()
    elif what.startswith("notify"):
        world.notify(again=what.endswith("again"))
    elif world.is_recovering:
        return  # nothing of a new run starts before the old decisions are settled
    elif what == "abort":
        for name in names:
            world.abort(name)
    else:
        writing = REGIONS if what == "epoch" else names
        for name in writing if what != "decide" else ():
            world.pre_commit(name)
        if what != "pre_commit":
            world.decide(names)
