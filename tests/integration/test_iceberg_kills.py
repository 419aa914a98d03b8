"""Kills at every step of the Iceberg sink, once and twice: each row is in the table once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.runtime.failpoints import VARIABLE
from tests.kit.iceberg.iceberg_bed import IcebergBed, rows_of
from tests.kit.iceberg.iceberg_program import EXTRA, REGIONS, last_rows, numbers
from tests.kit.iceberg.merged_rows import live_files
from tests.kit.threads.joined_thread import JoinedThread
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

BATCHES = 4
FAILPOINTS = (
    *("before-data-file", "after-data-file", "after-data-files", "after-decision"),
    *("before-lookup", "after-lookup", "before-append", "after-append"),
    *("before-notes-deleted", "after-notes-deleted"),
)
KILLS = tuple(f"{name}=kill@{hit}" for name in FAILPOINTS for hit in (1, 2))


class OtherWriter(JoinedThread):
    """Appends rows of its own all along.

    It pauses for twice as long as an append takes: a commit of the program must fit between two of
    its commits, also on a busy machine. ``least_pause_s`` is for a program whose requests take
    longer than its own.
    """

    def __init__(
        self,
        bed: IcebergBed,
        rows: Callable[[int], pa.RecordBatch] = rows_of,
        *,
        least_pause_s: float = 0.05,
    ) -> None:
        super().__init__("other writer", stop_s=PATIENCE_S)
        self._bed = bed
        self._rows = rows
        self._least_pause_s = least_pause_s
        self.written: list[int] = []

    def _work(self) -> None:
        table = self._bed.table()
        pause_s = self._least_pause_s
        while not self._stopping.wait(pause_s):
            number = 1_000_000 + len(self.written)
            begun_s = time.monotonic()
            table.append(pa.Table.from_batches([self._rows(number)]))
            self.written.append(number)
            pause_s = max(self._least_pause_s, 2 * (time.monotonic() - begun_s))


def run(
    directory: Path,
    failpoints: str = "",
    *words: str,
    extra: dict[str, str] | None = None,
    batches: int = BATCHES,
) -> int:
    """One run of the program; returns its exit code."""
    command = [sys.executable, "-m", "tests.kit.iceberg.iceberg_program", str(directory)]
    return subprocess.run(
        [*command, str(batches), *words],
        env={**os.environ, VARIABLE: failpoints, EXTRA: json.dumps(extra or {})},
        cwd=Path(__file__).parents[2],
        timeout=PATIENCE_S,
        check=False,
    ).returncode


def wanted(batches: int = BATCHES) -> Counter[int]:
    """Ids of all batches."""
    return Counter(
        number
        for batch in range(batches)
        for region in range(len(REGIONS))
        for number in numbers(batch, region)
    )


def require_exact(
    bed: IcebergBed, others: list[int], *, upserts: bool = False, batches: int = BATCHES
) -> None:
    """Each row is there once, and nothing else."""
    rows = bed.rows()
    again = last_rows(batches) if upserts else {}
    assert Counter(row["id"] for row in rows) == wanted(batches) + Counter([*others, *again])
    assert {row["id"]: row["name"] for row in rows if row["id"] < 0} == again
    named = {file.file_path.rpartition("/")[2] for _, file in live_files(bed.table())}
    assert bed.data_files() == named, "the sweep deletes what no snapshot names, and nothing else"
    assert [name for name in bed.notes() if name != "lease"] == []
    found = [
        snapshot.summary["sluice.checkpoint-id"]
        for snapshot in bed.table().snapshots()
        if snapshot.summary is not None
    ]
    checkpoints = [str(batch + 1) for batch in range(batches)]
    assert [checkpoint for checkpoint in found if checkpoint is not None] == checkpoints


@pytest.mark.parametrize(
    "kills",
    [
        ("before-append=kill@2", "after-append=kill@2", "before-notes-deleted=kill@1"),
        pytest.param(KILLS[: len(KILLS) // 2], marks=pytest.mark.extended),
        pytest.param(KILLS[len(KILLS) // 2 :], marks=pytest.mark.extended),
    ],
    ids=["commit", "write", "look-up"],
)
def test_each_row_is_there_once_after_kills_beside_another_writer(
    tmp_path: Path, kills: tuple[str, ...]
) -> None:
    bed = IcebergBed(directory=tmp_path)
    # Both writers overtake each other all the time; pyiceberg gives up after 4 retries.
    bed.create(properties={"commit.retry.num-retries": "1000"})
    with OtherWriter(IcebergBed(directory=tmp_path)) as other:
        killed = [kill for kill in kills if run(tmp_path, kill) == -signal.SIGKILL]
        assert killed
        assert run(tmp_path) == 0
    require_exact(bed, other.written)


@pytest.mark.extended
@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_two_kills_in_a_row_at_every_step(tmp_path: Path, failpoint: str) -> None:
    """The second one strikes the run that settles what the first one left."""
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    hit = 1 if failpoint.endswith("lookup") else 2  # a committer without a conflict reads once
    assert run(tmp_path, f"{failpoint}=kill@{hit}") == -signal.SIGKILL
    run(tmp_path, f"{failpoint}=kill@1")
    assert run(tmp_path) == 0
    require_exact(bed, [])


@pytest.mark.parametrize(
    "kills",
    [
        ("after-append=kill@2",),
        pytest.param(KILLS, marks=pytest.mark.extended),
    ],
    ids=["commit", "all"],
)
def test_upserts_have_the_last_row_of_each_key_after_kills(
    tmp_path: Path, kills: tuple[str, ...]
) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    assert [kill for kill in kills if run(tmp_path, kill, "upsert") == -signal.SIGKILL]
    assert run(tmp_path, "", "upsert") == 0
    require_exact(bed, [], upserts=True)


@pytest.mark.extended
@pytest.mark.parametrize("failpoint", ["before-evolve", "after-evolve"])
def test_a_new_column_is_never_lost_by_a_kill(tmp_path: Path, failpoint: str) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    for _ in range(2):
        run(tmp_path, f"{failpoint}=kill@1", "evolve")
    assert run(tmp_path, "", "evolve") == 0
    require_exact(bed, [])
    found = bed.table().scan().to_arrow()
    assert found["extra"].to_pylist() == found["id"].to_pylist()


@pytest.mark.extended
def test_two_jobs_of_one_table_under_kills(tmp_path: Path) -> None:
    """Job 2 commits between the kills of job 1."""
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    second = IcebergBed(directory=tmp_path, job_uid="job-2")
    for batch, kill in enumerate(("after-append=kill@1", "before-append=kill@1", "")):
        run(tmp_path, kill)
        rows = rows_of(2_000_000 + batch)
        second.commit(second.pre_commit(rows, batch_id=batch))
    assert bed.ids() == wanted() + Counter(2_000_000 + batch for batch in range(3))
