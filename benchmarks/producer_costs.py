"""What a transactional producer costs its process: made for each epoch, and asked for statistics.

An epoch of a region has a producer of its own, whose statistics tell that its transaction is the
one that was begun (rules 3 and 4): both are a price of every region and epoch, whatever it writes.
"""

import time
import uuid
from collections.abc import Callable

from benchmarks import topics
from benchmarks.figures import Figure
from benchmarks.rig import Rig
from connectors.kafka._client import Producer

__all__ = ["measure"]

_PARTITIONS = 16
_EPOCHS = 50
_PAUSE_S = 0.1  # between epochs, as there is one
_RECORDS = 20
_WINDOW_S = 5.0
_TIMEOUT_S = 30.0


def measure(rig: Rig, *, repeat: int) -> list[Figure]:
    """Processor time of this process, librdkafka's threads included."""
    topic = topics.create(rig.connection, "out", partitions=_PARTITIONS)
    kept = [_epochs_s(rig, topic, lasting=True) for _ in range(repeat)]
    each = [_epochs_s(rig, topic, lasting=False) for _ in range(repeat)]
    figures = [
        Figure(
            what="an epoch with a transaction of 40 records, by a producer that was there",
            runs=[1000 * found for found in kept],
            unit="ms",
            note="processor time of the client",
        ),
        Figure(
            what="the same by a producer of its own",
            runs=[1000 * found for found in each],
            unit="ms",
        ),
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


def _epoch(producer: Producer, topic: str) -> None:
    producer.begin_transaction()
    for partition in (0, 1):
        for _ in range(_RECORDS):
            producer.produce(topic, b"x" * 100, partition=partition)
    producer.commit_transaction(_TIMEOUT_S)


def _epochs_s(rig: Rig, topic: str, *, lasting: bool) -> float:
    """Processor time of an epoch."""
    kept = _producer(rig)
    _epoch(kept, topic)

    def run() -> None:
        for _ in range(_EPOCHS):
            _epoch(kept if lasting else _producer(rig), topic)
            time.sleep(_PAUSE_S)  # as between two epochs

    return _spent_s(run) / _EPOCHS


def _statistics(rig: Rig, topic: str, interval_ms: int) -> float:
    """Share of a core."""
    told: list[str] = []
    producer = _producer(rig, **{"statistics.interval.ms": interval_ms, "stats_cb": told.append})
    _epoch(producer, topic)

    def run() -> None:
        until_s = time.monotonic() + _WINDOW_S
        while time.monotonic() < until_s:
            producer.poll(_PAUSE_S)
            told.clear()

    return _spent_s(run) / _WINDOW_S


def _spent_s(run: Callable[[], None]) -> float:
    began_s = time.process_time()
    run()
    return time.process_time() - began_s
