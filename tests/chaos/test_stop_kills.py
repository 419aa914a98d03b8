"""A driver that dies while it writes a savepoint, on its own or at the end of a job: there is a whole
savepoint or none, and the next start is exactly once (`copy-protected`)."""

import contextlib
import signal
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import StreamError
from sluice.runtime.job.running_job import await_end, running_job
from sluice.runtime.savepoint.savepoint import open_savepoint
from sluice.runtime.savepoint.savepoint_directory import verify
from tests.chaos.programs import COUNT
from tests.chaos.scenario import START_S, Kill, Scenario
from tests.kit.mortal_program import MortalProgram
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2400)]

_FROM_THE_RECORD_ON = "after-savepoint-metadata"
_DAILY = "before-savepoint-metadata"
_NAMES = ("before-savepoint-copy", "after-savepoint-copy", _DAILY, _FROM_THE_RECORD_ON)
_CELLS = [
    pytest.param(each, marks=pytest.mark.extended if each == _DAILY else pytest.mark.long)
    for each in _NAMES
]


def in_service(scenario: Scenario, program: MortalProgram) -> None:
    """It has committed something in this start."""
    more = scenario.observer.total + 1

    def has_committed() -> bool:
        assert program.exit_code is None, program.log_tail()
        return scenario.observer.total >= more

    wait_for(has_committed, timeout_s=START_S, what="a commit of this start")


def die_in_a_savepoint(scenario: Scenario, failpoint: str, to: Path, *, stops: bool) -> None:
    """Request it as a command does; the driver dies at the failpoint."""
    program = scenario.start(failpoints=str(Kill(failpoint=failpoint)))
    in_service(scenario, program)
    with contextlib.suppress(StreamError), running_job(str(scenario.checkpoint)) as client:
        if stops:
            client.stop(savepoint=True, to=str(to))
        else:
            client.savepoint(str(to))
    exit_code = program.await_exit(timeout_s=START_S)
    assert exit_code == -signal.SIGKILL, f"{exit_code}\n{program.log_tail()}"
    assert program.await_end(timeout_s=START_S), program.members()


@pytest.mark.parametrize("failpoint", _CELLS)
def test_copy_protected_two_kills_in_a_row_in_a_savepoint(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    """The first dies in a savepoint beside the stream, the second in that of its stop."""
    to = tmp_path / "savepoints"
    with Scenario(COUNT, kafka.bootstrap, tmp_path) as scenario:
        for stops in (False, True):
            die_in_a_savepoint(scenario, failpoint, to, stops=stops)
        whole = [path.parent for path in to.glob("*/_metadata")]
        assert len(whole) == (2 if failpoint == _FROM_THE_RECORD_ON else 0)
        whole.append(Path(stop_with_a_savepoint(scenario, to)))
        for each in whole:
            verify(open_savepoint(str(each)))
        scenario.finish()


def stop_with_a_savepoint(scenario: Scenario, to: Path) -> str:
    """Its path; the program ends with code 0."""
    program = scenario.start()
    in_service(scenario, program)
    with running_job(str(scenario.checkpoint)) as client:
        request = client.stop(savepoint=True, to=str(to))
        end = await_end(str(scenario.checkpoint), client, request)
    assert program.await_exit(timeout_s=START_S) == 0, program.log_tail()
    assert program.await_end(timeout_s=START_S), program.members()
    assert end.savepoint is not None
    return end.savepoint.removeprefix("file://")
