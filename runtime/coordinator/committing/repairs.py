"""Writing decided work again that a broker has aborted: ``on_lost="repair"``
(`two-phase-repair`)."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from sluice.runtime.checkpoint.lost_work import LostCommittables, lost_error
from sluice.runtime.checkpoint.succession import taken_over
from sluice.runtime.contracts import MetadataStore, PublishOutcome, SinkCoordinator, SplitEnumerator
from sluice.runtime.coordinator.core.events import Repair
from sluice.runtime.errors import (
    DataLostError,
    SourceChangedError,
    StorageError,
    StreamError,
    TransactionLostError,
    UnreachableError,
)
from sluice.runtime.model.model import SplitRange, StateEntry, busy_by_source

__all__ = ["Repaired", "Repairer", "Repairs", "discard"]

log = logging.getLogger(__name__)

_LOOK_S = 30.0

Repaired = tuple[PublishOutcome, Mapping[bytes, StateEntry]]
"""Whether the repair is on record, and what replaces what: lost payload -> new committable."""


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

        Only asked for regions whose records are a function of their ranges, and once per loss and
        run: work of a run that crashed in between belongs to an older attempt and is swept.

        Returns:
            For each lost committable's payload the one that replaces it, with as many records.
        Raises:
            Exception: it cannot be written again exactly, and nothing that was written is open.
        """
        ...

    def ranges(self, lost: LostCommittables) -> tuple[SplitRange, ...]:
        """What is read for it: of all that the region read, what the lost work was made of."""
        ...


class Repairs:
    """Both phases of a repair (`two-phase-repair`). Runs in whichever thread settles.

    What was written again is kept until its record is durable: a second try publishes the same
    work, for another copy of it would stay open, and hold back readers, until the next run.

    A name may stand for another log by now: it is asked for behind the reading, by which it is
    known what was read. Whether all of it is there is asked before: else it would be waited for.

    ``is_taken_over``: whether another run has sealed behind this one; asked behind the writing,
    which may take long.
    """

    def __init__(
        self,
        repairer: Repairer | None,
        store: MetadataStore,
        *,
        sinks: Mapping[str, SinkCoordinator],
        sources: Mapping[str, SplitEnumerator],
        session: str,
        job_uid: str,
        attempt_id: int,
        timeout_s: float,
        is_taken_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_taken_over = is_taken_over
        self._repairer = repairer
        self._store = store
        self._sinks = sinks
        self._sources = sources
        self._session = session
        self._job_uid = job_uid
        self._attempt_id = attempt_id
        self._timeout_s = timeout_s
        self._written: dict[Repair, dict[bytes, StateEntry]] = {}

    def run(self, action: Repair) -> Generator[str, None, Repaired]:
        """What was written, and whether it is on record: OURS, UNKNOWN (ask again), or TAKEN:
        another run has repaired the same."""
        replaced = self._written.get(action)
        if replaced is None:
            replaced = self._written[action] = self._write(action)
        yield "after-rewrite"  # a crash here leaves work that no record names: it is swept
        try:
            if self._is_taken_over():
                # It settles this itself, and has told the loss, perhaps; its sweep takes ours.
                raise taken_over(action.checkpoint_id)
            outcome = self._store.publish_repair(
                action.checkpoint_id, replaced, session=self._session
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
                "lost transactions are written again, and on record: checkpoint_id=%d regions=%s",
                action.checkpoint_id,
                ",".join(lost.region.region for lost in action.lost),
            )
        return outcome, replaced

    def _write(self, action: Repair) -> dict[bytes, StateEntry]:
        repairer = self._repairer
        if repairer is None:
            raise lost_error(action.checkpoint_id, action.lost, ())
        replaced: dict[bytes, StateEntry] = {}
        try:
            for lost in action.lost:
                self._require_whole(action.checkpoint_id, repairer.ranges(lost))
                replaced |= repairer.repair(
                    action.checkpoint_id,
                    lost,
                    job_uid=self._job_uid,
                    # Not below the region's own, or a sweep would take it before it is on record.
                    attempt_id=max(self._attempt_id, lost.region.attempt_id),
                    timeout_s=self._timeout_s,
                )
                self._require_readable(action.checkpoint_id, repairer.ranges(lost))
        except BaseException:
            discard(self._sinks, replaced.values(), timeout_s=self._timeout_s)
            raise
        return replaced

    def _require_whole(self, checkpoint_id: int, ranges: Sequence[SplitRange]) -> None:
        """Raises TransactionLostError where a log was cut off since: its reader would wait for the
        rest, at each start again."""
        for source, mine in self._by_source(checkpoint_id, ranges):
            try:
                found = source.replayable(mine, timeout_s=_LOOK_S)
            except (DataLostError, SourceChangedError) as err:
                raise _gone(checkpoint_id, mine, err) from err
            ends = {split.key: split.end_offset for split in found}
            gone = [s for s in mine if ends.get(s.key, s.start_offset) < s.known_end]
            if gone:
                raise _gone(checkpoint_id, gone, "a part of it is not there any more")

    def _require_readable(self, checkpoint_id: int, ranges: Sequence[SplitRange]) -> None:
        """Raises TransactionLostError where what was read was not what the ranges were cut from."""
        for source, mine in self._by_source(checkpoint_id, ranges):
            try:
                found = source.readable(mine, timeout_s=_LOOK_S)
            except SourceChangedError as err:
                raise _gone(checkpoint_id, mine, err) from err
            gone = [split for split in mine if split not in found]
            if gone:
                raise _gone(checkpoint_id, gone, "it is not there any more")

    def _by_source(
        self, checkpoint_id: int, ranges: Sequence[SplitRange]
    ) -> Iterator[tuple[SplitEnumerator, Sequence[SplitRange]]]:
        """What is read of each; raises TransactionLostError where the job has it no more."""
        for source_id, mine in busy_by_source(ranges).items():
            source = self._sources.get(source_id)
            if source is None:
                raise _gone(checkpoint_id, mine, "the job reads it no more")
            yield source, mine


def _gone(checkpoint_id: int, ranges: Iterable[SplitRange], why: object) -> TransactionLostError:
    return TransactionLostError(
        "a lost transaction cannot be written again: its input is not what it was",
        {
            "checkpoint_id": checkpoint_id,
            "ranges": " ".join(f"{s.name}:[{s.start_offset},{s.end_offset})" for s in ranges),
            "reason": why,
        },
        "Nothing of it was committed. 'sluice checkpoint accept-loss' lets the job start; write "
        "what is missing by hand before that.",
    )


def discard(
    sinks: Mapping[str, SinkCoordinator], written: Iterable[StateEntry], *, timeout_s: float
) -> None:
    """Abort what was written again and will not be put on record: no record names it, it is of the
    newest attempt, and so no sweep would free its readers before the next start."""
    for entry in written:
        try:
            sinks[entry.operator_id].committer.abort([entry], timeout_s=timeout_s)
        except StreamError as err:  # whoever starts next sweeps it; what went wrong is raised
            log.warning("a repair is left open: sink=%s error=%s", entry.operator_id, err)
