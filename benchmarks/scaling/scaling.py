"""``python -m benchmarks scaling --axis …``: our cost as one dimension of the job grows.

The other dimensions are as in the other benchmarks: 4 partitions, 2 tasks, 100 bytes, epochs of
1 s. The command writes each run as a line of JSON before the next one starts, and does not repeat
it later. A read_committed reader counts the records of every run.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine, topics
from benchmarks.measuring.rig import Rig, Running, open_rig, wait_until
from benchmarks.measuring.sampling import Sampler, cpu_at
from benchmarks.scaling.scaling_points import AXES, ENGINES, Point, points
from benchmarks.scaling.scaling_tables import tables
from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import make_producer
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.verify.topic_history import read_records

__all__ = ["RESULTS", "main", "read_lines"]

RESULTS = Path(__file__).with_name("scaling_results.jsonl")
"""Lines of JSON, from which `report` makes the tables of the documentation."""

_WARM_EACH = 100  # records of a partition
_TIMEOUT_S = 900.0
_CHUNK = 10_000


def _measure(rig: Rig, point: Point) -> dict[str, float]:
    """Measure after a first epoch that does not count, because Spark's first batch starts all."""
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
            broker_s = rig.broker_cpu_s()
            sampler.take_sample(high=0, stable=0)
            resumed_s = time.time()
            running.program.resume()
            _await_marked(running, sampler, warm + point.records)
            broker_s = rig.broker_cpu_s() - broker_s
            epochs = _marked(running)[begun:]
        found = _counted(rig.connection, output, point)
    finally:
        topics.delete(rig.connection, source, output)
    # Micro-batches work on an epoch after its barrier, continuous tasks before it.
    barrier_s, last_s = epochs[0]["at_s"] - epochs[0]["marked_s"], epochs[-1]["at_s"]
    first_s = resumed_s if point.engine == "continuous" else barrier_s
    cpu_s = cpu_at(sampler.moments, last_s) - cpu_at(sampler.moments, first_s)
    return {
        "rate": point.records / (last_s - first_s),
        "cpu_us": cpu_s / point.records * 1e6,
        "broker_us": broker_s / point.records * 1e6,
        "epochs": len(epochs),
        "epoch_s": statistics.median(epoch["marked_s"] for epoch in epochs),
        "longest_s": max(epoch["marked_s"] for epoch in epochs),
        "peak_bytes": sampler.peak_bytes,
        "missing": warm + point.records - found,
    }


def _marked(running: Running) -> list[dict[str, Any]]:
    """Committed epochs with records."""
    return [line for line in running.progress() if line["marked_s"] is not None and line["records"]]


def _await_marked(running: Running, sampler: Sampler, records: int) -> None:
    def is_done() -> bool:
        sampler.take_sample(high=0, stable=0)
        return sum(int(epoch["records"]) for epoch in _marked(running)) >= records

    wait_until(is_done, program=running.program, timeout_s=_TIMEOUT_S)


def _fill(connection: KafkaConnection, topic: str, point: Point, count: int) -> None:
    if not point.keys:
        size, partitions = point.value_bytes, point.partitions
        topics.fill(connection, topic, count, value_bytes=size, partitions=partitions)
        return
    # Keys in turn, so that every epoch has as many different keys as possible.
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
    """Input records that the output covers; for counts per key, the sum of the last counts."""
    if not point.keys:
        return sum(1 for _ in read_records(connection, topic))
    counts: dict[bytes, int] = defaultdict(int)
    for record in read_records(connection, topic):
        key = record.key or b""
        # Several partitions may have counts of a key; they only grow.
        counts[key] = max(counts[key], int(record.value or b"0"))
    return sum(counts.values())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Every complete line; skips one that a kill truncated."""
    text = path.read_text("utf-8") if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the missing runs, and print the tables."""
    args = _parser().parse_args(arguments)
    args.results.parent.mkdir(parents=True, exist_ok=True)
    _mend(args.results)
    on = dict(machine.describe())
    wanted = [
        point
        for axis, engine in itertools.product(args.axis, args.engine)
        for point in points(axis, args.records, _named(engine))
        if not args.values or point.grown in args.values
    ]
    with open_rig() as rig:
        for point in wanted:
            _repeat(rig, point, args.repeat, args.results, on)
    print(tables(read_lines(args.results)))


def _named(engine: str) -> str | None:
    """An engine by its name in `Point`."""
    return None if engine == ENGINES[0] else engine


def _repeat(rig: Rig, point: Point, repeat: int, path: Path, on: dict[str, str]) -> None:
    """Measure the missing runs; each is on disk before the next one starts."""
    done = sum(line["point"] == asdict(point) for line in read_lines(path))
    for turn in range(done, repeat):
        engine = point.engine or ENGINES[0]
        print(f"{point.axis} {point.grown:,g}, {engine}, run {turn + 1} ...", flush=True)
        line = {"point": asdict(point), "load_before": os.getloadavg()[0]}
        line |= {"figures": _measure(rig, point), "machine": on}
        line |= {"at": time.strftime("%Y-%m-%d %H:%M")}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _mend(path: Path) -> None:
    """End a truncated last line, so that the next one starts on a new line."""
    if path.exists():
        text = path.read_text("utf-8")
        if text and not text.endswith("\n"):
            path.write_text(text[: text.rfind("\n") + 1], "utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scaling", description=__doc__)
    parser.add_argument("--axis", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--records", type=int, default=1_000_000, help="at most, if possible")
    parser.add_argument("--values", nargs="+", type=float, help="only these of the axis")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--engine", nargs="+", choices=ENGINES, default=list(ENGINES), help="keys: only the first"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


if __name__ == "__main__":
    main()
