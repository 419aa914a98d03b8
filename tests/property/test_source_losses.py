"""What becomes of records whose logs are truncated, compacted, deleted from, made again or led again.

Each is read once and in order, or its loss is reported. The enumerator, the readers and the loop of a
continuous task are the real ones, in virtual time; brokers and librdkafka are models. What the
documents say is not seen does not happen here: logs that lose records under the same leader, two
elections that bring an older leader's log back, and former leaders that still answer.
"""

import re
from collections.abc import Callable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.runtime.errors import DataLostError, SourceChangedError, UnreachableError
from tests.kit.coordinator.led_simulation import LedWorld
from tests.kit.effort import examples

_CALM_S = 40.0  # whatever lasts so long counts
_ROUNDS = 8  # enough to read all that there is, from wherever a source was set back to
_LOST = re.compile(r"orders-(\d+)\[")
_LOOKS = 50  # of a task, in which it has read what is there

_worlds = st.builds(
    LedWorld, st.integers(0, 1 << 64).map(Random), fails=st.booleans(), bounded=st.booleans()
)


def _happen(world: LedWorld) -> None:
    for _ in range(world.random.randint(0, 3)):
        world.change()
    if world.random.random() < 0.03:
        world.replace_topic()


def _is_told(world: LedWorld, run: Callable[[LedWorld], None]) -> bool:
    with world.running():
        try:
            run(world)
        except SourceChangedError:
            return True
        except DataLostError as err:
            lost = {int(number) for number in _LOST.findall(str(err))}
            assert lost
            assert world.fails or lost <= world.truncated
            return True
    return False


@settings(max_examples=examples(200))
@given(_worlds, st.integers(1, 30))
def test_micro_batches_read_every_record_once_or_tell_its_loss(world: LedWorld, steps: int) -> None:
    """Cuts, batches, looks for partitions and new drivers, in any order."""

    def run(world: LedWorld) -> None:
        acts = [world.read_a_batch] * 4 + [world.discover, world.restart]
        for _ in range(steps):
            _happen(world)
            _unless_unreachable(world.random.choice(acts))
        world.calm()
        for _ in range(_ROUNDS):
            world.bench.clock.pass_time(_CALM_S)
            _unless_unreachable(world.discover)
            _unless_unreachable(world.read_a_batch)

    if not _is_told(world, run):
        world.judge()


@settings(max_examples=examples(200))
@given(_worlds, st.integers(1, 30))
def test_continuous_tasks_read_every_record_once_or_tell_its_loss(
    world: LedWorld, steps: int
) -> None:
    """The same, with tasks that read ahead of the cuts."""

    def act(one: Callable[[], object]) -> None:
        if not _unless_unreachable(one):
            world.begin_life()

    def read_all() -> None:
        world.discover()
        for _ in range(_LOOKS):
            world.step()
        world.end_an_epoch()

    def run(world: LedWorld) -> None:
        world.begin_life()
        acts = [world.end_an_epoch] * 3 + [world.step] * 3 + [world.discover, world.restart]
        for _ in range(steps):
            _happen(world)
            act(world.random.choice(acts))
        world.calm()
        for _ in range(_ROUNDS):
            world.bench.clock.pass_time(_CALM_S)
            act(read_all)

    if not _is_told(world, run):
        world.judge()


def _unless_unreachable(one: Callable[[], object]) -> bool:
    try:
        one()
    except UnreachableError:
        return False
    return True
