"""A start goes back to a checkpoint while an older run retires exactly this one, step by step."""

import pytest

from sluice.runtime.coordinator.core.events import Retire
from sluice.runtime.coordinator.start.slot_reader import SlotReader
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import Verdict
from tests.simulation.process import Process
from tests.simulation.profile import Profile
from tests.simulation.world import World

_FAULTS = (
    *("kill", "pause", "fail_region", "fail_task", "lost_answer", "refused"),
    *("unreached", "unanswered", "late", "add"),
)
_PROFILE = Profile(**dict.fromkeys(_FAULTS, 0.0), keyed=True, disk=True, short=True)  # type: ignore[arg-type]


def _goes(world: World, process: Process, decisions: int) -> None:
    """A run works until it has decided so often."""
    at = len(world.watch.lineages.decisions())
    for step in range(20_000):
        if len(world.watch.lineages.decisions()) >= at + decisions:
            return
        if not step % 20:
            world.ends[step % len(world.ends)] += 1
        process.step()
    pytest.fail("a run decides no more")


def _about_to_retire(seed: int) -> tuple[World, Process, int]:
    """A run that retires its oldest decision next; that decision."""
    world = World(seed, _PROFILE)
    old = world.start_process()
    _goes(world, old, 2)
    for step in range(20_000):
        if not step % 20:
            world.ends[step % len(world.ends)] += 1
        old.step()
        actions = old.waiting_actions
        if actions and isinstance(actions[0], Retire):
            store = world.store_without_faults()
            for checkpoint_id in store.retirable(retain=actions[0].retained):
                record = store.read(checkpoint_id)
                if record is not None and record.verdict is Verdict.DECIDED:
                    return world, old, checkpoint_id
    raise AssertionError("nothing is retired")


def _race(seed: int, before: int, between: int) -> tuple[World, Process]:
    """The start makes so many steps before the older run retires, and so many before that run's
    second step; a later start without a wish follows."""
    world, old, checkpoint_id = _about_to_retire(seed)
    world.wish = checkpoint_id
    new = world.start_process(checkpoint_id)
    for _ in range(before):
        new.step()
    old.retire_step()
    for _ in range(between):
        new.step()
    while old.retire_step():
        pass
    for _ in range(400):
        if not (new.running or new.dead):
            new.step()
    if new.running:
        _goes(world, new, 1)
    else:
        assert isinstance(new.error, ConfigError), new.error
    world.wish = None
    last = world.start_process()
    _goes(world, last, 1)
    return world, new


def _races(seed: int) -> list[tuple[World, Process]]:
    return [_race(seed, before, between) for before in range(10) for between in (0, 3)]


@pytest.mark.parametrize("seed", range(3))
def test_retire_after_commit_no_start_stays_with_a_checkpoint_whose_files_are_deleted(
    seed: int,
) -> None:
    """It goes back, and its files stay, or it is refused; later starts continue in both cases."""
    raced = _races(seed)
    refused = [new for _, new in raced if new.dead]
    assert 0 < len(refused) < len(raced)
    what = "what a start goes back to is retired before its seal"
    assert any(world.faults[what] for world, _ in raced), "the window is met"


def test_worlds_notice_a_start_that_does_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlotReader, "is_gone", lambda self, checkpoint_id: False)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        _races(0)
