"""Growth over many epochs: of the driver's memory, and of transactional ids on the broker."""

import re
import statistics
from collections.abc import Sequence

from benchmarks.measuring import topics
from benchmarks.measuring.feeding import Feed
from benchmarks.measuring.figures import Figure
from benchmarks.measuring.rig import Rig, Running, wait_until
from benchmarks.measuring.sampling import driver_memory_bytes
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire

__all__ = ["measure"]

_PARTITIONS = 2
_EPOCH_S = 3.0  # bound of one epoch on a busy machine
_START_S = 90.0
_MEMORY_EPOCHS = 500
_MARKED = "marked"


def measure(rig: Rig, *, epochs: int) -> list[Figure]:
    """Run ``epochs`` epochs with data in both partitions, as fast as possible, in both modes."""
    chained = _run(rig, "chained", epochs)
    return [*chained, *_run(rig, "transform", min(epochs, _MEMORY_EPOCHS))]


def _run(rig: Rig, mode: str, epochs: int) -> list[Figure]:
    source = topics.create(rig.connection, "in", partitions=_PARTITIONS)
    output = topics.create(rig.connection, "out", partitions=_PARTITIONS)
    arguments = ("--interval", "0.05", "--mode", mode)
    with rig.run("pipeline", source, output, arguments) as running, _feed(rig, source):
        memory = _memory(running, min(epochs, _MEMORY_EPOCHS))
        _await_epochs(running, epochs)
        ids = _transactional_ids(rig, output)
        done = _epochs(running)
    return [
        _drift(mode, memory),
        Figure(
            what=f"{mode}: transactional ids after {done:,} epochs",
            runs=[float(len(ids))],
            unit="ids",
            goal="<= 3 per sink task",
            most=3.0 * _PARTITIONS,
            note=f"{_PARTITIONS} sink tasks, {len(_owners(ids))} worker processes so far",
        ),
    ]


def _memory(running: Running, epochs: int) -> Sequence[int]:
    """The driver's memory after each fifth of so many epochs."""
    sizes = []
    for fifth in range(1, 6):
        _await_epochs(running, epochs * fifth // 5)
        sizes.append(driver_memory_bytes(running.program))
    return sizes


def _drift(mode: str, sizes: Sequence[int]) -> Figure:
    middle = statistics.median(sizes)
    shown = " ".join(f"{size / 2**20:.0f}" for size in sizes)
    return Figure(
        what=f"{mode}: driver memory, furthest from its median",
        runs=[max(abs(size / middle - 1) for size in sizes)],
        unit="of it",
        goal="<= 0.1",
        most=0.1,
        note=f"MiB after each fifth of the epochs: {shown}",
    )


def _await_epochs(running: Running, epochs: int) -> None:
    wait_until(
        lambda: _epochs(running) >= epochs,
        program=running.program,
        timeout_s=_START_S + epochs * _EPOCH_S,
    )


def _epochs(running: Running) -> int:
    return sum(1 for line in running.progress() if line["state"] == _MARKED)


def _transactional_ids(rig: Rig, output: str) -> list[str]:
    wire = TransactionWire(rig.connection)
    try:
        listing = wire.list_transactions(f"benchmark-{output}", timeout_s=20)
    finally:
        wire.close()
    return [transaction.transactional_id for transaction in listing.transactions]


def _owners(ids: Sequence[str]) -> set[str]:
    """``{prefix}/{job uid}/{region}.{attempt_id}/{owner}/{slot}``"""
    return {match[1] for one in ids if (match := re.search(r"/([^/]+)/[^/]+$", one))}


def _feed(rig: Rig, topic: str) -> Feed:
    """A record for each partition every few milliseconds."""
    return Feed(
        rig,
        topic,
        pause_s=0.02,
        burst=lambda: [(partition, b"x" * 100) for partition in range(_PARTITIONS)],
    )
