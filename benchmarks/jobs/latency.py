"""Time from the barrier until readers see its records, and the cost of an epoch without data."""

import statistics
import time

from benchmarks.measuring import topics
from benchmarks.measuring.figures import Figure
from benchmarks.measuring.rig import Rig, Running, wait_until
from sluice.connectors.kafka.client.confluent import Producer
from sluice.connectors.kafka.tools.demo.observer import Observer
from sluice.connectors.kafka.tools.verify.topic_history import topic_ends

__all__ = ["measure_idle", "measure_visibility"]

_INTERVAL_S = 0.5
_SETTLE_S = 1.0
_WARM_EPOCHS = 10
_START_S = 240.0
_TRANSACTION_STATE = "__transaction_state"


def measure_visibility(rig: Rig, *, engine: str, epochs: int, repeat: int) -> list[Figure]:
    """One record each half second; the barrier's time comes from the coordinator's progress."""
    samples = [sorted(_sample(rig, engine, epochs)) for _ in range(repeat)]
    return [
        Figure(
            what="barrier to visible, little data: p50",
            runs=[statistics.median(waits) for waits in samples],
            unit="s",
            goal="<= 0.35",
            most=0.35,
            note=f"{epochs} epochs each",
        ),
        Figure(
            what="barrier to visible, little data: p95",
            runs=[waits[int(len(waits) * 0.95)] for waits in samples],
            unit="s",
        ),
    ]


def _sample(rig: Rig, engine: str, epochs: int) -> list[float]:
    source = topics.create(rig.connection, "in", partitions=1)
    output = topics.create(rig.connection, "out", partitions=1)
    seen: list[float] = []
    started_s = time.time() - time.monotonic()
    arguments = ("--interval", str(_INTERVAL_S), "--engine", engine)
    with (
        Observer(rig.connection, output) as observer,
        rig.run("pipeline", source, output, arguments) as running,
    ):
        producer = Producer(
            {"bootstrap.servers": rig.bootstrap, "enable.idempotence": True, "linger.ms": 0}
        )
        for number in range(epochs + _WARM_EPOCHS):
            producer.produce(source, b"x" * 100)
            producer.flush(10)
            bound_s = _START_S if number == 0 else 30.0
            seen.append(observer.await_total(number + 1, timeout_s=bound_s) + started_s)
        return _waits(running, seen[_WARM_EPOCHS:])


def _waits(running: Running, seen: list[float]) -> list[float]:
    """Seconds from the barrier of the newest committed checkpoint to each sighting."""
    records = len(seen) + _WARM_EPOCHS
    wait_until(lambda: _noted(running) >= records, program=running.program, timeout_s=30.0)
    barriers = [
        line["at_s"] - line["marked_s"]
        for line in running.progress()
        if line["marked_s"] is not None
    ]
    waits = []
    for at in seen:
        before = [barrier for barrier in barriers if barrier <= at]
        if before:
            waits.append(at - max(before))
    return waits


def _noted(running: Running) -> int:
    """Records of the checkpoints that the listener has written; it writes after the job."""
    lines = running.progress()
    return sum(line["records"] for line in lines if line["marked_s"] is not None)


def measure_idle(rig: Rig, *, engine: str, repeat: int, idle_s: float = 10.0) -> list[Figure]:
    """The records that the transaction log gains without data."""
    return [
        Figure(
            what="an epoch without data: transactions",
            runs=[_idle_sample(rig, engine, idle_s) for _ in range(repeat)],
            unit="log records",
            goal="0",
            most=0,
            note=f"{idle_s:.0f} s at 0.2 s intervals",
        )
    ]


def _idle_sample(rig: Rig, engine: str, idle_s: float) -> float:
    source = topics.create(rig.connection, "in", partitions=1)
    output = topics.create(rig.connection, "out", partitions=1)
    arguments = ("--interval", "0.2", "--engine", engine)
    with rig.run("pipeline", source, output, arguments) as running:
        topics.fill(rig.connection, source, 1, value_bytes=1, partitions=1)
        running.await_committed(1, timeout_s=_START_S)
        before, until = _settled_log_end(rig, running), time.monotonic() + idle_s
        wait_until(lambda: time.monotonic() > until, program=running.program, timeout_s=idle_s + 5)
        return float(_log_end(rig) - before)


def _settled_log_end(rig: Rig, running: Running) -> int:
    """Wait: the broker records the end of a commit after the markers that readers see."""
    last = [_log_end(rig)]

    def stands() -> bool:
        before, last[0] = last[0], _log_end(rig)
        return before == last[0]

    time.sleep(_SETTLE_S)  # no call reports when it has
    wait_until(stands, program=running.program, timeout_s=_START_S)
    return last[0]


def _log_end(rig: Rig) -> int:
    return sum(topic_ends(rig.connection, _TRANSACTION_STATE).high.values())
