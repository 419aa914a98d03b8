"""Tables, facts and JSON of the commands, as a pipe receives them."""

import json

import pytest

from sluice.runtime.cli_output import print_facts, print_json, print_table


def test_a_table_shows_each_value_literally_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Text that looks like a style stays text; a row of a pipe is not folded at 80 columns."""
    print_table(("id", "detail"), [(None, "[bold]" + "x" * 120)], title="Found")
    title, head, _, row = (
        line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()
    )
    assert title == "Found"
    assert head.split() == ["id", "detail"]
    assert row.split() == ["-", "[bold]" + "x" * 120]


def test_facts_without_a_value_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Zero and False are values; lists and mappings are one line each."""
    print_facts({"a": 0, "b": None, "c": [1, None], "d": {"x": 2}, "e": [], "f": False})
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [[name, value.strip()] for name, value in lines] == [
        ["a", "0"],
        ["c", "1, -"],
        ["d", "x=2"],
        ["f", "False"],
    ]


def test_json_holds_names_that_are_no_unicode(capsys: pytest.CaptureFixture[str]) -> None:
    """A file's name may hold any bytes, and a script must be able to read it back."""
    print_json({"file": "\udcff.json"})
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert json.loads(shown) == {"file": "\udcff.json"}
