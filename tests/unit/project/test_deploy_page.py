"""`docs/guide/deploy.md` and `deploy/` do not drift apart, nor from the tests that run them."""

import re
import runpy
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deploy_page import DEPLOY, ROOT, commands

TESTS = (
    "tests/containers/test_deploy.py",
    "tests/integration/test_deploy_cluster.py",
    "tests/integration/test_yarn_command.py",
    "tests/integration/test_yarn_jobs.py",
)


def test_a_test_runs_each_block_of_commands() -> None:
    code = "".join(
        (ROOT / name).read_text("utf-8") for name in (*TESTS, "tests/kit/deploy_page.py")
    )
    assert [title for title in commands() if f'"{title}"' not in code] == []
    page = (ROOT / "docs" / "guide" / "deploy.md").read_text("utf-8")
    assert page.count("```sh") == len(commands()), "a block does not begin with a comment"


def test_the_compose_file_says_the_same_as_the_command() -> None:
    """What Docker Compose reads, without it: no test has it at hand."""
    text = re.sub(r"^ *#.*\n", "", (DEPLOY / "compose.yaml").read_text("utf-8"), flags=re.MULTILINE)
    words = shlex.split(commands()["Run the container"])
    for option, line in {
        "--init": "init: true",
        "--stop-timeout 90": "stop_grace_period: 90s",
        "--read-only": "read_only: true",
        "--tmpfs /tmp:exec,mode=1777": 'tmpfs: ["/tmp:exec,mode=1777"]',
        "--memory 1g": "mem_limit: 1g",
        "--cap-drop ALL": "cap_drop: [ALL]",
        "--env-file deploy/orders.env": "env_file: orders.env",
        "--env CHECKPOINT=/checkpoints/orders": "CHECKPOINT: /checkpoints/orders",
        "--volume orders-checkpoints:/checkpoints": "- orders-checkpoints:/checkpoints",
        "kafka-login:/run/secrets/kafka-login:ro": "- ./kafka-login:/run/secrets/kafka-login:ro",
    }.items():
        assert option in " ".join(words)
        assert line in text, option


@pytest.mark.parametrize("name", ["orders", "orders-coordinator", "orders-driver"])
def test_systemd_accepts_the_unit(tmp_path: Path, name: str) -> None:
    """With programs that exist here."""
    unit = (DEPLOY / f"{name}.service").read_text("utf-8")
    here = re.sub("/opt/orders/bin/(python|sluice)", "/bin/true", unit)
    assert here != unit
    (tmp_path / f"{name}.service").write_text(here.replace("User=orders", "User=root"))
    try:
        done = _run(["systemd-analyze", "verify", str(tmp_path / f"{name}.service")])
    except FileNotFoundError:
        pytest.skip("this host has no systemd")
    complaints = [line for line in done.stderr.splitlines() if f"{name}.service" in line]
    assert complaints == []


def test_the_program_reads_its_login_from_a_file_with_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the file that we ship, which has none."""
    program = runpy.run_path(str(DEPLOY / "orders.py"))
    (tmp_path / "kafka-login").write_text("# kafka.x=1\n\nkafka.sasl.password=a=b\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert program["login"]() == {"kafka.sasl.password": "a=b"}
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(DEPLOY))
    assert program["login"]() == {}


def _run(command: list[str]) -> Any:
    return subprocess.run(command, capture_output=True, text=True, check=False)
