"""Committables whose payload is JSON: written, and read back with every value checked."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from sluice.runtime.errors import DamagedCheckpointError, UnsupportedFormatError
from sluice.runtime.model.checkpoint_record import Redistribution, StateEntry
from sluice.runtime.model.json_text import parsed_json

__all__ = ["STATE_NAME", "committable", "content_of", "number", "rows", "seconds", "text"]

STATE_NAME = "committables"
"""Name of a sink's committables in an acknowledgement and in ``_metadata``."""

_AGES_S = 1e12
_Value = TypeVar("_Value")


def committable(
    content: Mapping[str, object], *, kind: str, version: int, operator_id: str
) -> StateEntry:
    """The committable that holds ``content``."""
    return StateEntry(
        operator_id=operator_id,
        state_name=STATE_NAME,
        kind=kind,
        version=version,
        redistribution=Redistribution.SPLIT,
        payload=json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode(),
    )


def content_of(
    entry: StateEntry,
    parse: Callable[[Mapping[str, object]], _Value],
    *,
    kind: str,
    version: int,
    what: str,
) -> _Value:
    """The result of ``parse`` for a committable's content.

    Args:
        parse: raises ValueError, LookupError or TypeError for unexpected content; its own error for
            values out of range passes.
        kind: the only kind that it can read.
        version: the newest that it can read; it can read all earlier ones.
        what: the work in words, for the message.
    Raises:
        UnsupportedFormatError: another kind, or a later version.
        DamagedCheckpointError: the payload does not match its version.
    """
    where = {"operator_id": entry.operator_id, "kind": entry.kind, "version": entry.version}
    if entry.kind != kind or not 1 <= entry.version <= version:
        raise UnsupportedFormatError(
            "this version does not know such a committable",
            where,
            "Read it with the connector and version that wrote it.",
        )
    try:
        return parse(_mapping(parsed_json(entry.payload)))
    except (ValueError, LookupError, TypeError, OverflowError) as err:
        raise DamagedCheckpointError(
            f"a committable, {what}, cannot be read",
            where,
            "Restore from the previous checkpoint; report the damaged one.",
        ) from err


def _mapping(found: object) -> Mapping[str, object]:
    if not isinstance(found, dict):
        raise TypeError("not an object")
    return found


def number(value: object) -> int:
    """An integer; a truth value is not accepted."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"not an integer: {value!r}")
    return value


def seconds(value: object) -> float:
    """A time or a duration in seconds, not in years."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _AGES_S:
        raise TypeError(f"not a number of seconds: {value!r}")
    return float(value)


def text(value: object) -> str:
    """A string."""
    if not isinstance(value, str):
        raise TypeError(f"not text: {value!r}")
    return value


def rows(value: object) -> Sequence[Sequence[object]]:
    """A list of lists."""
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise TypeError("not a list of rows")
    return value
