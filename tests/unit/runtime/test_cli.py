"""The command line: registration, errors, exit codes and tables."""

from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from sluice.runtime import cli
from sluice.runtime.cli import ENTRY_POINT_GROUP, main
from sluice.runtime.errors import ConfigError, StreamError
from tests.unit.connectors.kafka.tools.verify.test_verify_command import app, run, written

group = typer.Typer()


@group.command()
def hello() -> None:
    typer.echo("hello")


@group.command()
def fail() -> None:
    raise ConfigError("the option is wrong", {"option": "[red]x"}, "Use y.")


@group.command()
def interrupted() -> None:
    raise KeyboardInterrupt


@group.command()
def long() -> None:
    """First.

    A line
    and its end.
    """


def single() -> None:
    typer.echo("single")


def _entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=ENTRY_POINT_GROUP)


def _run(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], *, more: tuple[EntryPoint, ...] = ()
) -> int | str | None:
    entries = (_entry("group", f"{__name__}:group"), _entry("single", f"{__name__}:single"), *more)
    monkeypatch.setattr(cli, "entry_points", lambda **_: entries)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def test_groups_and_functions_register(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An entry point may name a group or one function."""
    assert _run(monkeypatch, ["group", "hello"]) == 0
    assert _run(monkeypatch, ["single"]) == 0
    assert capsys.readouterr().out.split() == ["hello", "single"]


def test_help_wraps_a_paragraph_at_the_terminal_and_not_at_the_source_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, ["group", "long", "--help"]) == 0
    assert "A line and its end." in capsys.readouterr().out


def test_error_is_a_block_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What, where and remedy on standard error, exit code 1; markup in values stays text."""
    assert _run(monkeypatch, ["group", "fail"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "Error: the option is wrong.\n  option: [red]x\nUse y.\n"


def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run(monkeypatch, ["group", "interrupted"]) == 130


def test_wrong_usage_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, ["group", "helo"]) == 2
    assert "hello" in capsys.readouterr().err


def test_one_broken_group_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group that cannot be loaded is an error only when it is asked for."""
    broken = (_entry("broken", "no_such_module:app"),)
    assert _run(monkeypatch, ["single"], more=broken) == 0
    assert _run(monkeypatch, ["broken"], more=broken) == 1
    assert "no_such_module" in capsys.readouterr().err


def test_every_registered_command_loads() -> None:
    """Nothing that this distribution registers is broken."""
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        assert entry.load() is not None


def test_the_version_is_reported_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert not caught.value.code
    assert capsys.readouterr().out == f"sluice {version('sluice-spark')}\n"


def test_what_is_compared_with_itself_is_refused(tmp_path: Path) -> None:
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
