"""Kills at every step of the Iceberg sink, once and twice: each row is in the table once."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.runtime.failpoints import VARIABLE
from tests.kit.iceberg.iceberg_bed import IcebergBed, rows_of
from tests.kit.iceberg.iceberg_program import REGIONS, numbers
from tests.kit.threads.joined_thread import JoinedThread
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

BATCHES = 4
FAILPOINTS = (
    *("before-data-file", "after-data-file", "after-data-files", "after-decision"),
    *("before-lookup", "after-lookup", "before-append", "after-append"),
    *("before-notes-deleted", "after-notes-deleted"),
)
_KILLS = tuple(f"{name}=kill@{hit}" for name in FAILPOINTS for hit in (1, 2))


class _OtherWriter(JoinedThread):
    """Appends rows of its own all along."""

    def __init__(self, bed: IcebergBed) -> None:
        super().__init__("other writer", stop_s=PATIENCE_S)
        self._bed = bed
        self.written: list[int] = []

    def _work(self) -> None:
        table = self._bed.table()
        while not self._stopping.wait(0.05):
            number = 1_000_000 + len(self.written)
            table.append(pa.Table.from_batches([rows_of(number)]))
            self.written.append(number)


def _run(directory: Path, failpoints: str = "") -> int:
    command = [sys.executable, "-m", "tests.kit.iceberg.iceberg_program", str(directory)]
    return subprocess.run(
        [*command, str(BATCHES)],
        env={**os.environ, VARIABLE: failpoints},
        cwd=Path(__file__).parents[2],
        timeout=PATIENCE_S,
        check=False,
    ).returncode


def _wanted() -> Counter[int]:
    return Counter(
        number
        for batch in range(BATCHES)
        for region in range(len(REGIONS))
        for number in numbers(batch, region)
    )


def _require_exact(bed: IcebergBed, others: list[int]) -> None:
    assert bed.ids() == _wanted() + Counter(others)
    named = {task.file.file_path.rpartition("/")[2] for task in bed.table().scan().plan_files()}
    assert bed.data_files() == named, "the sweep deletes what no snapshot names, and nothing else"
    assert [name for name in bed.notes() if name != "lease"] == []
    found = [
        snapshot.summary["sluice.checkpoint-id"]
        for snapshot in bed.table().snapshots()
        if snapshot.summary is not None
    ]
    wanted = [str(batch + 1) for batch in range(BATCHES)]
    assert [checkpoint for checkpoint in found if checkpoint is not None] == wanted


@pytest.mark.parametrize(
    "kills",
    [
        ("before-append=kill@2", "after-append=kill@2", "before-notes-deleted=kill@1"),
        pytest.param(_KILLS[: len(_KILLS) // 2], marks=pytest.mark.extended),
        pytest.param(_KILLS[len(_KILLS) // 2 :], marks=pytest.mark.extended),
    ],
    ids=["commit", "write", "look-up"],
)
def test_each_row_is_there_once_after_kills_beside_another_writer(
    tmp_path: Path, kills: tuple[str, ...]
) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    with _OtherWriter(IcebergBed(directory=tmp_path)) as other:
        killed = [kill for kill in kills if _run(tmp_path, kill) == -signal.SIGKILL]
        assert killed
        assert _run(tmp_path) == 0
    _require_exact(bed, other.written)


@pytest.mark.extended
@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_two_kills_in_a_row_at_every_step(tmp_path: Path, failpoint: str) -> None:
    """The second one strikes the run that settles what the first one left."""
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    assert _run(tmp_path, f"{failpoint}=kill@2") == -signal.SIGKILL
    _run(tmp_path, f"{failpoint}=kill@1")
    assert _run(tmp_path) == 0
    _require_exact(bed, [])


@pytest.mark.extended
def test_two_jobs_of_one_table_under_kills(tmp_path: Path) -> None:
    """Job 2 commits between the kills of job 1."""
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    second = IcebergBed(directory=tmp_path, job_uid="job-2")
    for batch, kill in enumerate(("after-append=kill@1", "before-append=kill@1", "")):
        _run(tmp_path, kill)
        rows = rows_of(2_000_000 + batch)
        second.commit(second.pre_commit(rows, batch_id=batch))
    assert bed.ids() == _wanted() + Counter(2_000_000 + batch for batch in range(3))
