"""Which transactional ids of one worker process may be initialised, are ready, or are in use. Pure.

An id belongs to one living process (`ids-never-reused`), and `init_transactions` aborts whatever is
open under it. So a slot that had a transaction is used again only when that transaction is
certainly over: its checkpoint is committed on record, or the broker acknowledged its abort.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sluice.runtime.contracts import TaskScope
from sluice.runtime.errors import IllegalTransitionError, UnreachableError

__all__ = [
    "IDS_PER_TASK",
    "KeptSlot",
    "NoIdLeftError",
    "SlotEvent",
    "SlotState",
    "SlotTable",
    "advance",
]

IDS_PER_TASK = 3
"""Undecided, being written, prepared: a task never needs more ids (`ids-never-reused`).

If a task's epochs overlap, it has one undecided transaction for each pending checkpoint, and a job
has one of those: `CheckpointSettings.max_concurrent`, which `Job` does not offer.
"""

_MOST_READY = 4


class NoIdLeftError(UnreachableError):
    """Waiting does not help: ids become free with checkpoints that the task's next batch learns
    of."""


class SlotState(enum.Enum):
    """State of an id of this process."""

    FREE = "free"  # Without a transaction: may be initialised.
    PREPARING = "preparing"  # init_transactions is running.
    READY = "ready"  # Initialised, without a transaction.
    OPEN = "open"  # A writer has it.
    ENDING = "ending"  # Its epoch has ended, and is flushed while the next is written.
    SPENT = "spent"  # Its transaction may be decided: do not use it.
    RETIRED = "retired"  # A request to initialise it may still arrive: never used.


class SlotEvent(enum.Enum):
    """Event of an id."""

    PREPARE = "prepare"
    PREPARED = "prepared"
    FAILED = "failed"  # The broker refused init_transactions, or it was never sent.
    UNANSWERED = "unanswered"  # init_transactions was given up, and may yet take effect.
    DISCARD = "discard"  # A ready producer is too old.
    TAKE = "take"
    END = "end"  # Its writer gets no further record, and stays open.
    ABORTED = "aborted"  # The broker acknowledged it, or there was no transaction.
    SPEND = "spend"  # Pre-committed, or left open by its writer.
    GIVEN_UP = "given up"  # Its abort, or the request after it, has no acknowledgement.
    COMMITTED = "committed"  # The batch's checkpoint is committed on record.


TRANSITIONS: Mapping[tuple[SlotState, SlotEvent], SlotState] = {
    (SlotState.FREE, SlotEvent.PREPARE): SlotState.PREPARING,
    (SlotState.PREPARING, SlotEvent.PREPARED): SlotState.READY,
    (SlotState.PREPARING, SlotEvent.FAILED): SlotState.FREE,  # it never had a transaction
    # The request may lie in a paused broker's socket or be repeated by the network. It would then
    # abort whatever the id's next producer has started, decided or not.
    (SlotState.PREPARING, SlotEvent.UNANSWERED): SlotState.RETIRED,
    (SlotState.READY, SlotEvent.DISCARD): SlotState.FREE,
    (SlotState.READY, SlotEvent.TAKE): SlotState.OPEN,
    (SlotState.OPEN, SlotEvent.ABORTED): SlotState.FREE,
    (SlotState.OPEN, SlotEvent.SPEND): SlotState.SPENT,
    # The client initialises an id again after an abort; the sweep ends open transactions.
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
            "Stop the job, keep its log, restart it, and report this bug in the producer pool.",
        )
    return target


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSlot:
    """An id as a later process finds it; batch and checkpoint are those of its last transaction."""

    state: SlotState
    batch_id: int
    checkpoint_id: int


@dataclass(slots=True)
class _Slot:
    state: SlotState = SlotState.FREE
    batch_id: int = -1
    checkpoint_id: int = -1
    is_inherited: bool = False  # it has the last transaction of an ended process


class SlotTable:
    """The slots of one pool. Executor; the pool's lock guards it; no I/O but ``keep``.

    Args:
        kept: of the ended process that has used these ids before.
        keep: notes a slot's state for the next process, before the change has an effect.
    """

    def __init__(
        self,
        kept: Sequence[KeptSlot] = (),
        *,
        keep: Callable[[int, KeptSlot], None] = lambda _number, _slot: None,
    ) -> None:
        self._slots = [
            _Slot(
                each.state,
                each.batch_id,
                each.checkpoint_id,
                is_inherited=each.state is SlotState.SPENT,
            )
            for each in kept
        ]
        self._keep = keep
        self._batch_id = -1
        self._tasks: set[str] = set()
        self._tasks_before = 1
        self._most_tasks = 1

    def enter(self, scope: TaskScope) -> list[int]:
        """A task of a batch starts: free committed ids; returns slots that dead writers left open.

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
        """Slots to initialise now, moved to PREPARING; at most as many as the limit of ids allows.

        Args:
            at_least: number that must be ready or in preparation, whatever was needed before.
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
                slot.batch_id = scope.batch.batch_id
                slot.checkpoint_id = scope.checkpoint_id
                self._advance(number, SlotEvent.TAKE)
                return number
        return None

    def record(self, slot: int, event: SlotEvent) -> None:
        """An event of a slot that the pool was given."""
        self._advance(slot, event)

    def state(self, slot: int) -> SlotState:
        """State of a slot."""
        return self._slots[slot].state

    @property
    def has_usable_id(self) -> bool:
        """Whether an id is ready, or about to be."""
        return bool(self._count(SlotState.READY) + self._count(SlotState.PREPARING))

    def require_usable_id(self) -> None:
        """Raise if a task waits for an id that can never come."""
        if self.has_usable_id:
            return
        raise NoIdLeftError(
            "the outcome of every transaction of this task is unknown",
            {"ids": len(self._slots), "batch_id": self._batch_id},
            "Check that the brokers answer; the region restarts with new ids.",
        )

    def __len__(self) -> int:
        return len(self._slots)

    def _free_slot(self) -> int | None:
        for number, slot in enumerate(self._slots):
            if slot.state is SlotState.FREE:
                return number
        inherited = sum(slot.is_inherited for slot in self._slots)
        usable = len(self._slots) - self._count(SlotState.RETIRED) - inherited
        if usable >= IDS_PER_TASK * self._most_tasks:
            return None
        self._slots.append(_Slot())  # kept with its first event, before its first request
        return len(self._slots) - 1

    def _count(self, state: SlotState) -> int:
        return sum(slot.state is state for slot in self._slots)

    def _advance(self, number: int, event: SlotEvent) -> None:
        slot = self._slots[number]
        state = advance(slot.state, event, slot=number)
        kept = KeptSlot(state=state, batch_id=slot.batch_id, checkpoint_id=slot.checkpoint_id)
        self._keep(number, kept)  # it may refuse: then the slot stays as it was
        slot.state = state
        slot.is_inherited = slot.is_inherited and event is not SlotEvent.COMMITTED


def _is_over(slot: _Slot, scope: TaskScope) -> bool:
    if scope.committed_batch is not None:  # the slot's checkpoint was unknown when it was taken
        return slot.batch_id <= scope.committed_batch
    return slot.checkpoint_id <= scope.committed_through and slot.batch_id < scope.batch.batch_id
