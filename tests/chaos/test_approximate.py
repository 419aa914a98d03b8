"""Approximate recovery under kills: what is missing is what the records say, and nothing else."""

import signal
from pathlib import Path

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.history import await_readable, read_history, read_records
from runtime.checker import check, expect
from runtime.checkpoint.store import open_store
from runtime.drops import DROPS_KIND, decode_drops
from runtime.model import Verdict
from tests.chaos.programs import MORTAL_COPY, exclaim
from tests.chaos.scenario import START_S, Scenario, Setting
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2400)]

_MASTER = ["--master", "local[2,4]"]
_SETTING = Setting(environment={"MOST_DROPPED": "1000000", "RETAINED": "100000"})


def test_a_job_killed_around_its_drops_lacks_exactly_what_is_on_record(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Every worker dies at its second flush, and the whole job before and behind a decision: a drop
    that was not decided is read again, one that was decided stays, and nothing is doubled."""
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, _SETTING) as scenario:
        for failpoint in ("before-decision", "after-decision"):
            program = scenario.start(
                failpoints=f"after-flush=kill@2,{failpoint}=kill@4", arguments=_MASTER
            )
            exit_code = program.await_exit(timeout_s=START_S)
            assert exit_code == -signal.SIGKILL, program.log_tail()
            assert program.await_gone(timeout_s=PATIENCE_S)
        scenario.feeder.stop()
        program = scenario.start(until_end=True, arguments=_MASTER)
        assert program.await_exit(timeout_s=START_S) == 0, program.log_tail()

        dropped = on_record(scenario.checkpoint)
        assert dropped, "workers died, and nothing was dropped"
        topics = scenario.topics
        await_readable(topics.connection, topics.output, timeout_s=PATIENCE_S)
        kept = [
            record
            for record in read_records(topics.connection, topics.source)
            if (record.partition, record.offset) not in dropped
        ]
        verdict = check(
            expect(kept, exclaim(topics)), read_history(topics.connection, topics.output)
        )
        assert verdict.is_clean, f"{verdict}\n{program.log_tail()}"


def on_record(checkpoint: Path) -> set[tuple[int, int]]:
    """Partition and offset of all that decided records have dropped."""
    store = open_store(str(checkpoint))
    records = [store.read(place) for place in store.places()]
    return {
        (partition, offset)
        for record in records
        if record is not None and record.verdict is Verdict.DECIDED
        for region in record.regions
        for entry in region.operator_states
        if entry.kind == DROPS_KIND
        for _, partition, start, end in decode_drops(entry).ranges
        for offset in range(start, end)
    }
