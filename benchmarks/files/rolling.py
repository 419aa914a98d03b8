"""Files that stay open over many short epochs: their number, and the cost of an epoch."""

import math
import os
import statistics
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring import topics
from benchmarks.measuring.feeding import Feed
from benchmarks.measuring.figures import Figure
from benchmarks.measuring.rig import Rig, Running, wait_until

__all__ = ["measure"]

_PARTITIONS = 2
_REGIONS = 1
_SIZE_BYTES = 4 << 20
_VALUE_BYTES = 1_000
_BURST = 5
_START_S = 120.0
_END_S = 300.0


def measure(rig: Rig, *, minutes: float) -> list[Figure]:
    """Run epochs of 0.2 s for so many minutes, kill the job, and run it to the end."""
    source = topics.create(rig.connection, "in", partitions=_PARTITIONS)
    directory = Path(tempfile.mkdtemp(dir=rig.directory))
    progress = directory / "progress"
    arguments = ["--directory", str(directory / "out"), "--progress", str(progress)]
    arguments += ["--size", str(_SIZE_BYTES)]
    started = rig.start("rolling_copy", source, "", directory, arguments)
    with started as running, _feed(rig, source):
        _await_epochs(running, 1, timeout_s=_START_S)
        threading.Event().wait(minutes * 60)  # the job runs meanwhile
        staged = _files(directory / "out" / ".sluice-staging-files")
        epochs_s = running.epochs_s()
    names_bytes = _last_record_bytes(directory / "out" / "checkpoint")
    with rig.start("rolling_copy", source, "", directory, [*arguments, "--until-end"]) as running:
        code = running.program.await_exit(timeout_s=_END_S)
        assert code == 0, running.program.log_tail()
    return [
        *(_of_partition(p, directory / "out" / "files") for p in range(_PARTITIONS)),
        Figure(
            what="epoch that holds files, barrier to mark",
            runs=[statistics.median(epochs_s)],
            unit="s",
            note=f"{len(epochs_s):,} epochs, longest {max(epochs_s):.2f} s; {len(staged)} files "
            f"staged and the last record {names_bytes / 1024:.0f} KiB at the kill",
        ),
    ]


def _of_partition(partition: int, target: Path) -> Figure:
    lengths = _files(target / f"partition={partition}")
    most = math.ceil(sum(lengths) / _SIZE_BYTES) + _REGIONS
    return Figure(
        what=f"files in partition {partition}, size {_SIZE_BYTES >> 20} MiB",
        runs=[float(len(lengths))],
        unit="files",
        goal=f"<= {most}",
        most=float(most),
        note=f"{sum(lengths) / 2**20:.1f} MiB, smallest {min(lengths) / 2**20:.1f} MiB",
    )


def _files(directory: Path) -> Sequence[int]:
    return [path.stat().st_size for path in directory.rglob("part-*") if path.is_file()]


def _last_record_bytes(checkpoint: Path) -> int:
    return max(checkpoint.glob("chk-*/_metadata")).stat().st_size


def _await_epochs(running: Running, count: int, *, timeout_s: float) -> None:
    wait_until(
        lambda: len(running.epochs_s()) >= count, program=running.program, timeout_s=timeout_s
    )


def _feed(rig: Rig, topic: str) -> Feed:
    """A few hundred records a second that do not compress."""
    return Feed(
        rig,
        topic,
        pause_s=0.02,
        burst=lambda: [
            (number % _PARTITIONS, os.urandom(_VALUE_BYTES))
            for number in range(_PARTITIONS * _BURST)
        ],
        linger_ms=5,
    )
