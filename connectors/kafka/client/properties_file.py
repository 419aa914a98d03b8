"""Properties files of Kafka clients, in the form that clusters in the cloud give them. Driver."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from sluice.connectors.kafka.client.client_options import PREFIX
from sluice.runtime.errors import ConfigError

__all__ = ["client_properties"]

# Such files also hold settings of registry clients and of Java's serializers.
_OTHERS = re.compile(
    r"(schema\.registry|basic\.auth|bearer\.auth)\.|(key|value)\.(de)?serializer(\.|$)"
)
_PAIR = re.compile(r"((?:\\.|[^\\=:\s])+)\s*[=:]\s*(.*?)\s*")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)")
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def client_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    r"""Options of a Java properties file, each with the prefix ``kafka.``.

    For ``options=`` of `KafkaSource` and `KafkaSink`, and for ``.options(**…)`` of a query. As in
    Java, ``#`` begins a comment, and ``\`` continues a line or escapes a character. A name may
    already have the prefix. Settings of registry clients and serializers are left out.

    Raises:
        ConfigError: the file cannot be read, or a line has no ``=``; it shows no values.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(
            "the file of options cannot be read",
            {"file": os.fspath(path), "reason": err},
            "Give a readable file of KEY=VALUE lines in UTF-8.",
        ) from err
    options = {}
    for number, line in _logical_lines(text):
        found = _PAIR.fullmatch(line)
        if found is None:
            raise ConfigError(
                "a line is not of the form KEY=VALUE",
                {"file": os.fspath(path), "line": number},  # its text may be a part of a key
                "Write for example security.protocol=SASL_SSL.",
            )
        name, value = (_ESCAPE.sub(_unescaped, part) for part in found.groups())
        if not _OTHERS.match(name):
            options[PREFIX + name.removeprefix(PREFIX)] = value
    return options


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations, each with the number of its last one; without comments."""
    held = ""
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        part = line.lstrip(" \t\f")
        if not held and part.startswith(("#", "!")):
            continue
        held += part
        if (len(held) - len(held.rstrip("\\"))) % 2:
            held = held[:-1]
        elif held:
            yield number, held
            held = ""
    if held:
        yield number, held


def _unescaped(found: re.Match[str]) -> str:
    sign = found[1]
    return chr(int(sign[1:], 16)) if len(sign) > 1 else _CONTROL.get(sign, sign)
