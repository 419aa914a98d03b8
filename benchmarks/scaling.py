"""``python -m benchmarks scaling --axis …``: what our own cost does as one thing grows.

One thing at a time, the rest as in the other benchmarks: 4 partitions, 2 tasks, 100 bytes, epochs
of 1 s. Every run is written as a line of JSON before the next one begins, and is not repeated when
the command is given again. What every run wrote is counted by a read_committed reader.
"""

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine, topics
from benchmarks.peers.sampling import Sampler, cpu_at
from benchmarks.rig import Rig, Running, open_rig, wait_until
from connectors.kafka._client import make_producer
from connectors.kafka.client_options import Role
from connectors.kafka.history import read_records
from connectors.kafka.security import KafkaConnection

__all__ = ["AXES", "Point", "main", "points", "tables"]

_RESULTS = Path("build") / "bench" / "scaling.jsonl"
_INPUT_BYTES = 500_000_000
_CHAINED_PER_S, _STATEFUL_PER_S = 350_000, 100_000
_WARM_EACH = 100  # records of a partition
_TIMEOUT_S = 900.0
_CHUNK = 10_000
_MIB = 2**20

AXES: Mapping[str, tuple[str, Sequence[float]]] = {
    "partitions": ("partitions", (4, 16, 64, 256)),
    "tasks": ("tasks", (1, 2, 4)),
    "sizes": ("value_bytes", (10, 100, 1_000, 10_000, 100_000)),
    "epochs": ("interval_s", (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)),
    "keys": ("keys", (1e3, 1e4, 1e5, 1e6, 1e7)),
}
"""By name: the field of `Point` that grows, and its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One setting of our pipeline.

    Attributes:
        records: of the input.
        keys: of the stateful example; 0: the chained copy.
        engine: None: the micro-batch engine.
    """

    axis: str
    records: int
    partitions: int = 4
    tasks: int = 2
    value_bytes: int = 100
    interval_s: float = 1.0
    keys: int = 0
    engine: str | None = None

    @property
    def grown(self) -> float:
        """What the axis is about."""
        return float(getattr(self, AXES[self.axis][0]))

    def arguments(self) -> list[str]:
        """Of the pipeline. An epoch is cut at about what its interval can hold."""
        per_s = _STATEFUL_PER_S if self.keys else _CHAINED_PER_S
        by_size = min(per_s, 120_000_000 // self.value_bytes)
        limit = max(100, int(by_size * self.interval_s))
        bound = ["--max-records", str(limit)]
        if self.engine == "continuous":  # its epochs end with the barrier, and have no bound
            bound = ["--regions", str(self.tasks)]
        engine = ["--engine", self.engine] if self.engine else []
        return [
            *("--mode", "count" if self.keys else "chained", "--tasks", str(self.tasks)),
            *("--interval", str(self.interval_s), *bound, *engine),
        ]


def points(axis: str, records: int, engine: str | None = None) -> Iterator[Point]:
    """Of an axis; large records are fewer, and there are at least as many as keys."""
    name, values = AXES[axis]
    for value in values:
        grown: dict[str, Any] = {name: value if name == "interval_s" else int(value)}
        size = int(grown.get("value_bytes", 100))
        count = max(min(records, _INPUT_BYTES // size), int(grown.get("keys", 0)))
        if name == "interval_s":  # several epochs of each length
            count = max(count, int(3 * value * _CHAINED_PER_S))
        yield Point(axis=axis, records=count, engine=engine, **grown)


def _measure(rig: Rig, point: Point) -> dict[str, float]:
    """Behind a first epoch that is not counted, for Spark's first batch starts everything."""
    source = topics.create(rig.connection, "in", partitions=point.partitions)
    output = topics.create(rig.connection, "out", partitions=point.partitions)
    warm = _WARM_EACH * point.partitions
    try:
        _fill(rig.connection, source, point, warm)
        with rig.run("pipeline", source, output, point.arguments()) as running:
            sampler = Sampler(running.program)
            _await_marked(running, sampler, warm)
            begun = len(_marked(running))
            running.program.pause()
            _fill(rig.connection, source, point, point.records)
            running.program.resume()
            _await_marked(running, sampler, warm + point.records)
            epochs = _marked(running)[begun:]
        found = _counted(rig.connection, output, point)
    finally:
        topics.delete(rig.connection, source, output)
    first_s, last_s = epochs[0]["at_s"] - epochs[0]["marked_s"], epochs[-1]["at_s"]
    cpu_s = cpu_at(sampler.moments, last_s) - cpu_at(sampler.moments, first_s)
    return {
        "rate": point.records / (last_s - first_s),
        "cpu_us": cpu_s / point.records * 1e6,
        "epochs": len(epochs),
        "epoch_s": statistics.median(epoch["marked_s"] for epoch in epochs),
        "longest_s": max(epoch["marked_s"] for epoch in epochs),
        "peak_bytes": sampler.peak_bytes,
        "missing": warm + point.records - found,
    }


def _marked(running: Running) -> list[dict[str, Any]]:
    """Epochs with records that are committed on record."""
    return [line for line in running.progress() if line["marked_s"] is not None and line["records"]]


def _await_marked(running: Running, sampler: Sampler, records: int) -> None:
    def is_done() -> bool:
        sampler.look(high=0, stable=0)
        return sum(int(epoch["records"]) for epoch in _marked(running)) >= records

    wait_until(is_done, program=running.program, timeout_s=_TIMEOUT_S)


def _fill(connection: KafkaConnection, topic: str, point: Point, count: int) -> None:
    if not point.keys:
        size, partitions = point.value_bytes, point.partitions
        topics.fill(connection, topic, count, value_bytes=size, partitions=partitions)
        return
    # Keys in turn, so that every epoch touches as many different ones as it can.
    producer = make_producer(
        {
            **connection.librdkafka(Role.PRODUCER),
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
        }
    )
    for number, first in enumerate(range(0, count, _CHUNK)):
        messages = [
            {"key": b"%d" % (n % point.keys), "value": b"x"}
            for n in range(first, min(first + _CHUNK, count))
        ]
        sent = 0
        while sent < len(messages):
            partition = number % point.partitions
            sent += producer.produce_batch(topic, messages[sent:], partition=partition)
            producer.poll(0 if sent == len(messages) else 0.01)
    if producer.flush(120):
        raise RuntimeError("not all records were acknowledged")


def _counted(connection: KafkaConnection, topic: str, point: Point) -> int:
    """Records of the input that the output speaks of; of counts per key, the sum of the last."""
    if not point.keys:
        return sum(1 for _ in read_records(connection, topic))
    counts: dict[bytes, int] = defaultdict(int)
    for record in read_records(connection, topic):
        key = record.key or b""
        # A key's counts may stand in several partitions; they only grow.
        counts[key] = max(counts[key], int(record.value or b"0"))
    return sum(counts.values())


def tables(lines: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a table for each axis, medians."""
    by_axis: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for line in lines:
        place = by_axis.setdefault(line["point"]["axis"], {})
        place.setdefault(json.dumps(line["point"]), []).append(line)
    return "\n\n".join(
        "\n".join(_table(axis, list(rows.values()))) for axis, rows in by_axis.items()
    )


def _table(axis: str, rows: Sequence[Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    yield (
        f"| {axis} | records | records/s | CPU us per record | epochs | median, s | longest, s "
        "| peak memory | missing | load before |"
    )
    yield "| --- " * 10 + "|"
    for runs in rows:
        point = Point(**runs[0]["point"])

        def median(name: str, runs: Sequence[Mapping[str, Any]] = runs) -> float:
            return statistics.median(float(run["figures"][name]) for run in runs)

        missing = sum(abs(run["figures"]["missing"]) for run in runs)
        load = max(run["load_before"] for run in runs)
        yield (
            f"| {point.grown:,g} | {point.records:,} | {median('rate'):,.0f} "
            f"| {median('cpu_us'):.2f} | {median('epochs'):.0f} | {median('epoch_s'):.2f} "
            f"| {median('longest_s'):.2f} | {median('peak_bytes') / _MIB:,.0f} MiB | {missing:,} "
            f"| {load:.1f} |"
        )


def _read(path: Path) -> list[dict[str, Any]]:
    text = path.read_text("utf-8") if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is not measured yet, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scaling", description=__doc__)
    parser.add_argument("--axis", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--records", type=int, default=1_000_000, help="at most, where it can be")
    parser.add_argument("--values", nargs="+", type=float, help="only these of the axis")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--engine", help="of chained jobs; default: micro-batch")
    parser.add_argument("--results", type=Path, default=_RESULTS)
    args = parser.parse_args(arguments)
    args.results.parent.mkdir(parents=True, exist_ok=True)
    on = dict(machine.describe())
    with open_rig() as rig, args.results.open("a", encoding="utf-8") as file:
        for axis in args.axis:
            for point in points(axis, args.records, args.engine):
                if args.values and point.grown not in args.values:
                    continue
                done = sum(line["point"] == asdict(point) for line in _read(args.results))
                for turn in range(done, args.repeat):
                    print(f"{axis} {point.grown:,g}, run {turn + 1} ...", flush=True)
                    line = {"point": asdict(point), "load_before": os.getloadavg()[0]}
                    line |= {"figures": _measure(rig, point), "machine": on}
                    line |= {"at": time.strftime("%Y-%m-%d %H:%M")}
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
    print(tables(_read(args.results)))


if __name__ == "__main__":
    main()
