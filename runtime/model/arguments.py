"""Arguments of another kind than they have to be: refused where they are given, by name. Pure.

Python takes whatever it is given, and fails where that is used: in a thread of the coordinator, or
in an executor, with an error that names neither the argument nor what it may be.
"""

import contextlib
import math
import socket
from collections.abc import Collection, Iterable, Mapping

from sluice.runtime.errors import ConfigError

__all__ = [
    "check_kinds",
    "ordered_texts",
    "require_able",
    "require_flag",
    "require_function",
    "require_host",
    "require_mapping",
    "require_number",
    "require_text",
    "require_whole",
]

_MOST_SHOWN = 60


def require_text(value: object, name: str, *, of: str, may_be_empty: bool = False) -> None:
    """Text, with something in it.

    Args:
        value: of the argument; of these functions none takes None: leave it out.
        name: of the argument.
        of: whose it is, for the message.
        may_be_empty: "" says that it was not given.
    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, str) or not (may_be_empty or value.strip()):
        raise _wrong(value, name, of, "text", f"Write {name}='…'.")


def require_host(value: object, name: str, *, of: str) -> None:
    """An address at which others reach this process; see `require_text`.

    One that stands for all of a machine's is taken by whoever listens, and leads others to
    themselves: tasks of a cluster would ask in vain, for minutes.
    """
    require_text(value, name, of=of)
    if _is_unspecified(str(value)):
        raise ConfigError(
            "an address that stands for all of this machine's is none to be reached at",
            {"argument": f"{name} of {of}", "given": value},
            "Give the one at which the executors reach the driver, for example "
            "socket.gethostbyname(socket.gethostname()); leave it out for a local master.",
        )


def _is_unspecified(host: str) -> bool:
    """Whether it is no host's own address, in any spelling that a system takes, as ``0``."""
    with contextlib.suppress(OSError, ValueError):
        return not any(socket.inet_aton(host))
    with contextlib.suppress(OSError, ValueError):
        return not any(socket.inet_pton(socket.AF_INET6, host))
    return False


def require_number(value: object, name: str, *, of: str, may_be_endless: bool = False) -> None:
    """A finite number; see `require_text`.

    Args:
        may_be_endless: `math.inf` says that there is no limit.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and may_be_endless and value == math.inf:
        return
    if not is_number or not math.isfinite(value):  # type: ignore[arg-type]  # by the line above
        raise _wrong(value, name, of, "a finite number", f"Write {name}=1.5, without quotes.")


def require_whole(value: object, name: str, *, of: str) -> None:
    """A whole number; see `require_text`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(value, name, of, "a whole number", f"Write {name}=3, without quotes.")


def require_flag(value: object, name: str, *, of: str) -> None:
    """True or False: of texts "false" would be true; see `require_text`."""
    if not isinstance(value, bool):
        raise _wrong(value, name, of, "True or False", f"Write {name}=True, without quotes.")


def require_mapping(value: object, name: str, *, of: str) -> None:
    """Names with their values, which may be secret; see `require_text`."""
    if not isinstance(value, Mapping):
        remedy = f"Write {name}={{'name': 'value'}}."
        raise _wrong(type(value), name, of, "a dictionary", remedy)


def require_function(value: object, name: str, *, of: str) -> None:
    """Something to call; see `require_text`. What it returns may be secret."""
    if not callable(value):
        remedy = "Give the function itself: without quotes, and not what it returns."
        raise _wrong(type(value), name, of, "a function", remedy)


def require_able(
    value: object, name: str, methods: Collection[str], *, of: str, example: str
) -> None:
    """An object with these methods, as one of ``example``; see `require_text`."""
    if isinstance(value, type) or not all(hasattr(value, method) for method in methods):
        raise _wrong(value, name, of, f"an object such as {example}", f"Write {name}={example}.")


def ordered_texts(value: object, name: str, *, of: str, example: str) -> tuple[str, ...]:
    """Texts in an order that counts, read but once; one by itself is a list of one; see
    `require_text`."""
    if isinstance(value, str):
        value = (value,)
    if isinstance(value, set | frozenset) or not isinstance(value, Iterable):
        remedy = f"Write {name}={example}: a set has another order in each process."
        raise _wrong(value, name, of, f"a list such as {example}", remedy)
    found = tuple(value)
    for each in found:
        require_text(each, name, of=of)
    return found


def check_kinds(
    of: str,
    *,
    texts: Mapping[str, object] | None = None,
    optional_texts: Mapping[str, object] | None = None,
    numbers: Mapping[str, object] | None = None,
    flags: Mapping[str, object] | None = None,
    objects: Mapping[str, tuple[object, Collection[str], str]] | None = None,
    options: object = None,
) -> None:
    """What a source, a sink or a step is given, before any of it is used.

    Args:
        of: its class, or its call.
        texts: by argument; may be empty.
        optional_texts: the same; None: it was not given.
        numbers: by argument; None: it was not given.
        flags: by argument.
        objects: by argument, with the methods and the example of `require_able`; None: it was not
            given.
        options: names with values, or None.
    Raises:
        ConfigError: one of them is of another kind.
    """
    for name, value in (texts or {}).items():
        require_text(value, name, of=of, may_be_empty=True)
    for name, value in (optional_texts or {}).items():
        if value is not None:
            require_text(value, name, of=of, may_be_empty=True)
    for name, value in (numbers or {}).items():
        if value is not None:
            require_number(value, name, of=of)
    for name, value in (flags or {}).items():
        require_flag(value, name, of=of)
    for name, (value, methods, example) in (objects or {}).items():
        if value is not None:
            require_able(value, name, methods, of=of, example=example)
    if options is not None:
        require_mapping(options, "options", of=of)


def _wrong(value: object, name: str, of: str, kind: str, remedy: str) -> ConfigError:
    shown = repr(value)
    if len(shown) > _MOST_SHOWN:
        shown = shown[: _MOST_SHOWN - 1] + "…"
    return ConfigError(
        f"an argument of {of} is not {kind}", {"argument": name, "given": shown}, remedy
    )
