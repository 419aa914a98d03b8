"""``python -m benchmarks checker``: the cost of checking a run with this many records.

It makes the records instead of reading Kafka: as many inputs as outputs, 100 bytes each, in eight
partitions. ``--rows`` makes no records and no fingerprints, which take most of the time, and
measures only the comparison.
"""

import argparse
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from sluice.runtime.checker import Record, SpilledHistory, check_spilled
from sluice.runtime.checker.records.history import Columns

__all__ = ["main"]

_PARTITIONS = 8
_CHUNK = 100_000
_PADDING = b"." * 80


def main(arguments: Sequence[str]) -> None:
    """Check once; print time, memory and disk."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks checker", description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--memory-mib", type=int, default=512)
    parser.add_argument("--rows", action="store_true", help="make rows instead of records")
    parser.add_argument("--scratch", type=Path, help="directory for data that exceeds the memory")
    args = parser.parse_args(arguments)
    scratch = Path(tempfile.mkdtemp(prefix="sluice-checker-", dir=args.scratch))
    try:
        _measure(args, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _measure(args: argparse.Namespace, scratch: Path) -> None:
    memory_bytes = args.memory_mib << 20
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started_s, cpu_s = time.monotonic(), time.process_time()
    want = SpilledHistory(scratch / "expected", memory_bytes=memory_bytes)
    have = SpilledHistory(scratch / "found", memory_bytes=memory_bytes)
    for history in (want, have):
        (_fill_rows if args.rows else _fill)(history, args.records)
    filled_s, filled_cpu_s = time.monotonic(), time.process_time()
    disk = sum(path.stat().st_size for path in scratch.rglob("*") if path.is_file())
    verdict = check_spilled(want, have)
    if not verdict.is_clean:
        sys.exit(f"the checker is broken: {verdict}")
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ended_s, ended_cpu_s = time.monotonic(), time.process_time()
    console = Console(highlight=False)
    console.print(f"records on each side: {args.records:,}, memory allowed: {args.memory_mib} MiB")
    console.print(f"filled in {filled_s - started_s:.1f} s ({filled_cpu_s - cpu_s:.1f} s of CPU)")
    console.print(
        f"compared in {ended_s - filled_s:.1f} s ({ended_cpu_s - filled_cpu_s:.1f} s of CPU)"
    )
    console.print(f"memory: {before_kib >> 10} MiB before, {peak_kib >> 10} MiB at most")
    console.print(f"disk: {disk / args.records:.1f} bytes a record before the comparison")


def _fill(history: SpilledHistory, count: int) -> None:
    for record in _records(count):
        history.append(record)


def _records(count: int) -> Iterator[Record]:
    for number in range(count):
        offset, partition = divmod(number, _PARTITIONS)
        yield Record("t", partition, offset, None, b"%020d" % number + _PADDING)


def _fill_rows(history: SpilledHistory, count: int) -> None:
    for partition in range(_PARTITIONS):
        history.lanes.number("t", partition)
    for at in range(0, count, _CHUNK):
        positions = np.arange(at, min(at + _CHUNK, count), dtype=np.int64)
        history.append_columns(
            Columns(
                # An odd factor makes distinct values that cover the range.
                fingerprints=positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15),
                lanes=(positions % _PARTITIONS).astype(np.int32),
                offsets=positions // _PARTITIONS,
                positions=positions,
                names=np.zeros(len(positions), dtype=np.uint64),
            )
        )
