"""Spark's output modes: a streaming query has one, however many transforms it is made of. Pure."""

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
    """The mode as Spark reads it, in whatever case it was written.

    Raises:
        ConfigError: there is no such mode.
    """
    return choice_of(_Mode, text, setting="output_mode").value


def require_one_mode(modes: Iterable[tuple[str, str | None]]) -> None:
    """Refuse transforms of one query that want its result in different ways.

    Args:
        modes: of each its name and what it says; None: nothing.
    Raises:
        ConfigError: two of them differ.
    """
    stated = [(name, mode) for name, mode in modes if mode is not None]
    if len({mode for _, mode in stated}) > 1:
        raise ConfigError(
            "transforms of one pipeline have different output modes",
            {"output_modes": ", ".join(f"{name}: {mode}" for name, mode in stated)},
            "They run as one streaming query, which has one output mode: state it once, or the "
            "same each time. For two modes write the rows of the first to a topic, and begin "
            "another pipeline there.",
        )


def mode_of_query(modes: Iterable[str | None]) -> str:
    """The mode of a query whose transforms say these, and agree."""
    return next((mode for mode in modes if mode is not None), _UNSTATED)
