"""From the last acknowledgement to the mark, or to the end of an abort: the second half. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from runtime.checkpoint.book import Book
from runtime.checkpoint.messages import (
    AbortedWork,
    Commit,
    CommitReported,
    LostCommittables,
    MarkCommitted,
    Marked,
    Publish,
    Published,
    RegionFailed,
    RegionRestarted,
    Repair,
    Repaired,
    RestartAsked,
    Retire,
    ReturnBatches,
    StepFailed,
    TellPositions,
)
from runtime.checkpoint.pending import ABORTABLE, DECIDED_OPEN, PendingCheckpoint
from runtime.checkpoint.plan import OnLost
from runtime.checkpoint.regions import region_of
from runtime.checkpoint.states import Event, State
from runtime.contracts import CommitOutcome, PublishOutcome
from runtime.errors import (
    CheckpointFailedError,
    FencedError,
    StreamError,
    TransactionLostError,
    TransactionUnknownError,
    UnreachableError,
)
from runtime.model import CheckpointKind, RegionRecord, StateEntry, Verdict

__all__ = [
    "commit_reported",
    "drive",
    "marked",
    "next_step_s",
    "published",
    "region_failed",
    "repaired",
    "restart_asked",
    "step_failed",
    "work_aborted",
]


# --- what is due next ---------------------------------------------------------------------------


def drive(book: Book, now_s: float) -> None:
    """Let every checkpoint under way, and every region that waits, take its next step."""
    for checkpoint in list(book.pending.values()):
        _drive_one(book, checkpoint, now_s)
    for name in book.regions:
        _drive_restart(book, name, now_s)


def _drive_one(book: Book, checkpoint: PendingCheckpoint, now_s: float) -> None:
    _align(book, checkpoint, now_s)
    if not checkpoint.may_act(now_s):
        return
    is_next_place = checkpoint.checkpoint_id == book.last_place + 1
    is_oldest = next(iter(book.pending)) == checkpoint.checkpoint_id
    state = checkpoint.state
    if state is State.PRE_COMMITTED and is_next_place:
        _start_deciding(book, checkpoint, now_s)
    elif state is State.DECIDING:
        _publish(book, checkpoint, Verdict.DECIDED)
    elif state is State.ABORTING and is_next_place:
        _publish(book, checkpoint, Verdict.ABORTED)
    elif is_oldest and state in DECIDED_OPEN:
        _settle(book, checkpoint, now_s)


def _align(book: Book, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """All acknowledged, or too late."""
    if checkpoint.state is State.ALIGNING and len(checkpoint.acks) == len(book.regions):
        book.move(checkpoint, Event.ALL_ACKED, now_s)
        is_last = len(checkpoint.finished) == len(book.regions)
        if is_last and checkpoint.kind is CheckpointKind.CHECKPOINT:
            checkpoint.kind, checkpoint.asked_by = CheckpointKind.FINAL, "end"
    if checkpoint.state in (State.ALIGNING, State.PRE_COMMITTED):
        started_s = now_s if checkpoint.barrier_s is None else checkpoint.barrier_s
        if now_s - started_s >= book.settings.timeout_s:
            _expire(book, checkpoint, now_s)


def next_step_s(book: Book) -> float | None:
    """When time alone makes something due: an expiry or another try."""
    moments = [
        p.barrier_s + book.settings.timeout_s
        for p in book.pending.values()
        if p.state in (State.ALIGNING, State.PRE_COMMITTED) and p.barrier_s is not None
    ]
    moments += [
        p.retry_at_s
        for p in book.pending.values()
        if p.state not in ABORTABLE and not p.in_flight and not p.halted and p.retry_at_s > 0
    ]
    return min(moments, default=None)


def _expire(book: Book, checkpoint: PendingCheckpoint, now_s: float) -> None:
    missing = [name for name in book.regions if name not in checkpoint.acks]
    error = CheckpointFailedError(
        "the checkpoint expired: not every region acknowledged in time",
        {
            "checkpoint_id": checkpoint.checkpoint_id,
            "timeout_s": book.settings.timeout_s,
            "missing": ",".join(missing),
        },
        "It is read again. Raise the timeout, or lower the records per epoch.",
    )
    for name in missing:
        if name in checkpoint.barriers:
            book.regions[name].pace.expired()
    book.abort(checkpoint, Event.EXPIRED, error, now_s)
    _count_failure(book, error, now_s)


def _count_failure(book: Book, error: BaseException, now_s: float) -> None:
    book.failures += 1
    if book.failures > book.settings.tolerable_failures:
        book.end(error, now_s)


# --- deciding -----------------------------------------------------------------------------------


def _start_deciding(book: Book, checkpoint: PendingCheckpoint, now_s: float) -> None:
    checkpoint.regions = tuple(
        region.record_with(checkpoint.acks[name]) for name, region in book.regions.items()
    )
    book.move(checkpoint, Event.PUBLISH_STARTED, now_s)
    _publish(book, checkpoint, Verdict.DECIDED)


def _publish(book: Book, checkpoint: PendingCheckpoint, verdict: Verdict) -> None:
    is_decision = verdict is Verdict.DECIDED
    thrown_away = tuple(ack.region for ack in checkpoint.discarded)
    checkpoint.in_flight = True
    book.out.append(
        Publish(
            checkpoint_id=checkpoint.checkpoint_id,
            kind=checkpoint.kind,
            verdict=verdict,
            asked_by=checkpoint.asked_by,
            reason="" if is_decision else checkpoint.reason,
            regions=checkpoint.regions if is_decision else thrown_away,
        )
    )


def published(book: Book, event: Published, now_s: float) -> None:
    """The place is ours, taken, or not known yet."""
    checkpoint = book.pending[event.checkpoint_id]
    if event.outcome is PublishOutcome.UNKNOWN:
        _retry(book, checkpoint, now_s)
        return
    checkpoint.in_flight = False
    if event.outcome is PublishOutcome.TAKEN:
        book.move(checkpoint, Event.PLACE_TAKEN, now_s)
        book.fence(_taken_over(event.checkpoint_id))
        return
    book.last_place = event.checkpoint_id
    if checkpoint.state is State.ABORTING:
        book.move(checkpoint, Event.ABORT_RECORD_DURABLE, now_s)
        book.discard(checkpoint)
        return
    book.move(checkpoint, Event.METADATA_DURABLE, now_s)
    book.failures = 0
    book.last_decided = event.checkpoint_id
    for record in checkpoint.regions:
        book.regions[record.region].decided(event.checkpoint_id, record)
    checkpoint.remaining = tuple(e for r in checkpoint.regions for e in r.committables)


def _taken_over(checkpoint_id: int) -> FencedError:
    return FencedError(
        "another coordinator has taken over this job",
        {"checkpoint_id": checkpoint_id},
        "Nothing undecided was committed by this one; let the newer one run, or stop it first.",
    )


def work_aborted(book: Book, event: AbortedWork, now_s: float) -> None:
    """The abort is done; what could not be reached is left to the sweep."""
    book.finish(book.pending[event.checkpoint_id], now_s)


# --- committing ---------------------------------------------------------------------------------


def _settle(book: Book, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """The next step of a decided checkpoint; only the oldest one, so commits keep their order."""
    if checkpoint.state is State.DECIDED and not checkpoint.remaining:
        book.move(checkpoint, Event.ALL_COMMITTED, now_s)
    checkpoint.in_flight = True
    if checkpoint.state is State.COMMITTED:
        book.out.append(MarkCommitted(checkpoint_id=checkpoint.checkpoint_id))
    elif checkpoint.state is State.REPAIRING:
        book.out.append(Repair(checkpoint_id=checkpoint.checkpoint_id, lost=_lost(checkpoint)))
    else:
        book.out.append(
            Commit(
                checkpoint_id=checkpoint.checkpoint_id,
                committables=checkpoint.remaining,
                after_crash=checkpoint.after_crash,
            )
        )


def commit_reported(book: Book, event: CommitReported, now_s: float) -> None:
    """Strike out what is committed; the rest is tried again, repaired, or ends the job."""
    checkpoint = book.pending[event.checkpoint_id]
    checkpoint.in_flight = False
    checkpoint.after_crash = True
    answers = list(zip(event.committables, event.reports, strict=True))
    lost = [entry for entry, report in answers if report.outcome is CommitOutcome.ABORTED]
    unknown = [entry for entry, report in answers if report.outcome is CommitOutcome.UNKNOWN]
    checkpoint.remaining = tuple(
        entry for entry, report in answers if report.outcome is not CommitOutcome.COMMITTED
    )
    if not unknown:
        checkpoint.unknown_since_s = None
    if lost:
        _lose(book, checkpoint, lost, event, now_s)
    elif checkpoint.remaining:
        _retry(book, checkpoint, now_s)
        if unknown:
            _end_if_unknown(book, checkpoint, event, now_s)


def _lose(
    book: Book,
    checkpoint: PendingCheckpoint,
    lost: list[StateEntry],
    event: CommitReported,
    now_s: float,
) -> None:
    """A decided transaction is certainly gone: repair where that is exact, else stop (rule 11)."""
    by_region = lost_by_region(checkpoint.regions, lost)
    chained = all(book.regions[found.region.region].plan.chained for found in by_region)
    if book.settings.on_lost is OnLost.REPAIR and chained:
        checkpoint.lost = tuple(lost)
        book.move(checkpoint, Event.COMMITTABLE_LOST, now_s)
        _abort_later(book, checkpoint, by_region, now_s)
        return
    checkpoint.halted = True
    details = {report.detail for report in event.reports if report.detail}
    book.end(lost_error(checkpoint.checkpoint_id, by_region, details), now_s)


def _abort_later(
    book: Book,
    checkpoint: PendingCheckpoint,
    lost: Iterable[LostCommittables],
    now_s: float,
) -> None:
    """Later pre-commits of the region go first, for its records would come out of order."""
    names = {found.region.region for found in lost}
    for later in list(book.pending.values()):
        behind = later.checkpoint_id > checkpoint.checkpoint_id and later.state in ABORTABLE
        if behind and any(later.touches(name) for name in names):
            error = CheckpointFailedError(
                "an earlier checkpoint of the region is being repaired",
                {"checkpoint_id": later.checkpoint_id, "repaired": checkpoint.checkpoint_id},
                "Its range is read again after the repair.",
            )
            book.abort(later, Event.OVERTAKEN, error, now_s)
            return


def _lost(checkpoint: PendingCheckpoint) -> tuple[LostCommittables, ...]:
    return lost_by_region(checkpoint.regions, checkpoint.lost)


def lost_by_region(
    regions: Iterable[RegionRecord], lost: Iterable[StateEntry]
) -> tuple[LostCommittables, ...]:
    """Lost committables with the region whose ranges they held; pure."""
    gone = list(lost)
    return tuple(
        LostCommittables(region=region, committables=mine)
        for region in regions
        if (mine := tuple(entry for entry in region.committables if entry in gone))
    )


def lost_error(
    checkpoint_id: int, lost: Iterable[LostCommittables], details: Iterable[str]
) -> TransactionLostError:
    """The error that names the ranges (rule 11)."""
    found = list(lost)
    ranges = [
        f"{split.name}:[{split.start_offset},{split.end_offset})"
        for part in found
        for split in part.region.splits
        if not split.is_empty
    ]
    return TransactionLostError(
        "a decided transaction was aborted before it could be committed: its records are missing",
        {
            "checkpoint_id": checkpoint_id,
            "regions": ",".join(part.region.region for part in found),
            "ranges": " ".join(ranges),
            "details": "; ".join(sorted(details)),
        },
        "Raise the transaction timeout. Write these ranges again, or use on_lost='repair'.",
    )


def repaired(book: Book, event: Repaired, now_s: float) -> None:
    """What replaces the lost work is durable; commit it like any other."""
    checkpoint = book.pending[event.checkpoint_id]
    if event.outcome is PublishOutcome.UNKNOWN:
        _retry(book, checkpoint, now_s)
        return
    checkpoint.in_flight = False
    if event.outcome is PublishOutcome.TAKEN:  # only a newer run repairs what is ours
        book.move(checkpoint, Event.PLACE_TAKEN, now_s)
        book.fence(_taken_over(event.checkpoint_id))
        return

    def follow(entries: Iterable[StateEntry]) -> tuple[StateEntry, ...]:
        return tuple(event.replaced.get(entry.payload, entry) for entry in entries)

    checkpoint.remaining = follow(checkpoint.remaining)
    checkpoint.lost = ()
    checkpoint.regions = tuple(
        replace(region, committables=follow(region.committables)) for region in checkpoint.regions
    )
    book.move(checkpoint, Event.REPAIR_DURABLE, now_s)


def marked(book: Book, event: Marked, now_s: float) -> None:
    """Committed on record: callbacks return, then lag tools and retention are served."""
    checkpoint = book.pending[event.checkpoint_id]
    if not event.durable:
        _retry(book, checkpoint, now_s)
        return
    checkpoint.in_flight = False
    book.move(checkpoint, Event.MARK_DURABLE, now_s)
    book.last_committed = event.checkpoint_id
    book.finish(checkpoint, now_s)
    positions = tuple(split for region in checkpoint.regions for split in region.splits)
    book.out += [
        ReturnBatches(checkpoint_id=event.checkpoint_id, batches=checkpoint.batches()),
        TellPositions(checkpoint_id=event.checkpoint_id, positions=positions),
        Retire(retained=book.settings.retained),
    ]
    if checkpoint.kind is CheckpointKind.FINAL:
        book.is_finished = True
        book.end(None, now_s)


# --- steps that are not answered ----------------------------------------------------------------


def step_failed(book: Book, event: StepFailed, now_s: float) -> None:
    """A remote step failed in a way that trying again cannot help."""
    checkpoint = book.pending.get(event.checkpoint_id)
    if checkpoint is not None:
        checkpoint.in_flight, checkpoint.halted = False, True
    if isinstance(event.error, FencedError):
        book.fence(event.error)
    else:
        book.end(event.error, now_s)


def _retry(book: Book, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """Try again later; when a decided checkpoint takes too long, the job stops with it open."""
    settings = book.settings
    checkpoint.retry_later(now_s, first_s=settings.retry_s, longest_s=settings.max_retry_s)
    since_s = checkpoint.decided_s if checkpoint.decided_s is not None else checkpoint.acked_s
    if since_s is not None and now_s - since_s >= settings.settle_timeout_s:
        book.end(
            UnreachableError(
                "a checkpoint could not be settled in time",
                {"checkpoint_id": checkpoint.checkpoint_id, "state": checkpoint.state.value},
                "If it is decided nothing is lost: the next start commits it. Check store, broker.",
            ),
            now_s,
        )


def _end_if_unknown(
    book: Book, checkpoint: PendingCheckpoint, event: CommitReported, now_s: float
) -> None:
    if checkpoint.unknown_since_s is None:
        checkpoint.unknown_since_s = now_s
    if now_s - checkpoint.unknown_since_s < book.settings.unknown_timeout_s:
        return
    checkpoint.halted = True
    book.end(unknown_error(checkpoint.checkpoint_id, (r.detail for r in event.reports)), now_s)


def unknown_error(checkpoint_id: int, details: Iterable[str]) -> StreamError:
    """The error for work that may or may not be visible."""
    return TransactionUnknownError(
        "whether a decided transaction is visible cannot be told",
        {"checkpoint_id": checkpoint_id, "details": "; ".join(sorted(set(filter(None, details))))},
        "Nothing was deleted or repaired. Look with `sluice txn describe`, then start again.",
    )


# --- regions that fail and come back ------------------------------------------------------------


def region_failed(book: Book, event: RegionFailed, now_s: float) -> None:
    """A region's batch failed: its open epoch is aborted, its life ends."""
    region = region_of(book.regions, event.region)
    if event.generation != region.generation or not region.is_open:
        return  # the echo of an end that is known already
    if event.permanent:
        book.end(event.error, now_s)
        return
    _end_life(book, event.region, now_s)
    _count_failure(book, event.error, now_s)


