"""Keyed functions and their state in one task attempt: epochs, splits that come and go, files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.runtime.contracts.keyed import BarrierTime, KeyBy, TaskTables
from sluice.runtime.errors import ConfigError, DamagedCheckpointError, IllegalTransitionError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.keyed.keyed_run import KeyedOperators, KeyedRun
from sluice.runtime.keyed.processing_clock import ProcessingClock
from sluice.runtime.model.splits import BatchKey, SplitKey, SplitRange
from sluice.runtime.model.state.key_groups import murmur2
from sluice.runtime.model.state.key_sample import KeySample
from sluice.runtime.model.state.keyed_state import Due, KeyedState, StateTableInfo
from sluice.runtime.model.timestamps import later
from sluice.runtime.state.task_state import EpochChanges

__all__ = ["EndedState", "EpochWriter", "KeyedTask", "SwitchedState", "numbered_tables"]

_POSITIVE = 0x7FFFFFFF


class SwitchedState(TaskTables, Protocol):
    """The part of `sluice.runtime.state.task_state.TaskState` that a `KeyedTask` uses."""

    @property
    def is_full(self) -> bool:
        """See `TaskState`; so are all of these."""
        ...

    def add_splits(self, splits: Mapping[SplitKey, KeyedState | None]) -> None:
        """Load splits."""
        ...

    def drop_split(self, key: SplitKey) -> None:
        """Forget a split."""
        ...

    def rollback(self) -> None:
        """Forget the epoch under way."""
        ...

    def end_epoch(self) -> EpochChanges:
        """Freeze the epoch, and begin the next one."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class EpochWriter(Protocol):
    """The part of `sluice.runtime.state.state_writer.StateWriter` that an `EndedState` uses."""

    def write_epoch(
        self, batch_id: int, changes: EpochChanges, declared: KeyedState, at: BarrierTime
    ) -> KeyedState:
        """Write an epoch's changes; the state of its splits after them."""
        ...

    def close(self) -> None:
        """End its threads."""
        ...


@dataclass(frozen=True, slots=True)
class EndedState:
    """The keyed state of an epoch that has ended. Any thread.

    Attributes:
        changes: of the epoch.
        declared: tables and partitioning.
        time: of the barrier that ended it.
        due: when the functions want a barrier without records.
        key_samples: see `Acknowledgement`.
    """

    writer: EpochWriter
    changes: EpochChanges
    declared: KeyedState
    time: BarrierTime
    due: Due
    key_samples: tuple[KeySample, ...]

    def write(self, batch: BatchKey) -> KeyedState:
        """Write the epoch's changes; the state that its acknowledgement names.

        Raises:
            StorageError: the file system refuses, or is away for too long.
        """
        failpoint("before-state-written")
        batch_id = batch.batch_id
        state = self.writer.write_epoch(batch_id, self.changes, self.declared, self.time)
        failpoint("after-state-written")
        return state


