"""``sluice verify`` of a job that writes to several topics: each run judges one of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sluice.connectors.kafka.tools.verify.verify_cli import verify_command
from sluice.runtime.checker import Record
from sluice.runtime.checker.records.user_mapping import load_mapping
from sluice.runtime.errors import ConfigError

app = typer.Typer()
app.command()(verify_command)

_ROUTES = """
def f(record):
    if record.value == b"bad":
        return record._replace(topic="dead-letters")
    if record.value == b"here":
        return record._replace(topic={output!r})
    return record
"""
_BEHIND = "def f(record):\n    return record._replace(topic='dead-letters')\n"


class Bed:
    """An input and an output of one file each, and a mapping in a module of its own."""

    def __init__(self, directory: Path, given: Sequence[str], found: Sequence[str]) -> None:
        self.source, self.output = directory / "in.json", directory / "out.json"
        for path, values in ((self.source, given), (self.output, found)):
            lines = (json.dumps({"value": value}) + "\n" for value in values)
            path.write_text("".join(lines), "utf-8")
        self._module = directory / f"routes_{directory.name.replace('-', '_')}.py"

    def run(self, code: str, *options: str) -> Any:
        self._module.write_text(code, "utf-8")
        places = ["--input", str(self.source), "--output", str(self.output)]
        words = [*places, "--map", f"{self._module.stem}:f", *options]
        return CliRunner().invoke(app, words, env={"COLUMNS": "500"})


@pytest.fixture(autouse=True)
def _beside_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))


def test_what_goes_to_another_topic_is_not_expected_here(tmp_path: Path) -> None:
    """The input's own topic, which most mappings leave as it is, and the output's are here."""
    bed = Bed(tmp_path, ["good", "bad", "here"], ["good", "here"])
    result = bed.run(_ROUTES.format(output=str(bed.output)), "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert (facts["expected"], facts["found"], facts["expected_elsewhere"]) == (2, 2, 1)


def test_a_job_that_writes_all_to_one_topic_is_not_exactly_once(tmp_path: Path) -> None:
    bed = Bed(tmp_path, ["good", "bad"], ["good", "bad"])
    result = bed.run(_ROUTES.format(output=str(bed.output)), "--json")
    assert result.exit_code == 3
    facts = json.loads(result.stdout)
    assert (facts["unexpected"], facts["lost"]) == (1, 0)
    assert facts["examples"]["unexpected"] == [f"{bed.output}-0@1"]


def test_a_mapping_that_sends_everything_elsewhere_has_given_records(tmp_path: Path) -> None:
    reason = "the mapping sends all results for 1 input records to another topic"
    result = Bed(tmp_path, ["bad"], ["other"]).run(_BEHIND)
    assert result.exit_code == 3
    assert reason in result.stdout
    assert "than the output: is this the output?" in result.stdout
    result = Bed(tmp_path, ["bad"], []).run(_BEHIND)
    assert isinstance(result.exception, ConfigError)
    assert reason in str(result.exception)


def test_a_topic_that_is_no_text_is_refused(tmp_path: Path) -> None:
    code = "def f(record):\n    return record._replace(topic=b'dead-letters')\n"
    (tmp_path / "bytes_topic.py").write_text(code, "utf-8")
    with pytest.raises(ConfigError, match="the topic is of type bytes"):
        load_mapping("bytes_topic:f")(Record("orders", 2, 7, b"k", b"v"))


_LAZY = """
class Lazily:
    def __iter__(self):
        {}

def f(record):
    return record._replace(headers=Lazily())
"""


@pytest.mark.parametrize("fault", ["raise KeyError('h')", "raise SystemExit(0)"])
def test_what_the_headers_of_a_result_raise_is_an_error(tmp_path: Path, fault: str) -> None:
    """They are read when the function has returned; exit code 0 would be "exactly once"."""
    result = Bed(tmp_path, ["a"], []).run(_LAZY.format(fault))
    assert result.exit_code == 1
    assert isinstance(result.exception, ConfigError)
    assert "in.json-0@0" in str(result.exception)
