"""A savepoint of much Spark state while records flow, and a full checkpoint of unchanged state."""

import itertools
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.measuring import topics
from benchmarks.measuring.figures import Figure
from benchmarks.measuring.rig import PARTITIONS, Rig
from sluice import Job, KafkaSink, KafkaSource, Progress, State, fast_start
from sluice.connectors.kafka.client.confluent import Producer
from sluice.runtime.job.job_handle import JobHandle
from sluice.runtime.process.side_thread import SideThread
from sluice.runtime.service.service_client import CoordinatorClient, command_address
from sluice.runtime.storage.local_fs import LocalFileSystem

__all__ = ["measure"]

_VALUE_BYTES = 1024
_FILL_S = 1200.0
_POLL_S = 0.2
_BEFORE_S = 20.0
_MASTER = "local[2]"


class _Epochs:
    """A listener that notes the end of each checkpoint."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._marked: list[tuple[float, int]] = []
        self.aborted = 0

    def on_progress(self, progress: Progress) -> None:
        """Note it."""
        with self._lock:
            if progress.state is State.MARKED:
                self._marked.append((time.monotonic(), progress.records))
            elif progress.state is State.ABORTED:
                self.aborted += 1

    def records(self) -> int:
        """Committed so far."""
        with self._lock:
            return sum(records for _, records in self._marked)

    def gaps_s(self, since_s: float, until_s: float) -> list[float]:
        """Seconds between checkpoints, of those that ended in this time."""
        with self._lock:
            moments = [at for at, _ in self._marked]
        pairs = itertools.pairwise(moments)
        return [b - a for a, b in pairs if since_s <= b and a <= until_s]


class _PacedKeys(SideThread):
    """Produces small records of known keys at a steady pace."""

    def __init__(self, rig: Rig, topic: str, *, keys: int, per_s: int) -> None:
        super().__init__("paced-keys")
        self._topic, self._keys, self._per_s = topic, keys, per_s
        self._producer = Producer(
            {"bootstrap.servers": rig.bootstrap, "enable.idempotence": True, "linger.ms": 20}
        )

    def _work(self) -> None:
        began_s, sent = time.monotonic(), 0
        while not self._stopping.wait(0.1):
            due = int((time.monotonic() - began_s) * self._per_s) - sent
            for _ in range(due):
                key = random.randrange(self._keys)
                _produce(self._producer, self._topic, key, b"a")
            sent += due
        self._producer.flush(60)


def _produce(producer: Producer, topic: str, key: int, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value, key=key.to_bytes(8, "big"))
        except BufferError:  # the broker is slow: retry until the record is accepted
            producer.poll(_POLL_S)
        else:
            producer.poll(0)
            return


def _largest(records: DataFrame) -> DataFrame:
    """One value of a KiB for each key as state; small records out."""
    largest = records.groupBy("key").agg(F.max("value").alias("largest"))
    return largest.selectExpr("key", "cast(length(largest) AS string) AS value")


def _session() -> SparkSession:
    return (
        SparkSession.builder.master(_MASTER)
        .config(map=fast_start(_MASTER))
        .config("spark.driver.memory", "3g")
        .config("spark.sql.shuffle.partitions", 4)
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def _fill(rig: Rig, topic: str, keys: int) -> None:
    """One large record for each key; random bytes, so that no compression helps."""
    producer = Producer(
        {"bootstrap.servers": rig.bootstrap, "enable.idempotence": True, "linger.ms": 20}
    )
    for key in range(keys):
        _produce(producer, topic, key, b"z" + os.urandom(_VALUE_BYTES - 1))
    producer.flush(60)


def _await(condition: Callable[[], bool], *, limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise RuntimeError("the job is too slow for this measurement")
        time.sleep(_POLL_S)  # the listener runs in another thread


def _full_s(client: CoordinatorClient) -> float:
    """Seconds of one full checkpoint."""
    began_s = time.monotonic()
    asked = client.savepoint(kind="full")["request_id"]

    def found() -> Mapping[str, Any]:
        return next(each for each in client.savepoints() if each["request_id"] == asked)

    _await(lambda: found()["state"] != "running", limit_s=_FILL_S)
    if found()["state"] != "completed":
        raise RuntimeError(str(found()["error"]))
    return time.monotonic() - began_s


def _savepoint_s(handle: JobHandle) -> float:
    began_s = time.monotonic()
    handle.savepoint()
    return time.monotonic() - began_s


def measure(rig: Rig, *, mib: int, per_s: int, repeat: int) -> list[Figure]:
    """Fill the state, then save it while records flow, then without records.

    Args:
        mib: of state.
        per_s: records a second while the savepoints are taken.
        repeat: savepoints and full checkpoints of each kind.
    """
    keys = mib * 1024 * 1024 // _VALUE_BYTES
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    _fill(rig, source, keys)
    epochs, directory = _Epochs(), str(rig.directory / "savepoints")
    job = Job("savepoints", _session(), checkpoint_dir=directory, listeners=[epochs])
    stream = job.source(KafkaSource(bootstrap_servers=rig.bootstrap, topics=[source]))
    stream.transform(_largest).sink(
        KafkaSink(
            bootstrap_servers=rig.bootstrap, topic=output, transactional_id_prefix="savepoints"
        )
    )
    flowing, gaps_s, before_s = [], [], []
    with job.start() as handle:
        _await(lambda: epochs.records() >= keys, limit_s=_FILL_S)
        with _PacedKeys(rig, source, keys=keys, per_s=per_s):
            began_s, seen = time.monotonic(), epochs.records()
            _await(lambda: epochs.records() >= seen + per_s * _BEFORE_S, limit_s=_FILL_S)
            before_s = epochs.gaps_s(began_s, time.monotonic())
            for _ in range(repeat):
                began_s = time.monotonic()
                flowing.append(_savepoint_s(handle))
                seen = epochs.records()
                _await(lambda: epochs.records() >= seen + 5 * per_s, limit_s=_FILL_S)  # noqa: B023 - called at once
                gaps_s.append(max(epochs.gaps_s(began_s, time.monotonic())))
        quiet = [_savepoint_s(handle) for _ in range(repeat)]
        client = CoordinatorClient(command_address(LocalFileSystem(Path(directory))))
        first_s = _full_s(client)
        full = [_full_s(client) for _ in range(repeat)]
        aborted = epochs.aborted
    epoch_s = statistics.median(before_s)
    what = f"{mib} MiB of state"
    return [
        Figure(
            what=f"savepoint of {what}, {per_s:,} records/s meanwhile: longest pause",
            runs=[gap_s / epoch_s for gap_s in gaps_s],
            unit="epochs",
            goal="<= 2 beside the usual one",
            most=3.0,
            note=f"an epoch takes {epoch_s:.1f} s; {aborted} epochs given up",
        ),
        Figure(what="  the savepoint, while records flow", runs=flowing, unit="s"),
        Figure(what="  the savepoint, without records", runs=quiet, unit="s"),
        Figure(
            what=f"savepoint over full checkpoint of the same {what}",
            runs=[statistics.median(quiet) / each for each in full],
            unit="x",
            goal=">= 5",
            least=5.0,
            note=f"the first full checkpoint took {first_s:.1f} s",
        ),
    ]
