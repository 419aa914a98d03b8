"""What regions cost: processor time of a pipeline in eight regions over that of one."""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import topics
from benchmarks.feeding import BatchFeed
from benchmarks.figures import Figure
from benchmarks.region_kills import PARTITIONS, REGIONS, await_warm
from benchmarks.rig import Rig, Running, wait_until

__all__ = ["measure"]

_PAUSE_S = 0.02
_WARM_EPOCHS = 15
_STAGES = ("acked_s", "decided_s", "committed_s", "marked_s")


def measure(rig: Rig, *, repeat: int, per_s: float, seconds: float) -> list[Figure]:
    """One region and eight in turn, over the same steady input and in epochs of 1 s."""
    one, many, broker, bookkeeping = [], [], [], []
    for _ in range(repeat):
        cpu_s, broker_s, _ = _sample(rig, 1, per_s=per_s, seconds=seconds)
        many_s, more_s, lines = _sample(rig, REGIONS, per_s=per_s, seconds=seconds)
        one.append(cpu_s / seconds)
        many.append(many_s / seconds)
        broker.append(more_s / broker_s)
        bookkeeping.append(lines)
    ratios = [eight / single for eight, single in zip(many, one, strict=True)]
    pace = f"{per_s:,.0f} records/s of 100 bytes in {PARTITIONS} partitions"
    return [
        Figure(
            what=f"processor time of {REGIONS} regions over that of 1, epochs of 1 s",
            runs=ratios,
            unit="x",
            goal="<= 1.3",
            most=1.3,
            note=f"{pace}; driver, JVM and workers; the broker's own {max(broker):.2f} x at most",
        ),
        Figure(what="  cores in use, 1 region", runs=one, unit="cores"),
        Figure(what=f"  cores in use, {REGIONS} regions", runs=many, unit="cores"),
        Figure(
            what="  from the last acknowledgement to the record, and from the commit to the mark",
            runs=bookkeeping,
            unit="ms per region",
            goal="<= 5",
            most=5.0,
            note=f"of {REGIONS} regions; by the clock, syncs of the disk included",
        ),
    ]


def _sample(rig: Rig, regions: int, *, per_s: float, seconds: float) -> tuple[float, float, float]:
    """Processor seconds of pipeline and broker, and the bookkeeping in ms per region."""
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    arguments = ("--regions", str(regions), "--regional")
    with (
        rig.run("regional_pipeline", source, output, arguments) as running,
        BatchFeed(rig, source, pause_s=_PAUSE_S, partitions=PARTITIONS, per_s=per_s),
    ):
        await_warm(running, _WARM_EPOCHS)
        epochs = _epochs(running)
        cpu_s, broker_s = running.program.cpu_seconds(), rig.broker_cpu_s()
        _pass(running, seconds)
        cpu_s = running.program.cpu_seconds() - cpu_s
        broker_s = rig.broker_cpu_s() - broker_s
        lines = running.progress()[epochs:]
    return cpu_s, broker_s, _bookkeeping_ms(lines, regions)


def _pass(running: Running, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until_s, program=running.program, timeout_s=seconds + 30)


def _epochs(running: Running) -> int:
    return len(running.progress())


def _bookkeeping_ms(lines: Sequence[Mapping[str, Any]], regions: int) -> float:
    marked = ([line[stage] for stage in _STAGES] for line in lines if line["state"] == "marked")
    spent: list[float] = [
        (decided - acked) + (done - committed)
        for acked, decided, committed, done in marked
        if acked is not None and done is not None
    ]
    return statistics.median(spent) * 1000 / regions
