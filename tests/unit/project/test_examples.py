"""The examples as a newcomer meets them: arguments that explain themselves, errors without a
traceback. What they write is tested where they run (`tests/chaos`, `tests/integration`)."""

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.runtime.errors import UnreachableError
from sluice.runtime.job.job import Job

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.py"))
JOBS = [path for path in EXAMPLES if not path.stem.startswith("drop_in")]
NEEDED = {"--bootstrap": "here:1"} | dict.fromkeys(
    ("--input", "--output", "--path", "--checkpoint"), "here"
)


class AnyBuilder:
    """Takes every setting; the session is None, which nobody asks here."""

    def __getattr__(self, _: str) -> Callable[..., "AnyBuilder"]:
        return lambda *_, **__: self

    def getOrCreate(self) -> None:
        """No session."""


def name(path: Path) -> str:
    return path.stem


def helped(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", [path.name, "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("path", EXAMPLES, ids=name)
def test_every_argument_of_an_example_says_what_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = helped(path, monkeypatch, capsys)
    options = re.sub(r"\n {10,}", "  ", text.partition("options:")[2])  # long names have two lines
    assert "--bootstrap BOOTSTRAP  host:port" in options
    assert re.findall(r"^ +--\S+(?: \S+| \[.*\])?$", options, re.MULTILINE) == []


@pytest.mark.parametrize("path", JOBS, ids=name)
def test_a_job_that_cannot_start_is_one_line_that_says_what_to_do(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, the error's own words, no traceback."""

    def run(_: Job) -> Any:
        raise UnreachableError("no broker answers", {"servers": "here:1"}, "Start one.")

    monkeypatch.setattr(Job, "run", run)
    monkeypatch.setattr(SparkSession, "builder", AnyBuilder())
    takes = helped(path, monkeypatch, capsys)
    arguments = [text for each in NEEDED if each in takes for text in (each, NEEDED[each])]
    monkeypatch.setattr(sys, "argv", [path.name, *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == ("UnreachableError: no broker answers [servers=here:1]. Start one.")


def test_the_notebook_takes_its_settings_from_the_environment_and_holds_no_output() -> None:
    notebook = json.loads((EXAMPLES[0].parent / "notebook.ipynb").read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert re.findall(r'environ\.get\("(\w+)"', "".join(cells[0]["source"])) == [
        "BOOTSTRAP",
        "INPUT",
        "OUTPUT",
        "CHECKPOINT",
    ]
    for cell in cells:
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
