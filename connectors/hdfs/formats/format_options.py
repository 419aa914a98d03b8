"""Options of file formats, by the names that Spark's own writers have. Pure.

Names are case-insensitive. A misspelt name is an error that names the nearest option. Spark ignores
such a name, and then writes other files than the user wanted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.spelling import nearest

__all__ = ["Codec", "FormatOptions", "flag", "text"]

T = TypeVar("T")

_ALIASES = {"codec": "compression", "delimiter": "sep"}  # Spark has both names


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """A compression.

    Attributes:
        name: of the compression in its library.
        extension: of file names, with its dot, as Spark's writers have it; may be empty.
    """

    name: str
    extension: str


class FormatOptions:
    """The user's options for one format, by canonical name.

    Args:
        given: names in any case; those of the format only.
        known: the names this format has.
        of: the format, for messages.
    Raises:
        ConfigError: a name is unknown, or given twice.
    """

    def __init__(self, given: Mapping[str, str], *, known: tuple[str, ...], of: str) -> None:
        self._of = of
        self._values: dict[str, str] = {}
        canonical = {name.lower(): name for name in known}
        canonical |= {alias: name for alias, name in _ALIASES.items() if name in known}
        for name, value in given.items():
            found = canonical.get(name.strip().lower())
            if found is None:
                guess = nearest(name.strip().lower(), canonical)
                raise ConfigError(
                    f"unknown option of the {of} format",
                    {"option": name},
                    f"Did you mean {canonical[guess]}?" if guess else "Remove it.",
                )
            if found in self._values:
                raise ConfigError(
                    f"an option of the {of} format is given twice", {"option": name}, "Give one."
                )
            self._values[found] = str(value)

    def read(self, name: str, convert: Callable[[str], T], default: T) -> T:
        """The converted value, or the default.

        Raises:
            ConfigError: ``convert`` raised ValueError, whose text completes "Give …".
        """
        if name not in self._values:
            return default
        try:
            return convert(self._values[name])
        except ValueError as err:
            raise ConfigError(
                f"an option of the {self._of} format has an invalid value",
                {"option": name, "value": self._values[name]},
                f"Give {err}.",
            ) from None

    def codec(self, codecs: Mapping[str, Codec]) -> Codec:
        """The codec that ``compression`` names; by default the first of ``codecs``."""

        def convert(value: str) -> Codec:
            if value.strip().lower() not in codecs:
                raise ValueError(f"one of {', '.join(codecs)}")
            return codecs[value.strip().lower()]

        return self.read("compression", convert, next(iter(codecs.values())))


def flag(value: str) -> bool:
    """``true`` or ``false``."""
    if value.strip().lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.strip().lower() == "true"


def text(value: str) -> str:
    """Any text that is not empty."""
    if not value:
        raise ValueError("a value that is not empty")
    return value
