"""Writes decided work again that a broker has aborted: ``on_lost="repair"``
(`two-phase-repair`)."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sluice.runtime.checkpoint.lost_work import LostCommittables, lost_error
from sluice.runtime.checkpoint.succession import taken_over
from sluice.runtime.contracts import MetadataStore, PublishOutcome, SplitEnumerator
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.core.events import Repair
from sluice.runtime.errors import (
    DataLostError,
    SourceChangedError,
    StorageError,
    StreamError,
    TransactionLostError,
    UnreachableError,
)
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import SplitRange, busy_by_source

__all__ = ["Repaired", "Repairer", "Repairs", "discard"]

log = logging.getLogger(__name__)

_LOOK_S = 30.0

Repaired = tuple[PublishOutcome, Mapping[bytes, StateEntry]]
"""Whether the repair is on record, and its replacements: lost payload -> new committable."""


class Repairer(Protocol):
    """Writes lost work again. Implemented by the engine that ran it; called on the driver."""

    def repair(
        self,
        checkpoint_id: int,
        lost: LostCommittables,
        *,
        job_uid: str,
        attempt_id: int,
        timeout_s: float,
    ) -> Mapping[bytes, StateEntry]:
        """Run the lost committables' ranges into new, pre-committed work; commit nothing.

        Called only for regions whose records are a function of their ranges, once per loss and run.
        If a run crashed in between, its work belongs to an older attempt and is swept.

        Returns:
            For each lost committable's payload its replacement, with as many records.
        Raises:
            Exception: the work cannot be written again exactly; no new work is open.
        """
        ...

    def ranges(self, lost: LostCommittables) -> tuple[SplitRange, ...]:
        """The ranges of the lost work, among all that the region read."""
        ...


@dataclass(slots=True, kw_only=True)
class Repairs:
    """Both phases of a repair (`two-phase-repair`). Runs in the thread that settles.

    New work is kept until its record is durable, so a second attempt publishes the same work. A
    second copy would stay open, and delay readers, until the next run.

    Before it reads, a repair checks that the source still has the whole ranges: else the reader
    would wait for the rest. After it has read, it checks that the topic names still mean the same
    logs.

    Attributes:
        repairer: of the engine; None: nothing can be repaired.
        is_taken_over: whether another run has published a fencing record after ours; called after
            the writing, which may take long.
    """

    repairer: Repairer | None
    store: MetadataStore
    sinks: Mapping[str, SerialSink]
    sources: Mapping[str, SplitEnumerator]
    session: str
    job_uid: str
    attempt_id: int
    timeout_s: float
    is_taken_over: Callable[[], bool] = lambda: False
    _written: dict[Repair, dict[bytes, StateEntry]] = field(init=False, default_factory=dict)

    def run(self, action: Repair) -> Generator[str, None, Repaired]:
        """The outcome and the new work. OURS: on record. UNKNOWN: call again. TAKEN: another run
        has repaired the same."""
        replaced = self._written.get(action)
        if replaced is None:
            replaced = self._written[action] = self._write(action)
        yield "after-rewrite"  # a crash here leaves work that no record names: it is swept
        try:
            if self.is_taken_over():
                # That run settles the decision, and its sweep aborts our new work.
                raise taken_over(action.checkpoint_id)
            outcome = self.store.publish_repair(
                action.checkpoint_id, replaced, session=self.session
            )
        except (StorageError, UnreachableError) as err:
            log.warning(
                "repair is not durable: checkpoint_id=%d error=%s", action.checkpoint_id, err
            )
            outcome = PublishOutcome.UNKNOWN
        if outcome is not PublishOutcome.UNKNOWN:
            del self._written[action]
        if outcome is PublishOutcome.OURS:
            log.warning(
                "lost transactions were written again: checkpoint_id=%d regions=%s",
                action.checkpoint_id,
                ",".join(lost.region.region for lost in action.lost),
            )
        return outcome, replaced

    def _write(self, action: Repair) -> dict[bytes, StateEntry]:
        repairer = self.repairer
        if repairer is None:
            raise lost_error(action.checkpoint_id, action.lost, ())
        replaced: dict[bytes, StateEntry] = {}
        try:
            for lost in action.lost:
                self._require_whole(action.checkpoint_id, repairer.ranges(lost))
                replaced |= repairer.repair(
                    action.checkpoint_id,
                    lost,
                    job_uid=self.job_uid,
                    # Not below the region's own, or a sweep would abort it before it is recorded.
                    attempt_id=max(self.attempt_id, lost.region.attempt_id),
                    timeout_s=self.timeout_s,
                )
                self._require_readable(action.checkpoint_id, repairer.ranges(lost))
        except BaseException:
            self.discard(replaced.values(), timeout_s=self.timeout_s)
            raise
        return replaced

    def discard(self, written: Iterable[StateEntry], *, timeout_s: float) -> None:
        """Abort new work whose repair failed; see `discard`."""

        def abort(entry: StateEntry) -> None:
            with self.sinks[entry.operator_id].committing() as committer:
                committer.abort([entry], timeout_s=timeout_s)

        discard(abort, written)

    def _require_whole(self, checkpoint_id: int, ranges: Sequence[SplitRange]) -> None:
        """Raises TransactionLostError if a log was truncated since: its reader would wait for the
        rest at every start."""
        for source, mine in self._by_source(checkpoint_id, ranges):
            try:
                found = source.replayable(mine, timeout_s=_LOOK_S)
            except (DataLostError, SourceChangedError) as err:
                raise _gone(checkpoint_id, mine, err) from err
            ends = {split.key: split.end_offset for split in found}
            gone = [s for s in mine if ends.get(s.key, s.start_offset) < s.known_end]
            if gone:
                raise _gone(checkpoint_id, gone, "a part of it was deleted")

    def _require_readable(self, checkpoint_id: int, ranges: Sequence[SplitRange]) -> None:
        """Raises TransactionLostError if the reads came from other logs than the lost work."""
        for source, mine in self._by_source(checkpoint_id, ranges):
            try:
                found = source.readable(mine, timeout_s=_LOOK_S)
            except SourceChangedError as err:
                raise _gone(checkpoint_id, mine, err) from err
            gone = [split for split in mine if split not in found]
            if gone:
                raise _gone(checkpoint_id, gone, "it was deleted")

    def _by_source(
        self, checkpoint_id: int, ranges: Sequence[SplitRange]
    ) -> Iterator[tuple[SplitEnumerator, Sequence[SplitRange]]]:
        """The ranges of each source; raises TransactionLostError if the job has removed it."""
        for source_id, mine in busy_by_source(ranges).items():
            source = self.sources.get(source_id)
            if source is None:
                raise _gone(checkpoint_id, mine, "the job no longer reads this source")
            yield source, mine


def _gone(checkpoint_id: int, ranges: Iterable[SplitRange], why: object) -> TransactionLostError:
    return TransactionLostError(
        "a lost transaction cannot be written again: its input has changed",
        {
            "checkpoint_id": checkpoint_id,
            "ranges": " ".join(f"{s.name}:[{s.start_offset},{s.end_offset})" for s in ranges),
            "reason": why,
        },
        "Run 'sluice checkpoint accept-loss', write the missing records yourself, then start the "
        "job. Nothing of it was committed.",
    )


def discard(abort: Callable[[StateEntry], object], written: Iterable[StateEntry]) -> None:
    """Abort new work of a failed repair. No record names it and it belongs to the newest attempt,
    so no sweep would free its readers before the next start."""
    for entry in written:
        try:
            abort(entry)
        except StreamError as err:  # the next start sweeps it; the caller raises the cause
            log.warning("repair stays unfinished: sink=%s error=%s", entry.operator_id, err)
