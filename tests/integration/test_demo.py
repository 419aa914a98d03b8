"""``sluice demo``: it judges honestly, and leaves nothing running however it ends."""

import re
import sys
from pathlib import Path

import psutil
import pytest

from sluice.runtime.embedded.program import Program, ProgramSpec
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "tests" / "chaos" / "stand_in.py"
EXAMPLE = ROOT / "examples" / "kafka_to_kafka.py"
RECORDS = 20_000


class Demo(Program):
    """The command as a user starts it; mostly over a pipeline that needs no Spark."""

    def __init__(self, directory: Path, *, pipeline: Path = STAND_IN, fault: str = "") -> None:
        arguments = ("demo", "--records", str(RECORDS), "--pipeline", str(pipeline))
        environment = {"STAND_IN_FAULT": fault, "PYTHONPATH": str(ROOT)}
        command = (
            sys.executable,
            "-u",
            "-c",
            "from sluice.runtime.cli import main; main()",
            *arguments,
        )
        log_path = directory / "demo.log"
        super().__init__(ProgramSpec(command=command, log_path=log_path, environment=environment))


def started_by(demo: Demo) -> list[psutil.Process]:
    """The broker, the pipeline and what they started; they have sessions of their own."""
    return list(psutil.Process(demo.pid).children(recursive=True))


def row(log: str, name: str) -> str:
    """The value beside ``name`` in the printed table."""
    found = re.search(rf"{re.escape(name)}\s+│\s+(.*?)\s+│", log)
    assert found, log
    return found[1]


@pytest.mark.parametrize(
    "pipeline",
    [pytest.param(STAND_IN, marks=pytest.mark.long), EXAMPLE],  # daily it is seen to double
    ids=["a stand-in", "Spark"],
)
def test_the_demo_kills_and_says_nothing_was_lost(tmp_path: Path, pipeline: Path) -> None:
    with Demo(tmp_path, pipeline=pipeline) as demo:
        assert demo.await_exit(timeout_s=PATIENCE_S) == 0, demo.log()
        assert demo.await_end(timeout_s=PATIENCE_S)
        log = demo.log()
    assert row(log, "records in") == row(log, "records out") == f"{RECORDS:,}"
    assert {row(log, name) for name in ("lost", "duplicated", "reordered")} == {"0"}


@pytest.mark.extended
def test_the_demo_of_a_pipeline_that_doubles_fails(tmp_path: Path) -> None:
    with Demo(tmp_path, fault="stutter") as demo:
        assert demo.await_exit(timeout_s=PATIENCE_S) == 1, demo.log()
        assert row(demo.log(), "duplicated") != "0"


def test_ctrl_c_ends_the_demo_and_leaves_nothing_running(tmp_path: Path) -> None:
    """The broker and the pipeline have sessions of their own; all are gone with the demo."""
    with Demo(tmp_path) as demo:
        wait_for(lambda: "copies live orders" in demo.log(), what="a running pipeline")
        wait_for(lambda: len(started_by(demo)) >= 2, what="broker and pipeline")
        started = started_by(demo)
        demo.interrupt()
        assert demo.await_exit(timeout_s=PATIENCE_S) != 0
        wait_for(lambda: not [p for p in started if p.is_running()], what="everything gone")
        assert "Traceback" not in demo.log()
