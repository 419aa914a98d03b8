"""Units and Compose files of `docs/guide/high-availability.md` fit each other and the program."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from sluice.runtime.leading.coordinator_cli import app
from tests.kit.deploy_page import DEPLOY, HIGH_AVAILABILITY, ROOT, commands

_TEST = ROOT / "tests" / "containers" / "test_high_availability.py"
_SERVERS = ROOT / "docker" / "compose.yaml"
_JOB = DEPLOY / "high-availability.yaml"
_UNITS = ("orders-coordinator", "orders-driver")


def settings_of(*names: str) -> dict[str, str]:
    """Lines NAME=VALUE of files, as systemd reads them: later ones win."""
    lines = [line for name in names for line in (DEPLOY / name).read_text("utf-8").splitlines()]
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def settings_of_program() -> set[str]:
    """Variables that `orders.py` reads."""
    text = (DEPLOY / "orders.py").read_text("utf-8")
    return set(re.findall(r"os\.environ(?:\.get\(|\[)\"([A-Z_]+)\"", text))


def options_of_coordinator() -> set[str]:
    """Long options of ``sluice coordinator start``."""
    command: Any = get_command(app)
    return {option for each in command.commands["start"].params for option in each.opts}


def services(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text("utf-8"))["services"]
    return found


def unit(name: str) -> dict[str, list[str]]:
    """Settings of a unit, each with all of its values."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / f"{name}.service").read_text("utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            setting, value = line.split("=", 1)
            found.setdefault(setting, []).append(value)
    return found


def start_of(script: str) -> list[str]:
    """The words after ``sluice coordinator start``."""
    words = shlex.split(script)
    begin = words.index("coordinator")
    assert words[begin - 1].endswith("sluice")
    assert words[begin + 1] == "start"
    return words[begin + 2 :]


def test_a_test_runs_each_block_of_commands() -> None:
    code = _TEST.read_text("utf-8")
    assert [title for title in commands(HIGH_AVAILABILITY) if f'"{title}"' not in code] == []


def test_the_page_names_each_file() -> None:
    page = (ROOT / "docs" / "guide" / HIGH_AVAILABILITY).read_text("utf-8")
    names = ("high-availability.env", _JOB.name, *(f"{name}.service" for name in _UNITS))
    assert [name for name in names if f"deploy/{name}" not in page] == []


def test_a_coordinator_gets_options_that_there_are() -> None:
    (line,) = unit("orders-coordinator")["ExecStart"]
    scripts = [line, services(_JOB)["coordinator-1"]["entrypoint"][-1]]
    for script in scripts:
        words = start_of(script)
        options = {word for word in words if word.startswith("--")}
        assert options >= {"--checkpoint", "--host", "--port", "--ha"}
        assert options <= options_of_coordinator()


def test_units_use_settings_that_there_are() -> None:
    """Each of them in a file, and each that is a driver's alone in the program, too."""
    given = settings_of("orders.env", "high-availability.env")
    (line,) = unit("orders-coordinator")["ExecStart"]
    used = set(re.findall(r"\$\{(\w+)\}", line))
    assert used <= given.keys()
    own = settings_of("high-availability.env").keys() - used
    assert own == {"COORDINATOR", "ENGINE"}
    assert own | {"DRIVER_HOST", "CHECKPOINT"} <= settings_of_program()
    for name in _UNITS:
        files = [Path(value).name for value in unit(name)["EnvironmentFile"]]
        assert files == ["orders.env", "high-availability.env"]


@pytest.mark.parametrize("setting", ["Restart", "SuccessExitStatus", "KillMode", "User"])
def test_units_end_as_that_of_one_process(setting: str) -> None:
    """What is said in `docs/guide/deploy.md` about exit codes holds for all of them."""
    expected = unit("orders")[setting]
    assert [unit(name)[setting] for name in _UNITS] == [expected, expected]


def test_the_driver_s_unit_is_that_of_a_job_and_more() -> None:
    one, other = unit("orders"), unit("orders-driver")
    different = {name for name in one | other if one.get(name) != other.get(name)}
    assert different == {"Description", "EnvironmentFile"}


def test_the_compose_file_uses_servers_that_there_are() -> None:
    servers, job = services(_SERVERS), services(_JOB)
    assert not servers.keys() & job.keys()
    script = job["coordinator-1"]["entrypoint"][-1]
    used = re.findall(r"([a-z]+(?:-\d)?):(\d+)", script)
    kafka = job["driver-1"]["environment"]["KAFKA_SERVERS"]
    used += re.findall(r"([a-z]+-\d):(\d+)", kafka)
    assert {name for name, _ in used} == servers.keys() - {"datanode"}
    for name, port in used:
        words = str(servers[name])
        assert re.search(rf"(://:|;|{name}:){port}\b", words), name


def test_both_of_a_kind_differ_in_their_names_alone() -> None:
    """So that either may do the other's work; and drivers read the job where coordinators do."""
    job = services(_JOB)
    for kind in ("coordinator", "driver"):
        first, second = job[f"{kind}-1"], job[f"{kind}-2"]
        assert first == second | {"hostname": f"{kind}-1"}
        assert second["hostname"] == f"{kind}-2"
    environment = job["driver-1"]["environment"]
    assert environment["CHECKPOINT"] in start_of(job["coordinator-1"]["entrypoint"][-1])
    assert environment.keys() <= settings_of_program()
    assert (environment["COORDINATOR"], environment["ENGINE"]) == ("process", "continuous")


def test_containers_are_confined_as_that_of_one_process() -> None:
    job = services(_JOB)
    one = services(DEPLOY / "compose.yaml")["orders"]
    for service in job.values():
        for name in ("init", "restart", "stop_grace_period", "read_only", "tmpfs", "cap_drop"):
            assert service[name] == one[name]
