"""Which subtasks of a job must restart together: the connected parts of its graph. Pure."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.distribution import Distribution, rescale_channels
from sluice.runtime.graph.graph_model import Edge, JobGraph, Subtask, Vertex

__all__ = ["FailoverRegion", "failover_regions", "region_name"]

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = (
    200  # a directory name has at most 255 characters; numbers and attempt ids are appended
)
_DIGEST = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverRegion:
    """A smallest set of subtasks that must restart together.

    Attributes:
        name: unique in the job; of letters, digits, ``_`` and ``-``.
        subtasks: in the order of the graph's vertices.
    """

    name: str
    subtasks: tuple[Subtask, ...]


def region_name(source_name: str) -> str:
    """The name of the region that begins at a source; if there are several, a number is appended.

    It names directories. A source is named after its topics, which may be many. A long name is
    truncated, and a digest of the full name is appended.
    """
    name = _NOT_IN_A_NAME.sub("-", source_name)
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(source_name.encode()).hexdigest()[:_DIGEST]
    return f"{name[: _LONGEST_NAME - _DIGEST - 1]}-{digest}"


def failover_regions(graph: JobGraph) -> tuple[FailoverRegion, ...]:
    """Every subtask in exactly one region; two share one if and only if edges connect them.

    A forward or rescale edge connects a few subtasks; every other distribution joins all subtasks
    at both of its ends. Regions are in the order of their first subtasks. A region has the name of
    the source that is its first vertex. If several regions begin at that source, a number from 0 is
    appended. Checkpoints contain the names: a change would orphan their state.

    Raises:
        ConfigError: two regions would have one name.
    """
    first: dict[str, int] = {}
    count = 0
    for vertex in graph.vertices:
        first[vertex.vertex_id] = count
        count += vertex.subtask_count
    sizes = {vertex.vertex_id: vertex.subtask_count for vertex in graph.vertices}
    channels = chain.from_iterable(_channels(edge, first, sizes) for edge in graph.edges)
    roots = _connected(count, channels)
    parts: dict[int, list[tuple[Vertex, Subtask]]] = {}
    for vertex in graph.vertices:
        for index in range(vertex.subtask_count):
            root = roots[first[vertex.vertex_id] + index]
            parts.setdefault(root, []).append((vertex, Subtask(vertex.vertex_id, index)))
    names = _names([part[0][0] for part in parts.values()])
    return tuple(
        FailoverRegion(name=name, subtasks=tuple(subtask for _, subtask in part))
        for name, part in zip(names, parts.values(), strict=True)
    )


def _channels(
    edge: Edge, first: Mapping[str, int], sizes: Mapping[str, int]
) -> Iterator[tuple[int, int]]:
    """Pairs of subtasks that the edge connects, enough of them to connect all that it joins."""
    above, below = first[edge.upstream], first[edge.downstream]
    upstream, downstream = sizes[edge.upstream], sizes[edge.downstream]
    if edge.distribution is Distribution.FORWARD:
        yield from ((above + at, below + at) for at in range(upstream))
    elif edge.distribution is Distribution.RESCALE:
        for at, targets in enumerate(rescale_channels(upstream, downstream)):
            yield from ((above + at, below + target) for target in targets)
    else:
        yield from ((above + at, below) for at in range(upstream))
        yield from ((above, below + at) for at in range(downstream))


def _connected(count: int, pairs: Iterator[tuple[int, int]]) -> list[int]:
    """For each of ``count`` numbers the least one that it is connected to."""
    parents = list(range(count))

    def root(at: int) -> int:
        while parents[at] != at:
            parents[at] = parents[parents[at]]
            at = parents[at]
        return at

    for one, other in pairs:
        low, high = sorted((root(one), root(other)))
        parents[high] = low
    return [root(at) for at in range(count)]


def _names(beginnings: Sequence[Vertex]) -> list[str]:
    """A name for each region, from the vertex that it begins at."""
    totals = Counter(vertex.vertex_id for vertex in beginnings)
    numbers: Counter[str] = Counter()
    names: list[str] = []
    for vertex in beginnings:
        name = region_name(vertex.name)
        if totals[vertex.vertex_id] > 1:
            name = f"{name}-{numbers[vertex.vertex_id]}"
        numbers[vertex.vertex_id] += 1
        names.append(name)
    if len(set(names)) != len(names):
        twice = [name for name, times in Counter(names).items() if times > 1]
        raise ConfigError(
            "two regions of the job would have one name",
            {"regions": ", ".join(twice)},
            "Give the sources names that differ in letters and digits, and not only by a number "
            "at their end: a region is named after its source.",
        )
    return names
