"""Rule `ids-never-reused` step by step: when an id may be initialised again, and how many there
are."""

import inspect
from dataclasses import replace
from itertools import product

import pytest

from sluice.connectors.kafka.sink.producers.producer_slots import (
    IDS_PER_TASK,
    TRANSITIONS,
    SlotEvent,
    SlotState,
    SlotTable,
    advance,
)
from sluice.runtime.contracts import TaskScope
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings
from sluice.runtime.errors import IllegalTransitionError, UnreachableError
from sluice.runtime.job.job import Job
from tests.kit.kafka.producer_pools import scope


def used_slot(book: SlotTable, task: TaskScope) -> int:
    """Take a slot for a task and leave a pre-committed transaction in it."""
    book.enter(task)
    for prepared in book.to_prepare(at_least=1):
        book.record(prepared, SlotEvent.PREPARED)
    slot = book.take(task)
    assert slot is not None
    book.record(slot, SlotEvent.SPEND)
    return slot


@pytest.mark.parametrize(("state", "event"), list(product(SlotState, SlotEvent)))
def test_every_pair_of_state_and_event_is_in_the_table_or_refused(
    state: SlotState, event: SlotEvent
) -> None:
    """A slot changes in one place only; what the table does not have is a bug that says so."""
    if (state, event) in TRANSITIONS:
        assert advance(state, event, slot=0) is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransitionError):
            advance(state, event, slot=0)


def test_an_id_rests_until_its_checkpoint_is_committed_on_record() -> None:
    """Rule `ids-never-reused`: `init_transactions` would abort what is decided but not yet
    committed."""
    book = SlotTable()
    slot = used_slot(book, scope())
    book.enter(scope(batch_id=1, checkpoint_id=2, committed_through=0))
    assert book.state(slot) is SlotState.SPENT
    book.enter(scope(batch_id=2, checkpoint_id=3, committed_through=1))
    assert book.state(slot) is SlotState.FREE


def test_an_id_of_a_late_batch_rests_although_its_hinted_checkpoint_is_over() -> None:
    """Rule `batch-identity`: the checkpoint id is a hint; the batch may be decided in a later
    checkpoint."""
    book = SlotTable()
    slot = used_slot(book, scope(batch_id=5, checkpoint_id=5, committed_through=4))
    book.enter(scope(batch_id=5, checkpoint_id=6, committed_through=5, task="1.0"))
    assert book.state(slot) is SlotState.SPENT


def test_an_id_rests_until_its_batch_is_committed_where_its_checkpoint_was_not_known() -> None:
    """Rule `ids-never-reused`: a long task begins an epoch before its barrier; its scope says
    which are over."""
    book = SlotTable()
    slot = used_slot(book, scope(batch_id=3))
    for committed, state in [(2, SlotState.SPENT), (3, SlotState.FREE)]:
        task = scope(batch_id=4, checkpoint_id=9, committed_through=8)
        book.enter(replace(task, committed_batch=committed))
        assert book.state(slot) is state


def test_an_id_that_a_dead_writer_left_is_given_up_and_a_living_ones_is_not() -> None:
    """By a task of a later batch: one of the same batch runs beside its neighbours, and a writer
    whose epoch has ended still flushes it while the next one is written."""
    book = SlotTable()
    book.enter(scope())
    for slot in book.to_prepare(at_least=2):
        book.record(slot, SlotEvent.PREPARED)
    left, ended = book.take(scope()), book.take(scope())
    assert left is not None
    assert ended is not None
    book.record(ended, SlotEvent.END)
    assert book.enter(scope(task="1.0")) == []
    assert book.enter(scope(batch_id=1)) == [left]


def test_a_task_whose_transactions_rest_gets_three_ids_and_then_an_error() -> None:
    """The bound of rule `ids-never-reused` holds when no checkpoint is committed."""
    book = SlotTable()
    used = {used_slot(book, scope(task=f"0.{attempt}")) for attempt in range(IDS_PER_TASK)}
    assert used == set(range(IDS_PER_TASK))
    assert book.to_prepare(at_least=1) == []
    with pytest.raises(UnreachableError, match="the outcome of every transaction"):
        book.require_usable_id()


def test_steady_batches_of_one_task_need_two_ids() -> None:
    """2,000 epochs leave 2 ids behind: one was made ready while the other was written."""
    book = SlotTable()
    for batch in range(100):
        used_slot(book, scope(batch_id=batch, checkpoint_id=batch + 1, committed_through=batch))
        for slot in book.to_prepare():
            book.record(slot, SlotEvent.PREPARED)
    assert len(book) == 2


def test_as_many_are_made_ready_as_the_last_batch_had_tasks() -> None:
    """A worker that runs three tasks of a batch one after the other waits for none of them."""
    book = SlotTable()
    for task in range(3):
        used_slot(book, scope(task=f"{task}.0"))
    book.enter(scope(batch_id=1, checkpoint_id=2, committed_through=1))
    assert len(book.to_prepare(at_least=1)) == 3


def test_ids_without_an_answer_do_not_use_up_the_three_of_a_task() -> None:
    """An outage of any length leaves the task able to go on."""
    book = SlotTable()
    book.enter(scope())
    for _ in range(2 * IDS_PER_TASK):
        (slot,) = book.to_prepare(at_least=1)
        book.record(slot, SlotEvent.UNANSWERED)
    assert len(book.to_prepare(at_least=1)) == 1


def test_ids_never_reused_a_task_has_an_id_for_each_epoch_that_a_job_can_have_open() -> None:
    """One undecided for each checkpoint under way, one being written, one made ready. A job has one
    checkpoint under way, and nothing to change that."""
    assert CheckpointSettings().max_concurrent + 2 == IDS_PER_TASK
    assert "max_concurrent" not in inspect.signature(Job).parameters
