"""Records per second: chained, through the planner, at least once, and a hand-written loop."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measuring import topics
from benchmarks.measuring.figures import Figure
from benchmarks.measuring.rig import PARTITIONS, Rig
from benchmarks.measuring.sampling import cpu_seconds

__all__ = ["VARIANTS", "Variant", "measure"]

_WARM_UP = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to copy a topic.

    Attributes:
        name: in the table.
        script: module of `benchmarks.programs`.
        arguments: of its command line.
        least_rate: the goal of the warm rate, if any.
    """

    name: str
    script: str
    arguments: tuple[str, ...]
    least_rate: float | None = None


# The records of an epoch of about one second on two cores shared with the broker.
_CHAINED_EPOCH = ("--max-records", "350000")
_TRANSFORM_EPOCH = ("--max-records", "200000")
_EXACTLY_ONCE = "chained, exactly-once, 1 s epochs"
_AT_LEAST_ONCE = "chained, at-least-once, 1 s epochs"

VARIANTS: Sequence[Variant] = (
    Variant(
        name=_EXACTLY_ONCE,
        script="pipeline",
        arguments=("--mode", "chained", *_CHAINED_EPOCH),
        least_rate=250_000,
    ),
    Variant(
        name=_AT_LEAST_ONCE,
        script="pipeline",
        arguments=("--mode", "chained", "--guarantee", "at-least-once", *_CHAINED_EPOCH),
    ),
    Variant(
        name="transform, exactly-once, 1 s epochs",
        script="pipeline",
        arguments=("--mode", "transform", *_TRANSFORM_EPOCH),
        least_rate=160_000,
    ),
    Variant(
        name="chained, exactly-once, a backlog's epochs",
        script="pipeline",
        arguments=("--mode", "chained"),
    ),
    Variant(
        name="transform, exactly-once, a backlog's epochs",
        script="pipeline",
        arguments=("--mode", "transform"),
    ),
    Variant(
        name="hand-written loop with confluent-kafka, 2 processes",
        script="peer",
        arguments=("--partitions", str(PARTITIONS)),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    whole_rate: float
    warm_rate: float
    cpu_s: float
    broker_cpu_s: float
    epoch_s: tuple[float, ...]


def measure(rig: Rig, *, records: int, repeat: int) -> list[Figure]:
    """Measure every variant in turn, ``repeat`` times, so that a slow minute affects all of them.

    Each second turn goes backwards. A first run does not count, because the JVM of a new broker
    has compiled nothing yet.
    """
    samples: dict[str, list[_Sample]] = {variant.name: [] for variant in VARIANTS}
    _sample(rig, VARIANTS[0], records)
    for turn in range(repeat):
        for variant in VARIANTS if turn % 2 == 0 else reversed(VARIANTS):
            samples[variant.name].append(_sample(rig, variant, records))
    return [figure for one in VARIANTS for figure in _figures(one, samples[one.name])] + [
        _compared(samples)
    ]


def _sample(rig: Rig, variant: Variant, records: int) -> _Sample:
    """A new program over a full topic: the whole run; then as many records again: the warm rate."""
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    topics.fill(rig.connection, source, records, value_bytes=100, partitions=PARTITIONS)
    with rig.run(variant.script, source, output, variant.arguments) as running:
        running.await_committed(records)
        whole = topics.append_span(rig.connection, output, beyond={})
        running.copy_more(_WARM_UP)
        before = topics.ends(rig.connection, output)
        cpu_s, broker_cpu_s = cpu_seconds(running.program), rig.broker_cpu_s()
        epochs = len(running.epochs_s())
        running.copy_more(records)
        warm = topics.append_span(rig.connection, output, beyond=before)
        return _Sample(
            whole_rate=records / whole.seconds,
            warm_rate=records / warm.seconds,
            cpu_s=cpu_seconds(running.program) - cpu_s,
            broker_cpu_s=rig.broker_cpu_s() - broker_cpu_s,
            epoch_s=tuple(running.epochs_s()[epochs:]),
        )


def _figures(variant: Variant, samples: Sequence[_Sample]) -> list[Figure]:
    goal = f">= {variant.least_rate:,.0f}" if variant.least_rate else ""
    cpu_s = statistics.median(sample.cpu_s for sample in samples)
    broker_cpu_s = statistics.median(sample.broker_cpu_s for sample in samples)
    return [
        Figure(
            what=f"{variant.name}: warm",
            runs=[sample.warm_rate for sample in samples],
            unit="records/s",
            goal=goal,
            least=variant.least_rate,
            note=f"CPU {cpu_s:.1f} s, broker {broker_cpu_s:.1f} s{_epochs(samples)}",
        ),
        Figure(
            what=f"{variant.name}: whole run",
            runs=[sample.whole_rate for sample in samples],
            unit="records/s",
            note="a fresh program, first to last append",
        ),
    ]


def _epochs(samples: Sequence[_Sample]) -> str:
    lengths = [length for sample in samples for length in sample.epoch_s]
    return f"; epochs of {statistics.median(lengths):.1f} s" if lengths else ""


def _compared(samples: dict[str, list[_Sample]]) -> Figure:
    once, least = samples[_EXACTLY_ONCE], samples[_AT_LEAST_ONCE]
    ratios = [weak.warm_rate / strong.warm_rate for weak, strong in zip(least, once, strict=True)]
    return Figure(
        what="at-least-once over exactly-once, warm",
        runs=ratios,
        unit="x",
        goal="<= 1.05",
        most=1.05,
        note="the cost of exactly-once",
    )
