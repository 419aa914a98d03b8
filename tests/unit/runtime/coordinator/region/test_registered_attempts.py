"""Rule `ids-never-reused`: what tasks opened is remembered until no sweep can need it."""

import pytest

from sluice.runtime.contracts import RegisteredAttempt
from sluice.runtime.coordinator.region.region_state import Fate, RegisteredAttempts
from sluice.runtime.errors import FencedError
from sluice.runtime.model.splits import BatchKey
from tests.kit.coordinator.core_driver import FAST, CoreDriver

BATCH = BatchKey(region="r", attempt_id=1, batch_id=4)


def _attempt(number: int = 0, *, batch: BatchKey = BATCH) -> RegisteredAttempt:
    return RegisteredAttempt(batch=batch, operator_id="sink", resource=f"id-{number}|7|0")


def test_ids_never_reused_an_attempt_of_a_paused_worker_is_offered_for_a_quarter_of_an_hour() -> (
    None
):
    """A task that goes on after its batch was committed without it opens a transaction that no
    decision names; readers must not wait for it until it times out."""
    book = RegisteredAttempts()
    book.add(_attempt())
    offered = [book.orphans(lambda _: Fate.SETTLED) for _ in range(90)]
    assert set(offered) == {(_attempt(),)}


def test_what_is_remembered_has_a_bound() -> None:
    """A job that runs for a year keeps no list of everything it ever opened."""
    book = RegisteredAttempts()
    for batch_id in range(200):
        batch = BatchKey(region="r", attempt_id=1, batch_id=batch_id)
        book.add(_attempt(batch_id, batch=batch))
        book.orphans(lambda _: Fate.SETTLED)
    assert len(book) < 100


def test_a_living_batch_is_offered_to_no_sweep() -> None:
    """Its transaction may be the one that the next decision names."""
    book = RegisteredAttempts()
    book.add(_attempt())
    assert book.orphans(lambda _: Fate.OPEN) == ()
    assert len(book) == 1


def test_ids_never_reused_a_late_attempt_of_a_decided_batch_may_not_begin() -> None:
    """Speculation, or a task that was thought lost: no decision can name what it would open."""
    driver = CoreDriver(FAST)
    driver.tick()
    barrier = driver.poll(3)
    batch = BatchKey(region="main", attempt_id=0, batch_id=1)
    driver.core.require_wanted(batch)
    driver.ack(barrier)
    with pytest.raises(FencedError, match="decided already"):
        driver.core.require_wanted(batch)


def test_ids_never_reused_an_attempt_of_an_older_life_is_not_remembered() -> None:
    """Older attempts are swept as a whole, whoever has told of what is in them."""
    book = RegisteredAttempts()
    book.add(_attempt())
    assert book.orphans(lambda _: Fate.OUTDATED) == ()
    assert len(book) == 0