class KeyedTask:
    """Executor, the task's thread.

    Args:
        functions: of the pipeline.
        source_id: of its splits.
        state: empty; closed with this.
        writer: of the ended epochs; closed with this.
        restored: in the record that the attempt begins with: the state of ``splits``.
        splits: that the task begins with, at their positions.
        max_parallelism: number of key groups by which the writers of this run divide its rows; 0:
            keys belong to the input's partitions.
        time_column: see `sluice.runtime.contracts.keyed.OperatorScope`.
        job_name: for dead letters.
        clock: of rows whose barrier has not come yet.
    """

    def __init__(
        self,
        functions: Sequence[ChainedFunction],
        *,
        source_id: str,
        state: SwitchedState,
        writer: EpochWriter,
        restored: KeyedState | None,
        splits: Sequence[SplitRange],
        max_parallelism: int = 0,
        time_column: str | None = None,
        job_name: str = "",
        clock: ProcessingClock | None = None,
    ) -> None:
        self._clock = clock or ProcessingClock()
        before = restored or KeyedState()
        self._state, self._writer = state, writer
        self._tables = numbered_tables(functions, before.tables)
        self._max_parallelism = max_parallelism
        self._closed_ms: dict[SplitKey, int | None] = {}
        self._keys: dict[int, SplitKey] = {}
        self.adopt(splits, before.covering({split.key for split in splits}))
        self._operators = KeyedOperators(
            functions,
            source_id=source_id,
            tables=state,
            numbers=_numbers(self._tables),
            job_name=job_name,
            now_ms=self._clock.now_ms,
            closed_ms=self._closed,
            time_column=time_column,
        )

    @property
    def is_full(self) -> bool:
        """Whether the epoch has changed so much that its barrier should come first."""
        return self._state.is_full

    def begin_epoch(
        self, functions: Sequence[ChainedFunction] = (), *, now_ms: int | None = None
    ) -> KeyedRun:
        """The run of the next epoch.

        Args:
            functions: instead of those that are not keyed.
            now_ms: of its barrier; None: that is not known yet.
        """
        if now_ms is not None:
            self._clock.stop_at(now_ms)
        return self._operators.begin_epoch(functions)

    def adopt(self, splits: Sequence[SplitRange], new_state: KeyedState | None) -> None:
        """Have exactly these splits.

        Args:
            new_state: of each split that is new, and of those that another task has had.
        Raises:
            IllegalTransitionError: the state of a new split is missing, or has other numbers.
            DamagedCheckpointError: a file is not as the checkpoint names it. Or the state of a new
                split was divided by another number of key groups than its rows.
        """
        brought = new_state or KeyedState()
        wanted = {split.key: split for split in splits}
        given = {split.key for split in brought.splits}
        kept = self._closed_ms.keys() & (wanted.keys() - given)
        new = wanted.keys() - kept
        missing = sorted(new - given)
        if missing or not _agree(brought.tables, self._tables):
            raise IllegalTransitionError(
                "the barrier lacks the keyed state of a split, or its tables differ",
                {"splits": ",".join(f"{topic}-{number}" for _, topic, number in missing)},
                "Let the region restart: its next attempt loads the state of all its splits.",
            )
        self._require_key_groups(brought.of(new))
        for key in self._closed_ms.keys() - kept:
            del self._closed_ms[key]
            self._state.drop_split(key)
        states = {key: brought.of({key}) for key in sorted(new)}
        self._state.add_splits({k: s if s.files else None for k, s in states.items()})
        self._closed_ms |= {key: wanted[key].barrier_watermark_ms for key in new}
        self._keys = {self._state.ordinal(key): key for key in self._closed_ms}

    def _require_key_groups(self, brought: KeyedState) -> None:
        """Refuse state of keys whose rows go to other splits."""
        has_state = any(split.parts for split in brought.splits)
        if has_state and self._max_parallelism not in (0, brought.max_parallelism):
            names = sorted(f"{split.topic}-{split.partition}" for split in brought.splits)
            raise DamagedCheckpointError(
                "keyed state has another number of key groups than its rows",
                {
                    "splits": ",".join(names),
                    "state": brought.max_parallelism,
                    "rows": self._max_parallelism,
                },
                "Start from an older checkpoint, and report this one: keys would begin without "
                "their state.",
            )

    def restart_at(self, splits: Sequence[SplitRange]) -> None:
        """Continue with the present state, at these positions of its splits: the last epoch may
        not count."""
        self._closed_ms = {split.key: split.barrier_watermark_ms for split in splits}

    def end_epoch(self, time: BarrierTime) -> EndedState:
        """Freeze the state of the epoch, whose output is complete; the next one begins."""
        watermark_ms, due = time.watermark_ms, self._operators.due()
        self._clock.note_barrier(time.now_ms)
        for key, closed_ms in self._closed_ms.items():
            self._closed_ms[key] = later(closed_ms, watermark_ms)
        return EndedState(
            writer=self._writer,
            changes=self._state.end_epoch(),
            declared=KeyedState(max_parallelism=self._max_parallelism, tables=self._tables),
            time=time,
            due=due,
            key_samples=self._operators.key_partitions.samples(),
        )

    def rollback(self) -> None:
        """Forget the epoch under way: it is read again."""
        self._operators.rollback()
        self._state.rollback()

    def close(self) -> None:
        """Free memory, threads and local files."""
        self._writer.close()
        self._state.close()

    def _closed(self, ordinal: int) -> int | None:
        return self._closed_ms[self._keys[ordinal]]


# --- the numbers of tables ------------------------------------------------------------------------


def numbered_tables(
    functions: Iterable[ChainedFunction], restored: Iterable[StateTableInfo]
) -> tuple[StateTableInfo, ...]:
    """Every declared state with its number: that on record, or one made of its name.

    A state on record that a restore has dropped has no operator, and stays: files may have its
    entries, so no other state may get its number.

    Raises:
        ConfigError: two states would have one number.
    """
    before_now = list(restored)
    known = {(table.operator_id, table.name): table for table in before_now}
    found = {table.number: table for table in before_now if not table.operator_id}
    for function in functions:
        if function.keyed is None or isinstance(function.keyed, KeyBy):
            continue
        for spec in function.keyed.tables:
            before = known.get((function.operator_id, spec.name))
            table = StateTableInfo(
                number=_number(function, spec.name) if before is None else before.number,
                operator_id=function.operator_id,
                name=spec.name,
                kind=spec.kind,
                key_schema=spec.key_schema or (before.key_schema if before else ""),
                value_schema=spec.value_schema or (before.value_schema if before else ""),
            )
            if table.number in found:
                raise ConfigError(
                    "two states of keyed functions have the same number",
                    {"function": function.name, "state": spec.name, "number": table.number},
                    "Rename this state, or give its function a uid.",
                )
            found[table.number] = table
    return tuple(found.values())


def _number(function: ChainedFunction, name: str) -> int:
    return murmur2(f"{function.operator_id}/{name}".encode()) & _POSITIVE


def _numbers(tables: Iterable[StateTableInfo]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for table in tables:
        found.setdefault(table.operator_id, {})[table.name] = table.number
    return found


def _agree(brought: Iterable[StateTableInfo], own: Iterable[StateTableInfo]) -> bool:
    """Whether the same states have the same numbers. States that a restore has dropped have no
    operator, so several of them may have one name."""
    numbers = {(table.operator_id, table.name): table.number for table in own if table.operator_id}
    return all(numbers.get((t.operator_id, t.name), t.number) == t.number for t in brought)
