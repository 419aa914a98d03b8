"""From the pipelines of a `Job` to operators, regions and the coordinator's plan. Pure."""

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import cast

from runtime.checkpoint.graph import OperatorSpec, build_graph
from runtime.checkpoint.plan import CheckpointSettings, JobPlan, RegionPlan
from runtime.contracts import Sink, Source
from runtime.errors import ConfigError
from runtime.job import BatchFunction, Pipeline
from runtime.model import OperatorNode

__all__ = ["Region", "job_plan", "regions_of"]

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A pipeline with the ids that its operators have in the checkpoints.

    Attributes:
        name: of the region, from its source's name.
        pipeline: what the user described.
        source_id: operator id of the source.
        sinks: by operator id.
        stateful: whether its frame keeps state.
    """

    name: str
    pipeline: Pipeline
    source_id: str
    sinks: Mapping[str, Sink]
    stateful: bool

    @property
    def functions(self) -> tuple[BatchFunction, ...] | None:
        """The Arrow functions of a chained region, None for a transform."""
        if not self.pipeline.is_chained:
            return None
        return tuple(cast(BatchFunction, step.function) for step in self.pipeline.steps)

    @property
    def source_name(self) -> str:
        """Spark's name of the source: letters, digits and underscores; stable over restarts."""
        return f"source_{self.source_id}"


def regions_of(
    pipelines: Sequence[Pipeline], stateful: Sequence[bool]
) -> tuple[tuple[OperatorNode, ...], tuple[Region, ...]]:
    """The operator graph, and one region for each pipeline; ``stateful[i]`` belongs to it.

    Raises:
        ConfigError: nothing to run, a pipeline without a sink, two operators of one name, or a
            function whose replay may give other rows, or a source of uncommitted records, where
            that would lose exactly-once.
    """
    if not pipelines:
        raise ConfigError("the job has no source", {}, "Call job.source(…) and .sink(…).")
    specs: list[OperatorSpec] = []
    places: list[tuple[int, list[int]]] = []
    for pipeline, keeps_state in zip(pipelines, stateful, strict=True):
        _require_runnable(pipeline, stateful=keeps_state)
        places.append(_add_operators(specs, pipeline))
    graph = build_graph(specs)
    regions = tuple(
        Region(
            name=_NOT_IN_A_NAME.sub("-", pipeline.source.name),
            pipeline=pipeline,
            source_id=graph[source].operator_id,
            sinks={
                graph[at].operator_id: sink for at, sink in zip(sinks, pipeline.sinks, strict=True)
            },
            stateful=keeps_state,
        )
        for pipeline, keeps_state, (source, sinks) in zip(pipelines, stateful, places, strict=True)
    )
    return graph, regions


def _require_runnable(pipeline: Pipeline, *, stateful: bool) -> None:
    where = {"source": pipeline.source.name}
    if not pipeline.sinks:
        raise ConfigError("a source has no sink", where, "End the pipeline with .sink(…).")
    exact = [sink.name for sink in pipeline.sinks if sink.is_exactly_once]
    if exact and not pipeline.source.yields_only_committed:
        raise ConfigError(
            "a source of uncommitted records feeds an exactly-once sink",
            where | {"sinks": ",".join(exact)},
            "Let the source read committed records only, or ask the sinks for a weaker guarantee.",
        )
    random = [step.name for step in pipeline.steps if not step.deterministic]
    if random and (stateful or len(pipeline.sinks) > 1):
        raise ConfigError(
            "a function whose replay may give other rows feeds state or several sinks",
            where | {"functions": ",".join(random), "sinks": len(pipeline.sinks)},
            "Make it deterministic, or write its rows to one topic and go on from there.",
        )


def _add_operators(specs: list[OperatorSpec], pipeline: Pipeline) -> tuple[int, list[int]]:
    """Append the pipeline's operators; returns the places of its source and its sinks."""
    source = len(specs)
    specs.append(OperatorSpec(kind="source", name=pipeline.source.name, uid=pipeline.source.uid))
    for step in pipeline.steps:
        specs.append(
            OperatorSpec(kind=step.kind, name=step.name, uid=step.uid, upstream=(len(specs) - 1,))
        )
    last = len(specs) - 1
    sinks = list(range(len(specs), len(specs) + len(pipeline.sinks)))
    specs.extend(
        OperatorSpec(kind="sink", name=sink.name, uid=sink.uid, upstream=(last,))
        for sink in pipeline.sinks
    )
    return source, sinks


def job_plan(
    name: str,
    graph: tuple[OperatorNode, ...],
    regions: Sequence[Region],
    *,
    checkpoints: CheckpointSettings,
    spark_version: str,
    cluster_ids: Sequence[str],
) -> JobPlan:
    """The job as the coordinator sees it; settings with every secret redacted."""
    settings = {f"checkpoint.{key}": _text(value) for key, value in asdict(checkpoints).items()}
    for region in regions:
        connectors: list[Source | Sink] = [region.pipeline.source, *region.pipeline.sinks]
        for connector in connectors:
            for key, value in connector.settings().items():
                settings[f"{connector.name}.{key}"] = value
    return JobPlan(
        name=name,
        regions=tuple(
            RegionPlan(
                name=region.name,
                source_ids=(region.source_id,),
                sink_ids=tuple(region.sinks),
                stateful=region.stateful,
                chained=region.pipeline.is_chained,
                bounded=region.pipeline.source.bounded,
            )
            for region in regions
        ),
        graph=graph,
        settings=settings,
        cluster_ids=tuple(sorted(set(cluster_ids))),
        sluice_version=version("sluice"),
        spark_version=spark_version,
    )


def _text(value: object) -> str:
    return str(value.value) if isinstance(value, enum.Enum) else str(value)
