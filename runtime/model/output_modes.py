"""Spark's output modes: one for each streaming query, whatever its number of transforms. Pure."""

import enum
from collections.abc import Iterable

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.spelling import choice_of

__all__ = ["COMPLETE", "checked_mode", "mode_of_query", "require_one_mode"]


class _Mode(enum.Enum):
    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


COMPLETE = _Mode.COMPLETE.value
"""The mode in which a query gives its whole result each time."""
_UNSTATED = _Mode.UPDATE.value


def checked_mode(text: str) -> str:
    """The mode as Spark reads it, in any case.

    Raises:
        ConfigError: there is no such mode.
    """
    return choice_of(_Mode, text, setting="output_mode").value


def require_one_mode(modes: Iterable[tuple[str, str | None]]) -> None:
    """Refuse transforms of one query with different modes.

    Args:
        modes: the name and the mode of each; None: it sets none.
    Raises:
        ConfigError: two of them differ.
    """
    stated = [(name, mode) for name, mode in modes if mode is not None]
    if len({mode for _, mode in stated}) > 1:
        raise ConfigError(
            "transforms of one pipeline have different output modes",
            {"output_modes": ", ".join(f"{name}: {mode}" for name, mode in stated)},
            "State one output mode once, or the same each time: the transforms run as one "
            "query. For two modes write the first to a topic, and read it in another pipeline.",
        )


def mode_of_query(modes: Iterable[str | None]) -> str:
    """The common mode of the transforms of a query."""
    return next((mode for mode in modes if mode is not None), _UNSTATED)
