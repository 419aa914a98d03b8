"""The races of keyed state: what each contender does to the same records, by its backend."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring.rig import PARTITIONS
from benchmarks.peers.race import Output
from benchmarks.peers.roster import HEAP, Contender, Order, flink_sql, kafka_streams, pyflink

__all__ = ["RACES", "Race", "ours"]

_PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "keyed_pipeline.py"
_WINDOW_US = 10_000_000
_WINDOWS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """One row of the comparison.

    Attributes:
        name: on the command line, and of the results.
        title: for tables.
        records: of a whole run.
        digits: of the key: 10 ** digits keys.
        is_partitioned: the input is partitioned by the key.
        output: what a program writes; windows are of ten seconds.
        contenders: in turn.
    """

    name: str
    title: str
    records: int
    digits: int
    is_partitioned: bool
    output: Output
    contenders: Sequence[Contender]

    @property
    def every(self) -> int:
        """Between two numbers of a partition; the last digits decide the partition."""
        return PARTITIONS if self.is_partitioned else 1

    def us_each(self, records: int) -> int:
        """Event time from one number to the next."""
        return _WINDOWS * _WINDOW_US // records if self.output == "windows" else 0

    def end_us(self) -> int | None:
        """The event time of the last records, which close all windows."""
        return (_WINDOWS + 10) * _WINDOW_US if self.output == "windows" else None


def ours(work: str, digits: int, *settings: str) -> Callable[[Order], Sequence[str]]:
    """Our pipeline."""

    def command(order: Order) -> Sequence[str]:
        return [
            *(sys.executable, "-u", str(_PROGRAM), *order.topics(), "--work", work),
            *("--digits", str(digits), "--interval", str(order.interval_s)),
            *("--checkpoint", str(order.directory / "checkpoint")),
            *("--progress", str(order.directory / "progress"), *settings),
        ]

    return command


_BACKENDS = {"memory": "hashmap", "rocksdb": "rocksdb"}


def _of_ours(work: str, digits: int, *settings: str) -> Iterator[Contender]:
    for backend in _BACKENDS:
        yield Contender(
            name=f"sluice-{backend}",
            label=f"Sluice, {backend}, 2 regions",
            command=ours(work, digits, "--backend", backend, *settings),
            is_ours=True,
            is_count=True,
        )


def _of_flink(program: str, digits: int) -> Iterator[Contender]:
    for backend in _BACKENDS.values():
        yield Contender(
            name=f"flink-{backend}",
            label=f"Flink 2.2 SQL, {backend}",
            command=flink_sql(program, str(digits), backend),
            is_count=True,
        )


def _of_pyflink(digits: int) -> Iterator[Contender]:
    for backend in _BACKENDS.values():
        yield Contender(
            name=f"pyflink-{backend}",
            label=f"PyFlink 2.2 `KeyedProcessFunction`, {backend}",
            command=pyflink("pyflink_process", "--digits", str(digits), "--backend", backend),
            environment={"JVM_ARGS": HEAP},
            is_count=True,
        )


_COPY = Contender(
    name="sluice-copy",
    label="Sluice, a copy without state, 2 regions",
    command=ours("copy", 4),
    is_ours=True,
)


def _streams(digits: int) -> Contender:
    return Contender(
        name="kafka-streams",
        label="Kafka Streams 4.3, RocksDB",
        command=kafka_streams("StreamsCount", str(digits)),
        is_count=True,
    )


def _counts(digits: int, title: str, *more: Contender) -> Race:
    return Race(
        name=f"count-{title}",
        title=f"count per key, partitioned input, {10**digits:,} keys",
        records=5_000_000,
        digits=digits,
        is_partitioned=True,
        output="counts",
        contenders=(
            *_of_ours("count", digits),
            *_of_flink("FlinkSqlCount", digits),
            _streams(digits),
            *more,
        ),
    )


RACES: Sequence[Race] = (
    _counts(4, "10k", _COPY),
    _counts(6, "1m"),
    Race(
        name="repartition-10k",
        title="count per key, through a repartition topic, 10,000 keys",
        records=5_000_000,
        digits=4,
        is_partitioned=False,
        output="counts",
        contenders=(
            *_of_ours("count", 4, "--repartition", "--tasks", "4"),
            *_of_flink("FlinkSqlCount", 4),
            _streams(4),
        ),
    ),
    Race(
        name="process-10k",
        title="a function in Python per key, 10,000 keys",
        records=600_000,
        digits=4,
        is_partitioned=True,
        output="tenths",
        contenders=(*_of_ours("process", 4), *_of_pyflink(4)),
    ),
    Race(
        name="windows-100k",
        title="tumbling windows of 10 s, 100,000 keys",
        records=5_000_000,
        digits=5,
        is_partitioned=True,
        output="windows",
        contenders=(*_of_ours("windows", 5), *_of_flink("FlinkSqlWindows", 5)),
    ),
)
"""Rows of the comparison with the peers."""
