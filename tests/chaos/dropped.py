"""What approximate recovery has dropped, by a job's records, and that nothing else is missing."""

from collections.abc import Collection
from pathlib import Path

from sluice.connectors.kafka.tools.verify.topic_history import (
    await_readable,
    read_records,
)
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.functions.at_most_once import DROPS_KIND, decode_drops
from sluice.runtime.model.checkpoint_record import Verdict
from tests.chaos.programs import exclaim
from tests.chaos.scenario import Scenario
from tests.kit.kafka.topic_histories import read_history
from tests.kit.memory_checker import check, expect


def require_the_rest_once(scenario: Scenario) -> None:
    """Something was dropped; all other records are in the output, once and in order."""
    dropped = on_record(scenario.checkpoint)
    assert dropped, "workers died, and nothing was dropped"
    require_all_but(scenario, dropped)


def require_all_but(scenario: Scenario, dropped: Collection[tuple[int, int]]) -> None:
    """All records but these, by partition and offset, are in the output, once and in order."""
    topics = scenario.topics
    await_readable(topics.connection, topics.output, timeout_s=60)
    kept = [
        record
        for record in read_records(topics.connection, topics.source)
        if (record.partition, record.offset) not in dropped
    ]
    verdict = check(expect(kept, exclaim(topics)), read_history(topics.connection, topics.output))
    assert verdict.is_clean, verdict


def on_record(checkpoint: Path) -> set[tuple[int, int]]:
    """Partition and offset of all that decided records have dropped."""
    store = open_store(str(checkpoint))
    records = [store.read(place) for place in store.slots()]
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
