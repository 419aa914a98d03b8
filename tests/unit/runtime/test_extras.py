"""Packages of an extra that are not installed: the error names the extra to install."""

import importlib
import sys
from importlib.metadata import EntryPoint

import pytest

import sluice
from sluice.__main__ import main
from sluice.runtime import cli
from sluice.runtime.errors import MissingRequirementError
from sluice.runtime.extras import extras_named


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("pyspark.sql", "spark"),
        ("py4j.protocol", "spark"),
        ("psutil", "local"),
        ("typer", "cli"),
        ("httpx2", "registry"),
        ("google.protobuf", "registry"),
        ("grpc_tools.protoc", "registry"),
        ("jsonschema", "registry"),
        ("referencing", "registry"),
        ("rocksdict", "state"),
    ],
)
def test_a_missing_package_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it was not installed
    with (
        pytest.raises(MissingRequirementError, match=rf"Install sluice-spark\[{extra}\]\.$"),
        extras_named(),
    ):
        importlib.import_module(module)


def test_a_package_of_no_extra_stays_an_import_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), extras_named():
        importlib.import_module("no_such_module")


def test_a_public_name_names_the_extra_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(sluice), "install", raising=False)
    monkeypatch.delitem(sys.modules, "sluice.connectors.installation", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(MissingRequirementError, match=r"sluice-spark\[spark\]"):
        _ = sluice.install


def test_the_command_without_its_packages_exits_with_1_and_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(sys.modules["sluice.runtime"], "cli")
    monkeypatch.delitem(sys.modules, "sluice.runtime.cli")
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match=r"^Error: .*Install sluice-spark\[cli\]\.$"):
        main()


def test_a_command_that_needs_another_extra_says_so_when_it_is_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = EntryPoint(name="local", value="psutil:Process", group=cli.ENTRY_POINT_GROUP)
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setattr(cli, "entry_points", lambda **_: [entry])
    with pytest.raises(SystemExit) as ended:
        cli.main(["local"])
    assert ended.value.code == 1
    assert "Install sluice-spark[local]." in capsys.readouterr().err
