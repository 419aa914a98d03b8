"""Properties files as clouds give them, read as Java reads them."""

from pathlib import Path

import pytest

from sluice import ConfigError, KafkaConnection, client_properties

CANARY = "canary-71-secret"


def read(directory: Path, text: str) -> dict[str, str]:
    file = directory / "client.properties"
    file.write_text(text, "utf-8", newline="")
    return client_properties(file)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("acks=all", "acks", "all"),
        ("kafka.acks = all  ", "acks", "all"),
        ("\t acks : all", "acks", "all"),
        ("client.id=", "client.id", ""),
        ("sasl.password=a=b:c#d!e", "sasl.password", "a=b:c#d!e"),
        (r"sasl.password=a\\b\:\u00e9", "sasl.password", "a\\b:é"),
        ("ssl.key.pem=one\\n\\\n   two", "ssl.key.pem", "one\ntwo"),
        ("ssl.key.pem=one\\n\\\n# two\\", "ssl.key.pem", "one\n# two"),
        ("sasl.password=a\\\\\n#b", "sasl.password", "a\\"),
        ("# a\\\r\nacks=all\r\n! b=c\r\n", "acks", "all"),
    ],
)
def test_a_line_is_read_as_java_reads_it(tmp_path: Path, line: str, name: str, value: str) -> None:
    """But for blanks at the end of a value: they are no part of it."""
    assert read(tmp_path, line) == {f"kafka.{name}": value}


def test_settings_of_other_programs_are_left_out(tmp_path: Path) -> None:
    """Misspelt options are not: they are refused by name."""
    text = "schema.registry.url=x\nbasic.auth.user.info=x\nkey.serializer=x\nsasl.mechanizm=x\n"
    options = read(tmp_path, text)
    assert options == {"kafka.sasl.mechanizm": "x"}
    with pytest.raises(ConfigError, match=r"kafka\.sasl\.mechanizm"):
        KafkaConnection.of(options | {"kafka.bootstrap.servers": "b:1"})


@pytest.mark.parametrize("line", [CANARY, f"{CANARY} of a key", f"={CANARY}"])
def test_a_line_that_is_no_option_is_not_shown(tmp_path: Path, line: str) -> None:
    """It may be a part of a key that stands on several lines."""
    with pytest.raises(ConfigError, match=r"line=3\b") as raised:
        read(tmp_path, f"acks=all\n\n{line}\n")
    assert CANARY not in str(raised.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read.*absent"):
        client_properties(tmp_path / "absent")
    (tmp_path / "latin").write_bytes(b"client.id=\xe9")
    with pytest.raises(ConfigError, match=r"cannot be read.*latin"):
        client_properties(tmp_path / "latin")
