"""Numbers of keyed state in files: they stay with their state, and no other state gets them."""

from dataclasses import dataclass

import pytest

from sluice.runtime.contracts.keyed import BarrierTime, TableSpec
from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.keyed.keyed_task import KeyedTask, numbered_tables
from sluice.runtime.model.state.keyed_state import KeyedState, StateTableInfo
from tests.kit.coordinator.core_driver import split
from tests.kit.keyed_parts import PlayedStateFiles, counting


@dataclass(frozen=True)
class _Declared:
    """A keyed function that only declares its states."""

    tables: tuple[TableSpec, ...]


def _function(*names: str, operator_id: str = "counts") -> ChainedFunction:
    keyed = _Declared(tuple(TableSpec(name=name, kind="value") for name in names))
    return ChainedFunction(name=operator_id, operator_id=operator_id, function=None, keyed=keyed)  # type: ignore[arg-type]


def test_a_number_follows_from_operator_and_name_alone() -> None:
    """Every region gives a new state the same one, without talking to others."""
    (one,) = numbered_tables([_function("last")], ())
    other, same = numbered_tables([_function("first"), _function("last", operator_id="x")], ())
    assert numbered_tables([_function("a", "last", "b")], ())[1] == one
    assert len({one.number, other.number, same.number}) == 3


def test_a_state_on_record_keeps_its_number() -> None:
    """Also if its operator has another id since: a restore has matched it by name."""
    before = StateTableInfo(number=5, operator_id="counts", name="last", kind="value")
    assert numbered_tables([_function("last")], [before]) == (before,)


def test_a_dropped_state_stays_on_record_and_gives_its_number_to_none() -> None:
    (once,) = numbered_tables([_function("last")], ())
    dropped = StateTableInfo(number=once.number, operator_id="", name="last", kind="value")
    assert numbered_tables([_function("first")], [dropped])[0] == dropped
    with pytest.raises(ConfigError, match="two states of keyed functions have the same number"):
        numbered_tables([_function("last")], [dropped])


def test_a_task_begins_with_two_dropped_states_of_one_name() -> None:
    """A restore has dropped two keyed functions, and each had a memory."""
    dropped = tuple(
        StateTableInfo(number=number, operator_id="", name="memory", kind="memory")
        for number in (11, 12)
    )
    files = PlayedStateFiles()
    task = KeyedTask(
        counting(),
        source_id="source",
        state=files.state(),
        writer=files,
        restored=KeyedState(tables=dropped),
        splits=(split(0, 0, 5),),
    )
    declared = task.end_epoch(BarrierTime(watermark_ms=None, now_ms=0)).declared
    assert set(dropped) < set(declared.tables)
