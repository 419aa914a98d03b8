"""Which transactional ids of one worker process may be initialised, are ready, or are in use. Pure.

An id belongs to one process for ever (`ids-never-reused`), and `init_transactions` aborts whatever
is open under it. So a slot that carried a transaction comes back only when that transaction is
certainly
over: its batch's checkpoint is committed on record, or the broker acknowledged its abort.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.runtime.contracts import TaskScope
from sluice.runtime.errors import IllegalTransitionError, UnreachableError

__all__ = ["IDS_PER_TASK", "NoIdLeftError", "SlotBook", "SlotEvent", "SlotState", "advance"]

IDS_PER_TASK = 3
"""Undecided, being written, made ready: more ids than that a task never needs (`ids-never-reused`).

A task whose epochs overlap has one undecided for each checkpoint under way, and of those a job has
one: `CheckpointSettings.max_concurrent`, which `Job` does not offer.
"""

_MOST_READY = 4


class NoIdLeftError(UnreachableError):
    """No wait helps: ids become free when checkpoints do that the task's next batch is told of."""


class SlotState(enum.Enum):
    """What an id of this process is doing."""

    FREE = "free"  # carries nothing: may be initialised
    PREPARING = "preparing"  # init_transactions is under way
    READY = "ready"  # initialised, no transaction begun
    OPEN = "open"  # a writer has it
    ENDING = "ending"  # its epoch has ended, and is flushed while the next one is written
    SPENT = "spent"  # carries a transaction that may be decided: hands off
    RETIRED = "retired"  # a request to initialise it may still arrive: never used


class SlotEvent(enum.Enum):
    """What happens to an id."""

    PREPARE = "prepare"
    PREPARED = "prepared"
    FAILED = "failed"  # init_transactions was refused by its broker, or never sent
    UNANSWERED = "unanswered"  # init_transactions was given up, and may yet happen
    DISCARD = "discard"  # a ready producer that grew too old
    TAKE = "take"
    END = "end"  # its writer gets no further record, and lives on
    ABORTED = "aborted"  # the broker acknowledged it, or no transaction was begun
    SPEND = "spend"  # pre-committed, or left behind by its writer
    GIVEN_UP = "given up"  # its abort was not acknowledged, nor what the client sends behind it
    COMMITTED = "committed"  # the batch's checkpoint is committed on record


TRANSITIONS: Mapping[tuple[SlotState, SlotEvent], SlotState] = {
    (SlotState.FREE, SlotEvent.PREPARE): SlotState.PREPARING,
    (SlotState.PREPARING, SlotEvent.PREPARED): SlotState.READY,
    (SlotState.PREPARING, SlotEvent.FAILED): SlotState.FREE,  # nothing was ever begun under it
    # It may lie in a paused broker's socket or be sent again by the network, and would then abort
    # whatever the id's next producer has begun, decided or not.
    (SlotState.PREPARING, SlotEvent.UNANSWERED): SlotState.RETIRED,
    (SlotState.READY, SlotEvent.DISCARD): SlotState.FREE,
    (SlotState.READY, SlotEvent.TAKE): SlotState.OPEN,
    (SlotState.OPEN, SlotEvent.ABORTED): SlotState.FREE,
    (SlotState.OPEN, SlotEvent.SPEND): SlotState.SPENT,
    # The client initialises an id anew behind an abort; the sweep ends what is open.
    (SlotState.OPEN, SlotEvent.GIVEN_UP): SlotState.RETIRED,
    (SlotState.OPEN, SlotEvent.END): SlotState.ENDING,
    (SlotState.ENDING, SlotEvent.ABORTED): SlotState.FREE,
    (SlotState.ENDING, SlotEvent.SPEND): SlotState.SPENT,
    (SlotState.ENDING, SlotEvent.GIVEN_UP): SlotState.RETIRED,
    (SlotState.SPENT, SlotEvent.COMMITTED): SlotState.FREE,
}


def advance(state: SlotState, event: SlotEvent, *, slot: int) -> SlotState:
    """Next state of a slot; pure."""
    target = TRANSITIONS.get((state, event))
    if target is None:
        raise IllegalTransitionError(
            f"{event.value!r} is not legal while a transactional id is {state.value!r}",
            {"slot": slot},
            "Bug in the producer pool: stop the job, keep its log, restart it.",
        )
    return target


