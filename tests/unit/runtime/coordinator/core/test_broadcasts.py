"""Which version of a broadcast stream each epoch uses: one in all regions, and a decided one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    BarrierPolled,
    FetchBarrierOffsets,
    GiveBarrier,
    RegionBarrierOffsets,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, RegionPlan
from sluice.runtime.errors import FencedError
from sluice.runtime.model.splits import Barrier, BatchKey
from sluice.runtime.model.state.broadcast_version import BroadcastVersion
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import KeyedState, SplitState, StatePart
from tests.kit.coordinator.core_driver import CoreDriver

RETAINED = CheckpointSettings().retained


def state_named(name: str) -> KeyedState:
    """Keyed state of the rules, in one file."""
    part = StatePart(file=0, offset=0, length=1)
    return KeyedState(
        files=(FileReference(path=f"state/rules/{name}", length_bytes=1, sha256="0" * 64),),
        splits=(SplitState(source_id="rules", topic="input", partition=0, parts=(part,)),),
    )


def names(found: Sequence[BroadcastVersion]) -> list[str]:
    """Names of the versions' files."""
    files = (() if each.state is None else each.state.files for each in found)
    return [each[0].path.rpartition("/")[2] if each else "none" for each in files]


class Job:
    """A broadcast stream, and two regions that read it."""

    def __init__(self, *, follows: bool, waits: bool = False) -> None:
        rules = RegionPlan(
            name="rules",
            source_ids=("rules",),
            follows=follows,
            broadcast_id="rules-id",
            keyed=True,
        )
        reader = RegionPlan(
            name="a",
            source_ids=("source",),
            follows=follows,
            reads=("rules-id",),
            waits_for=("rules-id",) if waits else (),
        )
        self.driver = CoreDriver(
            regions=(rules, reader, replace(reader, name="b")),
        )
        self.end = 0
        self._batches: Counter[str] = Counter()

    def begin(self) -> None:
        """Records everywhere, and a checkpoint."""
        self.end += 10
        self.driver.tick(10.0)

    def poll(self, region: str, *, has_read: bool = False, is_idle: bool = False) -> Barrier | None:
        polled = BarrierPolled(region=region, attempt_id=0, has_read=has_read)
        for action in self.driver.tell(polled):
            if isinstance(action, GiveBarrier):
                return action.barrier
            if isinstance(action, FetchBarrierOffsets):
                cut = RegionBarrierOffsets(
                    checkpoint_id=action.checkpoint_id,
                    region=region,
                    attempt_id=0,
                    splits=tuple(
                        s.at_end()
                        if is_idle
                        else replace(s, start_offset=s.end_offset, end_offset=self.end)
                        for s in action.positions
                    ),
                    finished=False,
                    has_read=has_read,
                )
                told = self.driver.tell(cut)
                return next((a.barrier for a in told if isinstance(a, GiveBarrier)), None)
        return None

    def idle_epoch(self, rules: str) -> None:
        """A whole checkpoint in which the readers have nothing to read."""
        self.begin()
        mine = self.poll("rules")
        for name in "ab":
            self.poll(name, is_idle=True)
        self.acknowledge(mine, rules=rules)

    def acknowledge(self, barrier: Barrier | None, *, rules: str = "") -> None:
        assert barrier is not None
        self._batches[barrier.region] += 1
        batch = BatchKey(
            region=barrier.region, attempt_id=0, batch_id=self._batches[barrier.region]
        )
        ack = self.driver.acknowledgement(batch, barrier)
        if rules:
            ack = replace(ack, region=replace(ack.region, keyed_state=state_named(rules)))
        self.driver.tell(Acknowledged(ack=ack))

    def epoch(self, rules: str, *, has_read: Sequence[bool]) -> list[Barrier | None]:
        """A whole checkpoint; the barriers of both readers."""
        self.begin()
        mine = self.poll("rules")
        found = [self.poll(name, has_read=read) for name, read in zip("ab", has_read, strict=True)]
        self.acknowledge(mine, rules=rules)
        for barrier in found:
            if barrier is not None:
                self.acknowledge(barrier)
        return found


