"""Declarations of users for keyed streams: aggregates, windows, and the states of `process`."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import pyarrow as pa

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.timestamps import Duration, duration_ms

__all__ = [
    "Aggregate",
    "ApproxDistinct",
    "Avg",
    "Collect",
    "Count",
    "First",
    "Last",
    "ListState",
    "MapState",
    "Max",
    "Min",
    "Session",
    "Sliding",
    "State",
    "Sum",
    "Tumbling",
    "ValueState",
    "Window",
    "require_names",
]

# --- aggregates: null handling and result types as Spark's ------------------------------------


@dataclass(frozen=True, slots=True)
class Count:
    """Number of rows; with a column, of those in which it is not null. int64."""

    column: str | None = None


@dataclass(frozen=True, slots=True)
class Sum:
    """Sum of the values that are not null; null without any.

    It is int64 for integers, float64 for floats, and ``decimal(min(p + 10, 38), s)`` for
    ``decimal(p, s)``. A sum outside of its type fails the task.
    """

    column: str


@dataclass(frozen=True, slots=True)
class Min:
    """The least value that is not null, of the column's type. NaN is the greatest float."""

    column: str


@dataclass(frozen=True, slots=True)
class Max:
    """The greatest value that is not null, of the column's type. NaN is the greatest float."""

    column: str


@dataclass(frozen=True, slots=True)
class Avg:
    """Mean of the values that are not null; null without any.

    It is float64, and ``decimal(min(p + 4, 38), min(s + 4, 38))`` for ``decimal(p, s)``.
    """

    column: str


@dataclass(frozen=True, slots=True)
class First:
    """The value of the first row, in the order of the split; of windows, of the first to arrive.

    Attributes:
        ignore_nulls: the first value that is not null.
    """

    column: str
    _: KW_ONLY
    ignore_nulls: bool = False


@dataclass(frozen=True, slots=True)
class Last:
    """The value of the last row; see `First`."""

    column: str
    _: KW_ONLY
    ignore_nulls: bool = False


@dataclass(frozen=True, slots=True)
class Collect:
    """The values that are not null as a list, in the order of arrival.

    Attributes:
        most: values to keep for a key; later ones are left out; >= 1.
    """

    column: str
    _: KW_ONLY
    most: int = 1000

    def __post_init__(self) -> None:
        if isinstance(self.most, bool) or not isinstance(self.most, int) or self.most < 1:
            raise ConfigError(
                "collect keeps at least one value",
                {"column": self.column, "most": self.most},
                "Set most to 1 or more.",
            )


@dataclass(frozen=True, slots=True)
class ApproxDistinct:
    """Approximate number of distinct values that are not null. int64.

    HyperLogLog: its state has at most 2 KiB for a key with the default error.

    Attributes:
        error: standard deviation of the relative error, as in Spark's ``approx_count_distinct``;
            in [0.004, 0.3].
    """

    column: str
    _: KW_ONLY
    error: float = 0.05

    def __post_init__(self) -> None:
        if not 0.004 <= self.error <= 0.3:
            raise ConfigError(
                "the error of an approximate count is out of range",
                {"column": self.column, "error": self.error},
                "Set error between 0.004 and 0.3.",
            )


Aggregate = Count | Sum | Min | Max | Avg | First | Last | Collect | ApproxDistinct

# --- windows -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, side by side; a window contains its start and not its end.

    Attributes:
        size: > 0.
        offset: of the first start after 1970-01-01 00:00 UTC; below ``size``.
    """

    size: Duration
    offset: Duration = 0

    def __post_init__(self) -> None:
        _require_offset(self.offset, _positive(self.size, "size"))


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of one size that begin every ``slide``: a row is in ``size / slide`` windows.

    Attributes:
        size: > 0.
        slide: > 0, at most ``size``; a row may be in 1000 windows.
        offset: as in `Tumbling`; below ``slide``.
    """

    size: Duration
    slide: Duration
    offset: Duration = 0

    def __post_init__(self) -> None:
        size, slide = _positive(self.size, "size"), _positive(self.slide, "slide")
        if not slide <= size <= 1000 * slide:
            raise ConfigError(
                "windows slide by more than their size, or by too little",
                {"size": self.size, "slide": self.slide},
                "Set slide to at most size, and at least a thousandth of it.",
            )
        _require_offset(self.offset, slide)


