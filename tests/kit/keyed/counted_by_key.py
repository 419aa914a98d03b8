"""A job that counts the records of each key through a repartition topic, for kills and rewinds."""

import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice import Job, KafkaSink, KafkaSource
from sluice.connectors.testing.local_spark import local_spark
from sluice.runtime.keyed.declarations import Count
from tests.kit.kafka.kafka_records import Record, read

__all__ = [
    "KEYS",
    "count_by_key",
    "counting",
    "dying_once",
    "numbered",
    "require_exact_counts",
    "slowly",
]

KEYS = 500
Function = Callable[[pa.RecordBatch], pa.RecordBatch]


def numbered(records: int, partitions: int, first: int = 0) -> list[Record]:
    """Records of which each key is in all partitions."""
    return [
        Record(key=b"k%d" % (n % KEYS), value=b"%d" % n, partition=(n // KEYS) % partitions)
        for n in range(first, first + records)
    ]


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Takes so long that a run has several epochs."""
    time.sleep(batch.num_rows / 20_000)  # several epochs
    return batch


def dying_once(mark: Path) -> Function:
    """Kills the first task that comes here with rows."""

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    return run


def as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Counts as records: the key, and the count as decimal text."""
    count = pc.cast(batch.column("count"), pa.string())
    return pa.RecordBatch.from_arrays([batch.column("key"), count], ["key", "value"])


def counting(
    job: Job,
    servers: str,
    source: str,
    sink: str,
    *,
    before: Function = slowly,
    after: Function = slowly,
    prefix: str | None = None,
    **of_source: Any,
) -> Job:
    """Counts the records of each key; their topic is not partitioned by it.

    Args:
        before, after: on the records, and on the counts.
    """
    settings = {"bounded": True, **of_source}
    job.source(
        KafkaSource(bootstrap_servers=servers, topics=[source], name="records", **settings)
    ).map_batches(before).key_by("key", name="by-key", partitions=8).aggregate(
        count=Count(), name="counts"
    ).map_batches(as_text).map_batches(after).sink(
        KafkaSink(
            bootstrap_servers=servers,
            topic=sink,
            transactional_id_prefix=prefix or sink,
            name="written",
        )
    )
    return job


def count_by_key(servers: str, source: str, sink: str, directory: Path, engine: str) -> None:
    """The records of the moment, as a program."""
    with local_spark(directory / "spark") as spark:
        job = Job(
            "counts",
            spark,
            checkpoint_dir=directory / "checkpoint",
            interval_s=0.2,
            regions=1,
            engine=engine,
        )
        counting(job, servers, source, sink).run()


def require_exact_counts(servers: str, topics: Iterable[str], records: int) -> None:
    """The last count of each key is its number of records."""
    found: dict[bytes | None, list[int]] = defaultdict(list)
    for topic in topics:
        for record in read(servers, topic):
            found[record.key].append(int(record.value or b""))
    expected = Counter(b"k%d" % (n % KEYS) for n in range(records))
    assert {key: counts[-1] for key, counts in found.items()} == expected
    most = {key: max(counts) for key, counts in found.items()}
    assert most == expected, "no count was ever too large"
