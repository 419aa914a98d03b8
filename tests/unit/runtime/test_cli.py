"""The frame of the command line: registration, errors, exit codes."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points, version

import click
import pytest
import typer
from typer.main import get_command

from sluice.runtime import cli
from sluice.runtime.cli import ENTRY_POINT_GROUP, build_app, main
from sluice.runtime.cli_output import describe_error
from sluice.runtime.errors import ConfigError

group = typer.Typer()


@group.command()
def hello() -> None:
    """Say it."""
    typer.echo("hello")


@group.command()
def fail() -> None:
    """Raise what a command of ours may raise."""
    raise ConfigError("the option is wrong", {"option": "[red]x"}, "Use y.")


@group.command()
def interrupted() -> None:
    """As if Ctrl-C was pressed."""
    raise KeyboardInterrupt


def single() -> None:
    """A command without a group."""
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


def test_error_is_a_block_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What, where and remedy on standard error, exit code 1; markup in values stays text."""
    assert _run(monkeypatch, ["group", "fail"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "Error: the option is wrong.\n  option: [red]x\nUse y.\n"


def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the shell expects."""
    assert _run(monkeypatch, ["group", "interrupted"]) == 130


def test_wrong_usage_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown command is reported as such."""
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


def test_error_text_names_every_place() -> None:
    """Each entry of ``where`` has a line."""
    text = describe_error(ConfigError("w", {"a": 1, "b": 2}, "r")).plain
    assert text.splitlines() == ["Error: w.", "  a: 1", "  b: 2", "r"]


def test_every_registered_command_loads() -> None:
    """Nothing that this distribution registers is broken."""
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        assert entry.load() is not None


def test_every_command_takes_kafkas_servers_by_the_same_names() -> None:
    names = {
        " ".join(path): option.opts
        for path, command in _commands(
            get_command(build_app(entry_points(group=ENTRY_POINT_GROUP)))
        )
        for option in command.params
        if any("bootstrap" in name for name in option.opts)
    }
    assert {"kafka create", "txn list", "txn abort", "verify"} <= set(names)
    for found in names.values():
        assert found == ["--bootstrap-servers", "--bootstrap-server", "--bootstrap"]


def _commands(
    command: click.Command, *path: str
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands(each, *path, name)


def test_the_usage_of_every_command_says_once_what_may_be_repeated() -> None:
    """Typer puts the dots and brackets there; a metavar with its own shows them twice."""
    commands = _commands(get_command(build_app(entry_points(group=ENTRY_POINT_GROUP))))
    told = [option.metavar for _, command in commands for option in command.params]
    assert "TRANSACTIONAL_ID" in told
    assert [each for each in told if each and ("..." in each or "[" in each)] == []


def test_the_version_is_reported_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """It is what checkpoints have on record."""
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert not caught.value.code
    assert capsys.readouterr().out == f"sluice {version('sluice-spark')}\n"
