"""Writes what ended epochs changed, and keeps the list of parts of each split short."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from sluice.runtime.contracts.keyed import BarrierTime
from sluice.runtime.errors import StorageError, StorageUnreachableError, StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.splits import SplitKey
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.state.background_merger import BackgroundMerger, MergeRun
from sluice.runtime.state.codec.expiry import ExpiryTimes, expiry_times
from sluice.runtime.state.codec.schema_text import expiry_clock
from sluice.runtime.state.merge_plan import first_to_merge
from sluice.runtime.state.state_files import StateStore, state_file_name
from sluice.runtime.state.state_parts import PlacedPart, keyed_state, placed_parts
from sluice.runtime.state.state_rows import changed_rows
from sluice.runtime.state.task_state import EpochChanges

__all__ = ["StateWriter"]

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
_WEIGHT = 0.1
_LIVE_SHARE = 4
_MOST_PARTS = 32  # of a split: then the next acknowledgement waits for the merge that runs
_MOST_TRIES = 3  # of a merge that this acknowledgement needs
_MERGE_STEP_S = 5.0
_MOST_STEPS = 120  # without a row


@dataclass(slots=True)
class _Split:
    """Attributes:
    parts: oldest first.
    usual_bytes: of a section of its changes; a moving average.
    """

    parts: list[PlacedPart]
    usual_bytes: float = 0.0

    def add(self, part: PlacedPart) -> None:
        weight = _WEIGHT if self.usual_bytes else 1.0
        self.usual_bytes += weight * (part.length - self.usual_bytes)
        self.parts.append(part)


class StateWriter:
    """Writes one change file for each epoch of a task attempt. The checkpoint client's thread.

    Whatever ends the attempt: a file is named by a record, or by none, and then a sweep deletes
    it. So a failed write is repeated under another name.
    """

    def __init__(
        self,
        store: StateStore,
        *,
        region: str,
        attempt_id: int,
        on_outage: Callable[[StorageUnreachableError], None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Args:
        on_outage: called between tries while the store does not answer; raises to end the wait.
        """
        self._store = store
        self._region = region
        self._attempt_id = attempt_id
        self._on_outage = on_outage
        self._sleep = sleep
        self._splits: dict[SplitKey, _Split] = {}
        self._merger = BackgroundMerger(store)

    def write_epoch(
        self, batch_id: int, changes: EpochChanges, declared: KeyedState, at: BarrierTime
    ) -> KeyedState:
        """Write an epoch's changes; the state that the region's record names then.

        Args:
            declared: the tables and the partitioning.
            at: the barrier that ended the epoch; a base leaves out entries that have expired.
        Raises:
            StreamError: of ``on_outage``, or the store refuses the file: the attempt ends.
        """
        clocks = {info.number: expiry_clock(info.value_schema) for info in declared.tables}
        expired = expiry_times({n: clock for n, clock in clocks.items() if clock}, at)
        self._follow_splits(changes)
        self._bound_parts(lambda: self._begin_merge(batch_id, expired))
        self._take_merged()
        if any(split.tables.plain or split.tables.timed for split in changes.splits):
            self._write(batch_id, changes)
        if self._merger.may_begin():
            self._begin_merge(batch_id, expired)
        parts = {key: split.parts for key, split in self._splits.items()}
        return keyed_state(declared, parts)

    def close(self) -> None:
        """End the background thread. Safe to repeat."""
        self._merger.close()

    def _follow_splits(self, changes: EpochChanges) -> None:
        kept: dict[SplitKey, _Split] = {}
        for split in changes.splits:
            known = self._splits.get(split.key)
            if known is None or split.restored is not None:
                restored = placed_parts(split.restored) if split.restored else {}
                known = _Split(restored.get(split.key, []))
            kept[split.key] = known
        self._splits = kept

    # --- merges -----------------------------------------------------------------------------------

    def _begin_merge(self, batch_id: int, expired: ExpiryTimes) -> bool:
        runs = self._runs()
        if runs:
            self._merger.begin(self._new_path(batch_id, "merged"), runs, expired)
        return bool(runs)

    def _bound_parts(self, begin_merge: Callable[[], bool]) -> None:
        """If a split has many parts, wait for the merge that runs, and repeat one that has failed.
        Else the parts would grow with each epoch, and a restore with them.

        Raises:
            StreamError: merges fail, or make no progress: the attempt ends.
        """
        pause_s, tries = _FIRST_PAUSE_S, 0
        while any(len(split.parts) >= _MOST_PARTS for split in self._splits.values()):
            self._await_merge()
            self._take_merged()
            failure = self._merger.failure
            if failure is None:
                return
            if isinstance(failure, StorageUnreachableError):
                self._on_outage(failure)
            elif tries >= _MOST_TRIES:
                raise self._unmerged(failure)
            tries += 1
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            if not begin_merge():
                return

    def _await_merge(self) -> None:
        steps, progress = 0, self._merger.progress
        while not self._merger.wait(_MERGE_STEP_S):
            steps = steps + 1 if progress == self._merger.progress else 0
            progress = self._merger.progress
            error = StorageUnreachableError(
                "an epoch waits for a merge of state files",
                {"region": self._region, "merged_rows": progress, "idle_s": steps * _MERGE_STEP_S},
                "Wait; if the rows stay the same, check that the checkpoint store answers.",
            )
            if steps >= _MOST_STEPS:
                raise error
            self._on_outage(error)

    def _unmerged(self, failure: Exception) -> StreamError:
        if isinstance(failure, StreamError):
            return failure
        return StorageError(
            "state files cannot be merged",
            {
                "region": self._region,
                "parts": max(len(split.parts) for split in self._splits.values()),
                "error": f"{type(failure).__name__}: {failure}",
            },
            "Check the memory of the task and the checkpoint store, then start the job again.",
        )

    def _take_merged(self) -> None:
        for run, merged in self._merger.take():
            split = self._splits.get(run.key)
            at = _index_of(run.parts, split.parts) if split else None
            if split and at is not None:
                split.parts[at : at + len(run.parts)] = [merged]

    def _write(self, batch_id: int, changes: EpochChanges) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                sections = self._try_to_write(self._new_path(batch_id, "changes"), changes)
            except StorageUnreachableError as error:
                log.warning("the changes of an epoch are not written yet: error=%s", error)
                self._on_outage(error)
                self._sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            for key, part in sections.items():
                self._splits[key].add(part)
            return

    def _try_to_write(self, path: str, changes: EpochChanges) -> dict[SplitKey, PlacedPart]:
        writer = self._store.create(path)
        try:
            written = {
                split.key: writer.write_section(changed_rows(split.tables))
                for split in changes.splits
                if split.tables.plain or split.tables.timed
            }
            failpoint("before-state-file")
            file = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        failpoint("after-state-file")
        return {
            key: PlacedPart(file=file, offset=offset, length=length)
            for key, (offset, length) in written.items()
        }

    def _runs(self) -> list[MergeRun]:
        """The next merge: of each split all parts from some part on, or single parts of files that
        are mostly unused, so that these files can leave."""
        unused = self._mostly_unused()
        runs = []
        for key, split in self._splits.items():
            parts = split.parts
            sizes = [part.length for part in parts]
            first = first_to_merge(sizes, unit=split.usual_bytes or max(1, min(sizes, default=1)))
            if first is not None:
                runs.append(MergeRun(key=key, parts=tuple(parts[first:]), is_base=not first))
                continue
            runs += [
                MergeRun(key=key, parts=(part,), is_base=not at)
                for at, part in enumerate(parts)
                if part.file in unused
            ]
        return runs

    def _mostly_unused(self) -> set[FileReference]:
        used: dict[FileReference, int] = {}
        for split in self._splits.values():
            for part in split.parts:
                used[part.file] = used.get(part.file, 0) + part.length
        return {file for file, length in used.items() if _LIVE_SHARE * length < file.length_bytes}

    def _new_path(self, batch_id: int, kind: str) -> str:
        return state_file_name(self._region, self._attempt_id, batch_id, kind)


def _index_of(run: tuple[PlacedPart, ...], parts: list[PlacedPart]) -> int | None:
    """The index of a run in a split's parts; None: the split left and came back meanwhile."""
    if run[0] not in parts:
        return None
    at = parts.index(run[0])
    return at if tuple(parts[at : at + len(run)]) == run else None
