"""A job graph with its regions for display: as text, and as a Mermaid diagram. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from sluice.runtime.functions.at_most_once import AT_MOST_ONCE
from sluice.runtime.graph.failover_regions import FailoverRegion, failover_regions, region_name
from sluice.runtime.graph.graph_model import JobGraph, Vertex, graph_of_operators, spread
from sluice.runtime.model.checkpoint_record import CheckpointRecord, OperatorNode, RegionStatus

__all__ = ["GraphView", "view_of_operators", "view_of_record"]

_SHAPES = {"source": ("([", "])"), "sink": ("[(", ")]")}
_FUNCTION_SHAPE = ("[", "]")
_GAP = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphView:
    """Sources, functions, sinks and edges of a job, and the regions that follow from them.

    Attributes:
        graph: the operators with their subtasks and edges.
        regions: each with the subtasks that restart together; without subtasks if a record names a
            region that the graph does not have.
        standings: status of the regions in a checkpoint, by name; empty for a job that has not run.
        recovery: the promise of approximate recovery, if the job has it; else empty.
    """

    graph: JobGraph
    regions: tuple[FailoverRegion, ...]
    standings: Mapping[str, str] = field(default_factory=dict)
    recovery: str = ""

    def text(self) -> str:
        """Three lists: operators, edges and regions."""
        vertices = self._vertices
        operators = [(v.name, v.kind, _count(v), v.uid) for v in self.graph.vertices]
        edges = [
            (vertices[each.upstream].name, vertices[each.downstream].name, each.distribution.value)
            for each in self.graph.edges
        ]
        regions = [
            (each.name, self.standings.get(each.name, ""), " ".join(self._parts(each).values()))
            for each in self.regions
        ]
        return "\n\n".join(
            [
                _listed("Operators", ("name", "kind", "subtasks", "uid"), operators),
                _listed("Edges", ("from", "to", "distribution"), edges),
                _listed("Regions", ("name", "standing", "subtasks"), regions),
                *([f"Recovery\n{_GAP}{self.recovery}"] if self.recovery else []),
            ]
        )

    def mermaid(self) -> str:
        """A flowchart with a frame around each region; no edge leaves one."""
        frames = (self._framed(at, region) for at, region in enumerate(self.regions))
        notes = [f"    recovery>{_quoted(self.recovery)}]"] if self.recovery else []
        return "\n".join(["flowchart LR", *notes, *chain.from_iterable(frames)])

    @property
    def _vertices(self) -> dict[str, Vertex]:
        return {vertex.vertex_id: vertex for vertex in self.graph.vertices}

    def _parts(self, region: FailoverRegion) -> dict[str, str]:
        """``orders[0-2]`` for each operator of the region, in order."""
        indices: dict[str, list[int]] = {}
        for subtask in region.subtasks:
            indices.setdefault(subtask.vertex_id, []).append(subtask.index)
        vertices = self._vertices
        return {each: _part(vertices[each], found) for each, found in indices.items()}

    def _framed(self, number: int, region: FailoverRegion) -> list[str]:
        vertices, parts = self._vertices, self._parts(region)
        nodes = {each: f"r{number}v{at}" for at, each in enumerate(parts)}
        title = " · ".join(filter(None, [region.name, self.standings.get(region.name)]))
        lines = [f"    subgraph r{number} [{_quoted(title)}]"]
        for each, part in parts.items():
            start, end = _SHAPES.get(vertices[each].kind, _FUNCTION_SHAPE)
            lines.append(f"        {nodes[each]}{start}{_quoted(part)}{end}")
        lines += [
            f"        {nodes[edge.upstream]} -->|{edge.distribution.value}| "
            f"{nodes[edge.downstream]}"
            for edge in self.graph.edges
            if edge.upstream in nodes
        ]
        return [*lines, "    end"]


def view_of_operators(nodes: Sequence[OperatorNode]) -> GraphView:
    """The graph and regions of a job with these operators (see `spread`)."""
    graph = graph_of_operators(nodes)
    return GraphView(graph=graph, regions=failover_regions(graph))


def view_of_record(record: CheckpointRecord) -> GraphView:
    """The graph of the run that wrote this record, and the status of its regions in it."""
    found = view_of_operators(_with_parts(record))
    standings = {
        region.region: f"carried from {region.snapshot_id}"
        if region.status is RegionStatus.SKIPPED
        else region.status.value
        for region in record.regions
    }
    regions = found.regions
    if len(regions) == len(standings) == 1:  # the region of a drop-in query has a name of its own
        regions = (replace(regions[0], name=next(iter(standings))),)
    names = {region.name for region in regions}
    unplaced = (FailoverRegion(name=each, subtasks=()) for each in standings if each not in names)
    return replace(
        found,
        regions=(*regions, *unplaced),
        standings=standings,
        recovery=AT_MOST_ONCE if _drops(record) else "",
    )


def _drops(record: CheckpointRecord) -> bool:
    """Whether the run that wrote it had a `sluice.runtime.functions.at_most_once.DropLimit`."""
    return record.settings.get("checkpoint.drop_limit", "None") != "None"


def _with_parts(record: CheckpointRecord) -> tuple[OperatorNode, ...]:
    """The operators; without a recorded parallelism it follows from the names of the regions."""
    if any(node.parallelism for node in record.graph):
        return record.graph
    numbered = re.compile(r"(.+)-\d+")
    found = [numbered.fullmatch(region.region) for region in record.regions]
    totals = Counter(match[1] for match in found if match)
    parts = {
        node.operator_id: totals[region_name(node.name)]
        for node in record.graph
        if node.kind == "source"
    }
    return spread(record.graph, parts)


# --- pieces of text -------------------------------------------------------------------------------


def _count(vertex: Vertex) -> str:
    return "by Spark" if vertex.parallelism is None else str(vertex.parallelism)


def _part(vertex: Vertex, indices: Sequence[int]) -> str:
    """An operator's subtasks in a region: ``orders[0-2,5]``; no numbers if Spark schedules them."""
    if vertex.parallelism is None:
        return vertex.name
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    ranges = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"{vertex.name}[{','.join(ranges)}]"


def _listed(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A list with columns as wide as needed; empty columns are omitted."""
    found = [row for row in zip(columns, *rows, strict=True) if any(row[1:])]
    widths = [max(map(len, column)) for column in found]
    lines = [
        _GAP + _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in zip(*found, strict=True)
    ]
    return "\n".join([title, *(line.rstrip() for line in lines or [f"{_GAP}none"])])


def _quoted(text: str) -> str:
    """A Mermaid label; characters that could end it or act as markup become entities."""
    plain = re.sub(r"\s+", " ", text)
    return '"' + re.sub(r'[#"<>&`]', lambda found: f"#{ord(found[0])};", plain) + '"'
