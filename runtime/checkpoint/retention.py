"""Which checkpoints may be deleted, and how many batches Spark must keep for the rest. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.runtime.model.checkpoint_record import (
    FENCING,
    CheckpointRecord,
    Verdict,
)

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
    """Facts about one slot for retention; small, so that a store may keep them in memory.

    Attributes:
        checkpoint_id: the slot.
        verdict: of its record.
        names: checkpoint ids whose snapshots the record uses for skipped regions.
        restored_from: checkpoint id that its run started from.
        has_committables: whether there is anything to commit.
        is_committed: whether the completion marker is there.
        is_superseded: whether a start from an older checkpoint passed it over.
        is_fencing_record: whether it is the first record of a run: checkpoint 0, or a fencing
            record.
    """

    checkpoint_id: int
    verdict: Verdict
    names: frozenset[int]
    has_committables: bool
    restored_from: int | None = None
    is_committed: bool = False
    is_superseded: bool = False
    is_fencing_record: bool = False


def facts_of(
    record: CheckpointRecord, *, is_committed: bool = False, is_superseded: bool = False
) -> SlotFacts:
    """The facts of a record and its markers."""
    return SlotFacts(
        checkpoint_id=record.checkpoint_id,
        verdict=record.verdict,
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


def fencing_records(slots: Iterable[SlotFacts]) -> frozenset[int]:
    """Checkpoint 0 and the fencing records.

    They are never deleted. The next slot of a paused older coordinator always holds such a record
    (`fence-first`). If it were empty, that coordinator could decide, or begin the job a second
    time. A session may have several: a start that lost a race after its first record publishes
    another fencing record, higher up, and that one stops the faster run.
    """
    return frozenset(slot.checkpoint_id for slot in slots if slot.is_fencing_record)


def unfinished(slots: Sequence[SlotFacts]) -> frozenset[int]:
    """Decisions that recovery may still have to commit (`retire-after-commit`)."""
    decided = [slot for slot in slots if slot.verdict is Verdict.DECIDED]
    newest = max((slot.checkpoint_id for slot in decided), default=-1)
    return frozenset(
        slot.checkpoint_id
        for slot in decided
        if not slot.is_committed and (slot.has_committables or slot.checkpoint_id == newest)
    )


def indispensable(slots: Iterable[SlotFacts]) -> frozenset[int]:
    """Slots that must stay: fencing records, unfinished decisions and the last record of all, since
    ids are never used twice. Until its run has decided, also the checkpoint that it started from:
    an older run that still deletes does not know of a start from an older checkpoint.
    """
    ordered = sorted(slots, key=lambda slot: slot.checkpoint_id)
    needed = set(fencing_records(ordered) | unfinished(ordered))
    for last in ordered[-1:]:
        needed.add(last.checkpoint_id)
        if last.verdict is Verdict.ABORTED and last.restored_from is not None:
            needed.add(last.restored_from)
    return frozenset(needed)


def retirable(slots: Collection[SlotFacts], *, retain: int = 3) -> list[int]:
    """Ids that nothing needs any more, ascending.

    These are kept: the newest ``retain`` finished decisions that no start passed over, as many
    aborted records (for people), `indispensable` slots, and every slot that one of these names. The
    slot of a savepoint is one like any other: the savepoint's files are its own.
    """
    ordered = sorted(slots, key=lambda slot: slot.checkpoint_id)
    keep = set(indispensable(ordered))
    for verdict in Verdict:
        keep |= _newest(ordered, verdict, retain)
    keep = _with_named(ordered, keep)
    return [slot.checkpoint_id for slot in ordered if slot.checkpoint_id not in keep]


def _newest(ordered: Sequence[SlotFacts], verdict: Verdict, count: int) -> set[int]:
    """The newest ``count`` of a verdict, without unfinished decisions and fencing records, which
    stay anyway."""
    apart = unfinished(ordered)
    if verdict is Verdict.ABORTED:
        apart |= fencing_records(ordered)
    candidates = [
        slot.checkpoint_id
        for slot in ordered
        if slot.verdict is verdict and slot.checkpoint_id not in apart and not slot.is_superseded
    ]
    return set(candidates[-count:]) if count > 0 else set()


def _with_named(ordered: Sequence[SlotFacts], keep: set[int]) -> set[int]:
    """``keep`` and everything its records name, and what those name."""
    by_id = {slot.checkpoint_id: slot for slot in ordered}
    found: set[int] = set()
    ahead = list(keep)
    while ahead:
        checkpoint_id = ahead.pop()
        if checkpoint_id not in found:
            found.add(checkpoint_id)
            slot = by_id.get(checkpoint_id)
            ahead.extend(slot.names if slot else ())
    return found


def spark_batches_to_retain(
    retained: Iterable[CheckpointRecord],
    current_batches: Mapping[tuple[str, int], int],
    *,
    retain: int = 3,
    max_concurrent: int = 1,
) -> int:
    """``spark.sql.streaming.minBatchesToRetain``: what any kept record names stays loadable.

    Spark deletes offset log entries and state versions that are this many batches old. A region
    runs at most one batch per checkpoint. So the newest ``retain`` decisions need ``retain``
    batches, and undecided ones need ``max_concurrent`` more. A repair recomputes from the state
    version before, so it needs one more (`two-phase-repair`).

    Args:
        retained: the records that retention keeps now.
        current_batches: the next Spark batch id by (region, attempt), for living queries.
        retain, max_concurrent: the job's settings.
    Returns:
        >= 1.
    """
    needed = retain + max_concurrent + 1
    for record in retained:
        for region in record.regions:
            if region.state is None or region.batch_id is None:
                continue
            current = current_batches.get((region.region, region.attempt_id))
            if current is not None:
                # The record may stay one of the newest for as many checkpoints more.
                needed = max(needed, current - region.batch_id + retain + max_concurrent + 1)
    return needed
