"""A program that counts records by key with keyed state, for kills."""

import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sluice import FixedDelayRestart, Job, KafkaSink, KafkaSource
from sluice.connectors.testing.local_spark import local_spark
from sluice.runtime.coordinator.policy.assignment import Move
from sluice.runtime.coordinator.policy.balance import Choice, RegionLoad
from sluice.runtime.keyed.declarations import Count

__all__ = ["count_by_key", "count_while_splits_move", "counting_job"]

_ROWS_BEFORE_DEATH = 300
_passed: Counter[Path] = Counter()
"""Rows that this process has passed on, of each program."""


class _Restless:
    """A load balancer that moves the first split of a region to the next region, in turn."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, regions: Mapping[str, RegionLoad], overloaded: Mapping[str, int]) -> Choice:
        del overloaded
        names = sorted(regions)
        self._turn += 1
        source = names[self._turn % len(names)]
        target = names[(self._turn + 1) % len(names)]
        splits = sorted(regions[source].records)
        if source == target or not splits:
            return Choice()
        return Choice(moves=(Move(split=splits[0], source_region=source, target_region=target),))


def _as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    counts = batch["count"].cast(pa.string()).cast(pa.binary())
    return pa.RecordBatch.from_pydict({"key": batch["key"], "value": counts})


@dataclass(slots=True)
class _Slowly:
    """Passes rows on so slowly that the records of the moment take several epochs. Some of its
    processes die.

    Attributes:
        directory: of marks, one for each death.
        kills: deaths.
    """

    directory: Path
    kills: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(batch.num_rows / 4_000)  # several epochs
        _passed[self.directory] += batch.num_rows
        for number in range(self.kills) if _passed[self.directory] > _ROWS_BEFORE_DEATH else ():
            try:
                (self.directory / f"killed-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
        return batch.filter(pc.is_valid(batch["key"]))


def counting_job(
    spark: SparkSession,
    bootstrap: str,
    source: str,
    sink: str,
    directory: Path,
    *,
    engine: str,
    regions: int = 2,
    kills: int = 0,
    moves: bool = False,
    restore_from: str | None = None,
) -> Job:
    """Counts the records of the moment by key; writes each changed count once per epoch.

    Args:
        kills: so many tasks die.
        moves: each decision moves a split to the next region.
        restore_from: see `Job`.
    """
    job = Job(
        "counting-keys",
        spark,
        checkpoint_dir=directory / "checkpoint",
        interval_s=0.1,
        regions=regions,
        engine=engine,
        restart_strategy=FixedDelayRestart(attempts=10, delay_s=0.0),
        load_balancer=_Restless() if moves else None,
        restore_from=restore_from,
    )
    stream = job.source(
        KafkaSource(
            bootstrap_servers=bootstrap,
            topics=[source],
            bounded=True,
            options={} if engine == "continuous" else {"maxOffsetsPerTrigger": "500"},
        )
    )
    counts = (
        stream.map_batches(_Slowly(directory, kills))
        .key_by("key", partitioned=True)
        .aggregate(count=Count())
    )
    counts.map_batches(_as_text).sink(
        KafkaSink(bootstrap_servers=bootstrap, topic=sink, transactional_id_prefix=sink)
    )
    return job


def count_by_key(
    bootstrap: str, source: str, sink: str, directory: Path, engine: str, *, moves: bool = False
) -> None:
    """Run `counting_job` to the end of its source."""
    with local_spark(directory / "spark") as spark:
        counting_job(spark, bootstrap, source, sink, directory, engine=engine, moves=moves).run()


def count_while_splits_move(bootstrap: str, source: str, sink: str, directory: Path) -> None:
    """As `count_by_key`, continuously, with a move in each decision."""
    count_by_key(bootstrap, source, sink, directory, "continuous", moves=True)
