"""A decision of which something is lost, as the next start finds it."""

import dataclasses
from collections.abc import Callable, Sequence

from sluice.runtime.checkpoint.acceptance import accepted_as, in_effect
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.lost_work import LostCommittables
from sluice.runtime.contracts import (
    AcceptedAs,
    CommitOutcome,
    CommitReport,
    Committer,
    UnsettledWork,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import SplitRange
from tests.kit.coordinator.core_driver import split
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.starting_job import PLAN, Job, record
from tests.kit.fakes import TransactionState, entry_of, identity_of


class Rewriter:
    """Writes a lost committable again under a new id."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.calls = 0

    def repair(self, checkpoint_id: int, lost: object, **limits: object) -> dict[bytes, StateEntry]:
        """See `sluice.runtime.coordinator.committing.repairs.Repairer`."""
        self.calls += 1
        attempt_id = limits["attempt_id"]
        assert isinstance(attempt_id, int)
        entry = self.job.pre_commit(f"again-{self.calls}", attempt_id=attempt_id)
        return {e.payload: entry for e in lost.committables}  # type: ignore[attr-defined]

    def ranges(self, lost: LostCommittables) -> tuple[SplitRange, ...]:
        """All that the region read: one task read it."""
        return lost.region.splits


def two_regions(*, deterministic: bool = True) -> JobPlan:
    """Chained ones of one source and one sink."""
    return dataclasses.replace(
        PLAN,
        regions=tuple(
            RegionPlan(
                name=name,
                source_ids=("source",),
                sink_ids=("sink",),
                chained=True,
                deterministic=deterministic,
            )
            for name in ("main", "side")
        ),
    )


def half_lost() -> Job:
    """A decision of two regions with two transactions each: one of each was aborted, one of the
    others is committed, one is still open."""
    job = Job(record(0), committed=(0,))
    job.source.ends[1] = 10
    entries = {}
    for name in ("main-lost", "main-done", "side-lost", "side-open"):
        transaction = job.open(name)
        if name.endswith("lost"):
            transaction.state = TransactionState.ABORTED
        if name.endswith("done"):
            transaction.state = TransactionState.COMMITTED
        entries[name] = entry_of(transaction)
    whole = record(1).regions[0]
    regions = (
        dataclasses.replace(whole, committables=(entries["main-lost"], entries["main-done"])),
        dataclasses.replace(
            whole,
            region="side",
            splits=(split(1, 0, 10),),
            committables=(entries["side-lost"], entries["side-open"]),
        ),
    )
    first = record(0)
    empty = tuple(
        dataclasses.replace(r, batch_id=None, splits=(split(at, 0, 0),), committables=())
        for at, r in enumerate(regions)
    )
    job.store.records[0] = dataclasses.replace(first, regions=empty)
    job.store.records[1] = record(1, regions=regions)
    return job


class Coordinators:
    """A committer whose transactions' coordinators may be away.

    Attributes:
        away: transactional ids of which nobody answers, by their last part.
    """

    def __init__(self, committer: Committer, *away: str) -> None:
        self._committer = committer
        self.away = set(away)

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        """See `Committer.commit`."""
        return [
            CommitReport(outcome=CommitOutcome.PENDING, detail="no broker has answered")
            if identity_of(entry)[0].rpartition("/")[2] in self.away
            else self._committer.commit([entry], timeout_s=timeout_s, after_crash=after_crash)[0]
            for entry in committables
        ]

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        """See `Committer.abort`."""
        return self._committer.abort(committables, timeout_s=timeout_s)

    def await_visible(self, *, timeout_s: float) -> bool:
        """See `Committer.await_visible`."""
        return self._committer.await_visible(timeout_s=timeout_s)

    def back_at_retry(self, number: int) -> Callable[[str], None]:
        """For a start that reports its position: all are back when it tries again, so many times."""
        retries = 0

        def at(point: str) -> None:
            nonlocal retries
            retries += point == "settle-retry"
            if retries == number:
                self.away.clear()

        return at


def away(job: Job, *names: str) -> Coordinators:
    """Let coordinators be away."""
    job.sink.committer = found = Coordinators(job.sink.committer, *names)
    return found


def accept(
    store: CheckpointStore | FakeStore, place: int, *, unknown_as: AcceptedAs | None = None
) -> tuple[UnsettledWork, ...]:
    """As ``sluice checkpoint accept-loss`` does, and what it prints."""
    record = store.read(place)
    assert record is not None
    works = in_effect(store.unsettled(place), store.effective_committables(record))
    words = [accepted_as(work, unknown_as) for work in works]
    store.accept(place, [word for word in words if word is not None])
    return works
