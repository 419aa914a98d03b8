"""The cost of a separate coordinator and of an election, for a job without failures.

The same continuous copy runs with the coordinator in its driver, with an election beside it, and
with the coordinator in a process of its own. The ways take turns, and each second turn goes
backwards. One run copies a backlog, which is the same for all ways. Another one copies paced
records, and a ``read_committed`` reader measures the age of the newest record of each epoch when
the epoch becomes visible.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.leading.coordinators import Coordinators
from benchmarks.measuring import topics
from benchmarks.measuring.feeding import Feed
from benchmarks.measuring.figures import Figure
from benchmarks.measuring.rig import PARTITIONS, Rig, Running, wait_until
from benchmarks.measuring.sampling import cpu_seconds
from benchmarks.measuring.visibility import Paced, Seen, VisibleRecords
from sluice.runtime.embedded.program import Program
from sluice.runtime.embedded.zookeeper.embedded_zookeeper import EmbeddedZooKeeper

__all__ = ["epoch_ages", "measure"]

_INTERVAL_S = 1.0
_PER_S = 5_000.0
_PAUSE_S = 0.005
_START_S = 240.0
_WARM_S = 5.0
_EPOCH_GAP_S = 0.3  # between two epochs a reader sees nothing for longer
_COPY_S = 600.0
_TASKS = 2
_PLAIN = "coordinator in the driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One way to run the job.

    Attributes:
        job: arguments of the program.
        coordinator: options of ``sluice coordinator start``; None: there is none.
    """

    name: str
    job: Sequence[str] = ()
    coordinator: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """Of one turn: records a second of the backlog's second half, processor time of a million
    records, and the age of the newest records of each paced epoch."""

    rate: float
    cpu_s: float
    ages_s: Sequence[float]

    @property
    def age_s(self) -> float:
        """The median."""
        return statistics.median(self.ages_s)


def measure(rig: Rig, *, records: int, seconds: float, repeat: int) -> list[Figure]:
    """Compare the ways in turns.

    Args:
        records: of the backlog. With few, a run is not long enough for many epochs.
        seconds: of the paced records.
        repeat: turns; a first run does not count, because the broker is new.
    """
    backlog = topics.create(rig.connection, "in", partitions=PARTITIONS)
    topics.fill(rig.connection, backlog, records, value_bytes=100, partitions=PARTITIONS)
    with EmbeddedZooKeeper(nodes=3) as servers:
        ways = _ways(f"zookeeper://{servers.hosts}/cost")
        samples: dict[str, list[_Sample]] = {way.name: [] for way in ways}
        _copied(rig, ways[0], backlog, records)
        for turn in range(repeat):
            for way in ways if turn % 2 == 0 else reversed(ways):
                rate, cpu_s = _copied(rig, way, backlog, records)
                ages_s = _paced(rig, way, seconds)
                samples[way.name].append(_Sample(rate=rate, cpu_s=cpu_s, ages_s=ages_s))
    topics.delete(rig.connection, backlog)
    return list(_figures(samples, seconds=seconds))


def _ways(zookeeper: str) -> list[_Way]:
    process = ("--coordinator", "process")
    return [
        _Way(name=_PLAIN),
        _Way(name="the same with ha=lease", job=("--ha", "lease")),
        _Way(name="the same with ha=zookeeper", job=("--ha", zookeeper)),
        _Way(name="a separate coordinator", job=process, coordinator=()),
        _Way(
            name="a separate coordinator with --ha lease",
            job=process,
            coordinator=("--ha", "lease"),
        ),
    ]


@contextmanager
def _running(
    rig: Rig, way: _Way, source: str, output: str
) -> Iterator[tuple[Running, list[Program]]]:
    """The job, with all processes that it takes."""
    arguments = [
        *("--engine", "continuous", "--interval", str(_INTERVAL_S), "--tasks", str(_TASKS)),
        *way.job,
    ]
    with ExitStack() as stack:
        running = stack.enter_context(rig.run("pipeline", source, output, arguments))
        programs = [running.program]
        if way.coordinator is not None:
            coordinators = stack.enter_context(Coordinators(running, way.coordinator))
            programs.append(coordinators.leader())
        yield running, programs


