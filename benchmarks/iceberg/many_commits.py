"""Time of one table commit over many commits to one table, with metadata kept small.

Run ``python -m benchmarks.iceberg.many_commits --commits 100000``. Each commit appends the same
statistics under a new file name, so only the commit is measured. The driver's own committer makes
it, on a SQL catalog in a local file. ``--upsert`` adds a delete file to each commit.

Each tenth of the run prints a JSON line: its commits, and one look-up as after a crash. A new
committer makes the look-up, and finds its work in the table.
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from sluice.connectors.iceberg.committing.iceberg_committer import IcebergCommitter
from sluice.connectors.iceberg.table.catalog_settings import CatalogSettings
from sluice.connectors.iceberg.written_files import (
    WriteAttempt,
    WrittenFile,
    WrittenFiles,
    encode_written_files,
)
from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey

TABLE = "lake.events"
SMALL = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "history.expire.max-snapshot-age-ms": "0",
    "history.expire.min-snapshots-to-keep": "100",
}
COUNTS = dict.fromkeys(range(1, 6), 1000)
BOUNDS = dict.fromkeys(range(1, 6), b"\x01\x00\x00\x00\x00\x00\x00\x00")


def main() -> None:
    """Parse the command line, commit, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--directory", type=Path, help="of the table; default: a temporary one")
    parser.add_argument("--upsert", action="store_true", help="with an equality delete each")
    parser.add_argument("--seconds", type=float, help="stop after so long")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        run(
            args.directory or Path(made),
            args.commits,
            args.seconds or float("inf"),
            upsert=args.upsert,
        )


def run(directory: Path, commits: int, seconds: float, *, upsert: bool) -> None:
    """Commit so many times."""
    settings = CatalogSettings.of(
        {"uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}
    )
    catalog = settings.open()
    catalog.create_namespace("lake")
    schema = pa.schema({f"column{number}": pa.int64() for number in range(5)})
    table = catalog.create_table(TABLE, schema, properties=SMALL)
    first = WrittenFiles(
        table=TABLE,
        table_uuid=str(table.metadata.table_uuid),
        location=table.location(),
        job_uid="benchmark",
        attempt=WriteAttempt.draw(BatchKey(region="r", attempt_id=1, batch_id=0)),
        spec_id=0,
        checkpoint_id=1,
        files=(
            WrittenFile(
                path=f"{table.location()}/data/0.parquet",
                length_bytes=100_000,
                rows=1000,
                split_offsets=(4,),
                column_sizes=COUNTS,
                value_counts=COUNTS,
                null_value_counts=COUNTS,
                lower_bounds=BOUNDS,
                upper_bounds=BOUNDS,
            ),
        ),
    )
    committer = IcebergCommitter(settings, TABLE, expires=True)
    tenth, times_ms, began_s = max(1, commits // 10), [], time.monotonic()
    cpu_ms = 0.0
    for number in range(commits):
        attempt = WriteAttempt.draw(BatchKey(region="r", attempt_id=1, batch_id=number))
        file = replace(first.files[0], path=f"{table.location()}/data/{number}.parquet")
        work = replace(first, attempt=attempt, checkpoint_id=number + 1, files=(file,))
        if upsert:
            delete = replace(file, path=f"{table.location()}/data/{number}-deletes.parquet")
            work = replace(work, deletes=(delete,), equality_ids=(1,))
        entry = encode_written_files(work, operator_id="sink")
        committer.begin_checkpoint(number + 1)
        start_s, cpu_s = time.perf_counter(), time.process_time()
        (report,) = committer.commit([entry], timeout_s=60, after_crash=False)
        times_ms.append((time.perf_counter() - start_s) * 1000)
        cpu_ms += (time.process_time() - cpu_s) * 1000
        assert report.outcome is CommitOutcome.COMMITTED, report
        if len(times_ms) == tenth:
            metadata = catalog.load_table(TABLE).metadata_location
            look_up_ms = _look_up_ms(settings, entry)
            _print(number + 1, times_ms, metadata, cpu_ms=cpu_ms, look_up_ms=look_up_ms)
            times_ms, cpu_ms = [], 0.0
        if time.monotonic() - began_s > seconds:
            break


def _look_up_ms(settings: CatalogSettings, entry: StateEntry) -> float:
    start_s = time.perf_counter()
    (report,) = IcebergCommitter(settings, TABLE).commit([entry], timeout_s=60, after_crash=True)
    assert report.outcome is CommitOutcome.COMMITTED, report
    return (time.perf_counter() - start_s) * 1000


def _print(
    commits: int, times_ms: list[float], metadata: str, *, cpu_ms: float, look_up_ms: float
) -> None:
    ordered = sorted(times_ms)
    line = {
        "commits": commits,
        "p50_ms": round(statistics.median(ordered), 1),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)], 1),
        "max_ms": round(ordered[-1], 1),
        "mean_cpu_ms": round(cpu_ms / len(times_ms), 1),
        "look_up_ms": round(look_up_ms, 1),
        "metadata_bytes": Path(metadata.removeprefix("file://")).stat().st_size,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
