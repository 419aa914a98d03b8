"""The examples as a newcomer meets them: arguments that explain themselves, errors without a
traceback. What they write is tested where they run (`tests/chaos`, `tests/integration`)."""

import json
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.runtime.errors import UnreachableError
from sluice.runtime.job.job import Job

FOLDER = Path(__file__).parents[3] / "examples"
OTHERS = ("airflow_dag", "test_my_pipeline")  # without a command line of their own
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.stem not in OTHERS)
JOBS = [path for path in EXAMPLES if not path.stem.startswith("drop_in")]
NEEDED = {"--bootstrap": "here:1"} | dict.fromkeys(
    ("--input", "--output", "--path", "--dead", "--others", "--checkpoint"), "here"
)
_CATALOG = tempfile.TemporaryDirectory()  # of the example that makes its table first
NEEDED |= {
    "--catalog": f"sqlite:///{_CATALOG.name}/catalog.db",
    "--warehouse": _CATALOG.name,
    "--table": "lake.events",
}


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
    notebook = json.loads((FOLDER / "notebook.ipynb").read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert re.findall(r'environ\.get\("(\w+)"', "".join(cells[0]["source"])) == [
        "BOOTSTRAP",
        "INPUT",
        "OUTPUT",
        "CHECKPOINT",
    ]
    for cell in cells:
        assert (cell["outputs"], cell["execution_count"]) == ([], None)


def test_the_page_about_tests_begins_with_the_example() -> None:
    page = (FOLDER.parent / "docs" / "guide" / "test-your-pipeline.md").read_text("utf-8")
    block = page.partition("```python\n")[2].partition("```")[0]
    assert block == (FOLDER / "test_my_pipeline.py").read_text("utf-8")


def test_the_first_page_says_what_each_example_does() -> None:
    index = (FOLDER.parent / "docs" / "index.md").read_text("utf-8")
    table = re.findall(r"^\| `(\w+\.(?:py|ipynb))` \| .+ \|$", index, re.MULTILINE)
    found = [path.name for path in FOLDER.iterdir() if path.suffix in (".py", ".ipynb")]
    assert sorted(table) == sorted(found)


def test_the_dag_starts_a_bounded_job_with_the_parameters_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever characters they hold; `tests/integration/test_airflow.py` runs it in Airflow."""
    found: dict[str, Any] = {}
    parts = {"DAG": lambda *_, **__: nullcontext(), "Param": lambda default, **_: default}
    bash = {"BashOperator": lambda **settings: found.update(settings)}
    for path, content in (
        ("airflow.sdk", parts),
        ("airflow.providers.standard.operators.bash", bash),
    ):
        module = ModuleType(path)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, path, module)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 143\n')
    python.chmod(0o755)
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    runpy.run_path(str(FOLDER / "airflow_dag.py"))
    given = {name: f"$x `{template}` y" for name, template in found["env"].items()}
    ran = subprocess.run(
        ["bash", "-c", found["bash_command"]],
        env=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 143
    program, *options = ran.stdout.splitlines()
    assert program == str(tmp_path / "examples" / "kafka_to_kafka.py")
    assert options == [
        *("--until-end", "--bootstrap", "$x `{{ params.bootstrap }}` y"),
        *("--input", "$x `{{ params.input }}` y", "--output", "$x `{{ params.output }}` y"),
        *("--checkpoint", "$x `{{ params.checkpoint }}` y"),
    ]
