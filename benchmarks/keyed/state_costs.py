"""What keyed state costs a job: a restore, a failover, bytes of files, and later commits."""

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from benchmarks.measuring import topics
from benchmarks.measuring.feeding import Feed, Records
from benchmarks.measuring.figures import Figure
from benchmarks.measuring.rig import PARTITIONS, Rig, Running, wait_until
from benchmarks.peers.records import paced_value
from sluice.connectors.kafka.client.confluent import Producer
from sluice.connectors.kafka.tools.demo.observer import Observer

__all__ = ["measure_failover", "measure_restore", "measure_visible", "measure_written"]

_BACKENDS = ("memory", "rocksdb")
_VALUE_BYTES = 1024
_DIGITS = 8
_START_S = 240.0
_FILL_S = 1200.0
_PAUSE_S = 0.02
_REGIONS = 8
_WARM_EPOCHS = 5


class _Keys:
    """A burst for `Feed`: records of known keys at a steady pace, over the partitions in turn."""

    def __init__(self, keys: int, per_s: float, *, value_bytes: int = 100) -> None:
        self._keys = keys
        self._per_s = per_s
        self._value_bytes = value_bytes
        self._began_s: float | None = None
        self.sent = 0

    def __call__(self) -> Records:
        now_s = time.monotonic()
        self._began_s = now_s if self._began_s is None else self._began_s
        return self._due(int((now_s - self._began_s) * self._per_s))

    def _due(self, total: int) -> Iterator[tuple[int, bytes]]:
        while self.sent < total:
            number = self.sent % self._keys
            self.sent += 1
            yield number % PARTITIONS, paced_value(number % PARTITIONS, number, self._value_bytes)


def _fill(rig: Rig, topic: str, keys: int) -> None:
    """One record of a KiB for each key; random bytes, so that no compression helps."""
    producer = Producer(
        {"bootstrap.servers": rig.bootstrap, "enable.idempotence": True, "linger.ms": 20}
    )
    for number in range(keys):
        partition = number % PARTITIONS
        head = paced_value(partition, number, 40)
        while True:
            try:
                producer.produce(topic, head + os.urandom(_VALUE_BYTES - 40), partition=partition)
                break
            except BufferError:  # the broker is slow: retry until the record is accepted
                producer.poll(0.1)
    producer.flush(60)


def _settings(backend: str, *, work: str = "keep", regions: int = 2) -> list[str]:
    return [
        *("--work", work, "--backend", backend, "--digits", str(_DIGITS)),
        *("--regions", str(regions), "--tasks", str(regions + 2), "--memory-mib", "4096"),
    ]


def _after(observer: Observer, count: int) -> Callable[[], bool]:
    return lambda: observer.total >= count


# --- a restore ------------------------------------------------------------------------------------


def measure_restore(rig: Rig, *, mib: int, repeat: int) -> list[Figure]:
    """Kill a job with so much state, and start it again."""
    return [
        Figure(
            what=f"restore of {mib} MiB, 2 tasks, {backend}: first record of a run to next commit",
            runs=[_restore_s(rig, mib, backend) for _ in range(repeat)],
            unit="s",
            goal="<= 15",
            most=15.0,
        )
        for backend in _BACKENDS
    ]


def _restore_s(rig: Rig, mib: int, backend: str) -> float:
    source, output, keys = _topics_with(rig, mib)
    directory = Path(tempfile.mkdtemp(dir=rig.directory))
    with Observer(rig.connection, output) as observer:
        with rig.start("keyed_pipeline", source, output, directory, _settings(backend)) as first:
            wait_until(_after(observer, keys), program=first.program, timeout_s=_FILL_S)
        newest = _newest_slot(directory)
        with (
            Feed(rig, source, pause_s=_PAUSE_S, burst=_Keys(keys, 100.0)),
            rig.start("keyed_pipeline", source, output, directory, _settings(backend)) as second,
        ):
            seen = observer.total
            wait_until(
                lambda: _newest_slot(directory) > newest,
                program=second.program,
                timeout_s=_START_S,
            )
            began_s = time.monotonic()
            wait_until(_after(observer, seen + 1), program=second.program, timeout_s=_START_S)
            elapsed_s = time.monotonic() - began_s
    topics.delete(rig.connection, source, output)
    return elapsed_s


def _topics_with(rig: Rig, mib: int) -> tuple[str, str, int]:
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    keys = mib * 1024 * 1024 // _VALUE_BYTES
    _fill(rig, source, keys)
    return source, output, keys


def _newest_slot(directory: Path) -> int:
    found = (directory / "checkpoint").glob("chk-*/_metadata")
    return max((int(path.parent.name.removeprefix("chk-")) for path in found), default=-1)


# --- a failover -----------------------------------------------------------------------------------


def measure_failover(rig: Rig, *, mib: int, repeat: int) -> list[Figure]:
    """Kill the worker of one region of a job with so much state in all."""
    figures = []
    for backend in _BACKENDS:
        source, output, keys = _topics_with(rig, mib)
        with (
            Observer(rig.connection, output) as observer,
            rig.run(
                "keyed_pipeline", source, output, _settings(backend, regions=_REGIONS)
            ) as running,
        ):
            wait_until(_after(observer, keys), program=running.program, timeout_s=_FILL_S)
            with Feed(rig, source, pause_s=_PAUSE_S, burst=_Keys(keys, 1_000.0)):
                runs = [_failover_s(running) for _ in range(repeat)]
        topics.delete(rig.connection, source, output)
        figures.append(
            Figure(
                what=f"failover of 1 of {_REGIONS} regions, {mib} MiB in all, {backend}: kill to "
                "its next commit",
                runs=runs,
                unit="s",
                goal="<= 4",
                most=4.0,
            )
        )
    return figures


