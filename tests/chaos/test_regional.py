"""Regions that fail while others continue: what each of them wrote is there once."""

import re
from pathlib import Path

import pytest

from benchmarks.regions.mortal_sink import PRE_COMMITTED, Doom
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.chaos import beds
from tests.chaos.programs import REGIONAL, REGIONAL_BOTH, RESTLESS_REGIONS
from tests.chaos.scenario import START_S, Kill, Scenario, Setting
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2400)]

_CARRIED = re.compile(r"^checkpoint=\d+ completed=\S+ skipped=[^-\s]", re.MULTILINE)


def survive(
    kafka: EmbeddedKafka, directory: Path, kills: list[Kill], *, engine: str = "micro-batch"
) -> None:
    """Killed at each, while a region fails, one is late and splits move; then to the end."""
    doom = Doom(directory / "doom")
    setting = beds.restless(doom, engine=engine)
    with Scenario(RESTLESS_REGIONS, kafka.bootstrap, directory, setting) as scenario:
        for kill in kills:
            # Not at once: a region that has no snapshot yet takes all others with it.
            scenario.kill_at(kill, on_progress=lambda: doom.request("in-2", PRE_COMMITTED))
        scenario.finish()


@pytest.mark.long
def test_restore_by_attempt_a_kill_between_a_move_and_its_mark_leaves_each_split_with_one_region(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """The giver's part is committed, and not on record: the next run continues with the taker."""
    survive(kafka, tmp_path, [Kill(failpoint="mid-move", hit=2)])


@pytest.mark.parametrize(
    ("engine", "failpoint"),
    [
        pytest.param(
            *cell,
            id="-".join(cell),
            marks=pytest.mark.extended if "after-epoch-rewound" in cell else pytest.mark.long,
        )
        for cell in beds.OF_REGIONS
    ],
)
def test_restore_by_attempt_and_abort_before_skip_two_kills_in_a_row_at_every_regional_step(
    kafka: EmbeddedKafka, tmp_path: Path, engine: str, failpoint: str
) -> None:
    survive(kafka, tmp_path, beds.kills((failpoint,), hit=1) * 2, engine=engine)


@pytest.mark.long
def test_abort_before_skip_workers_that_die_again_and_again_are_skipped(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Every worker dies at its second flush: its region comes back, checkpoints continue without it,
    and the last lines report how often each was begun."""
    with Scenario(REGIONAL, kafka.bootstrap, tmp_path, Setting(partitions=4)) as scenario:
        program = scenario.start(failpoints="before-flush=kill@2", arguments=["--regions", "2"])

        def skipped() -> bool:
            assert program.exit_code is None, program.log_tail()
            return len(_CARRIED.findall(program.log())) >= 2

        wait_for(skipped, what="checkpoints that carry a region")
        program.interrupt()
        program.await_exit(timeout_s=START_S)
        assert re.search(r"^region=\S+-0 attempts=\d+$", program.log(), re.MULTILINE)
        assert re.search(r"^last_checkpoint=\d+$", program.log(), re.MULTILINE)
        scenario.finish(arguments=["--regions", "2"])


def _survive(kafka: EmbeddedKafka, directory: Path, kills: list[tuple[int, Kill]]) -> None:
    """Start with so many regions and be killed, for each of them; then continue with one."""
    setting = Setting(partitions=4)
    with Scenario(REGIONAL_BOTH, kafka.bootstrap, directory, setting) as scenario:
        for regions, kill in kills:
            scenario.kill_at(kill, arguments=["--regions", str(regions)])
        scenario.finish(arguments=["--regions", "1"])


@pytest.mark.long
def test_restore_by_attempt_killed_with_two_regions_then_with_three_it_continues_with_one(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    kills = [(2, Kill(failpoint="before-decision", hit=3)), (3, Kill(failpoint="after-decision"))]
    _survive(kafka, tmp_path, kills)


@pytest.mark.long
@pytest.mark.parametrize(
    "failpoint",
    [
        "after-fencing",
        "before-sweep",
        "after-sweep",
        "before-decision",
        "mid-commit",
        "before-mark",
    ],
)
def test_restore_by_attempt_another_number_of_regions_survives_two_kills_at_every_step(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    """The same step twice, with other numbers of regions each time."""
    first = (2, Kill(failpoint="before-decision", hit=3))
    _survive(kafka, tmp_path, [first, *((n, Kill(failpoint=failpoint)) for n in (3, 4))])
