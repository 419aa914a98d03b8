"""What ``sluice verify`` refuses before it reads anything: it would be true always, or do harm."""

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from sluice.runtime.errors import StreamError
from tests.unit.connectors.kafka.tools.verify.test_verify_command import app, run, written


def test_what_is_compared_with_itself_is_refused(tmp_path: Path) -> None:
    """It is exactly once, always."""
    source = written(tmp_path / "in", ["a"])
    for output in (source, f"{source}/", f"file://{source}", f"{source}/../in"):
        result = CliRunner().invoke(app, ["--input", source, "--output", output])
        assert "input and output are the same" in str(result.exception)
    result = CliRunner().invoke(app, ["--input", "t", "--output", "t", "--bootstrap", "b:1"])
    assert "input and output are the same" in str(result.exception)


def test_a_side_that_lies_in_the_other_is_refused(tmp_path: Path) -> None:
    outer = written(tmp_path / "data", ["a"])
    inner = written(tmp_path / "data" / "out", ["a"])
    for one, other in ((outer, inner), (inner, outer), (outer, f"{inner}/part.json")):
        result = CliRunner().invoke(app, ["--input", one, "--output", other])
        assert "input and output overlap" in str(result.exception)
    (tmp_path / "data" / "out").rename(tmp_path / "data" / "_out")
    result = CliRunner().invoke(app, ["--input", outer, "--output", f"{outer}/_out"])
    assert result.exit_code == 0, result.output
    (tmp_path / "data" / "_out").rename(tmp_path / "data" / "_c0=1")
    result = CliRunner().invoke(app, ["--input", outer, "--output", f"{outer}/_c0=1"])
    assert "input and output overlap" in str(result.exception), "a partition of Spark's"
    (tmp_path / "data" / "_c0=1").rename(tmp_path / "elsewhere")
    beside = written(tmp_path / "data-2", ["a"])
    assert CliRunner().invoke(app, ["--input", outer, "--output", beside]).exit_code == 0


def test_findings_do_not_overwrite_what_they_are_about(tmp_path: Path) -> None:
    """The file is emptied before anything is read."""
    source = written(tmp_path / "in", ["a"])
    part = tmp_path / "in" / "part.json"
    for findings in (part, tmp_path / "in" / "new", tmp_path / "out" / ".." / "in" / "part.json"):
        result = run_again(tmp_path, source, str(findings))
        assert "lies inside the compared data" in str(result.exception)
    assert part.read_text("utf-8") == '{"value": "a"}\n'


def run_again(tmp_path: Path, source: str, findings: str) -> Result:
    output = str(tmp_path / "out")
    arguments = ["--input", source, "--output", output, "--findings", findings]
    return CliRunner().invoke(app, arguments)


def test_a_time_that_is_no_number_is_wrong_usage(tmp_path: Path) -> None:
    assert run(tmp_path, ["a"], ["a"], "--timeout", "nan").exit_code == 2


def test_a_side_without_a_name_is_wrong_usage(tmp_path: Path) -> None:
    """As an unset variable of a shell gives it."""
    source = written(tmp_path / "in", ["a"])
    for arguments in (["--input", "", "--output", source], ["--input", source, "--output", ""]):
        result = CliRunner().invoke(app, [*arguments, "--bootstrap", "b:1"])
        assert result.exit_code == 2


def test_memory_that_no_machine_has_is_wrong_usage(tmp_path: Path) -> None:
    assert run(tmp_path, ["a"], ["b"], "--memory-mib", str(10**17)).exit_code == 2


@pytest.mark.parametrize("option", ["--input", "--output", "--findings"])
def test_a_link_to_itself_is_named(tmp_path: Path, option: str) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    places = {"--input": written(tmp_path / "in", ["a"]), "--output": written(tmp_path / "o", [])}
    words = [word for pair in {**places, option: str(loop)}.items() for word in pair]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, StreamError)
    assert str(loop) in str(result.exception)
