"""Regions killed at random moments, some at once: a topic and files hold every record once.

A region dies by ``kill -9`` of a Python worker at work in its epoch: with nothing written, written,
or all of it flushed and nobody reported (`benchmarks.regions.mortal_sink`). Now and then the whole program is
killed beside it. Rules `ids-never-reused`, `restore-by-attempt`, `callback-after-commit` and
`abort-before-skip`.
"""

import random
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.regions.mortal_sink import MOMENTS, Doom
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.chaos.programs import MORTAL_REGIONS
from tests.chaos.published_files import PublishedFiles
from tests.chaos.scenario import Scenario, Setting
from tests.kit.mortal_program import MortalProgram
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(2400)]

_CARRIED = re.compile(r"^checkpoint=\d+ completed=\S+ skipped=[^-\s]", re.MULTILINE)
_MOST_RECORDS = 400  # two seconds of the feeder's
_MOST_MORE = 8  # none of fourteen kills outlives a barrier: that is no chance any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who is killed, how often.

    Attributes:
        regions: of the job, one for each partition.
        rounds: how many regions are killed at once, in each round, in any order.
        whole: so many rounds end in a ``kill -9`` of the whole program.
        seed: of everything random.
    """

    regions: int
    rounds: Sequence[int]
    whole: int
    seed: int


def survive(plan: Plan, kafka: EmbeddedKafka, directory: Path, files: PublishedFiles) -> None:
    """Kill by plan, let the last program write the rest, and judge topic and files."""
    doom = Doom(directory / "doom")
    setting = Setting(
        partitions=plan.regions,
        interval_s=0.5,
        environment={"DOOM": str(doom.directory), "REGIONS": str(plan.regions)},
    )
    dice = random.Random(plan.seed)
    rounds = dice.sample(plan.rounds, len(plan.rounds))
    whole = set(dice.sample(range(len(rounds)), plan.whole))
    logs: list[str] = []
    with Scenario(MORTAL_REGIONS, kafka.bootstrap, directory, setting, files=files) as scenario:
        program = _started(scenario)
        for number, size in enumerate(rounds):
            _await_records(scenario, program, dice.randrange(_MOST_RECORDS))
            _kill_regions(program, doom, dice, regions=plan.regions, size=size)
            if number in whole:
                program.kill()
                logs.append(program.log())
                program = _started(scenario)
        more = 0
        # A region that is back before the next barrier is not skipped, and a few may all be so.
        while not _carried([*logs, program.log()]) and more < _MOST_MORE:
            _await_records(scenario, program, dice.randrange(_MOST_RECORDS))
            _kill_regions(program, doom, dice, regions=plan.regions, size=1)
            more += 1
        scenario.finish_running(program)
        logs.append(program.log())
    skipped = _carried(logs)
    print(f"seed={plan.seed} kills={len(doom.deaths())} carried checkpoints={skipped}")  # noqa: T201
    assert len(doom.deaths()) == sum(rounds) + more
    assert skipped > 0, "no checkpoint continued without a region that was killed"


def _carried(logs: Sequence[str]) -> int:
    return sum(len(_CARRIED.findall(log)) for log in logs)


def _started(scenario: Scenario) -> MortalProgram:
    program = scenario.start()
    _await_records(scenario, program, 1)
    return program


def _await_records(scenario: Scenario, program: MortalProgram, count: int) -> None:
    """A random count of them is a random moment."""
    goal = scenario.observer.total + count
    wait_for(
        lambda: _attempts(program) and scenario.observer.total >= goal,
        what="more records to be seen",
    )


def _attempts(program: MortalProgram) -> bool:
    assert program.exit_code is None, program.log_tail()
    return True


def _kill_regions(
    program: MortalProgram, doom: Doom, dice: random.Random, *, regions: int, size: int
) -> None:
    """Ask for the deaths of so many regions at once, and wait until they have come."""
    dead = len(doom.deaths()) + size
    for number in dice.sample(range(regions), size):
        doom.request(f"in-{number}", dice.choice(MOMENTS))
    wait_for(
        lambda: _attempts(program) and len(doom.deaths()) >= dead, what=f"{size} regions to die"
    )


def test_abort_before_skip_regions_are_killed_and_topic_and_files_hold_every_record_once(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Four regions, one or two at once, and the program itself."""
    files = PublishedFiles(fs=open_file_system(str(tmp_path / "data")), name="files")
    plan = Plan(regions=4, rounds=[1, 1, 2, 2], whole=1, seed=random.randrange(2**32))
    print(f"seed={plan.seed}")  # noqa: T201
    survive(plan, kafka, tmp_path, files)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_abort_before_skip_two_hundred_kills_of_regions_on_hdfs(
    kafka: EmbeddedKafka, tmp_path: Path, hdfs: EmbeddedHdfs, hadoop_client: Any
) -> None:
    """1, 4 or 8 of 16 regions at once, 200 in all, and five times the whole program."""
    root = f"{hdfs.uri}/{uuid.uuid4().hex}"
    files = PublishedFiles(fs=open_file_system(root, hadoop_client), name="files")
    rounds = [1] * 24 + [4] * 20 + [8] * 12
    plan = Plan(regions=16, rounds=rounds, whole=5, seed=random.randrange(2**32))
    print(f"seed={plan.seed}")  # noqa: T201
    survive(plan, kafka, tmp_path, files)
