"""Misspelt names: an error that names the nearest right one. Pure."""

import difflib
import enum
from collections.abc import Collection
from typing import TypeVar

from sluice.runtime.errors import ConfigError

__all__ = ["choice_of", "nearest"]

E = TypeVar("E", bound=enum.Enum)

_TELLING = 5  # longest difference for a name that is part of another one


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that ``name`` most likely means, if any is close."""
    # A name with more or fewer words comes before one that only looks alike: for interval_s it
    # suggests checkpoint_interval_s, not checkpoint_dir.
    longer = {each for each in known if min(len(each), len(name)) >= _TELLING}
    contained = [each for each in longer if each in name or name in each]
    for among, cutoff in ((known, 0.85), (contained, 0.0), (known, 0.6)):
        found = difflib.get_close_matches(name, sorted(among), n=1, cutoff=cutoff)
        if found:
            return found[0]
    return None


def choice_of(kind: type[E], given: E | str, *, setting: str, remedy: str = "") -> E:
    """The member of ``kind`` that a setting names by its value, in any case.

    Args:
        kind: whose values are texts in lower case.
        given: a member, or its value.
        setting: its name, for the message.
        remedy: follows the nearest right value, if any is close; by default it lists all values.
    Raises:
        ConfigError: no member has this value.
    """
    if isinstance(given, kind):
        return given
    text = given.strip().lower() if isinstance(given, str) else ""  # None is not "none"
    known = [str(member.value) for member in kind]
    if text in known:
        return kind(text)
    guess = nearest(text, known)
    remedies = [f"Did you mean {guess}?"] if guess else []
    raise ConfigError(
        f"{setting} has a value that does not exist",
        {setting: given, "known": ", ".join(known)},
        " ".join((*remedies, remedy or f"Use one of {', '.join(known)}.")),
    )