def _copied(rig: Rig, way: _Way, backlog: str, records: int) -> tuple[float, float]:
    """Records a second of the backlog's second half, and processor time of a million records."""
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    with _running(rig, way, backlog, output) as (running, programs):
        running.await_committed(records, timeout_s=_COPY_S)
        cpu_s = sum(map(cpu_seconds, programs))
    half = dict.fromkeys(range(PARTITIONS), records // PARTITIONS // 2)
    span = topics.append_span(rig.connection, output, beyond=half)
    topics.delete(rig.connection, output)
    return records / 2 / span.seconds, cpu_s / records * 1e6


def _paced(rig: Rig, way: _Way, seconds: float) -> list[float]:
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    with _running(rig, way, source, output) as (running, _):
        ages_s = _paced_ages(rig, running, seconds)
    topics.delete(rig.connection, source, output)
    return ages_s


def _paced_ages(rig: Rig, running: Running, seconds: float) -> list[float]:
    """The age of the newest record of each epoch, in seconds."""
    pace = Paced(PARTITIONS, _PER_S)
    start = topics.ends(rig.connection, running.output)
    with VisibleRecords(rig.connection, running.output, start=start) as reader:
        with Feed(rig, running.source, pause_s=_PAUSE_S, burst=pace):
            began_s = time.time()
            _sleep(running.program, _WARM_S + seconds)
        wait_until(lambda: reader.total >= pace.sent, program=running.program, timeout_s=_START_S)
    since_s = began_s + _WARM_S
    return [age for seen in reader.by_partition().values() for age in epoch_ages(seen, since_s)]


def epoch_ages(seen: Seen, since_s: float) -> Iterator[float]:
    """Of one partition: when the first record of an epoch is seen, less the time when the newest
    one was made. The last epoch is incomplete."""
    first_s = before_s = newest_s = float("-inf")
    for at_s, made_s in zip(seen.at_s, seen.made_s, strict=True):
        if at_s - before_s > _EPOCH_GAP_S:
            if first_s >= since_s:
                yield first_s - newest_s
            first_s = at_s
        before_s, newest_s = at_s, made_s


def _sleep(program: Program, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until_s, program=program, timeout_s=seconds + _WARM_S)


def _figures(samples: Mapping[str, Sequence[_Sample]], *, seconds: float) -> Iterator[Figure]:
    for name, found in samples.items():
        yield Figure(
            what=f"{name}: copy of a backlog, second half",
            runs=[each.rate for each in found],
            unit="records/s",
            note=f"{statistics.median(each.cpu_s for each in found):.2f} s of processor time, "
            "with the start, for a million records",
        )
        yield Figure(
            what=f"{name}: from the barrier until its records are visible",
            runs=[1000 * each.age_s for each in found],
            unit="ms",
            note=f"median of {seconds:g} s at {_PER_S:,.0f} records/s, epochs of {_INTERVAL_S:g} s",
        )
    plain = samples[_PLAIN]
    for name, found in samples.items():
        if name != _PLAIN:
            yield from _compared(name, plain, found)


def _compared(name: str, plain: Sequence[_Sample], found: Sequence[_Sample]) -> Iterator[Figure]:
    """In each turn against the plain way."""
    pairs = list(zip(plain, found, strict=True))

    def over(value: Callable[[_Sample], float]) -> list[float]:
        return [value(other) / value(one) for one, other in pairs]

    yield Figure(
        what=f"{name}: throughput over that of a {_PLAIN}",
        runs=over(lambda sample: sample.rate),
        unit="x",
        goal=">= 0.97",
        least=0.97,
        note=f"processor time {statistics.median(over(lambda sample: sample.cpu_s)):.2f} x",
    )
    yield Figure(
        what=f"{name}: later visible than with a {_PLAIN}",
        runs=[1000 * (other.age_s - one.age_s) for one, other in pairs],
        unit="ms",
        goal="<= 10",
        most=10.0,
    )
