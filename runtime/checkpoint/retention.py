"""Which checkpoints may be deleted, and how many batches Spark must keep for the rest. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.runtime.model.model import FENCING, CheckpointKind, CheckpointRecord, Verdict

__all__ = [
    "EVERY_BATCH",
    "SlotFacts",
    "facts_of",
    "fencing_records",
    "indispensable",
    "name_other_records",
    "other_records",
    "retirable",
    "spark_batches_to_retain",
    "unfinished",
]

EVERY_BATCH = 2**31 - 1
"""As ``minBatchesToRetain``: Spark deletes nothing."""

_OTHER_RECORDS = "other_records"  # among the settings of a fencing record


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """What retention knows about one place; small, so that a store may keep it in memory.

    Attributes:
        checkpoint_id: the place.
        verdict, kind: of its record.
        names: checkpoint ids that the record builds on (carried-from).
        restored_from: checkpoint id that its run started from.
        has_committables: whether there is anything to commit.
        is_committed: whether the durable mark is there.
        is_superseded: whether a start from an older checkpoint left it behind.
        is_seal: whether a run began with it: checkpoint 0, or the seal of a later run.
    """

    checkpoint_id: int
    verdict: Verdict
    kind: CheckpointKind
    names: frozenset[int]
    has_committables: bool
    restored_from: int | None = None
    is_committed: bool = False
    is_superseded: bool = False
    is_fencing_record: bool = False


def facts_of(
    record: CheckpointRecord, *, is_committed: bool = False, is_superseded: bool = False
) -> SlotFacts:
    """The facts of a record and its marks."""
    return SlotFacts(
        checkpoint_id=record.checkpoint_id,
        verdict=record.verdict,
        kind=record.kind,
        names=frozenset(r.snapshot_id for r in record.regions if r.snapshot_id is not None),
        has_committables=bool(record.committables),
        restored_from=record.restored_from,
        is_committed=is_committed,
        is_superseded=is_superseded,
        is_fencing_record=record.requested_by == FENCING or record.checkpoint_id == 0,
    )


def name_other_records(ids: Iterable[int], fenced: Collection[int]) -> dict[str, str]:
    """The setting of a new fencing record that names the other records below it.

    Args:
        ids: every slot below the new record that holds a record.
        fenced: slots that hold only a fencing record.
    """
    return {_OTHER_RECORDS: ",".join(str(each) for each in ids if each not in fenced)}


def other_records(record: CheckpointRecord) -> frozenset[int] | None:
    """Slots below a fencing record that held another record when it was published.

    None if the record does not say. No record is ever published below a fencing record, so each
    slot that it does not name holds an older fencing record, or none.
    """
    named = record.settings.get(_OTHER_RECORDS)
    if named is None or record.requested_by != FENCING:
        return None
    return frozenset(int(each) for each in named.split(",") if each)


def fencing_records(places: Iterable[SlotFacts]) -> frozenset[int]:
    """Checkpoint 0 and the seals.

    They are never deleted. A paused older coordinator's next place is always such a record
    (`fence-first`); an empty place there would let it decide, or begin the job a second time.
    A session may have several: a start that lost the race after its checkpoint 0 or its seal
    seals once more, higher up, and it is that one which stops whoever was faster.
    """
    return frozenset(place.checkpoint_id for place in places if place.is_fencing_record)


def unfinished(places: Sequence[SlotFacts]) -> frozenset[int]:
    """Decisions that recovery may still have to commit (`retire-after-commit`)."""
    decided = [place for place in places if place.verdict is Verdict.DECIDED]
    newest = max((place.checkpoint_id for place in decided), default=-1)
    return frozenset(
        place.checkpoint_id
        for place in decided
        if not place.is_committed and (place.has_committables or place.checkpoint_id == newest)
    )


def indispensable(places: Iterable[SlotFacts]) -> frozenset[int]:
    """What nobody may delete: seals, unfinished decisions, the last record of all (ids are never
    used twice), and what its run started from as long as that has decided nothing: an older run
    that still retires knows nothing of a start from an older checkpoint."""
    ordered = sorted(places, key=lambda place: place.checkpoint_id)
    needed = set(fencing_records(ordered) | unfinished(ordered))
    for last in ordered[-1:]:
        needed.add(last.checkpoint_id)
        if last.verdict is Verdict.ABORTED and last.restored_from is not None:
            needed.add(last.restored_from)
    return frozenset(needed)


def retirable(places: Collection[SlotFacts], *, retain: int = 3) -> list[int]:
    """Ids that nothing needs any more, ascending.

    Kept are the newest ``retain`` finished decisions that were not left behind, as many aborted
    records (for people), every savepoint, what is `indispensable`, and what any of these names.
    """
    ordered = sorted(places, key=lambda place: place.checkpoint_id)
    keep = set(indispensable(ordered))
    keep |= {place.checkpoint_id for place in ordered if place.kind is CheckpointKind.SAVEPOINT}
    for verdict in Verdict:
        keep |= _newest(ordered, verdict, retain)
    keep = _with_named(ordered, keep)
    return [place.checkpoint_id for place in ordered if place.checkpoint_id not in keep]


def _newest(ordered: Sequence[SlotFacts], verdict: Verdict, count: int) -> set[int]:
    """The newest ``count`` of a verdict; what is kept anyway as unfinished or a seal counts not."""
    apart = unfinished(ordered)
    if verdict is Verdict.ABORTED:
        apart |= fencing_records(ordered)
    candidates = [
        place.checkpoint_id
        for place in ordered
        if place.verdict is verdict and place.checkpoint_id not in apart and not place.is_superseded
    ]
    return set(candidates[-count:]) if count > 0 else set()


def _with_named(ordered: Sequence[SlotFacts], keep: set[int]) -> set[int]:
    """``keep`` and everything its records name, and what those name."""
    by_id = {place.checkpoint_id: place for place in ordered}
    found: set[int] = set()
    ahead = list(keep)
    while ahead:
        checkpoint_id = ahead.pop()
        if checkpoint_id not in found:
            found.add(checkpoint_id)
            place = by_id.get(checkpoint_id)
            ahead.extend(place.names if place else ())
    return found


def spark_batches_to_retain(
    retained: Iterable[CheckpointRecord],
    current_batches: Mapping[tuple[str, int], int],
    *,
    retain: int = 3,
    max_concurrent: int = 1,
) -> int:
    """``spark.sql.streaming.minBatchesToRetain``: what any kept record names stays loadable.

    Spark deletes offset log entries and state versions that lie this many batches back. While
    the job runs, the newest ``retain`` decisions reach ``retain`` batches back (a region runs at
    most one batch per checkpoint), undecided ones ``max_concurrent`` more, and a repair
    recomputes from the state version before (`two-phase-repair`): one more.

    Args:
        retained: the records that retention keeps now.
        current_batches: the next Spark batch id by (region, attempt), for living queries.
        retain, max_concurrent: the job's settings.
    Returns:
        >= 1. `EVERY_BATCH` while a savepoint's state lies only in Spark's own directory: no
        count of batches would be large enough for ever.
    """
    needed = retain + max_concurrent + 1
    for record in retained:
        for region in record.regions:
            if region.state is None or region.batch_id is None:
                continue
            if record.kind is CheckpointKind.SAVEPOINT and not region.state.files:
                return EVERY_BATCH
            current = current_batches.get((region.region, region.attempt_id))
            if current is not None:
                # The record may stay one of the newest for as many checkpoints more.
                needed = max(needed, current - region.batch_id + retain + max_concurrent + 1)
    return needed
