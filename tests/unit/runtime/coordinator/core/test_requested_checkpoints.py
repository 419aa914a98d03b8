"""Checkpoints that somebody asks for: when they begin, and what they wait for."""

from dataclasses import replace

from sluice.runtime.coordinator.core.events import Publish, Triggered
from sluice.runtime.model.checkpoint_record import CheckpointKind, Verdict
from tests.kit.coordinator.core_driver import FAST, CoreDriver


def test_a_savepoint_waits_until_the_checkpoint_before_it_has_its_decision() -> None:
    driver = CoreDriver(replace(FAST, max_concurrent=1))
    driver.tick()
    barrier = driver.poll(3)
    driver.trigger(CheckpointKind.SAVEPOINT, "somebody")
    assert not driver.seen(Triggered)
    driver.ack(barrier)
    (triggered,) = driver.seen(Triggered)
    assert triggered.kind is CheckpointKind.SAVEPOINT
    driver.ack(driver.poll(3))
    decided = driver.seen(Publish)[-1]
    assert (decided.checkpoint_id, decided.kind) == (
        triggered.checkpoint_id,
        CheckpointKind.SAVEPOINT,
    )


def test_a_savepoint_does_not_wait_for_a_query_that_has_nothing_to_read() -> None:
    driver = CoreDriver(replace(FAST, interval_s=None))
    driver.ack()
    driver.trigger(CheckpointKind.SAVEPOINT, "somebody")
    first, savepoint = driver.seen(Publish)
    assert (savepoint.kind, savepoint.verdict) == (CheckpointKind.SAVEPOINT, Verdict.DECIDED)
    assert [r.batch_id for r in first.regions] == [1]
    assert [r.committables for r in savepoint.regions] == [()]