@dataclass(frozen=True, slots=True)
class Session:
    """Rows of a key with pauses of at most ``gap``; it ends ``gap`` after its last row.

    Attributes:
        gap: > 0.
    """

    gap: Duration

    def __post_init__(self) -> None:
        _positive(self.gap, "gap")


Window = Tumbling | Sliding | Session


# --- states of `process` -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ValueState:
    """One value for each key, None until it is set.

    Attributes:
        type: of the value.
        ttl: time from the barrier of the last change until the value is gone; > 0. By event time, a
            barrier removes it. None: it stays.
        ttl_time: ``processing``: the barriers' wall clock; ``event``: their watermark, for a source
            with event time.
    """

    type: pa.DataType
    _: KW_ONLY
    ttl: Duration | None = None
    ttl_time: str = "processing"

    def __post_init__(self) -> None:
        _require_state(self, self.type)


@dataclass(frozen=True, slots=True)
class ListState:
    """A list for each key. It is read and written as a whole; see `ValueState` for the rest.

    Attributes:
        type: of an item.
    """

    type: pa.DataType
    _: KW_ONLY
    ttl: Duration | None = None
    ttl_time: str = "processing"

    def __post_init__(self) -> None:
        _require_state(self, self.type)


@dataclass(frozen=True, slots=True)
class MapState:
    """A map for each key. It is read and written as a whole; see `ValueState` for the rest.

    Attributes:
        key_type, type: of an entry's key and value.
    """

    key_type: pa.DataType
    type: pa.DataType
    _: KW_ONLY
    ttl: Duration | None = None
    ttl_time: str = "processing"

    def __post_init__(self) -> None:
        _require_state(self, self.key_type, self.type)


State = ValueState | ListState | MapState


def require_names(
    given: Mapping[str, object],
    allowed: Any,  # noqa: ANN401 - a class or a union
    *,
    what: str,
    unnamed: Sequence[object] = (),
) -> None:
    """Check the names and values of keyword arguments that users choose names for.

    Args:
        allowed: the types of the values.
        what: they are, for the message.
        unnamed: positional arguments.
    Raises:
        ConfigError: there is none, one has no name, a name is no identifier, or a value has another
            type.
    """
    if unnamed:
        raise ConfigError(
            f"a positional argument is given, and each {what} needs a name",
            {"given": ", ".join(map(repr, unnamed))},
            f"Write name=… before each {what}; its result has this name.",
        )
    items = given.items() if isinstance(given, Mapping) else [("name", given)]
    wrong = {
        name: value
        for name, value in items
        if not isinstance(value, allowed) or not name.isidentifier()
    }
    if given and not wrong:
        return
    raise ConfigError(
        f"there is no {what}, or one that cannot be used",
        {"given": ", ".join(f"{name}={value!r}" for name, value in wrong.items()) or "nothing"},
        f"Declare each {what} as name=…, with an object of {_listed(allowed)}.",
    )


def _listed(allowed: Any) -> str:  # noqa: ANN401 - a class or a union
    return ", ".join(str(each.__name__) for each in getattr(allowed, "__args__", (allowed,)))


def _require_state(state: State, *types: object) -> None:
    if not all(isinstance(each, pa.DataType) for each in types):
        raise ConfigError(
            "a state is declared without Arrow types",
            {"state": type(state).__name__, "given": ", ".join(map(repr, types))},
            "Use types such as pa.float64().",
        )
    if state.ttl_time not in ("processing", "event"):
        raise ConfigError(
            "the time to live of a state follows no known clock",
            {"ttl_time": state.ttl_time},
            "Use processing or event.",
        )
    if state.ttl is not None:
        _positive(state.ttl, "ttl")


def _positive(given: Duration, setting: str) -> int:
    return duration_ms(given, setting=setting, may_be_zero=False)


def _require_offset(offset: Duration, limit_ms: int) -> None:
    if duration_ms(offset, setting="offset") >= limit_ms:
        raise ConfigError(
            "the offset of a window is as long as the window",
            {"offset": offset, "limit_ms": limit_ms},
            "Set a shorter offset: windows repeat anyway.",
        )
