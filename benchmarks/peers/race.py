"""One run of one contender: throughput over a full topic, or latency at a steady pace."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.measuring import topics
from benchmarks.measuring.feeding import Feed, Records
from benchmarks.measuring.rig import PARTITIONS, Rig
from benchmarks.measuring.sampling import Sampler, cpu_at
from benchmarks.peers import waits
from benchmarks.peers.paced import Reader
from benchmarks.peers.records import paced_value
from benchmarks.peers.roster import Contender, Order
from benchmarks.peers.verdict import (
    TENTH,
    Verdict,
    read_counts,
    read_output,
    read_tenths,
    read_windows,
)
from sluice.connectors.kafka.tools.verify.topic_history import EndWatch
from sluice.runtime.embedded.program import Program, ProgramSpec

__all__ = ["PACED_BYTES", "Input", "Output", "RunFailedError", "latency", "throughput"]

_ROOT = Path(__file__).resolve().parents[2]
_POLL_S = 0.1
_LOOK_S = 5.0
_START_TIMEOUT_S = 300.0
_STALL_S = 60.0
_COUNTED_S = 30.0
_SLOWEST_PER_S = 1_000
PACED_BYTES = 100
"""Size of the records of a latency run."""

_PACED_BURST_S = 0.005


class RunFailedError(Exception):
    """The program ended early, or did not start or finish; says why, with the end of its log."""


Output = Literal["counts", "windows", "tenths"]
_READ = {"counts": read_counts, "windows": read_windows, "tenths": read_tenths}


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A full topic.

    Attributes:
        topic, records, value_bytes: what it holds.
        every: between two numbers of a partition, see `benchmarks.peers.records.fill`.
        output: of a program that counts: last counts per key, counts of windows, each once, or
            each tenth count of a key.
    """

    topic: str
    records: int
    value_bytes: int
    every: int = 1
    output: Output = "counts"

    def shares(self) -> list[int]:
        """Records of each partition."""
        return [
            self.records // PARTITIONS + (p < self.records % PARTITIONS) for p in range(PARTITIONS)
        ]


def throughput(
    rig: Rig, contender: Contender, given: Input, *, interval_s: float
) -> dict[str, Any]:
    """Run a new program over a full topic until all records are visible and offsets are constant.

    Returns:
        Figures by name: records a second from first to last append, whole and second half;
        CPU-seconds from first append to last sight, and with the start; the broker's of the former;
        peak memory; seconds from start to first append; and the verdict on the output that a
        read_committed reader found.
    Raises:
        RunFailedError: see there.
    """
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    try:
        with _running(
            rig,
            contender,
            given.topic,
            output,
            interval_s=interval_s,
            value_bytes=given.value_bytes,
        ) as program:
            began_s = time.time()
            # How many counts a program appends is its own choice.
            quiet_s, least = _end_of(contender, given)
            sampler = _watch(
                rig, program, output, given.records, least, max(quiet_s, 3 * interval_s)
            )
        verdict = _judged(rig, contender, given, output)
    finally:
        topics.delete(rig.connection, output)
    moments, last = sampler.moments, sampler.moments[-1]
    done = next(m for m in moments if m.stable == last.stable)
    first_s = verdict.first_ms / 1000
    return {
        "rate": verdict.rate,
        "second_half_rate": verdict.second_half_rate,
        "cpu_s": done.cpu_s - cpu_at(moments, first_s),
        "cpu_with_start_s": done.cpu_s,
        "broker_cpu_s": done.broker_s - cpu_at(moments, first_s, lambda m: m.broker_s),
        "peak_bytes": sampler.peak_bytes,
        "start_s": first_s - began_s,
        "visible_s": done.at_s - first_s,
        "verdict": {**asdict(verdict), "faults": verdict.faults},
    }


def _end_of(contender: Contender, given: Input) -> tuple[float, int]:
    """How long the offsets are constant at the end, and how many records are appended then."""
    if not contender.is_count:
        return 3.0, given.records
    if given.output == "tenths":
        return 3.0, given.records // TENTH
    return _COUNTED_S, 1


def _judged(rig: Rig, contender: Contender, given: Input, output: str) -> Verdict:
    if contender.is_count:
        return _READ[given.output](rig.connection, output, records=given.records)
    return read_output(
        rig.connection,
        output,
        shares=given.shares(),
        value_bytes=given.value_bytes,
        every=given.every,
    )


