"""A pytest of a user: in a directory and a process of its own, with Sluice's plugin installed."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def user_environment(tmp_path: Path) -> Mapping[str, str]:
    """Of a process that finds an installed Sluice, with the entry points of `pyproject.toml`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (entry,) = project["entry-points"]["pytest11"].items()
    installed = tmp_path / "installed" / "sluice_spark_testing-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sluice-spark-testing\nVersion: 0\n"
    )
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{' = '.join(entry)}\n")
    own = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    return {**own, "PYTHONPATH": f"{ROOT}{os.pathsep}{installed.parent}"}


def command(*arguments: object) -> list[str]:
    options = ("-q", "-p", "no:cacheprovider", "-W", "error", "--strict-markers")
    return [sys.executable, "-m", "pytest", *options, *map(str, arguments)]


def passed(environment: Mapping[str, str], directory: Path, *arguments: object) -> str:
    """The output of a pytest of which all tests pass."""
    done = subprocess.run(
        command(*arguments), env=environment, cwd=directory, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def user_project(tmp_path: Path) -> Path:
    """A user's directory of tests."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "pytest.ini").write_text("[pytest]\n")
    return directory
