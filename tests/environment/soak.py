"""Measures growth over hours of load and faults: memory, handles, threads, transactional ids."""

import contextlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from tests.environment.containers import Container
from tests.environment.pipeline import Pipeline
from tests.environment.plan import WORKERS

_MIB = 1 << 20
_PACE_S = 60.0
_EVERY_S = 10.0
_ANSWER_S = 20.0
_LEAST_SAMPLES = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample.

    Attributes:
        at_s: since the start of the soak.
        faults: so far.
        driver: number of the driver's first process, which changes with a restart.
        driver_mib, driver_files, driver_threads: resident memory, open handles and threads of the
            driver's Python and JVM.
        workers_mib, workers_files, workers_threads: of all processes on the Spark workers.
        ids_per_process: the most transactional ids that one worker process has ever had.
        records: visible so far.
    """

    at_s: float
    faults: int
    driver: int
    driver_mib: float
    driver_files: int
    driver_threads: int
    workers_mib: float
    workers_files: int
    workers_threads: int
    ids_per_process: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A measure that must not grow.

    Attributes:
        title: with its unit.
        ratio, allowance: the last third may exceed the first one by the larger of both.
    """

    title: str
    ratio: float
    allowance: float


MEASURES: Mapping[str, Measure] = {
    "driver_mib": Measure(title="driver: memory, MiB", ratio=0.25, allowance=64),
    "driver_files": Measure(title="driver: file handles", ratio=0.1, allowance=16),
    "driver_threads": Measure(title="driver: threads", ratio=0.1, allowance=8),
    "workers_mib": Measure(title="workers: memory, MiB", ratio=0.25, allowance=128),
    "workers_files": Measure(title="workers: file handles", ratio=0.1, allowance=48),
    "workers_threads": Measure(title="workers: threads", ratio=0.1, allowance=24),
    "ids_per_process": Measure(
        title="transactional ids of one worker process", ratio=0.0, allowance=1
    ),
}


def growth(samples: Sequence[Sample]) -> Sequence[str]:
    """Describes each measure that grows; empty: none does. Pure.

    Reads the longest run of one driver without its first fifth, in which caches fill and the JVM
    takes its heap. Compares medians of the first and of the last third of the rest, so a fault at
    the wrong moment does not count.
    """
    attempts = Counter(sample.driver for sample in samples)
    if not attempts:
        return ["there is no sample"]
    ((longest, _),) = attempts.most_common(1)
    mine = [sample for sample in samples if sample.driver == longest]
    mine = mine[len(mine) // 5 :]
    if len(mine) < _LEAST_SAMPLES:
        return [f"{len(mine)} samples of one driver are too few"]
    third = len(mine) // 3
    found = []
    for name, measure in MEASURES.items():
        first = statistics.median(getattr(sample, name) for sample in mine[:third])
        last = statistics.median(getattr(sample, name) for sample in mine[-third:])
        if last - first > max(first * measure.ratio, measure.allowance):
            found.append(f"{measure.title}: {first:.0f} in the first third, {last:.0f} in the last")
    return found


def read_samples(path: Path) -> list[Sample]:
    """The samples that a `Sampler` wrote."""
    return [Sample(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


class Sampler:
    """Waits until a minute after the previous fault, and takes a sample every 10 s.

    Used by one thread, as the pace of a `tests.environment.rounds.Round`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began_s = self._next_fault_s = time.monotonic()
        self._faults = 0

    def __call__(self, pipeline: Pipeline) -> None:
        """Called after each fault."""
        self._faults += 1
        # A fault that takes longer than a minute delays all later ones.
        self._next_fault_s = max(self._next_fault_s + _PACE_S, time.monotonic())
        while True:
            self.append_sample(pipeline)
            left_s = self._next_fault_s - time.monotonic()
            if left_s <= 0:
                return
            pipeline.rest(min(left_s, _EVERY_S))

    def append_sample(self, pipeline: Pipeline) -> None:
        """Append a line with a sample."""
        driver = _Processes.below(pipeline.driver)
        workers = [_Processes.below(pipeline.bed.containers[name]) for name in WORKERS]
        sample = Sample(
            at_s=round(time.monotonic() - self._began_s, 1),
            faults=self._faults,
            driver=pipeline.driver.pid,
            driver_mib=round(driver.memory_bytes / _MIB, 1),
            driver_files=driver.files,
            driver_threads=driver.threads,
            workers_mib=round(sum(host.memory_bytes for host in workers) / _MIB, 1),
            workers_files=sum(host.files for host in workers),
            workers_threads=sum(host.threads for host in workers),
            ids_per_process=_ids_per_process(pipeline.connection, pipeline.prefix),
            records=pipeline.witness.total,
        )
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(sample)) + "\n")


@dataclass(slots=True)
class _Processes:
    memory_bytes: int = 0
    files: int = 0
    threads: int = 0

    @classmethod
    def below(cls, container: Container) -> "_Processes":
        found = cls()
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(container.pid)
            for process in (root, *root.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.memory_bytes += process.memory_info().rss
                    found.files += process.num_fds()
                    found.threads += process.num_threads()
        return found


def _ids_per_process(connection: KafkaConnection, prefix: str) -> int:
    """Ids are ``{prefix}/{job uid}/{region}.{attempt_id}/{owner}/{slot}``."""
    wire = TransactionWire(connection)
    try:
        listing = wire.list_transactions(prefix, timeout_s=_ANSWER_S)
    finally:
        wire.close()
    ids = {found.transactional_id for found in listing.transactions}
    owners = Counter(name.rsplit("/", 1)[0] for name in ids)
    return max(owners.values(), default=0)
