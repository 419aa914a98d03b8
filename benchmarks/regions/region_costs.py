"""The cost of regions: processor time of a pipeline in eight regions over that of one."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.measuring import topics
from benchmarks.measuring.feeding import BatchFeed
from benchmarks.measuring.figures import Figure
from benchmarks.measuring.rig import Rig, Running, wait_until
from benchmarks.measuring.sampling import cpu_seconds
from benchmarks.regions.region_kills import PARTITIONS, REGIONS, Bed, await_warm
from sluice.connectors.kafka.tools.verify.topic_history import topic_ends

__all__ = ["measure"]

_PAUSE_S = 0.02
_WARM_EPOCHS = 15
_START_S = 240.0
_STAGES = ("acked_s", "decided_s", "committed_s", "marked_s")


def measure(rig: Rig, *, engine: str, repeat: int, per_s: float, seconds: float) -> list[Figure]:
    """Measure one region and eight in turn, over the same steady input, in epochs of 1 s.

    A continuous region is one task, so one region reads with one thread and eight with eight. With
    micro-batches, two tasks run at the same time in both cases.
    """
    one, many, one_hand_written, many_hand_written = [], [], [], []
    for _ in range(repeat):
        one.append(_sample(rig, engine, 1, per_s=per_s, seconds=seconds))
        many.append(_sample(rig, engine, REGIONS, per_s=per_s, seconds=seconds))
        one_hand_written.append(_hand_written(rig, 1, per_s=per_s, seconds=seconds))
        many_hand_written.append(_hand_written(rig, REGIONS, per_s=per_s, seconds=seconds))
    pairs = list(zip(many, one, strict=True))
    broker = max(eight.broker_s / single.broker_s for eight, single in pairs)
    kept_up = min(sample.records_per_s for sample in (*one, *many)) / per_s
    pace = f"{per_s:,.0f} records/s of 100 bytes in {PARTITIONS} partitions"
    return [
        Figure(
            what=f"processor time of {REGIONS} {engine} regions over that of 1, epochs of 1 s",
            runs=[eight.cores / single.cores for eight, single in pairs],
            unit="x",
            goal="<= 1.3",
            most=1.3,
            note=f"{pace}, at least {kept_up:.2f} of it processed; driver, JVM and workers; "
            f"the broker's own {broker:.2f} x at most",
        ),
        Figure(what="  cores in use, 1 region", runs=[s.cores for s in one], unit="cores"),
        Figure(
            what=f"  cores in use, {REGIONS} regions", runs=[s.cores for s in many], unit="cores"
        ),
        Figure(
            what=f"  cores in use, {REGIONS} hand-written loops",
            runs=many_hand_written,
            unit="cores",
            note="`benchmarks/programs/peer.py`, each in a process of its own, without Spark",
        ),
        Figure(what="  cores in use, 1 hand-written loop", runs=one_hand_written, unit="cores"),
        Figure(
            what="  from the last acknowledgement to the record, and from the commit to the marker",
            runs=[sample.bookkeeping_ms for sample in many],
            unit="ms per region",
            goal="<= 5",
            most=5.0,
            note=f"of {REGIONS} regions; by the clock, syncs of the disk included",
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """One run: processor time of pipeline and broker, the share read, bookkeeping per region."""

    cores: float
    broker_s: float
    records_per_s: float
    bookkeeping_ms: float


def _sample(rig: Rig, engine: str, regions: int, *, per_s: float, seconds: float) -> _Sample:
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    # The same number of slots for one region as for all: an idle slot costs no processor time.
    slots = REGIONS + 2 if engine == "continuous" else None
    arguments = Bed(engine=engine, regions=regions).arguments(slots=slots)
    with rig.run("regional_pipeline", source, output, arguments) as running:
        _await_first_record(running)  # otherwise the run starts with a backlog
        with BatchFeed(rig, source, pause_s=_PAUSE_S, partitions=PARTITIONS, per_s=per_s):
            await_warm(running, _WARM_EPOCHS)
            seen = len(running.progress())
            began_s = time.monotonic()
            cpu_s, broker_s = cpu_seconds(running.program), rig.broker_cpu_s()
            _pass(running, seconds)
            cpu_s = cpu_seconds(running.program) - cpu_s
            broker_s = rig.broker_cpu_s() - broker_s
            elapsed_s = time.monotonic() - began_s
            lines = running.progress()[seen:]
    return _Sample(
        cores=cpu_s / elapsed_s,
        broker_s=broker_s,
        records_per_s=sum(li["records"] for li in lines if li["state"] == "marked") / elapsed_s,
        bookkeeping_ms=_bookkeeping_ms(lines, regions),
    )


def _hand_written(rig: Rig, processes: int, *, per_s: float, seconds: float) -> float:
    """Cores that so many hand-written loops use over the same input, epochs of 1 s."""
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    arguments = ["--partitions", str(PARTITIONS), "--processes", str(processes)]
    with (
        rig.run("peer", source, output, arguments) as running,
        BatchFeed(rig, source, pause_s=_PAUSE_S, partitions=PARTITIONS, per_s=per_s),
    ):
        wait_until(
            lambda: sum(topic_ends(rig.connection, output).stable.values()) > per_s * _WARM_EPOCHS,
            program=running.program,
            timeout_s=_START_S,
        )
        began_s, cpu_s = time.monotonic(), cpu_seconds(running.program)
        _pass(running, seconds)
        return (cpu_seconds(running.program) - cpu_s) / (time.monotonic() - began_s)


def _await_first_record(running: Running) -> None:
    """Wait until the job has its checkpoint directory: then it soon polls for barriers."""
    wait_until(
        lambda: any((running.directory / "checkpoint").glob("chk-*")),
        program=running.program,
        timeout_s=_START_S,
    )


def _pass(running: Running, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until_s, program=running.program, timeout_s=seconds + 30)


def _bookkeeping_ms(lines: Sequence[Mapping[str, Any]], regions: int) -> float:
    marked = ([line[stage] for stage in _STAGES] for line in lines if line["state"] == "marked")
    spent: list[float] = [
        (decided - acked) + (done - committed)
        for acked, decided, committed, done in marked
        if acked is not None and done is not None
    ]
    return statistics.median(spent) * 1000 / regions