@dataclass(slots=True)
class _Slot:
    state: SlotState = SlotState.FREE
    batch_id: int = -1
    checkpoint_id: int = -1


class SlotBook:
    """The slots of one pool. Executor; the pool's lock guards it; no I/O."""

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        self._batch_id = -1
        self._tasks: set[str] = set()
        self._tasks_before = 1
        self._most_tasks = 1

    def enter(self, scope: TaskScope) -> list[int]:
        """A task of a batch begins: free what is committed; returns slots left open by the dead.

        A slot is freed only for a *later batch* whose scope says that the checkpoint is committed:
        the checkpoint id alone is a hint, since a late batch may join a later one
        (`batch-identity`).
        """
        if scope.batch.batch_id > self._batch_id:
            self._batch_id = scope.batch.batch_id
            self._tasks_before = max(1, len(self._tasks))
            self._tasks = set()
        self._tasks.add(scope.task.partition(".")[0])
        self._most_tasks = max(self._most_tasks, len(self._tasks))
        for number, slot in enumerate(self._slots):
            if slot.state is SlotState.SPENT and _is_over(slot, scope):
                self._advance(number, SlotEvent.COMMITTED)
        return [
            number
            for number, slot in enumerate(self._slots)
            if slot.state is SlotState.OPEN and slot.batch_id < scope.batch.batch_id
        ]

    def to_prepare(self, *, at_least: int = 0) -> list[int]:
        """Slots to initialise now, moved to PREPARING; at most what the bound on ids allows.

        Args:
            at_least: how many must be ready or on their way, whatever was needed before.
        """
        wanted = max(at_least, min(_MOST_READY, self._tasks_before))
        chosen: list[int] = []
        while self._count(SlotState.READY) + self._count(SlotState.PREPARING) < wanted:
            number = self._free_slot()
            if number is None:
                break
            self._advance(number, SlotEvent.PREPARE)
            chosen.append(number)
        return chosen

    def take(self, scope: TaskScope) -> int | None:
        """A ready slot for a writer, or None."""
        for number, slot in enumerate(self._slots):
            if slot.state is SlotState.READY:
                self._advance(number, SlotEvent.TAKE)
                slot.batch_id = scope.batch.batch_id
                slot.checkpoint_id = scope.checkpoint_id
                return number
        return None

    def record(self, slot: int, event: SlotEvent) -> None:
        """What happened to a slot that the pool was given."""
        self._advance(slot, event)

    def state(self, slot: int) -> SlotState:
        """What a slot is doing."""
        return self._slots[slot].state

    def require_hope(self) -> None:
        """Raise when a task waits for an id that can never come."""
        if self._count(SlotState.READY) + self._count(SlotState.PREPARING):
            return
        raise NoIdLeftError(
            "every transactional id of this task holds a transaction whose end is unknown",
            {"ids": len(self._slots), "batch_id": self._batch_id},
            "The region restarts with new ids; check that the brokers answer.",
        )

    def __len__(self) -> int:
        return len(self._slots)

    def _free_slot(self) -> int | None:
        for number, slot in enumerate(self._slots):
            if slot.state is SlotState.FREE:
                return number
        usable = len(self._slots) - self._count(SlotState.RETIRED)
        if usable >= IDS_PER_TASK * self._most_tasks:
            return None
        self._slots.append(_Slot())
        return len(self._slots) - 1

    def _count(self, state: SlotState) -> int:
        return sum(slot.state is state for slot in self._slots)

    def _advance(self, number: int, event: SlotEvent) -> None:
        slot = self._slots[number]
        slot.state = advance(slot.state, event, slot=number)


def _is_over(slot: _Slot, scope: TaskScope) -> bool:
    if scope.committed_batch is not None:  # the slot's checkpoint was not known when it was taken
        return slot.batch_id <= scope.committed_batch
    return slot.checkpoint_id <= scope.committed_through and slot.batch_id < scope.batch.batch_id
