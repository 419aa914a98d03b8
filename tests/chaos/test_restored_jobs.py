"""A new job from another one's checkpoint, killed at each step of the restore: it happens once.

The old job counts records and ends in order. The new one writes to the same topic, so its counts
must continue where the old ones ended: none is missing, repeated or smaller.
"""

from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.checkpoint_store import open_store
from tests.chaos.programs import COUNT
from tests.chaos.scenario import START_S, Kill, Scenario

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2400)]

RESTORE = ("before-restore-copy", "restore-copy", "after-restore-copy")
"""Reached only in the first start of a restored job."""


def restored_through(kafka: EmbeddedKafka, directory: Path, *kills: str) -> None:
    with Scenario(COUNT, kafka.bootstrap, directory) as scenario:
        old = scenario.start(until_end=True)
        assert old.await_exit(timeout_s=START_S) == 0, old.log_tail()
        before = open_store(str(scenario.checkpoint))
        newest = before.slots()[-1]
        arguments = ["--from", str(scenario.checkpoint / slot_name(newest))]
        scenario.checkpoint = directory / "restored"
        for name in kills:
            scenario.kill_at(Kill(failpoint=name), arguments=arguments)
        scenario.finish(arguments=arguments)
        after = open_store(str(scenario.checkpoint))
        records = [after.read(place) for place in after.slots()]
        assert len({record.job_uid for record in records if record}) == 1
        assert before.slots()[-1] == newest, "the old job is not touched"


@pytest.mark.parametrize(
    "failpoint",
    [
        pytest.param(name, marks=pytest.mark.extended if name == RESTORE[1] else pytest.mark.long)
        for name in RESTORE
    ],
)
def test_a_restore_survives_two_kills_in_a_row(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    restored_through(kafka, tmp_path, failpoint, failpoint)


@pytest.mark.long
@pytest.mark.parametrize(
    "kills", [("before-first", "before-first"), ("after-first", "before-sweep")]
)
def test_a_restore_survives_kills_around_its_checkpoint_0(
    kafka: EmbeddedKafka, tmp_path: Path, kills: tuple[str, ...]
) -> None:
    restored_through(kafka, tmp_path, *kills)