def restart_asked(book: Book, event: RestartAsked, now_s: float) -> None:
    """A region wants a new life; `RegionRestarted` follows once its old one is settled."""
    region = region_of(book.regions, event.region)
    if book.is_over:
        raise book.error or FencedError("the job has ended", {}, "Start it again for more.")
    if region.is_open:
        _end_life(book, event.region, now_s)
    region.restart_asked = True


def _end_life(book: Book, name: str, now_s: float) -> None:
    error = FencedError(
        "the region is being stopped", {"region": name}, "Its open range is read again."
    )
    first = next((p for p in book.pending.values() if p.state in ABORTABLE), None)
    if first is not None:
        book.abort(first, Event.REGION_FAILED, error, now_s)
    book.close_region(name, error, fence=None if first is None else first.checkpoint_id)
    book.cancel_waiting(name, error)


def _drive_restart(book: Book, name: str, now_s: float) -> None:
    """A region returns behind a durable record of ours, its old work settled (rule 12)."""
    region = book.regions[name]
    if not region.restart_asked or book.is_over:
        return
    if region.fence is None:
        fence = book.create(CheckpointKind.CHECKPOINT, "restart", forced=False)
        fence.reason = f"region {name} is restarted"
        book.move(fence, Event.REGION_FAILED, now_s)
        region.fence = fence.checkpoint_id
        return
    is_busy = region.fence in book.pending or any(p.touches(name) for p in book.pending.values())
    if region.fence <= book.last_place and not is_busy:
        region.reopen()
        book.out.append(
            RegionRestarted(region=name, generation=region.generation, restored=region.record)
        )
