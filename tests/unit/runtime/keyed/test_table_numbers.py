"""Numbers of keyed state in files: they stay with their state, and no other state gets them."""

from dataclasses import dataclass

import pytest

from sluice.runtime.contracts.keyed import TableSpec
from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.keyed.keyed_task import numbered_tables
from sluice.runtime.model.state.keyed_state import StateTableInfo


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
