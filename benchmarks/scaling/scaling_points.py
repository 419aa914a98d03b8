"""The settings of the scaling benchmark: one dimension grows, all other ones are constant."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["AXES", "ENGINES", "Point", "points"]

ENGINES = ("micro-batch", "continuous")

_INPUT_BYTES = 500_000_000
_CHAINED_PER_S, _STATEFUL_PER_S = 350_000, 100_000

AXES: Mapping[str, tuple[str, Sequence[float]]] = {
    "partitions": ("partitions", (4, 16, 64, 256)),
    "tasks": ("tasks", (1, 2, 4)),
    "sizes": ("value_bytes", (10, 100, 1_000, 10_000, 100_000)),
    "epochs": ("interval_s", (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)),
    "keys": ("keys", (1e3, 1e4, 1e5, 1e6, 1e7)),
}
"""Axes by name: the field of `Point` that grows, and its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One setting of our pipeline.

    Attributes:
        records: of the input.
        keys: of the stateful example; 0: the chained copy.
        engine: one of `ENGINES`; None is the first.
    """

    axis: str
    records: int
    partitions: int = 4
    tasks: int = 2
    value_bytes: int = 100
    interval_s: float = 1.0
    keys: int = 0
    engine: str | None = None

    @property
    def grown(self) -> float:
        """The value of the dimension that grows."""
        return float(getattr(self, AXES[self.axis][0]))

    def arguments(self) -> list[str]:
        """Arguments of the pipeline. An epoch has at most the records of its interval."""
        per_s = _STATEFUL_PER_S if self.keys else _CHAINED_PER_S
        by_size = min(per_s, 120_000_000 // self.value_bytes)
        limit = max(100, int(by_size * self.interval_s))
        bound = ["--max-records", str(limit)]
        if self.engine == "continuous":  # its epochs end with the barrier, and have no bound
            bound = ["--regions", str(self.tasks)]
        engine = ["--engine", self.engine] if self.engine else []
        return [
            *("--mode", "count" if self.keys else "chained", "--tasks", str(self.tasks)),
            *("--interval", str(self.interval_s), *bound, *engine),
        ]


def points(axis: str, records: int, engine: str | None = None) -> Iterator[Point]:
    """The points of an axis; fewer large records, and at least as many records as keys.

    The continuous engine has no Spark state, so the axis ``keys`` has no points of it.
    """
    name, values = AXES[axis]
    if name == "keys" and engine == "continuous":
        return
    for value in values:
        grown: dict[str, Any] = {name: value if name == "interval_s" else int(value)}
        size = int(grown.get("value_bytes", 100))
        count = max(min(records, _INPUT_BYTES // size), int(grown.get("keys", 0)))
        if name == "interval_s":  # several epochs of each length
            count = max(count, int(3 * value * _CHAINED_PER_S))
        yield Point(axis=axis, records=count, engine=engine, **grown)
