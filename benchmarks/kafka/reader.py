"""``python -m benchmarks.kafka.reader``: reading ranges into Arrow, one process, without Spark.

The bare loop only counts messages: the difference is the cost of Arrow, positions and ranges.
CPU includes librdkafka's threads.
"""

import argparse
import functools
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from benchmarks.measuring import machine, topics
from benchmarks.measuring.figures import Figure, table
from benchmarks.measuring.rig import PARTITIONS, Rig, open_rig
from sluice import KafkaSource
from sluice.connectors.kafka.client.confluent import TopicPartition
from sluice.connectors.kafka.records.columns import columns_with
from sluice.connectors.kafka.tools.verify.topic_history import reading_consumer

_VALUE_BYTES = 100
_LEAST_RATE = 500_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    rate: float
    cpu_rate: float


def main() -> None:
    """Measure each way in turn and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka.reader", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="of 100 bytes")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    measured_on = machine.describe()
    ways: dict[str, Callable[[Rig, str], _Sample]] = {
        "all columns with headers": functools.partial(_ranges, columns=columns_with(headers=True)),
        "key and value": functools.partial(_ranges, columns=("key", "value")),
        "bare consume loop": _bare,
    }
    samples: dict[str, list[_Sample]] = defaultdict(list)
    with open_rig() as rig:
        source = topics.create(rig.connection, "in", partitions=PARTITIONS)
        topics.fill(
            rig.connection, source, args.records, value_bytes=_VALUE_BYTES, partitions=PARTITIONS
        )
        for measure in ways.values():  # warm: connections and the broker's page cache
            measure(rig, source)
        for _ in range(args.repeat):
            for name, measure in ways.items():
                samples[name].append(measure(rig, source))
    figures = [figure for name, found in samples.items() for figure in _figures(name, found)]
    for shown in table(figures, measured_on):
        Console(highlight=False).print(shown)


def _figures(name: str, found: list[_Sample]) -> tuple[Figure, Figure]:
    goal = None if name.startswith("bare") else _LEAST_RATE
    return (
        Figure(what=name, runs=[s.rate for s in found], unit="records/s"),
        Figure(
            what=name,
            runs=[s.cpu_rate for s in found],
            unit="records/CPU-s",
            goal="" if goal is None else f">= {goal:,.0f}",
            least=goal,
        ),
    )


def _ranges(rig: Rig, topic: str, *, columns: tuple[str, ...]) -> _Sample:
    source = KafkaSource(bootstrap_servers=rig.bootstrap, topics=[topic], columns=columns)
    splits = topics.whole(rig.connection, topic)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    records = sum(batch.num_rows for batch in source.reader().read(splits))
    return _sample(records, began_s, cpu_s)


def _bare(rig: Rig, topic: str) -> _Sample:
    ends = topics.ends(rig.connection, topic)
    consumer = reading_consumer(rig.connection)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
    records, total = 0, sum(ends.values())
    while records < total:
        records += sum(1 for message in consumer.consume(10_000, 0.1) if message.error() is None)
    sample = _sample(records, began_s, cpu_s)
    consumer.close()
    return sample


def _sample(records: int, began_s: float, cpu_s: float) -> _Sample:
    return _Sample(
        rate=records / (time.perf_counter() - began_s),
        cpu_rate=records / (time.process_time() - cpu_s),
    )


if __name__ == "__main__":
    main()
