"""State of each region's work in a shared committer: pending, decided, published. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.runtime.contracts import CommitOutcome, CommitReport, RegionWork
from sluice.runtime.errors import IllegalTransitionError
from sluice.runtime.model.checkpoint_record import StateEntry

__all__ = [
    "Epoch",
    "Ledger",
    "aborted",
    "checkpoints_due",
    "decided",
    "forgotten",
    "pending",
    "pre_committed",
    "reported",
    "reports_of",
    "wave",
]

_WAITING = CommitReport(
    outcome=CommitOutcome.PENDING, detail="an older epoch of its region is not published yet"
)
_DONE = CommitReport(outcome=CommitOutcome.COMMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Work that one region pre-committed for one checkpoint; never empty.

    Attributes:
        checkpoint_id, region: of the work.
        committables: in the order in which readers must see them.
        is_decided: whether a decision names the work; until then it is pending.
    """

    checkpoint_id: int
    region: str
    committables: tuple[StateEntry, ...]
    is_decided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All work that is not forgotten yet.

    Attributes:
        epochs: oldest first, those of one checkpoint in the order of the calls.
        answers: last report of each committable that was tried.
        notified: failed regions of each notified checkpoint.
    """

    epochs: tuple[Epoch, ...] = ()
    answers: Mapping[StateEntry, CommitReport] = field(default_factory=dict)
    notified: Mapping[int, frozenset[str]] = field(default_factory=dict)

    def is_published(self, entry: StateEntry) -> bool:
        """Whether it is certainly visible."""
        answer = self.answers.get(entry)
        return answer is not None and answer.outcome is CommitOutcome.COMMITTED

    def is_open(self, epoch: Epoch) -> bool:
        """Whether it is decided and something of it is not certainly published."""
        return epoch.is_decided and not all(map(self.is_published, epoch.committables))


def pre_committed(ledger: Ledger, checkpoint_id: int, work: RegionWork) -> Ledger:
    """The ledger with this pre-committed work of a checkpoint; it replaces an earlier list.

    Pending work of another checkpoint that is named here joins this checkpoint. Work that a
    decision already names does not move.
    """
    decided_here = {
        epoch.region
        for epoch in ledger.epochs
        if epoch.is_decided and epoch.checkpoint_id == checkpoint_id
    }
    kept: list[Epoch] = []
    for epoch in ledger.epochs:
        if epoch.region not in work:
            kept.append(epoch)
        elif epoch.checkpoint_id != checkpoint_id:
            kept.append(epoch if epoch.is_decided else _without(epoch, work[epoch.region]))
    elsewhere = {entry for epoch in kept if epoch.is_decided for entry in epoch.committables}
    made = [
        Epoch(
            checkpoint_id=checkpoint_id,
            region=region,
            committables=tuple(e for e in dict.fromkeys(entries) if e not in elsewhere),
            is_decided=region in decided_here,
        )
        for region, entries in work.items()
    ]
    return replace(ledger, epochs=_ordered([*kept, *made]))


def decided(ledger: Ledger, checkpoint_id: int, failed: Collection[str]) -> Ledger:
    """The ledger with all work up to a checkpoint decided, except that of its failed regions.

    Raises:
        IllegalTransitionError: the checkpoint was notified before with other failed regions.
    """
    regions = frozenset(failed)
    before = ledger.notified.get(checkpoint_id)
    if before is None and checkpoint_id < max(ledger.notified, default=0):
        return ledger  # a repeated call for a checkpoint that is forgotten
    if before is not None and before != regions:
        raise IllegalTransitionError(
            "a checkpoint was notified twice, with different failed regions",
            {
                "checkpoint_id": checkpoint_id,
                "failed": ",".join(sorted(regions)),
                "failed_before": ",".join(sorted(before)),
            },
            "Restart the job from this checkpoint; report this as a bug of the coordinator.",
        )
    epochs = tuple(
        replace(epoch, is_decided=True)
        if epoch.checkpoint_id <= checkpoint_id and epoch.region not in regions
        else epoch
        for epoch in ledger.epochs
    )
    return replace(ledger, epochs=epochs, notified={**ledger.notified, checkpoint_id: regions})


def checkpoints_due(ledger: Ledger, checkpoint_id: int) -> tuple[int, ...]:
    """Checkpoints up to this one with decided work that is not certainly published, ascending."""
    due = {e.checkpoint_id for e in ledger.epochs if ledger.is_open(e)}
    return tuple(sorted(found for found in due if found <= checkpoint_id))


def wave(ledger: Ledger, checkpoint_id: int) -> tuple[StateEntry, ...]:
    """The work of one checkpoint that may be published now: all, except that of regions with older
    unpublished work (`continuous-order`)."""
    waiting = {
        epoch.region
        for epoch in ledger.epochs
        if epoch.checkpoint_id < checkpoint_id and ledger.is_open(epoch)
    }
    return tuple(
        entry
        for epoch in ledger.epochs
        if epoch.checkpoint_id == checkpoint_id and epoch.is_decided
        if epoch.region not in waiting
        for entry in epoch.committables
        if not ledger.is_published(entry)
    )


def reported(
    ledger: Ledger, entries: Sequence[StateEntry], reports: Sequence[CommitReport]
) -> Ledger:
    """The ledger with the reports of entries that were tried."""
    answers = {**ledger.answers, **dict(zip(entries, reports, strict=True))}
    return replace(ledger, answers=answers)


def reports_of(ledger: Ledger, checkpoint_id: int) -> dict[StateEntry, CommitReport]:
    """Reports of all work decided up to a checkpoint; PENDING if it was not tried."""
    return {
        entry: _DONE if ledger.is_published(entry) else ledger.answers.get(entry, _WAITING)
        for epoch in ledger.epochs
        if epoch.is_decided and epoch.checkpoint_id <= checkpoint_id
        for entry in epoch.committables
    }


def forgotten(ledger: Ledger, checkpoint_id: int) -> Ledger:
    """The ledger without work decided up to a finished checkpoint, so that memory does not grow."""
    kept = tuple(e for e in ledger.epochs if e.checkpoint_id > checkpoint_id or not e.is_decided)
    known = {entry for epoch in kept for entry in epoch.committables}
    return Ledger(
        epochs=kept,
        answers={entry: report for entry, report in ledger.answers.items() if entry in known},
        notified={c: failed for c, failed in ledger.notified.items() if c >= checkpoint_id},
    )


def aborted(ledger: Ledger, entries: Iterable[StateEntry]) -> tuple[Ledger, tuple[StateEntry, ...]]:
    """The ledger without aborted work, and all work to abort with it, oldest first.

    A region's epochs end in order: if one is aborted, so is the region's work for later
    checkpoints.

    Raises:
        IllegalTransitionError: a decision names some of it.
    """
    given = tuple(dict.fromkeys(entries))
    first: dict[str, int] = {}
    for epoch in ledger.epochs:
        hit = set(given).intersection(epoch.committables)
        if hit and epoch.is_decided:
            raise IllegalTransitionError(
                "decided work must not be aborted",
                {
                    "region": epoch.region,
                    "checkpoint_id": epoch.checkpoint_id,
                    "committables": len(hit),
                },
                "Restart from the last checkpoint; report this as a bug. Nothing was aborted.",
            )
        if hit:
            first.setdefault(epoch.region, epoch.checkpoint_id)
    gone = [
        epoch
        for epoch in ledger.epochs
        if epoch.region in first
        and not epoch.is_decided
        and epoch.checkpoint_id >= first[epoch.region]
    ]
    left = replace(ledger, epochs=tuple(epoch for epoch in ledger.epochs if epoch not in gone))
    with_later = [entry for epoch in gone for entry in epoch.committables]
    return left, tuple(dict.fromkeys([*with_later, *given]))


def pending(ledger: Ledger, region: str, *, through: int) -> tuple[StateEntry, ...]:
    """A region's work up to a checkpoint that no decision names yet, oldest first."""
    return tuple(
        entry
        for epoch in ledger.epochs
        if epoch.region == region and not epoch.is_decided and epoch.checkpoint_id <= through
        for entry in epoch.committables
    )


def _without(epoch: Epoch, named: Iterable[StateEntry]) -> Epoch:
    gone = set(named)
    return replace(epoch, committables=tuple(e for e in epoch.committables if e not in gone))


def _ordered(epochs: Iterable[Epoch]) -> tuple[Epoch, ...]:
    return tuple(sorted((e for e in epochs if e.committables), key=lambda e: e.checkpoint_id))