def latency(
    rig: Rig,
    contender: Contender,
    *,
    interval_s: float,
    per_s: float,
    warm_s: float,
    seconds: float,
) -> dict[str, Any]:
    """Measure the time from making a record to its sight by a read_committed reader.

    Records of the first ``warm_s`` after the first sight do not count. All records of the next
    ``seconds`` count.

    Returns:
        Figures by name; of a run of two minutes or more also ``minutes``, see `waits.by_minute`.
    Raises:
        RunFailedError: see there; also if the reader did not see all counted records.
    """
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    pace = _Pace(per_s)
    try:
        with (
            _running(
                rig, contender, source, output, interval_s=interval_s, value_bytes=PACED_BYTES
            ) as program,
            Reader(rig.connection, output) as reader,
        ):
            with Feed(rig, source, pause_s=_PACED_BURST_S, burst=pace):
                _until(lambda: reader.count > 0, program, _START_TIMEOUT_S, "saw nothing")
                from_us = int((time.time() + warm_s) * 1e6)
                sampler = Sampler(program)
                _rest(program, sampler, warm_s)
                warm = sampler.take_sample(high=0, stable=0)
                _rest(program, sampler, seconds)
                last = sampler.take_sample(high=0, stable=0)
            until_us = int(time.time() * 1e6)
            # A slow contender may lag far; records that it never shows are lost.
            with contextlib.suppress(RunFailedError):
                _until(lambda: reader.count >= pace.sent, program, 60.0, "did not catch up")
    finally:
        topics.delete(rig.connection, source, output)
    made_us, seen_us = reader.columns()
    waits_s = waits.waits_between(made_us, seen_us, from_us, until_us)
    if not len(waits_s):
        raise RunFailedError("the reader saw no record of the counted time")
    minutes = waits.by_minute(made_us, seen_us, from_us, until_us)
    return {
        **waits.summary(waits_s),
        "sent": pace.sent,
        "seen": reader.count,
        "cores": (last.cpu_s - warm.cpu_s) / (last.at_s - warm.at_s),
        "peak_bytes": sampler.peak_bytes,
        **({"minutes": minutes} if len(minutes) > 1 else {}),
    }


class _Pace:
    """A burst for `Feed`: the records that are due, over the partitions in turn."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._began_s: float | None = None
        self.sent = 0

    def __call__(self) -> Records:
        now_s = time.monotonic()
        self._began_s = now_s if self._began_s is None else self._began_s
        return self._due(int((now_s - self._began_s) * self._per_s))

    def _due(self, total: int) -> Records:
        while self.sent < total:
            number, partition = divmod(self.sent, PARTITIONS)
            self.sent += 1
            yield partition, paced_value(partition, number, PACED_BYTES)


@contextlib.contextmanager
def _running(
    rig: Rig, contender: Contender, source: str, output: str, *, interval_s: float, value_bytes: int
) -> Iterator[Program]:
    directory = Path(tempfile.mkdtemp(dir=rig.directory))
    order = Order(
        bootstrap=rig.bootstrap,
        source=source,
        output=output,
        directory=directory,
        interval_s=interval_s,
        value_bytes=value_bytes,
        partitions=PARTITIONS,
    )
    environment = {
        "PYTHONPATH": str(_ROOT) if contender.is_ours or contender.is_here else "",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **contender.environment,
    }
    spec = ProgramSpec(
        command=tuple(contender.command(order)),
        log_path=directory / "log",
        environment=environment,
        working_dir=directory,
    )
    with Program(spec) as program:
        yield program


def _watch(
    rig: Rig, program: Program, output: str, records: int, least: int, quiet_s: float
) -> Sampler:
    """Sample until at least ``least`` appended records are visible, and offsets are constant for
    ``quiet_s``."""
    watch = EndWatch(rig.connection, output)
    sampler = Sampler(program, rig.broker_cpu_s)
    deadline_s = time.monotonic() + _START_TIMEOUT_S + records / _SLOWEST_PER_S
    last, moved_s = (0, 0), time.monotonic()
    while True:
        ends = watch.now()
        high, stable = sum(ends.high.values()), sum(ends.stable.values())
        sampler.take_sample(high=high, stable=stable)
        now_s = time.monotonic()
        if (high, stable) != last:
            last, moved_s = (high, stable), now_s
        if program.exit_code is not None or now_s > deadline_s:
            raise RunFailedError(f"ended or too slow\n{program.log_tail()}")
        still_s = now_s - moved_s
        if ends.is_settled and stable >= least and still_s > quiet_s:
            return sampler
        if still_s > (_STALL_S if high else _START_TIMEOUT_S):
            if not high:
                raise RunFailedError(f"wrote nothing\n{program.log_tail()}")
            return sampler  # the verdict reports missing records
        time.sleep(_POLL_S)  # the broker gives no event to wait for


def _until(condition: Callable[[], bool], program: Program, timeout_s: float, what: str) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if program.exit_code is not None or time.monotonic() > deadline_s:
            raise RunFailedError(f"{what}\n{program.log_tail()}")
        time.sleep(_POLL_S)  # another process's work gives no event to wait for


def _rest(program: Program, sampler: Sampler, seconds: float) -> None:
    """Let it run, and sample its memory now and then; its end is an error."""
    deadline_s = time.monotonic() + seconds
    looked_s = time.monotonic()
    while time.monotonic() < deadline_s:
        if program.exit_code is not None:
            raise RunFailedError(f"ended\n{program.log_tail()}")
        if time.monotonic() - looked_s > _LOOK_S:
            sampler.take_sample(high=0, stable=0)
            looked_s = time.monotonic()
        time.sleep(_POLL_S)  # the program runs meanwhile
