"""The cost of a transactional producer for its process: a new one per epoch, and its statistics.

An epoch of a region has a producer of its own. Its statistics prove that its transaction is the
one that was begun (`handle-from-producer` and `ids-never-reused`). Every region pays for both in
every epoch. The cost of a bare client and its broker is the minimum for any connector.
"""

import time
import uuid
from collections.abc import Callable, Mapping

from benchmarks.measuring import topics
from benchmarks.measuring.figures import Figure
from benchmarks.measuring.rig import Rig
from sluice.connectors.kafka.client.confluent import Producer

__all__ = ["measure"]

_PARTITIONS = 16
_EPOCHS = 50
_PAUSE_S = 0.1  # between two epochs
_RECORDS = 20
_WINDOW_S = 5.0
_TIMEOUT_S = 30.0


def measure(rig: Rig, *, repeat: int) -> list[Figure]:
    """Processor time of this process, librdkafka's threads included."""
    topic = topics.create(rig.connection, "out", partitions=_PARTITIONS)
    for kind in _KINDS.values():
        _epochs(rig, topic, kind(rig))  # the JVM of a new broker has compiled nothing yet
    turns = [
        {what: _epochs(rig, topic, kind(rig)) for what, kind in _KINDS.items()}
        for _ in range(repeat)
    ]
    figures = [
        Figure(
            what=f"{what}: {of}",
            runs=[1000 * turn[what][side] for turn in turns],
            unit="ms",
            note="processor time",
        )
        for what in _KINDS
        for side, of in enumerate(("the client", "the broker"))
    ]
    for interval_ms in (10, 20, 100):
        runs = [1000 * _statistics(rig, topic, interval_ms) for _ in range(repeat)]
        figures.append(
            Figure(
                what=f"a second of a producer's statistics, every {interval_ms} ms",
                runs=runs,
                unit="ms",
                note=f"of a topic of {_PARTITIONS} partitions",
            )
        )
    return figures


def _producer(rig: Rig, **more: object) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": rig.bootstrap,
            "transactional.id": f"costs-{uuid.uuid4()}",
            "linger.ms": 5,
            "log_level": 0,
            **more,
        }
    )
    producer.init_transactions(_TIMEOUT_S)
    return producer


def _write(producer: Producer, topic: str) -> None:
    for partition in (0, 1):
        for _ in range(_RECORDS):
            producer.produce(topic, b"x" * 100, partition=partition)


def _transact(producer: Producer, topic: str) -> None:
    producer.begin_transaction()
    _write(producer, topic)
    producer.commit_transaction(_TIMEOUT_S)


class _Plain:
    """Epochs of a producer without transactions."""

    def __init__(self, rig: Rig) -> None:
        self._producer = Producer(
            {"bootstrap.servers": rig.bootstrap, "linger.ms": 5, "enable.idempotence": True}
        )

    def __call__(self, topic: str) -> None:
        _write(self._producer, topic)
        self._producer.flush(_TIMEOUT_S)


class _Kept:
    """Epochs whose transactions use one producer, one after the other."""

    def __init__(self, rig: Rig) -> None:
        self._producer = _producer(rig)

    def __call__(self, topic: str) -> None:
        _transact(self._producer, topic)


class _Own:
    """Epochs with a producer of their own."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def __call__(self, topic: str) -> None:
        _transact(_producer(self._rig), topic)


_KINDS: Mapping[str, Callable[[Rig], Callable[[str], None]]] = {
    "an epoch of 40 records without a transaction": _Plain,
    "the same with one, by a producer that was there": _Kept,
    "the same by a producer of its own": _Own,
}


def _epochs(rig: Rig, topic: str, epoch: Callable[[str], None]) -> tuple[float, float]:
    """Seconds of processor time of an epoch: this process's, and the broker's."""
    epoch(topic)
    broker_s, client_s = rig.broker_cpu_s(), time.process_time()
    for _ in range(_EPOCHS):
        epoch(topic)
        time.sleep(_PAUSE_S)  # the time between two epochs
    client_s = time.process_time() - client_s
    return client_s / _EPOCHS, (rig.broker_cpu_s() - broker_s) / _EPOCHS


def _statistics(rig: Rig, topic: str, interval_ms: int) -> float:
    """Share of a core."""
    reports: list[str] = []
    producer = _producer(rig, **{"statistics.interval.ms": interval_ms, "stats_cb": reports.append})
    _transact(producer, topic)
    began_s, until_s = time.process_time(), time.monotonic() + _WINDOW_S
    while time.monotonic() < until_s:
        producer.poll(_PAUSE_S)
        reports.clear()
    return (time.process_time() - began_s) / _WINDOW_S
