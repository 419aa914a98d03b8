"""Acknowledged batches: each joins its checkpoint, or waits for the next one. Pure."""

from sluice.runtime.coordinator.core.alignment import open_for
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.events import Acknowledged
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint
from sluice.runtime.coordinator.core.region_attempts import end_too_old
from sluice.runtime.coordinator.policy.state_tables import RegionEvent
from sluice.runtime.coordinator.region.region_pace import left_unread, records_in
from sluice.runtime.coordinator.region.region_state import RegionState, region_of
from sluice.runtime.errors import FencedError, IllegalTransitionError
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.model.state.keyed_state import Due

__all__ = ["acknowledged"]


def acknowledged(state: CoordinatorState, event: Acknowledged, now_s: float) -> None:
    """Step 3: the batch joins its checkpoint, or waits for the next one.

    (region, attempt, batch id) identifies a batch; its checkpoint id is a hint
    (`batch-identity`).
    """
    ack = event.ack
    region = region_of(state.regions, ack.batch.region)
    is_waiting = region.pending_ack is not None and region.pending_ack.batch == ack.batch
    if region.is_decided(ack.batch) or is_waiting or state.has(ack.batch):
        return  # acknowledged before: an answer was lost
    region.require(ack.batch.attempt_id)
    region.require_new_ranges(ack)
    _require_known_splits(region, ack)
    _require_own_splits(state, ack)
    _require_state(region, ack)
    error = state.key_samples.add(ack.key_samples)
    if error is not None:
        state.end(error, now_s)
        return
    state.time.note_ended(ack.region.splits)
    left = 0
    if region.plan.follows and region.barrier is not None:
        left = left_unread(region.barrier.splits, ack.region.splits)
    region.pending_time.end(now_s, read=records_in(ack.region.splits), left=left)
    if region.rate is not None:
        region.rate.finished(now_s)
    region.again_s = None if ack.again_in_s is None else now_s + ack.again_in_s
    region.state_is_due, region.due = ack.state_is_due, ack.due or Due()
    region.paused = ack.paused
    region.advance(RegionEvent.ACKNOWLEDGED)
    region.decide_by_s = ack.decide_by_s
    checkpoint = open_for(state, ack.batch.region)
    if checkpoint is None and region.pending_ack is not None:
        raise IllegalTransitionError(
            "a region acknowledged a second batch before its first was decided",
            {"batch": ack.batch, "waiting": region.pending_ack.batch},
            "Stop the job, keep its log, restart from the last checkpoint, and report this bug.",
        )
    if state.settings.handler.is_regional and state.is_too_old(ack.decide_by_s, now_s):
        region.pending_ack = ack  # its attempt ends, and discards it
        end_too_old(state, checkpoint, ack, now_s)
        return
    if checkpoint is not None:
        _join(state, checkpoint, ack, now_s)
        return
    region.pending_ack = ack
    if state.settings.is_external:
        state.begin(CheckpointKind.CHECKPOINT, "spark", now_s, forced=True)


def _require_own_splits(state: CoordinatorState, ack: Acknowledgement) -> None:
    """Refuse a batch that reads another region's splits.

    Raises:
        IllegalTransitionError: both would read the same records.
    """
    mine = state.assignment.regions[ack.batch.region]
    unknown = {split.key for split in ack.region.splits} - mine
    for name, region in state.regions.items() if unknown else ():
        others = state.assignment.regions[name] | region.discovered.keys()
        if name != ack.batch.region and unknown & others:
            raise IllegalTransitionError(
                "a batch reads a split of another region",
                {
                    "region": ack.batch.region,
                    "owner": name,
                    "splits": ",".join(
                        f"{t}-{number}" for _, t, number in sorted(unknown & others)
                    ),
                    "batch_id": ack.batch.batch_id,
                },
                "Restart from the checkpoint: Spark's log does not match it.",
            )


def _require_known_splits(region: RegionState, ack: Acknowledgement) -> None:
    """Refuse an epoch of a streaming region with a split that an earlier coordinator has
    discovered, and this one has not: if the epoch were given up, no region would have the split.

    Raises:
        FencedError: the attempt ends, and the next one reads what this coordinator assigns.
    """
    if not region.plan.follows:
        return  # the batches of a query follow Spark's log
    unknown = {split.key for split in ack.region.splits} - {s.key for s in region.positions()}
    if unknown:
        raise FencedError(
            "an epoch has splits that this coordinator does not know yet",
            {
                "region": region.plan.name,
                "splits": ",".join(f"{topic}-{number}" for _, topic, number in sorted(unknown)),
                "batch_id": ack.batch.batch_id,
            },
            "Let the attempt end: its records are read again.",
        )


def _require_state(region: RegionState, ack: Acknowledgement) -> None:
    """Refuse a batch of a keyed region without the state of exactly its splits
    (`state-with-output`).

    Raises:
        IllegalTransitionError: a restore would pair its offsets with an older state.
    """
    state = ack.region.keyed_state
    found = {split.key for split in (() if state is None else state.splits)}
    read = {split.key for split in ack.region.splits}
    if region.plan.keyed is (state is not None) and (state is None or found == read):
        return
    raise IllegalTransitionError(
        "a batch lacks the keyed state of its splits, or has another's",
        {
            "region": region.plan.name,
            "batch_id": ack.batch.batch_id,
            "keyed": region.plan.keyed,
            "splits": ",".join(f"{t}-{number}" for _, t, number in sorted(found ^ read)),
        },
        "Restart from the checkpoint, and report this bug. Nothing of this batch was decided.",
    )


def _join(
    state: CoordinatorState, checkpoint: PendingCheckpoint, ack: Acknowledgement, now_s: float
) -> None:
    region = state.regions[ack.batch.region]
    checkpoint.acks[ack.batch.region] = ack
    checkpoint.acknowledged_at_s[ack.batch.region] = now_s
    checkpoint.decide_by(region.decide_by_s)
    region.open_ranges[checkpoint.checkpoint_id] = ack.region.splits
    if ack.batch.region in checkpoint.barriers:
        region.pace.finished(now_s, target_s=state.settings.epoch_target_s)
    state.region_event(RegionEvent.ACKNOWLEDGED, checkpoint, now_s)
