"""Time of one table commit over many commits to one table, with metadata kept small.

Run ``python -m benchmarks iceberg-commits --commits 100000 --directory DIRECTORY``. Each commit
appends the same statistics under a new file name, so only the commit is measured. The driver's own
committer makes it, on a SQL catalog in a local file. ``--upsert`` adds a delete file to each
commit. ``--snapshots`` is how many the table keeps: an hour of one commit per second are 3,600.

Each thousand commits are a line of JSON in ``DIRECTORY/commits.jsonl`` and on the terminal, with
one look-up as after a crash. A new committer makes the look-up, and finds its work in the table.
A run that was stopped or killed continues after the last commit of the table. A run that ends with
all commits compares the first tenth with the last one.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table
from rich.console import Console

from benchmarks.measuring import machine
from benchmarks.measuring.figures import PARTS_RESULTS, Figure, log_figures, table
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
}
KEPT = "history.expire.min-snapshots-to-keep"
LINE = 1_000
COUNTS = dict.fromkeys(range(1, 6), 1000)
BOUNDS = dict.fromkeys(range(1, 6), b"\x01\x00\x00\x00\x00\x00\x00\x00")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, commit, print and log."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks iceberg-commits", description=__doc__
    )
    parser.add_argument("--commits", type=int, default=10_000, help="of the table in the end")
    parser.add_argument("--directory", type=Path, help="of the table; default: a temporary one")
    parser.add_argument("--upsert", action="store_true", help="with an equality delete each")
    parser.add_argument("--snapshots", type=int, default=100, help="that the table keeps")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument(
        "--results", type=Path, default=PARTS_RESULTS, help="JSON lines, appended to at the end"
    )
    args = parser.parse_args(arguments)
    load_before, measured_on = os.getloadavg()[0], machine.describe()
    with tempfile.TemporaryDirectory() as made:
        directory = (args.directory or Path(made)).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        commits = ManyCommits(directory, upsert=args.upsert, snapshots=args.snapshots)
        done = commits.run(args.commits, args.seconds)
        if done < args.commits or done < 2 * LINE:
            print(f"{done} commits: run it again to continue", flush=True)
            return
        figures = growth(_lines(directory))
    options = " --upsert" if args.upsert else ""
    options += "" if args.snapshots == 100 else f" --snapshots {args.snapshots}"
    log_figures(
        args.results,
        figures,
        part="iceberg-commits",
        engine="",
        command=f"python -m benchmarks iceberg-commits --commits {args.commits}{options}",
        load_before=load_before,
        machine=dict(measured_on),
    )
    for part in table(figures, measured_on):
        Console(highlight=False, width=140).print(part)


class ManyCommits:
    """Commits to one table.

    Args:
        directory: of the catalog, the table and the lines; a former one is continued.
        upsert: whether each commit has a delete file, too.
        snapshots: that the table keeps.
    """

    def __init__(self, directory: Path, *, upsert: bool, snapshots: int = 100) -> None:
        self._directory = directory
        self._upsert = upsert
        self._settings = CatalogSettings.of(
            {
                "uri": f"sqlite:///{directory}/catalog.db",
                "warehouse": f"file://{directory}/warehouse",
            }
        )
        self._catalog = self._settings.open()
        self._catalog.create_namespace_if_not_exists("lake")
        schema = pa.schema({f"column{number}": pa.int64() for number in range(5)})
        kept = {**SMALL, KEPT: str(snapshots)}
        table = self._catalog.create_table_if_not_exists(TABLE, schema, properties=kept)
        self._first = _work(table)
        self._done = _commits(table)

    def run(self, commits: int, seconds: float) -> int:
        """Commit until the table has so many, or the time is over; how many it has then."""
        committer = IcebergCommitter(self._settings, TABLE, expires=True)
        end_s = time.monotonic() + seconds
        times_ms: list[float] = []
        cpu_s = 0.0
        while self._done < commits and time.monotonic() < end_s:
            entry = self._entry(self._done)
            committer.begin_checkpoint(self._done + 1)
            start_s, cpu_before_s = time.perf_counter(), time.process_time()
            (report,) = committer.commit([entry], timeout_s=60, after_crash=False)
            times_ms.append((time.perf_counter() - start_s) * 1000)
            cpu_s += time.process_time() - cpu_before_s
            assert report.outcome is CommitOutcome.COMMITTED, report
            self._done += 1
            if self._done % LINE == 0:
                self._write(times_ms, cpu_ms=cpu_s * 1000, look_up_ms=self._look_up_ms(entry))
                times_ms, cpu_s = [], 0.0
        return self._done

    def _entry(self, number: int) -> StateEntry:
        location = self._first.location
        file = replace(self._first.files[0], path=f"{location}/data/{number}.parquet")
        key = BatchKey(region="r", attempt_id=1, batch_id=number)
        attempt = WriteAttempt.draw(key)
        work = replace(self._first, attempt=attempt, checkpoint_id=number + 1, files=(file,))
        if self._upsert:
            delete = replace(file, path=f"{location}/data/{number}-deletes.parquet")
            work = replace(work, deletes=(delete,), equality_ids=(1,))
        return encode_written_files(work, operator_id="sink")

    def _look_up_ms(self, entry: StateEntry) -> float:
        start_s = time.perf_counter()
        committer = IcebergCommitter(self._settings, TABLE)
        (report,) = committer.commit([entry], timeout_s=60, after_crash=True)
        assert report.outcome is CommitOutcome.COMMITTED, report
        return (time.perf_counter() - start_s) * 1000

    def _write(self, times_ms: Sequence[float], *, cpu_ms: float, look_up_ms: float) -> None:
        metadata = self._catalog.load_table(TABLE).metadata_location
        ordered = sorted(times_ms)
        line = {
            "commits": self._done,
            "timed": len(ordered),
            "p50_ms": round(statistics.median(ordered), 1),
            "p99_ms": round(ordered[int(len(ordered) * 0.99)], 1),
            "max_ms": round(ordered[-1], 1),
            "mean_cpu_ms": round(cpu_ms / len(ordered), 1),
            "look_up_ms": round(look_up_ms, 1),
            "metadata_bytes": Path(metadata.removeprefix("file://")).stat().st_size,
        }
        print(json.dumps(line), flush=True)
        with (self._directory / "commits.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def growth(lines: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """The last tenth of the commits beside the first tenth.

    A manifest of 1 MiB takes some 6,500 commits, and its merges become longer until it is full. So
    a tenth of 100,000 commits has more than one such period.
    """
    tenth = max(1, len(lines) // 10)
    first, last = lines[:tenth], lines[-tenth:]
    named = (
        ("p50_ms", "time of a commit, p50"),
        ("mean_cpu_ms", "processor time of a commit"),
        ("look_up_ms", "look-up after a crash"),
        ("metadata_bytes", "metadata file"),
    )
    figures = []
    for name, what in named:
        before, after = (statistics.mean(one[name] for one in part) for part in (first, last))
        figures.append(
            Figure(
                what=f"{what}: the last tenth of {lines[-1]['commits']:,} commits over the first",
                runs=[after / before],
                unit="x",
                goal="<= 1.2" if name == "mean_cpu_ms" else "",
                most=1.2 if name == "mean_cpu_ms" else None,
                note=f"{before:,.1f}, then {after:,.1f}: means of {tenth} x 1,000 commits",
            )
        )
    return figures


def _lines(directory: Path) -> list[dict[str, Any]]:
    path = directory / "commits.jsonl"
    text = path.read_text("utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def _commits(table: Table) -> int:
    """How many commits a table has, by the checkpoint of the last one."""
    snapshot = table.current_snapshot()
    if snapshot is None or snapshot.summary is None:
        return 0
    return int(snapshot.summary["sluice.checkpoint-id"] or 0)


def _work(table: Table) -> WrittenFiles:
    location = table.location()
    return WrittenFiles(
        table=TABLE,
        table_uuid=str(table.metadata.table_uuid),
        location=location,
        job_uid="benchmark",
        attempt=WriteAttempt.draw(BatchKey(region="r", attempt_id=1, batch_id=0)),
        spec_id=0,
        checkpoint_id=1,
        files=(
            WrittenFile(
                path=f"{location}/data/0.parquet",
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


if __name__ == "__main__":
    main()