def _failover_s(running: Running) -> float:
    _await_epochs(running, _WARM_EPOCHS)
    before = _attempts(running)
    victim = _workers(running)[0]
    killed_s = time.time()
    os.kill(victim.pid, signal.SIGKILL)

    def back() -> bool:
        return any(attempt != before.get(name) for name, attempt in _attempts(running).items())

    wait_until(back, program=running.program, timeout_s=_START_S)
    marked = next(
        line
        for line in running.progress()
        if line["state"] == "marked" and line["at_s"] > killed_s and line["attempts"] != before
    )
    return float(marked["at_s"]) - killed_s


def _await_epochs(running: Running, count: int) -> None:
    wanted = len(running.epochs_s()) + count
    wait_until(
        lambda: len(running.epochs_s()) >= wanted, program=running.program, timeout_s=_START_S
    )


def _attempts(running: Running) -> dict[str, int]:
    marked = [line for line in running.progress() if line["state"] == "marked"]
    return dict(marked[-1]["attempts"])


def _workers(running: Running) -> list[psutil.Process]:
    """Python workers with a task: forked by Spark's daemon, so they have its command line."""
    found = []
    for process in running.program.members():
        parent = process.parent()
        if parent is not None and process.cmdline() == parent.cmdline():
            found.append(process)
    return sorted(found, key=lambda one: -sum(one.cpu_times()[:2]))


# --- bytes of state files -------------------------------------------------------------------------


def measure_written(rig: Rig, *, epochs: int) -> list[Figure]:
    """All state files of so many epochs, over the change files among them."""
    figures = []
    for backend in _BACKENDS:
        sizes = _written(rig, backend, epochs + _WARM_EPOCHS)
        changed = sum(size for name, size in sizes.items() if name.endswith(".changes"))
        figures.append(
            Figure(
                what=f"bytes written over changed state, {backend}",
                runs=[sum(sizes.values()) / max(1, changed)],
                unit="x",
                goal="<= 3",
                most=3.0,
                note=f"{changed / 2**20:.1f} MiB changed in {epochs} epochs of 0.2 s",
            )
        )
    return figures


def _written(rig: Rig, backend: str, epochs: int) -> dict[str, int]:
    """The size of each state file that a job of so many epochs had at some time."""
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    settings = [*_settings(backend, work="count"), "--interval", "0.2"]
    sizes: dict[str, int] = {}
    with (
        rig.run("keyed_pipeline", source, output, settings) as running,
        Feed(rig, source, pause_s=_PAUSE_S, burst=_Keys(10_000, 50_000.0)),
    ):

        def is_over() -> bool:
            sizes.update(_state_files(running.directory / "checkpoint"))
            return len(running.epochs_s()) >= epochs

        wait_until(is_over, program=running.program, timeout_s=_START_S + epochs)
    topics.delete(rig.connection, source, output)
    return sizes


def _state_files(directory: Path) -> Iterator[tuple[str, int]]:
    for path in (directory / "state").rglob("*.*"):
        try:
            yield path.name, path.stat().st_size
        except FileNotFoundError:
            continue  # it was merged, and retired


# --- barrier to visible ---------------------------------------------------------------------------


def measure_visible(rig: Rig, *, per_s: int, epochs: int, repeat: int) -> list[Figure]:
    """Seconds from the barrier to the commit, with state and without."""
    plain, kept = "copy", "count"
    figures = []
    for backend in _BACKENDS:
        pairs = [
            (_commit_p99_s(rig, plain, backend, per_s, epochs),
             _commit_p99_s(rig, kept, backend, per_s, epochs))
            for _ in range(repeat)
        ]  # fmt: skip
        figures.append(
            Figure(
                what=f"barrier to visible at {per_s:,} records/s, p99, {backend}: over without",
                runs=[with_s / without_s for without_s, with_s in pairs],
                unit="x",
                goal="<= 1.15",
                most=1.15,
                note=f"without {_median(one for one, _ in pairs)}, "
                f"with {_median(one for _, one in pairs)}",
            )
        )
    return figures


def _median(runs: Iterator[float]) -> str:
    return f"{statistics.median(runs):.3f} s"


def _commit_p99_s(rig: Rig, work: str, backend: str, per_s: int, epochs: int) -> float:
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    with rig.run("keyed_pipeline", source, output, _settings(backend, work=work)) as running:
        with Feed(rig, source, pause_s=_PAUSE_S, burst=_Keys(10_000, per_s)):
            _await_epochs(running, _WARM_EPOCHS)
            begun = len(_commits_s(running))
            _await_epochs(running, epochs)
        found = sorted(_commits_s(running)[begun:])
    topics.delete(rig.connection, source, output)
    return found[int((len(found) - 1) * 0.99)]


def _commits_s(running: Running) -> Sequence[float]:
    return [
        line["committed_s"]
        for line in running.progress()
        if line["marked_s"] is not None and line["records"]
    ]
