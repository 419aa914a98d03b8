"""Processor time and memory of a program with all its processes, against the wall clock."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from sluice.runtime.embedded.program import Program

__all__ = ["Moment", "Sampler", "cpu_at", "cpu_seconds", "driver_memory_bytes"]

_MEMORY_EVERY_S = 1.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Moment:
    """One sample: wall clock in seconds, CPU-seconds so far, records appended and visible, and the
    broker's CPU-seconds so far."""

    at_s: float
    cpu_s: float
    high: int
    stable: int
    broker_s: float = 0.0


class Sampler:
    """Takes samples of a program. Used by one thread.

    CPU-seconds are those of all living processes of its session, and of the ended children that
    these have waited for. Memory is proportional (PSS): a page that n processes share counts 1/n
    for each, so forked workers and mapped archives do not count twice.

    Args:
        program: under measurement.
        broker_s: CPU-seconds of the broker so far.
    """

    def __init__(self, program: Program, broker_s: Callable[[], float] = lambda: 0.0) -> None:
        self._program = program
        self._broker_s = broker_s
        self._weighed_s = float("-inf")
        self.moments: list[Moment] = []
        self.peak_bytes = 0

    def take_sample(self, *, high: int, stable: int) -> Moment:
        """Take a sample together with the output's offsets on the broker, as sums."""
        now_s = time.monotonic()
        # Find new processes at each sample, in a fifth of a millisecond: a forked worker may do all
        # the work of a run before the next second.
        members = [process.pid for process in self._program.members()]
        if now_s - self._weighed_s > _MEMORY_EVERY_S:
            self.peak_bytes = max(self.peak_bytes, sum(map(_memory_bytes, members)))
            self._weighed_s = now_s
        cpu_s = sum(map(_cpu_seconds, members))
        moment = Moment(time.time(), cpu_s, high, stable, self._broker_s())
        self.moments.append(moment)
        return moment


def cpu_at(
    moments: Sequence[Moment], at_s: float, of: Callable[[Moment], float] = lambda m: m.cpu_s
) -> float:
    """CPU-seconds at a moment of the wall clock, interpolated between two samples; ``of`` the
    program by default."""
    before = moments[0]
    for moment in moments:
        if moment.at_s >= at_s:
            width_s = moment.at_s - before.at_s
            share = (at_s - before.at_s) / width_s if width_s > 0 else 1.0
            return of(before) + max(0.0, share) * (of(moment) - of(before))
        before = moment
    return of(before)


def _cpu_seconds(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError):
        # The name in brackets may contain any text, so parse the fields after it.
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS_PER_S
    return 0.0


def _memory_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(psutil.Error):  # without rights, resident memory is an upper bound
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def cpu_seconds(program: Program) -> float:
    """CPU time of all living processes of the session and of their ended children."""
    total = 0.0
    for process in program.members():
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def driver_memory_bytes(program: Program) -> int:
    """Resident memory of the driver; 0 if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(psutil.Process(program.pid).memory_info().rss)
    return 0