def uses(barriers: Sequence[Barrier | None]) -> list[list[str]]:
    return [names(b.broadcasts) for b in barriers if b is not None]


@pytest.mark.parametrize("follows", [False, True])
def test_an_epoch_uses_the_newest_decided_version_in_all_regions(*, follows: bool) -> None:
    job = Job(follows=follows)
    idle = [False, False]
    assert uses(job.epoch("v1", has_read=idle)) == [["none"], ["none"]]
    assert uses(job.epoch("v2", has_read=idle)) == [["v1"], ["v1"]]
    assert uses(job.epoch("v3", has_read=idle)) == [["v2"], ["v2"]]


def test_a_task_that_has_begun_its_epoch_finishes_it_with_the_version_of_the_last_barrier() -> None:
    job = Job(follows=True)
    busy = [True, True]
    first, _ = job.epoch("v1", has_read=busy)
    assert first is not None
    assert names(first.next_broadcasts) == ["none"], "v1 is not decided at that barrier"
    second, other = job.epoch("v2", has_read=busy)
    assert second is not None
    assert uses([second, other]) == [["none"], ["none"]]
    assert names(second.next_broadcasts) == ["v1"]
    assert uses(job.epoch("v3", has_read=busy)) == [["v1"], ["v1"]]


def test_the_first_barrier_decides_for_all_regions() -> None:
    job = Job(follows=True)
    job.epoch("v1", has_read=[False, False])
    assert uses(job.epoch("v2", has_read=[False, True])) == [["v1"], ["v1"]]
    assert uses(job.epoch("v3", has_read=[True, False])) == [["v1"], ["v1"]]


def test_a_version_of_an_undecided_checkpoint_is_in_no_barrier() -> None:
    job = Job(follows=False)
    job.driver.auto = False
    job.begin()
    mine = job.poll("rules")
    job.acknowledge(mine, rules="v1")
    assert uses([job.poll("a"), job.poll("b")]) == [["none"], ["none"]]


@pytest.mark.parametrize("follows", [False, True])
def test_regions_that_wait_get_no_barrier_before_the_first_version_is_decided(
    *, follows: bool
) -> None:
    job = Job(follows=follows, waits=True)
    idle = [False, False]
    assert job.epoch("v1", has_read=idle) == [None, None]
    assert uses(job.epoch("v2", has_read=idle)) == [["v1"], ["v1"]]


def test_a_new_attempt_asks_which_versions_its_epoch_probably_uses() -> None:
    job = Job(follows=True)
    assert names(job.driver.core.task_inputs("a", 0).broadcasts) == ["none"]
    job.epoch("v1", has_read=[True, True])
    job.epoch("v2", has_read=[True, True])
    assert names(job.driver.core.task_inputs("a", 0).broadcasts) == ["v1"], "as running tasks"
    assert job.driver.core.task_inputs("rules", 0).broadcasts == (), "it reads none"
    with pytest.raises(FencedError):
        job.driver.core.task_inputs("a", 1)


def test_idle_readers_get_a_version_whose_checkpoint_is_retained() -> None:
    """Retention has deleted the files of the version that they got with their last barrier."""
    job = Job(follows=True)
    job.epoch("v0", has_read=[True, True])
    job.epoch("v1", has_read=[True, True])
    for number in range(2, 12):
        job.idle_epoch(f"v{number}")
        (given,) = names(job.driver.core.task_inputs("a", 0).broadcasts)
        assert given in {f"v{n}" for n in range(number - RETAINED + 1, number + 1)}
    assert uses(job.epoch("v12", has_read=[True, False])) == [[given], [given]]


def test_a_task_of_a_batch_uses_the_versions_of_its_barrier() -> None:
    job = Job(follows=False)
    job.epoch("v1", has_read=[False, False])
    job.begin()
    barrier = job.poll("a")
    assert barrier is not None
    assert job.driver.core.task_inputs("a", 0).broadcasts == barrier.broadcasts
    assert names(barrier.broadcasts) == ["v1"]
