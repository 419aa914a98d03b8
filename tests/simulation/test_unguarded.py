"""Workers leave out the guards of frozen values, and see the same worlds."""

import dataclasses
import multiprocessing
import re

import pytest

from runtime.errors import ConfigError
from runtime.model import SplitRange
from tests.simulation.profiles import profile_of
from tests.simulation.unguarded import leave_out_guards
from tests.simulation.world import World

_SEEDS = range(40, 52)


_JOB_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _stories() -> list[str]:
    worlds = [World(seed, profile_of(seed)[1], telling=True) for seed in _SEEDS]
    for world in worlds:
        world.run()
    return [_JOB_UID.sub("job", "\n".join(world.told or ())) for world in worlds]


def _split(end_offset: int) -> SplitRange:
    return SplitRange(
        source_id="s", topic="t", topic_id="id", partition=0, start_offset=1, end_offset=end_offset
    )


def _seen_by_a_worker() -> tuple[list[str], str]:
    leave_out_guards()
    changed = _split(2)
    changed.end_offset = 3  # type: ignore[misc] # nothing refuses it here
    assert changed == _split(3)
    assert hash(changed) == hash(_split(3))
    try:
        _split(0)
    except ConfigError as error:
        return _stories(), str(error)
    return _stories(), ""


def test_a_worker_sees_the_same_worlds_and_this_process_keeps_its_guards() -> None:
    """Nothing but the guard is left out: defaults, checks of values, equality and hashes stay."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        stories, refusal = pool.apply(_seen_by_a_worker)
    assert stories == _stories()
    assert "range is not valid" in refusal
    with pytest.raises(dataclasses.FrozenInstanceError):
        _split(2).end_offset = 3  # type: ignore[misc]
