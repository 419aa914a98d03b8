"""The JSON of jobs: programs read it, so its shape is frozen here."""

import json
from dataclasses import replace
from typing import Any

from sluice.runtime.coordinator.region.status_views import JobStatus
from sluice.runtime.functions.record_counts import encode_totals
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    RegionRecord,
    Verdict,
)
from sluice.runtime.service.job_view import (
    details_of,
    facts_of_record,
    history_of,
    list_of,
    summary_of,
)
from tests.kit.page_jobs import graph_with, history_with, job_with, region_with, suspended

SUMMARY = [
    *("job_uid", "name", "state", "started_ms", "ended_ms", "checkpoint_uri", "last_committed"),
    *("lag_records", "records_per_s", "regions", "suspended", "pressure", "host", "error"),
]
DETAILS = [
    *SUMMARY,
    *("status", "graph", "settings", "transactions", "savepoints", "counters"),
    "function_records",
    "waiting_for_resources",
]
STATUS = [
    *("state", "drop_limit", "error", "last_decided", "last_committed", "pending", "regions"),
]


def past_record() -> CheckpointRecord:
    counts = (
        RecordCounts(read=5, skipped=2, counters={"rejected": 1}),
        RecordCounts(read=4, dead_lettered=1, counters={"rejected": 3}),
    )
    counted = [encode_totals(each, operator_id="clean") for each in counts]
    return CheckpointRecord(
        job_uid="past",
        job_name="payments",
        checkpoint_id=7,
        kind=CheckpointKind.FINAL,
        verdict=Verdict.DECIDED,
        leader_session_id="s",
        run_attempt=1,
        settings={"checkpoint.interval_s": "1.0"},
        graph=graph_with(4),
        regions=tuple(
            RegionRecord(region=f"orders-{at}", attempt_id=0, operator_states=(each,))
            for at, each in enumerate(counted)
        ),
    )


def with_regions(*changes: dict[str, Any]) -> JobStatus:
    status = job_with().status
    assert status is not None
    regions = [
        region_with(number, count=len(changes), **each) for number, each in enumerate(changes)
    ]
    return replace(status, regions=tuple(regions))


def test_the_shape_of_each_answer_is_frozen() -> None:
    found = details_of(job_with())
    assert list(found) == DETAILS
    assert list(summary_of(job_with())) == SUMMARY
    assert set(STATUS) <= set(found["status"])
    assert list(found["graph"]) == ["operators", "edges", "regions"]
    assert list(found["graph"]["operators"][0]) == [
        *("id", "name", "kind", "uid", "upstream", "parallelism")
    ]
    assert list(found["graph"]["regions"][0]) == ["region", "operators"]
    assert list(found["transactions"][0]) == ["region", "sink", "age_s", "timeout_s"]
    assert list(list_of([], service="job", can_command=False)) == [
        *("service", "can_command", "now_ms", "jobs")
    ]
    assert list(history_of({})) == ["checkpoints", "attempts", "savepoints", "runs", "samples"]


def test_each_answer_is_json() -> None:
    for value in (details_of(job_with(64)), history_of(history_with(64))):
        assert json.loads(json.dumps(value, allow_nan=False))


def test_a_summary_adds_up_its_regions() -> None:
    status = with_regions(
        {"lag_records": 5, "pressure": "ok"},
        {"lag_records": None, "pressure": "low"},
        {**suspended(), "lag_records": 7},
    )
    found = summary_of(replace(job_with(), status=status))
    assert (found["lag_records"], found["regions"], found["suspended"], found["pressure"]) == (
        *(12, 3, 1, "LOW"),
    )


def test_a_lag_that_no_region_knows_is_not_zero() -> None:
    found = summary_of(replace(job_with(), status=with_regions({"lag_records": None})))
    assert found["lag_records"] is None


def test_a_past_job_is_shown_from_its_newest_record() -> None:
    facts = facts_of_record(past_record(), checkpoint_uri="file:/c", state="finished", ended_ms=9)
    found = details_of(facts)
    assert (found["name"], found["state"], found["last_committed"]) == ("payments", "finished", 7)
    assert found["status"] is None
    assert found["regions"] == 4
    assert [each["region"] for each in found["graph"]["regions"]] == [
        *("orders-0", "orders-1", "orders-2", "orders-3")
    ]
    assert found["settings"] == {"checkpoint.interval_s": "1.0"}
    assert found["counters"] == {"clean": {"rejected": 4}}
    assert found["function_records"] == {"clean": {"read": 9, "skipped": 2, "dead_lettered": 1}}


def test_a_history_gives_its_newest_checkpoints() -> None:
    found = history_of(history_with(checkpoints=9), checkpoints=2)
    assert [each["checkpoint_id"] for each in found["checkpoints"]] == [1_202, 1_203]
    assert len(found["samples"]) == len(history_with()["samples"])
