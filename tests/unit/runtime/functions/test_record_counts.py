"""What functions count stands in the records, and is told once for each decided checkpoint."""

import dataclasses
import json
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from sluice.runtime.checkpoint.format.committable_kinds import installed_kinds
from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    Progress,
    Publish,
    RegionFailed,
    Report,
)
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    StreamError,
    UnsupportedFormatError,
)
from sluice.runtime.functions.record_counts import added, decode_totals, encode_totals, totals_after
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.service.metrics import CheckpointMetrics
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver
from tests.kit.coordinator.starting_job import Job, record

VERSION_1 = Path(__file__).parents[3] / "data" / "record-counts-v1.json"
COUNTS = RecordCounts(read=12, skipped=3, dead_lettered=2)


def test_version_1_is_read_for_ever() -> None:
    entry = encode_totals(COUNTS, operator_id="op")
    old = dataclasses.replace(entry, payload=VERSION_1.read_bytes())
    assert decode_totals(old) == COUNTS
    assert json.loads(entry.payload) == json.loads(VERSION_1.read_bytes())


def test_people_see_what_a_record_counts() -> None:
    """`sluice checkpoint inspect`; and a start knows the kind."""
    entry = encode_totals(COUNTS, operator_id="op")
    assert installed_kinds().describe(entry) == {"read": 12, "skipped": 3, "dead_lettered": 2}


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"read":"1"}'])
def test_damaged_counts_are_named(payload: bytes) -> None:
    entry = encode_totals(COUNTS, operator_id="op")
    with pytest.raises(DamagedCheckpointError):
        decode_totals(dataclasses.replace(entry, payload=payload))
    with pytest.raises(UnsupportedFormatError):
        decode_totals(dataclasses.replace(entry, version=2))
    with pytest.raises(ConfigError):
        RecordCounts(read=-1)


def test_totals_go_on_from_the_record_before() -> None:
    """By operator; other states, and operators that count no more, are none of ours."""
    before = [
        encode_totals(COUNTS, operator_id="a"),
        encode_totals(COUNTS, operator_id="gone"),
        dataclasses.replace(encode_totals(COUNTS, operator_id="a"), kind="pending-files"),
    ]
    after = totals_after(before, {"b": RecordCounts(read=1), "a": RecordCounts(read=1, skipped=1)})
    assert {entry.operator_id: decode_totals(entry) for entry in after} == {
        "a": RecordCounts(read=13, skipped=4, dead_lettered=2),
        "b": RecordCounts(read=1),
    }


def test_parts_are_added_by_key() -> None:
    """Of tasks, and of regions."""
    assert added([]) == {}
    assert added([{"a": COUNTS}, {}, {"a": COUNTS, "b": COUNTS}]) == {
        "a": RecordCounts(read=24, skipped=6, dead_lettered=4),
        "b": COUNTS,
    }


def acknowledge(driver: CoreDriver, end: int, *, region: str = "main", attempt_id: int = 0) -> None:
    """A batch with counts, and with totals in its region's record."""
    barrier = driver.poll(end, region=region, attempt_id=attempt_id)
    batch = BatchKey(region=region, attempt_id=attempt_id, batch_id=end)
    ack = driver.acknowledgement(batch, barrier)
    totals = (encode_totals(COUNTS, operator_id="parse"),)
    of_region = dataclasses.replace(ack.region, operator_states=totals)
    ack = dataclasses.replace(ack, region=of_region, counts={"parse": COUNTS})
    driver.tell(Acknowledged(ack=ack))


def told(driver: CoreDriver, state: State) -> list[dict[str, RecordCounts]]:
    """Counts of each checkpoint that came so far."""
    reports = [report.progress for report in driver.seen(Report)]
    return [dict(progress.counts) for progress in reports if progress.state is state]


def test_counts_are_told_once_for_each_decided_checkpoint() -> None:
    """An epoch that was given up counts when it is read again, once."""
    driver = CoreDriver(FAST)
    driver.tick()
    assert driver.poll(3) is not None
    driver.tell(RegionFailed(region="main", attempt_id=0, error=StreamError("x", {}, "")))
    attempt_id = driver.restart()
    driver.tick(1.0)
    acknowledge(driver, 3, attempt_id=attempt_id)
    driver.tick(1.0)
    acknowledge(driver, 5, attempt_id=attempt_id)
    assert told(driver, State.MARKED) == [{"parse": COUNTS}, {"parse": COUNTS}]


def test_a_region_without_a_batch_counts_nothing_and_keeps_its_totals() -> None:
    """Its record is repeated with the others'; the counts of its last batch are not."""
    driver = CoreDriver(FAST, regions=TWO, partitions=1)
    driver.tick()
    acknowledge(driver, 3)
    acknowledge(driver, 3, region="side")
    assert told(driver, State.MARKED) == [{"parse": COUNTS + COUNTS}]
    driver.tick(1.0)
    acknowledge(driver, 5)
    assert driver.poll(3, region="side") is None
    assert told(driver, State.MARKED)[1:] == [{"parse": COUNTS}]
    totals = [decode_totals(*region.operator_states) for region in driver.seen(Publish)[-1].regions]
    assert totals == [COUNTS, COUNTS]


def test_counts_ask_for_no_batch_of_their_own() -> None:
    """Unlike what a sink keeps, they want nothing done."""
    driver = CoreDriver(FAST)
    driver.tick()
    acknowledge(driver, 3)
    driver.tell(RegionFailed(region="main", attempt_id=0, error=StreamError("x", {}, "")))
    attempt_id = driver.restart()
    driver.tick(1.0)
    assert driver.poll(3, attempt_id=attempt_id) is None


def test_a_function_that_counted_may_leave_the_job() -> None:
    """No start is refused for counts, unlike for a position or a transaction."""
    (region,) = record(1).regions
    counted = dataclasses.replace(
        region, operator_states=(encode_totals(COUNTS, operator_id="parse"),)
    )
    old = record(1, regions=(counted,))
    assert Job(record(0), old, committed=(0, 1)).start().record.checkpoint_id == 1


def test_metrics_count_what_is_committed_on_record_and_nothing_else() -> None:
    """An aborted attempt's records come again; each state of a checkpoint is told once."""
    registry = CollectorRegistry()
    metrics = CheckpointMetrics(registry)
    for state in State:
        metrics.on_progress(
            Progress(
                checkpoint_id=1,
                kind=CheckpointKind.CHECKPOINT,
                requested_by="interval",
                state=state,
                counts={"parse": COUNTS},
            )
        )
    found = {
        outcome: registry.get_sample_value(
            "sluice_function_records_total", {"operator": "parse", "outcome": outcome}
        )
        for outcome in ("read", "skipped", "dead_lettered")
    }
    assert found == {"read": 12.0, "skipped": 3.0, "dead_lettered": 2.0}
