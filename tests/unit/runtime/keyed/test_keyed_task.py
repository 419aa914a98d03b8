"""A keyed task divides state as the writers of its run divide rows."""

from dataclasses import replace

import pytest

from sluice.runtime.contracts.keyed import BarrierTime
from sluice.runtime.errors import DamagedCheckpointError
from sluice.runtime.keyed.keyed_task import KeyedTask
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.state.backend import TableChanges
from tests.kit.coordinator.core_driver import split
from tests.kit.keyed_parts import PlayedStateFiles, counting, state_at_ends

_TIME = BarrierTime(watermark_ms=None, now_ms=0)
_SPLIT, _OTHER = _BOTH = split(0, 0, 5), split(1, 0, 5)
_CHANGES = TableChanges()


def _task(restored: KeyedState | None, max_parallelism: int) -> KeyedTask:
    files = PlayedStateFiles(
        {f"state/any/{each.partition}-{each.end_offset}": [(each.key, _CHANGES)] for each in _BOTH}
    )
    return KeyedTask(
        counting(),
        source_id="source",
        state=files.state(),
        writer=files,
        restored=restored,
        splits=(_SPLIT,),
        max_parallelism=max_parallelism,
    )


def test_the_state_has_the_number_of_key_groups_of_the_rows() -> None:
    """A region that had no splits, or no rows, may have another number on record."""
    for recorded in (None, KeyedState(max_parallelism=2_048)):
        assert _task(recorded, 1_024).end_epoch(_TIME).declared.max_parallelism == 1_024


@pytest.mark.parametrize("recorded", [0, 2_048])
def test_state_of_another_number_of_key_groups_is_refused(recorded: int) -> None:
    """At the begin and at a barrier: keys would begin without the state in another split."""
    state = replace(state_at_ends((_SPLIT,)), max_parallelism=recorded)
    with pytest.raises(DamagedCheckpointError, match=f"state={recorded} rows=1024"):
        _task(state, 1_024)
    brought = replace(state_at_ends((_OTHER,)), max_parallelism=recorded)
    task = _task(None, 1_024)
    with pytest.raises(DamagedCheckpointError, match="splits=input-1"):
        task.adopt(_BOTH, brought)
