"""``python -m benchmarks tuning``: the cost and gain of each setting, one at a time.

A run is one process without Spark that reads and writes in transactions. Each turn measures every
value of a setting and the default once; each second turn goes backwards. The command writes each
run as a line of JSON before the next one starts, and does not repeat it later. To measure again,
delete the file. `report --write` puts the tables into `docs/research/tuning.md`.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine, topics
from benchmarks.measuring.feeding import Feed
from benchmarks.measuring.rig import PARTITIONS, Rig, open_rig
from benchmarks.measuring.visibility import Paced, VisibleRecords
from benchmarks.scaling.scaling import read_lines
from benchmarks.tuning.tuning_tables import DEFAULT, tables
from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import make_producer

__all__ = ["LOADS", "RESULTS", "SETTINGS", "Load", "Setting", "main"]

_ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("tuning_results.jsonl")
_TIMEOUT_S = 600.0
_DISTINCT = 10_000
_CHUNK = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The input of the process.

    Attributes:
        value_bytes: of each record.
        records: in the topic; of a paced load, per second.
        interval_s: of the epochs of a paced load; None: a backlog, in epochs of a fifth.
    """

    name: str
    value_bytes: int
    records: int
    interval_s: float | None = None


LOADS: Sequence[Load] = (
    Load(name="100 B", value_bytes=100, records=1_500_000),
    Load(name="1,000 B", value_bytes=1_000, records=300_000),
    Load(name="paced, 1 s", value_bytes=100, records=5_000, interval_s=1.0),
    Load(name="paced, 100 ms", value_bytes=100, records=5_000, interval_s=0.1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a client, or of ours.

    Attributes:
        side: ``source`` or ``sink``.
        values: to compare with the default.
        paced: whether it can matter for a paced load.
        columns: of the source. With the partition, records keep their partition; without it and
            the key, librdkafka chooses one.
    """

    name: str
    side: str
    values: Sequence[str]
    paced: bool = False
    columns: Sequence[str] = ("key", "value", "partition")


SETTINGS: Sequence[Setting] = (
    Setting(name="fetch.queue.backoff.ms", side="source", values=("50", "1000"), paced=True),
    Setting(name="linger.ms", side="sink", values=("0", "20", "1000"), paced=True),
    Setting(name="fetch.wait.max.ms", side="source", values=("5", "100"), paced=True),
    Setting(name="fetch.min.bytes", side="source", values=("100000",), paced=True),
    Setting(name="queued.max.messages.kbytes", side="source", values=("2048", "65536")),
    Setting(name="queued.min.messages", side="source", values=("5000", "500000")),
    Setting(name="fetch.max.bytes", side="source", values=("1000000", "52428800")),
    Setting(name="max.partition.fetch.bytes", side="source", values=("131072", "8388608")),
    Setting(name="batch.records", side="source", values=("1000", "30000")),
    Setting(name="batch.bytes", side="source", values=("1048576", "33554432")),
    Setting(name="batch.size", side="sink", values=("16384", "131072")),
    Setting(name="batch.num.messages", side="sink", values=("1000", "10000")),
    Setting(
        name="sticky.partitioning.linger.ms",
        side="sink",
        values=("0", "10", "200"),
        columns=("value",),
    ),
    Setting(name="queue.buffering.max.kbytes", side="sink", values=("2048", "131072")),
    Setting(name="queue.buffering.max.messages", side="sink", values=("10000", "500000")),
    Setting(
        name="compression.type",
        side="sink",
        values=("gzip", "snappy", "lz4", "zstd", "zstd:9"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    setting: Setting
    value: str
    load: Load
    turn: int

    @property
    def key(self) -> tuple[str, str, str, int]:
        return (self.setting.name, self.value, self.load.name, self.turn)

    def options(self) -> dict[str, str]:
        if self.value == DEFAULT:
            return {}
        value, _, level = self.value.partition(":")
        more = {"compression.level": level} if level else {}
        return {self.setting.name: value, **more}


def _runs(settings: Sequence[Setting], loads: Sequence[Load], repeat: int) -> Iterator[_Run]:
    for setting in settings:
        for load in loads:
            if load.interval_s is not None and not setting.paced:
                continue
            values = (DEFAULT, *setting.values)
            for turn in range(repeat):
                in_turn = values if turn % 2 == 0 else values[::-1]
                yield from (_Run(setting=setting, value=v, load=load, turn=turn) for v in in_turn)


def _fill(rig: Rig, topic: str, load: Load) -> None:
    """Records that compress about as well as JSON: repeated names, different numbers."""
    numbers = random.Random(7)
    values = [_document(numbers, load.value_bytes) for _ in range(_DISTINCT)]
    producer = make_producer(
        {
            **rig.connection.librdkafka(Role.PRODUCER),
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 200_000,
        }
    )
    for number, first in enumerate(range(0, load.records, _CHUNK)):
        count = min(_CHUNK, load.records - first)
        messages = [{"value": value} for value in values[:count]]
        sent = 0
        while sent < count:
            partition = number % PARTITIONS
            sent += producer.produce_batch(topic, messages[sent:], partition=partition)
            producer.poll(0 if sent == count else 0.01)
    if producer.flush(120):
        raise RuntimeError("not all records were acknowledged")


def _document(numbers: random.Random, size: int) -> bytes:
    fields: list[bytes] = []
    while sum(map(len, fields)) < size:
        fields.append(b'"field_%d":"%x",' % (len(fields), numbers.getrandbits(48)))
    return b"".join(fields)[:size]


class _Topics:
    """The full topics of all backlog loads, each filled once."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._full: dict[str, str] = {}

    def full(self, load: Load) -> str:
        if load.name not in self._full:
            name = topics.create(self._rig.connection, "in", partitions=PARTITIONS)
            _fill(self._rig, name, load)
            self._full[load.name] = name
        return self._full[load.name]


def _measure(rig: Rig, known: _Topics, run: _Run, seconds: float) -> dict[str, float]:
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    try:
        if run.load.interval_s is None:
            share = str(run.load.records // 5)
            return _task(rig, known.full(run.load), output, run, ["--epoch-records", share])
        return _paced(rig, output, run, seconds)
    finally:
        topics.delete(rig.connection, output)


def _paced(rig: Rig, output: str, run: _Run, seconds: float) -> dict[str, float]:
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    pace = Paced(PARTITIONS, run.load.records)
    arguments = ["--interval", str(run.load.interval_s), "--seconds", str(seconds)]
    try:
        with (
            VisibleRecords(rig.connection, output) as seen,
            Feed(rig, source, pause_s=0.005, burst=pace),
        ):
            figures = _task(rig, source, output, run, arguments)
            until_s = time.time()
    finally:
        topics.delete(rig.connection, source)
    begin_s = until_s - 0.8 * seconds
    waits_s = sorted(
        wait for found in seen.by_partition().values() for wait in found.waits_s(begin_s, until_s)
    )
    if waits_s:
        figures["p50_ms"] = 1_000 * waits_s[len(waits_s) // 2]
        figures["p99_ms"] = 1_000 * waits_s[len(waits_s) * 99 // 100]
    return figures


def _task(
    rig: Rig, source: str, output: str, run: _Run, arguments: Sequence[str]
) -> dict[str, float]:
    command = [
        *(sys.executable, "-m", "benchmarks.tuning.tuning_task", "--bootstrap", rig.bootstrap),
        *("--input", source, "--output", output, "--side", run.setting.side),
        *("--options", json.dumps(run.options()), *arguments),
        *("--columns", *run.setting.columns),
    ]
    answer = subprocess.run(
        command,
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if answer.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{answer.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the missing runs, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tuning", description=__doc__)
    parser.add_argument("--setting", nargs="+", choices=[each.name for each in SETTINGS])
    parser.add_argument("--load", nargs="+", choices=[each.name for each in LOADS])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a paced run")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--tables", action="store_true", help="print them, and measure nothing")
    args = parser.parse_args(arguments)
    settings = [s for s in SETTINGS if args.setting is None or s.name in args.setting]
    loads = [load for load in LOADS if args.load is None or load.name in args.load]
    if not args.tables:
        args.results.parent.mkdir(parents=True, exist_ok=True)
        _measure_missing(list(_runs(settings, loads, args.repeat)), args.results, args.seconds)
    print(tables(read_lines(args.results)))


def _measure_missing(runs: Sequence[_Run], results: Path, seconds: float) -> None:
    done = {
        (line["setting"], line["value"], line["load"], line["turn"]) for line in read_lines(results)
    }
    missing = [run for run in runs if run.key not in done]
    if not missing:
        return
    on = dict(machine.describe())
    with contextlib.ExitStack() as stack:
        rig = stack.enter_context(open_rig())
        known = _Topics(rig)
        file = stack.enter_context(results.open("a", encoding="utf-8"))
        for number, run in enumerate(missing):
            name, value, load, turn = run.key
            print(f"{number + 1}/{len(missing)}: {load}, {name}={value}, {turn + 1}", flush=True)
            line: dict[str, Any] = {"setting": name, "value": value, "load": load, "turn": turn}
            line |= {"load_before": os.getloadavg()[0]}
            line |= {"figures": _measure(rig, known, run, seconds), "machine": on}
            line |= {"at": time.strftime("%Y-%m-%d %H:%M")}
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


if __name__ == "__main__":
    main()
