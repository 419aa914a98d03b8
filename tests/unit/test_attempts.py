"""Rule 4: what tasks opened is remembered until no sweep can need it."""

from runtime.checkpoint.attempts import AttemptBook
from runtime.checkpoint.regions import Fate
from runtime.contracts import RegisteredAttempt
from runtime.model import BatchKey

BATCH = BatchKey(region="r", generation=1, batch_id=4)


def _attempt(number: int = 0, *, batch: BatchKey = BATCH) -> RegisteredAttempt:
    return RegisteredAttempt(batch=batch, operator_id="sink", resource=f"id-{number}|7|0")


def test_rule_4_an_attempt_of_a_paused_worker_is_offered_for_a_quarter_of_an_hour() -> None:
    """A task that goes on after its batch was committed without it opens a transaction that no
    decision names; readers must not wait for it until it times out."""
    book = AttemptBook()
    book.add(_attempt())
    offered = [book.orphans(lambda _: Fate.SETTLED) for _ in range(90)]
    assert set(offered) == {(_attempt(),)}


def test_what_is_remembered_has_a_bound() -> None:
    """A job that runs for a year keeps no list of everything it ever opened."""
    book = AttemptBook()
    for batch_id in range(200):
        batch = BatchKey(region="r", generation=1, batch_id=batch_id)
        book.add(_attempt(batch_id, batch=batch))
        book.orphans(lambda _: Fate.SETTLED)
    assert len(book) < 100


def test_a_living_batch_is_offered_to_no_sweep() -> None:
    """Its transaction may be the one that the next decision names."""
    book = AttemptBook()
    book.add(_attempt())
    assert book.orphans(lambda _: Fate.OPEN) == ()
    assert len(book) == 1
