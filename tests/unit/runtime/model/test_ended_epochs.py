"""What becomes of a continuous epoch at its end, over a follower and writers that are played."""

from dataclasses import replace

import pytest

from sluice.runtime.contracts import RecordsRead
from sluice.runtime.errors import IllegalTransitionError
from sluice.runtime.model.splits import SplitRange
from tests.kit.coordinator.core_driver import split
from tests.unit.runtime.continuous.test_task_loop import Bench


def test_sinks_are_reported_the_ranges_that_were_read_and_of_no_other() -> None:
    """A transaction that is lost is written again, or accepted, by them."""
    bench = Bench({0: 30, 1: 0})
    bench.step()
    bench.give(4, split(0, 0, 30), split(1, 0, 0))
    bench.step()
    (told,) = bench.writers[0].ranges
    assert (told.partition, told.start_offset, told.end_offset) == (0, 0, 20)


def test_an_ended_epoch_that_nobody_takes_is_aborted_at_its_sinks() -> None:
    bench = Bench({0: 30})
    bench.step()
    bench.give(4, split(0, 0, 30))
    bench.step()
    bench.checkpoint_client.ended[0].abort()
    assert bench.writers[0].events[-1] == "abort"
    assert bench.writers[1].events == []


def test_an_epoch_that_ends_before_it_begins_is_never_reported() -> None:
    """A position that went back: its range would be decided over another's."""
    bench = Bench({0: 100, 1: 100})
    bench.step(2)
    bench.give(4, split(0, 0, 10), split(1, 0, 10))
    bench.step()
    bench.follower.restart_at([split(0, 0, 100), split(1, 20, 100)])
    bench.follower.logs = {0: 0, 1: 100}
    bench.give(5, *(replace(s, start_offset=s.end_offset, end_offset=100) for s in _ranges(bench)))
    with pytest.raises(IllegalTransitionError, match="ends before its start offset"):
        bench.step()
    assert len(bench.checkpoint_client.ended) == 1


def _ranges(bench: Bench) -> tuple[SplitRange, ...]:
    return bench.checkpoint_client.ended[-1].pre_commit().ranges


def test_a_split_that_has_nothing_to_read_is_not_silent() -> None:
    bench = Bench({0: 100_000, 1: 5})
    bench.step(3)
    bench.give(4, split(0, 0, 100_000), split(1, 0, 5))
    bench.step()
    for checkpoint_id in range(5, 9):
        starts = {s.partition: s.end_offset for s in _ranges(bench)}
        assert starts[1] == 5
        bench.looks(60.0)
        bench.give(checkpoint_id, split(0, starts[0], 100_000), split(1, 5, 5))
        bench.step()
    assert len(bench.checkpoint_client.ended) == 5


def test_markers_after_an_earlier_epochs_records_are_of_the_barriers_leader() -> None:
    bench = Bench({0: 10})
    bench.follower.read[0] = RecordsRead(10, 7)
    bench.step()
    bench.give(4, replace(split(0, 0, 10), leader_epoch=7))
    bench.step()
    bench.follower.logs[0] = 20
    bench.give(5, replace(split(0, 10, 20), leader_epoch=8))
    bench.step(3)
    (found,) = _ranges(bench)
    assert (found.start_offset, found.end_offset) == (10, 20)
    assert (found.leader_epoch, found.leader_epoch_end) == (8, 10)
