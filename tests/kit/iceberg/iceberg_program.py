"""Writes numbered batches to a table, as a coordinator does; a test kills it anywhere.

``python -m tests.kit.iceberg.iceberg_program DIRECTORY BATCHES [evolve|upsert]``: the checkpoint
directory is a file for each decision, which holds the committables. A start first commits what is
decided. The variable `EXTRA` has properties of the catalog as JSON.
"""

import base64
import json
import os
import sys
from pathlib import Path

import pyarrow as pa

from sluice.connectors.iceberg.committing.iceberg_sink_coordinator import IcebergSinkCoordinator
from sluice.connectors.iceberg.written_files import COMMITTABLE_KIND
from sluice.runtime.contracts import CommitOutcome, SinkContext, SweepView
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.checkpoint_record import Redistribution, StateEntry
from sluice.runtime.model.payloads import STATE_NAME
from tests.kit.iceberg.iceberg_bed import JOB, OPERATOR, IcebergBed, rows_of
from tests.kit.waiting import PATIENCE_S

REGIONS = ("a", "b")
ROWS = 5
EXTRA = "ICEBERG_PROGRAM_CATALOG"


def numbers(batch: int, region: int) -> range:
    """Ids of one region's batch."""
    start = (batch * len(REGIONS) + region) * ROWS
    return range(start, start + ROWS)


def last_rows(batches: int) -> dict[int, str]:
    """Keys that every batch of an upsert writes again, with their last values."""
    return {-1 - region: f"{batches - 1}" for region in range(len(REGIONS))}


def main(directory: Path, batches: int, kind: str) -> None:
    """Commit what is decided, sweep, then go on to the last batch."""
    bed = IcebergBed(directory=directory, extra=json.loads(os.environ.get(EXTRA, "{}")))
    attempts = directory / "attempts"
    attempt_id = int(attempts.read_text()) + 1 if attempts.exists() else 1
    attempts.write_text(str(attempt_id))
    decisions = directory / "decisions"
    decisions.mkdir(exist_ok=True)
    done = sorted(int(path.stem) for path in decisions.glob("*.json"))
    sink = IcebergSinkCoordinator(bed.settings, "lake.events")
    sink.check(timeout_s=30)
    sink.claim(
        SinkContext(
            job_uid=JOB,
            job_name="program",
            operator_id=OPERATOR,
            checkpoint_uri=f"file:{directory}",
            leader_session_id=str(attempt_id),
            attempt_id=attempt_id,
            last_decision=len(done),
        ),
        timeout_s=30,
    )
    for batch in done:
        if not (decisions / f"{batch}.committed").exists():
            entries = _read(decisions / f"{batch}.json")
            _commit(sink, decisions, batch, entries, after_crash=True)
    view = SweepView(
        job_uid=JOB,
        attempt_ids=dict.fromkeys(REGIONS, attempt_id),
        protected=(),
        orphans=(),
    )
    sink.sweep(view, timeout_s=30)
    for batch in range(len(done), batches):
        entries = [
            entry
            for number, region in enumerate(REGIONS)
            for entry in bed.pre_commit(
                _rows(batch, number, kind),
                region=region,
                batch_id=batch,
                attempt_id=attempt_id,
                evolve=kind == "evolve",
                upsert=kind == "upsert",
                equality_fields=["id"] if kind == "upsert" else [],
            )
        ]
        _decide(decisions / f"{batch}.json", entries)
        _commit(sink, decisions, batch, entries, after_crash=False)
    sink.sweep(view, timeout_s=30)
    sink.close()


def _rows(batch: int, region: int, kind: str) -> pa.RecordBatch:
    ids = numbers(batch, region)
    rows = rows_of(*ids)
    if kind == "evolve":
        return rows.append_column("extra", pa.array(ids, pa.int64()))
    if kind == "upsert":
        again = pa.record_batch([[-1 - region], [f"{batch}"]], schema=rows.schema)
        return pa.concat_batches([rows, again])
    return rows


def _decide(path: Path, entries: list[StateEntry]) -> None:
    half = path.with_suffix(".half")
    kept = [(entry.version, base64.b64encode(entry.payload).decode()) for entry in entries]
    half.write_text(json.dumps(kept))
    half.rename(path)
    failpoint("after-decision")


def _read(path: Path) -> list[StateEntry]:
    return [
        StateEntry(
            operator_id=OPERATOR,
            state_name=STATE_NAME,
            kind=COMMITTABLE_KIND,
            version=version,
            redistribution=Redistribution.SPLIT,
            payload=base64.b64decode(payload),
        )
        for version, payload in json.loads(path.read_text())
    ]


def _commit(
    sink: IcebergSinkCoordinator,
    decisions: Path,
    batch: int,
    entries: list[StateEntry],
    *,
    after_crash: bool,
) -> None:
    committer = sink.committer
    committer.begin_checkpoint(batch + 1)  # type: ignore[attr-defined]
    reports = committer.commit(entries, timeout_s=PATIENCE_S, after_crash=after_crash)
    assert all(report.outcome is CommitOutcome.COMMITTED for report in reports), reports
    (decisions / f"{batch}.committed").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *(sys.argv[3:] or [""]))
