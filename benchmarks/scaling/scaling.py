"""``python -m benchmarks scaling --axis …``: what our own cost does as one thing grows.

One thing at a time, the rest as in the other benchmarks: 4 partitions, 2 tasks, 100 bytes, epochs
of 1 s. Every run is written as a line of JSON before the next one begins, and is not repeated when
the command is given again. What every run wrote is counted by a read_committed reader.
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
"""Lines of JSON; `report` makes the tables of the documentation of them."""

_WARM_EACH = 100  # records of a partition
_TIMEOUT_S = 900.0
_CHUNK = 10_000


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
            broker_s = rig.broker_cpu_s()
            sampler.look(high=0, stable=0)
            resumed_s = time.time()
            running.program.resume()
            _await_marked(running, sampler, warm + point.records)
            broker_s = rig.broker_cpu_s() - broker_s
            epochs = _marked(running)[begun:]
        found = _counted(rig.connection, output, point)
    finally:
        topics.delete(rig.connection, source, output)
    # An epoch of micro-batches is worked on behind its barrier, one of a continuous task before it.
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


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Every whole line; one that a kill cut off is left out."""
    text = path.read_text("utf-8") if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is not measured yet, and print the tables."""
    args = _parser().parse_args(arguments)
    args.results.parent.mkdir(parents=True, exist_ok=True)
    _mend(args.results)
    on = dict(machine.describe())
    asked = [
        point
        for axis, engine in itertools.product(args.axis, args.engine)
        for point in points(axis, args.records, _named(engine))
        if not args.values or point.grown in args.values
    ]
    with open_rig() as rig:
        for point in asked:
            _repeat(rig, point, args.repeat, args.results, on)
    print(tables(read_lines(args.results)))


def _named(engine: str) -> str | None:
    """As `Point` has it."""
    return None if engine == ENGINES[0] else engine


def _repeat(rig: Rig, point: Point, repeat: int, path: Path, on: dict[str, str]) -> None:
    """As often as is missing; each run is on disk before the next one begins."""
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
    """End a line that a kill cut off, so that the next one stands alone."""
    if path.exists():
        text = path.read_text("utf-8")
        if text and not text.endswith("\n"):
            path.write_text(text[: text.rfind("\n") + 1], "utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scaling", description=__doc__)
    parser.add_argument("--axis", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--records", type=int, default=1_000_000, help="at most, where it can be")
    parser.add_argument("--values", nargs="+", type=float, help="only these of the axis")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--engine", nargs="+", choices=ENGINES, default=list(ENGINES), help="keys: the first alone"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


if __name__ == "__main__":
    main()
