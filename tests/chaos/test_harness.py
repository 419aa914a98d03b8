"""The harness itself: it kills whole, and it catches a pipeline that is broken."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.chaos.programs import STAND_IN
from tests.chaos.scenario import START_S, Kill, Scenario, Setting
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2400)]

KILLS = ["after-fencing", "mid-write", "after-flush", "before-commit", "after-commit"]


@pytest.fixture
def scenario(kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Scenario]:
    with Scenario(STAND_IN, kafka.bootstrap, tmp_path) as scenario:
        yield scenario


def broken(kafka: EmbeddedKafka, directory: Path, fault: str) -> Scenario:
    setting = Setting(environment={"STAND_IN_FAULT": fault})
    return Scenario(STAND_IN, kafka.bootstrap, directory, setting)


@pytest.mark.extended
def test_a_correct_pipeline_passes_all_kills(scenario: Scenario) -> None:
    for failpoint in KILLS:
        report = scenario.kill_at(Kill(failpoint=failpoint))
        assert report.exit_code == -9
    scenario.finish()
    assert scenario.observer.total >= scenario.setting.preload


@pytest.mark.parametrize(
    ("fault", "failpoint"),
    [
        ("duplicate", "after-commit"),
        pytest.param("lose", "before-commit", marks=pytest.mark.extended),
        pytest.param("dirty", "after-flush", marks=pytest.mark.extended),
        pytest.param("reorder", "after-commit", marks=pytest.mark.extended),
        pytest.param("corrupt", "after-commit", marks=pytest.mark.extended),
    ],
)
def test_a_broken_pipeline_is_caught(
    kafka: EmbeddedKafka, tmp_path: Path, fault: str, failpoint: str
) -> None:
    kinds = {
        "duplicate": "duplicated",
        "lose": "lost",
        "dirty": "duplicated",
        "reorder": "reordered",
        "corrupt": "unexpected",
    }
    with broken(kafka, tmp_path, fault) as scenario:
        scenario.kill_at(Kill(failpoint=failpoint, hit=2))
        with pytest.raises(AssertionError, match=rf"{kinds[fault]} [1-9]"):
            scenario.finish()


def test_a_failpoint_that_is_never_reached_fails_the_test(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """A renamed failpoint must not turn a kill test into no test: not even where the program comes
    to its end, as it should."""
    with (
        Scenario(STAND_IN, kafka.bootstrap, tmp_path) as scenario,
        pytest.raises(AssertionError, match=r"no-such-place=kill@1: 0\b"),
    ):
        scenario.kill_at(Kill(failpoint="no-such-place"), arguments=["--until-end"])


def test_a_kill_reaches_what_outlives_its_parents(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Spark's daemon has a process group of its own, so the group of the driver is not all."""
    with broken(kafka, tmp_path, "orphan") as scenario:
        program = scenario.start()
        wait_for(lambda: len(program.members()) >= 2, what="driver and child")
        program.kill_driver()
        program.await_exit(timeout_s=START_S)
        assert len(program.members()) == 1
        assert not program.await_end(timeout_s=0.2)
        program.kill()
        assert not program.members()


def test_processes_that_are_left_fail_the_test(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    setting = Setting(environment={"STAND_IN_FAULT": "orphan"}, gone_s=0.5)
    with (
        Scenario(STAND_IN, kafka.bootstrap, tmp_path, setting) as scenario,
        pytest.raises(AssertionError, match="left behind"),
    ):
        scenario.kill_at(Kill(failpoint="after-fencing"))
