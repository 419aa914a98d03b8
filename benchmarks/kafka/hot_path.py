"""``python -m benchmarks hot-path``: compiled code against confluent-kafka's own calls.

One process, without Spark, uses both in turn in one run. CPU is of the whole process with
librdkafka's threads, which are a large part of it, and the same for both.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console

from benchmarks.kafka import writer
from benchmarks.measuring import machine, topics
from benchmarks.measuring.figures import Figure, table
from benchmarks.measuring.rig import PARTITIONS, Rig, open_rig
from sluice import KafkaSource
from sluice.connectors.kafka.client.client_tuning import HotPath

__all__ = ["measure"]

_LEAST_GAIN = 1.3
_PATHS = (HotPath.PLAIN, HotPath.NATIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    rate: float
    cpu_us: float


def main() -> None:
    """The part ``hot-path`` with values of any size."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kafka.hot_path", description=__doc__
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=100, help="of a value")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    measured_on = machine.describe()
    with open_rig() as rig:
        figures = measure(rig, records=args.records, repeat=args.repeat, value_bytes=args.bytes)
    for shown in table(figures, measured_on):
        Console(highlight=False).print(shown)


def measure(rig: Rig, *, records: int, repeat: int, value_bytes: int = 100) -> Sequence[Figure]:
    """Reading only, and reading, changing and writing in transactions as a task of each engine
    does; plain and native.
    """
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    topics.fill(rig.connection, source, records, value_bytes=value_bytes, partitions=PARTITIONS)
    ways: dict[str, Callable[[Rig, str, HotPath], _Sample]] = {
        "read": _read,
        "copy, ranges": _copy,
        "copy, continuous": _follow_and_copy,
    }
    samples: dict[tuple[str, HotPath], list[_Sample]] = defaultdict(list)
    for path in _PATHS:  # warm: connections and the broker's page cache
        _read(rig, source, path)
    for _ in range(repeat):
        for name, way in ways.items():
            for path in _PATHS:
                samples[name, path].append(way(rig, source, path))
    return [figure for name in ways for figure in _figures(name, value_bytes, samples)]


def _figures(
    name: str, value_bytes: int, samples: dict[tuple[str, HotPath], list[_Sample]]
) -> list[Figure]:
    what = f"{name}, {value_bytes} bytes"
    plain, native = (samples[name, path] for path in _PATHS)
    found = [
        Figure(
            what=f"{what}, {path.value}",
            runs=[s.rate for s in samples[name, path]],
            unit="records/s",
        )
        for path in _PATHS
    ]
    found += [
        Figure(
            what=f"{what}, {path.value}",
            runs=[s.cpu_us for s in samples[name, path]],
            unit="us CPU/record",
        )
        for path in _PATHS
    ]
    gains = [p.cpu_us / n.cpu_us for p, n in zip(plain, native, strict=True)]
    gain = Figure(
        what=f"{what}, CPU of plain over native",
        runs=gains,
        unit="x",
        goal=f">= {_LEAST_GAIN}",
        least=_LEAST_GAIN,
    )
    return [*found, gain]


def _read(rig: Rig, topic: str, path: HotPath) -> _Sample:
    source = KafkaSource(bootstrap_servers=rig.bootstrap, topics=[topic], hot_path=path.value)
    splits = topics.whole(rig.connection, topic)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    records = sum(batch.num_rows for batch in source.reader().read(splits))
    return _Sample(
        rate=records / (time.perf_counter() - began_s),
        cpu_us=(time.process_time() - cpu_s) / records * 1e6,
    )


def _copy(rig: Rig, topic: str, path: HotPath) -> _Sample:
    sample = writer.copy_in_epochs(rig, topic, hot_path=path)
    return _Sample(rate=sample.rate, cpu_us=sample.cpu_us)


def _follow_and_copy(rig: Rig, topic: str, path: HotPath) -> _Sample:
    sample = writer.copy_in_epochs(rig, topic, hot_path=path, follows=True)
    return _Sample(rate=sample.rate, cpu_us=sample.cpu_us)


if __name__ == "__main__":
    main()
