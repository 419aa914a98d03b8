"""Spark's offset as Sluice writes it: self-contained, so that a replay needs no other file.

``{"format": 1, "checkpoint": c, "attempt": g, "region": r, "source": operator id,
"splits": {"orders-0": [from, to]}, "topics": {"orders": topic id}, "details": {...}}``

``checkpoint`` is a hint: a batch is known by (region, attempt, Spark batch id), rule
`batch-identity`. An offset with ``"initial": true`` reads nothing: it holds a starting position as
resolved numbers. An offset with ``"publish": true`` lets sinks keep no rows. ``"keyed"`` is the
state that a batch of a keyed region begins with, and the barrier's time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.runtime.errors import ConfigError, DamagedCheckpointError, UnsupportedFormatError
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.model.payloads import number, text
from sluice.runtime.model.splits import Barrier, SplitRange
from sluice.runtime.model.state.keyed_state import KeyedState

__all__ = ["FORMAT", "decode", "encode", "is_initial"]

FORMAT = 1
_FLAGS = ("initial", "publish")
_SHOWN = 500  # at most so many characters of it
_DETAILS = (
    "leader_epoch",
    "leader_epoch_end",
    "largest_timestamp_ms",
    "watermark_ms",
    "idle_since_ms",
    "barrier_watermark_ms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keyed:
    """The part of a barrier that only keyed regions have."""

    state: KeyedState | None
    watermark_ms: int | None = None
    time_ms: int = 0
    is_end: bool = False


def encode(barrier: Barrier, *, initial: bool = False) -> dict[str, Any]:
    """The barrier as a JSON-ready dict, keys in a fixed order."""
    offset: dict[str, Any] = {
        "format": FORMAT,
        "checkpoint": barrier.checkpoint_id,
        "attempt_id": barrier.attempt_id,
        "region": barrier.region,
        "source": barrier.splits[0].source_id if barrier.splits else "",
        "splits": {s.name: [s.start_offset, s.end_offset] for s in barrier.splits},
        "topics": {s.topic: s.topic_id for s in barrier.splits},
        "details": {
            s.name: {name: getattr(s, name) for name in _DETAILS if getattr(s, name) is not None}
            for s in barrier.splits
        },
    }
    if initial:
        offset["initial"] = True
    if barrier.publishes_all:
        offset["publish"] = True
    if barrier.new_state is not None:
        offset["keyed"] = to_json(
            _Keyed(
                state=barrier.new_state,
                watermark_ms=barrier.watermark_ms,
                time_ms=barrier.time_ms,
                is_end=barrier.is_end,
            )
        )
    return offset


def is_initial(offset: Mapping[str, Any]) -> bool:
    """Whether the offset is a starting position, which reads nothing."""
    return offset.get("initial") is True


def decode(offset: object) -> Barrier:
    """The barrier that `encode` was given.

    Raises:
        UnsupportedFormatError: written by a later version.
        DamagedCheckpointError: not an offset of Sluice, or not whole.
    """
    try:
        return _barrier(_object(offset))
    except (ConfigError, LookupError, TypeError, ValueError) as err:
        raise DamagedCheckpointError(
            "an offset in Spark's log is incomplete, or not Sluice's",
            {"offset": repr(offset)[:_SHOWN], "reason": repr(err)[:_SHOWN]},
            "Check that the checkpoint location belongs to this query.",
        ) from err


def _barrier(offset: Mapping[str, Any]) -> Barrier:
    version = number(offset["format"])
    if version > FORMAT:
        raise UnsupportedFormatError(
            "a later version of Sluice wrote Spark's offset log",
            {"format": version, "known": FORMAT},
            "Run the version that wrote it, or a later one.",
        )
    if version < 1:
        raise ValueError(f"there was no format {version}")
    if {type(offset.get(flag, False)) for flag in _FLAGS} != {bool}:
        raise TypeError(f"{' or '.join(_FLAGS)} is neither true nor false")
    splits = _object(offset["splits"])
    keyed = from_json(_Keyed, offset["keyed"]) if "keyed" in offset else _Keyed(state=None)
    return Barrier(
        checkpoint_id=number(offset["checkpoint"]),
        region=text(offset["region"]),
        attempt_id=number(offset["attempt_id"]),
        splits=tuple(_split(offset, name, *bounds) for name, bounds in splits.items()),
        publishes_all=offset.get("publish", False),
        watermark_ms=keyed.watermark_ms,
        time_ms=keyed.time_ms,
        is_end=keyed.is_end,
        new_state=keyed.state,
    )


def _split(offset: Mapping[str, Any], name: str, start: object, end: object) -> SplitRange:
    topic, _, partition = name.rpartition("-")
    details = _object(_object(offset["details"]).get(name, {}))
    split = SplitRange(
        source_id=text(offset["source"]),
        topic=topic,
        topic_id=text(_object(offset["topics"])[topic]),
        partition=int(partition),
        start_offset=number(start),
        end_offset=number(end),
        **{detail: number(value) for detail, value in details.items()},
    )
    if split.name != name:
        raise ValueError(f"{name!r} is not the name of a split")
    return split


def _object(found: object) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise TypeError(f"not an object: {found!r}")
    return found
