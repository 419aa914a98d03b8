"""Keyed tasks over random epochs, moves and deaths: the recorded state is that of the offsets."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.contracts.keyed import BarrierTime
from sluice.runtime.keyed.keyed_task import KeyedTask
from sluice.runtime.model.splits import BatchKey, SplitKey, SplitRange
from sluice.runtime.model.state.keyed_state import KeyedState
from tests.kit.coordinator.core_driver import split
from tests.kit.keyed_parts import PlayedStateFiles, counting, counts_in, rows_in

SPLITS = 3
REGIONS = ("a", "b")


@dataclass
class World:
    """The decided record, and the running attempt of each region."""

    files: PlayedStateFiles = field(default_factory=PlayedStateFiles)
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(SPLITS), 0))
    owners: dict[int, str] = field(
        default_factory=lambda: {n: REGIONS[n % len(REGIONS)] for n in range(SPLITS)}
    )
    state: KeyedState = field(default_factory=KeyedState)
    tasks: dict[str, KeyedTask] = field(default_factory=dict)
    held: dict[str, set[SplitKey]] = field(default_factory=dict)

    def _splits(self, region: str) -> list[SplitRange]:
        return [
            split(n, self.ends[n], self.ends[n])
            for n, owner in self.owners.items()
            if owner == region
        ]

    def _task(self, region: str) -> KeyedTask:
        if region not in self.tasks:
            splits, files = self._splits(region), self.files.attempt()
            keys = {s.key for s in splits}
            self.tasks[region] = KeyedTask(
                counting(),
                source_id="source",
                state=files.state(),
                writer=files,
                restored=self.state.of(keys),
                splits=splits,
            )
            self.held[region] = keys
        return self.tasks[region]

    def read(self, region: str, rows: Mapping[int, int], *, outcome: str) -> None:
        """One epoch of a region: so many rows of each split that is its own when it begins.

        Args:
            outcome: ``decided``; ``lost``: the attempt ends after the file is written; ``unwritten``:
                before that; ``again``: the epoch is read again.
        """
        task = self._task(region)
        splits = self._splits(region)
        keys = {s.key for s in splits}
        if self.held[region] - keys:
            task.rollback()
        task.adopt(splits, self.state.covering(keys - self.held[region]))
        self.held[region] = keys
        read = {s.partition: rows.get(s.partition, 0) for s in splits}
        for _ in range(2 if outcome == "again" else 1):
            task.rollback()
            run = task.begin_epoch()
            for n, count in read.items():
                batch = rows_in(split(n, self.ends[n], self.ends[n] + count))
                list(run.applied(iter((batch,)), _no_letters))
        time = BarrierTime(watermark_ms=None, now_ms=0)
        list(run.at_barrier(time, _no_letters))
        if outcome == "unwritten":
            del self.tasks[region]
            return
        found = task.end_epoch(time).write(BatchKey(region=region, attempt_id=0, batch_id=0))
        if outcome == "lost":
            del self.tasks[region]
            return
        for n, count in read.items():
            self.ends[n] += count
        merged = KeyedState.merged([self.state.without(keys), found])
        assert merged is not None
        self.state = merged

    def move(self, number: int) -> None:
        """A decision moves a split; a region that is under way holds it no more."""
        giver = self.owners[number]
        self.owners[number] = REGIONS[1 - REGIONS.index(giver)]
        held = self.held.get(giver, set())
        held.discard(split(number, 0, 0).key)

    def check(self) -> None:
        """The counts on record are those of the records up to the recorded ends."""
        expected = {
            (n, key): count
            for n, end in self.ends.items()
            for key, count in Counter(str(at % 3) for at in range(end)).items()
        }
        assert counts_in(self.files, self.state) == expected


def _no_letters(topic: str, rows: object) -> None:
    raise AssertionError(topic)


_epochs = st.tuples(
    st.sampled_from(REGIONS),
    st.dictionaries(st.integers(0, SPLITS - 1), st.integers(0, 9)),
    st.sampled_from(["decided", "decided", "again", "lost", "unwritten"]),
)


@given(st.lists(_epochs | st.integers(0, SPLITS - 1), max_size=25))
def test_state_with_output_the_record_has_the_state_of_its_offsets_whatever_happens(
    steps: list[tuple[str, dict[int, int], str] | int],
) -> None:
    """Splits come and go, with and without epochs in between; attempts end before and after their
    file is written; epochs are read again."""
    world = World()
    for step in steps:
        if isinstance(step, int):
            world.move(step)
        else:
            region, rows, outcome = step
            world.read(region, rows, outcome=outcome)
        world.check()


def test_the_model_finds_a_state_that_is_left_behind() -> None:
    """The check itself can fail."""
    world = World()
    world.read("a", {0: 5}, outcome="decided")
    world.state = replace(world.state, splits=())
    try:
        world.check()
    except AssertionError:
        return
    raise AssertionError("a lost state was not found")
