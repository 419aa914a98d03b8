"""From the pipelines of a `Job` to operators, regions and the coordinator's plan. Pure.

Also chooses the sink of a pipeline that takes its dead letters.
"""

import enum
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import version

from sluice.runtime.contracts import (
    DeadLetterSink,
    ForgettingSource,
    FrameSink,
    JobTopicSink,
    RateLimitedSource,
    RereadingSource,
    Sink,
    Source,
    TaskSink,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
)
from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.dead_letters import NEEDED_COLUMNS
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.graph.distribution import Distribution, choose_distribution
from sluice.runtime.graph.failover_regions import failover_regions
from sluice.runtime.graph.graph_model import graph_of_operators, spread
from sluice.runtime.graph.graph_view import GraphView, view_of_operators
from sluice.runtime.graph.operator_ids import OperatorSpec, build_graph, spark_source_name
from sluice.runtime.graph.pipeline import Pipeline, Step
from sluice.runtime.keyed.keyed_task import numbered_tables
from sluice.runtime.model.checkpoint_record import OperatorNode
from sluice.runtime.model.on_error import DeadLetters
from sluice.runtime.model.rate_limit import PidRateLimit

__all__ = [
    "Region",
    "dead_letter_sink",
    "job_plan",
    "regions_of",
    "require_chained",
    "require_dead_letters_possible",
    "taking_dead_letters",
    "view_of_pipelines",
]

_NESTED = re.compile(r"<[^<>]*>")  # the innermost type arguments of a DDL


def require_dead_letters_possible(pipeline: Pipeline) -> None:
    """Check before the start whether the pipeline can write its dead letters.

    Raises:
        ConfigError: no sink can take dead letters, the source reads their topic, or lacks columns
            that they need; or a sink of dead letters has nothing to write or no sink beside it.
    """
    topics = _topics(pipeline)
    where = {"source": pipeline.source.name, "topics": ",".join(topics)}
    able = [sink for sink in pipeline.sinks if isinstance(sink, DeadLetterSink)]
    only = [sink.name for sink in able if sink.dead_letters_only]
    if only and not (topics and len(only) == 1 < len(pipeline.sinks)):
        raise ConfigError(
            "a sink of dead letters does not fit the pipeline",
            where | {"sinks": ",".join(only)},
            "Use one beside a sink for the records, with on_error=DeadLetters(topic=…).",
        )
    if not topics:
        return
    target = _dead_letter_target(pipeline.sinks)
    if target is None:
        raise ConfigError(
            "dead letters or late rows in a pipeline without a Kafka sink",
            where | {"sinks": ",".join(sink.name for sink in pipeline.sinks)},
            "Add a Kafka sink, whose transaction also holds them; or use on_error='skip', and no "
            "late_topic.",
        )
    source, sink = pipeline.source, target[1]
    reread = source.rereads(sink, topics) if isinstance(source, RereadingSource) else None
    if reread is not None:
        raise ConfigError(
            "a pipeline reads the topic of its own dead letters",
            where | {"topic": reread},
            "Give dead letters a topic that the source does not read: one could fail forever.",
        )
    if not any(isinstance(step.policy, DeadLetters) for step in pipeline.steps):
        return  # late rows are rows of the functions, not records of the source
    columns = _column_names(source.schema_ddl())
    missing = [name for name in NEEDED_COLUMNS if name not in columns]
    if missing:
        raise ConfigError(
            "the source lacks columns that dead letters need",
            where | {"missing": ",".join(missing), "columns": ",".join(columns)},
            "Let the source read the missing columns, too.",
        )


def dead_letter_sink(pipeline: Pipeline, sinks: Mapping[str, Sink]) -> str | None:
    """The operator id of the sink that writes dead letters in its transactions, if there is one.

    Args:
        sinks: of the pipeline, in its order, by operator id.
    """
    target = _dead_letter_target(list(sinks.values())) if _topics(pipeline) else None
    return None if target is None else list(sinks)[target[0]]


def taking_dead_letters(pipeline: Pipeline) -> list[Sink]:
    """The pipeline's sinks; one of them takes the dead letters, if a policy may write some."""
    topics, sinks = _topics(pipeline), list(pipeline.sinks)
    target = _dead_letter_target(sinks) if topics else None
    if target is not None:
        at, sink = target
        for other in sinks:
            if isinstance(other, DeadLetterSink):
                other.with_dead_letters(topics)  # raises if one of them is its own topic
        sinks[at] = sink.with_dead_letters(topics)
    return sinks


def _dead_letter_target(sinks: Sequence[Sink]) -> tuple[int, DeadLetterSink] | None:
    """Position and sink: one for dead letters only, else the first exactly-once sink, else the
    first other one."""

    def rank(found: tuple[int, DeadLetterSink]) -> tuple[bool, bool]:
        return not found[1].dead_letters_only, not found[1].is_exactly_once

    able = [(at, sink) for at, sink in enumerate(sinks) if isinstance(sink, DeadLetterSink)]
    return min(able, key=rank, default=None)


def _topics(pipeline: Pipeline) -> tuple[str, ...]:
    """Topics of dead letters and of late rows."""
    policies = (step.policy for step in pipeline.steps)
    late = (step.late_topic for step in pipeline.steps)
    found = [p.topic for p in policies if isinstance(p, DeadLetters)]
    return tuple(dict.fromkeys([*found, *(topic for topic in late if topic is not None)]))


def _column_names(ddl: str) -> list[str]:
    """Names of the columns in a DDL; some may be structs."""
    flat = ddl
    while (shorter := _NESTED.sub("", flat)) != flat:
        flat = shorter
    return [column.split()[0].strip("`") for column in flat.split(",")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A pipeline with the ids that its operators have in the checkpoints.

    Attributes:
        name: of the region, from its source's name.
        pipeline: what the user described.
        source_id: operator id of the source.
        sinks: by operator id; one of them takes the dead letters, if a policy may write some.
        stateful: whether its frame keeps state.
        step_ids: operator ids of the pipeline's steps.
        broadcast_ids: operator ids of the job's broadcast streams, by ``id`` of their last steps.
    """

    name: str
    pipeline: Pipeline
    source_id: str
    sinks: Mapping[str, Sink]
    stateful: bool
    step_ids: tuple[str, ...] = ()
    broadcast_ids: Mapping[int, str] = field(default_factory=dict)

    @property
    def task_sinks(self) -> Mapping[str, TaskSink]:
        """The sinks that the tasks write themselves."""
        return {i: sink for i, sink in self.sinks.items() if isinstance(sink, TaskSink)}

    @property
    def frame_sinks(self) -> Mapping[str, FrameSink]:
        """The sinks that Spark's own writers write; at most one, because the frame runs once."""
        return {i: sink for i, sink in self.sinks.items() if isinstance(sink, FrameSink)}

    @property
    def functions(self) -> tuple[ChainedFunction, ...] | None:
        """The Arrow functions of a chained region, None for a transform."""
        if not self.pipeline.is_chained:
            return None
        return tuple(
            step.chained(operator_id, self.broadcast_ids)
            for step, operator_id in zip(self.pipeline.steps, self.step_ids, strict=True)
        )

    @property
    def dead_letter_sink(self) -> str | None:
        """Operator id of the sink that writes dead letters in its transactions."""
        return dead_letter_sink(self.pipeline, self.sinks)

    @property
    def source_name(self) -> str:
        """Spark's name of the source; stable over restarts."""
        return spark_source_name(self.source_id)


def regions_of(
    pipelines: Sequence[Pipeline], stateful: Sequence[bool], *, parts: int | Sequence[int] = 1
) -> tuple[tuple[OperatorNode, ...], tuple[Region, ...]]:
    """The operator graph, and the regions; ``stateful[i]`` belongs to pipeline i.

    Each source is read in ``parts`` parts, or in ``parts[i]``. `failover_regions` derives the
    regions. A chained pipeline has forward edges alone, so each part fails alone. Spark's planner
    may shuffle, which joins all parts, unless the user forces a rescale.

    Raises:
        ConfigError: there is nothing to run; a pipeline has no sink; or two operators or two
            regions have one name.
        ConfigError: a nondeterministic function or uncommitted records would break exactly-once.
        ConfigError: a rescale is forced on a stateful transform.
    """
    for pipeline, keeps_state in zip(pipelines, stateful, strict=True):
        _require_runnable(pipeline, stateful=keeps_state)
    nodes, positions = _operators(pipelines, stateful, _of_each(parts, pipelines))
    broadcast_ids = {
        id(step): nodes[at].operator_id
        for pipeline, (_, steps, _) in zip(pipelines, positions, strict=True)
        for step, at in zip(pipeline.steps, steps, strict=True)
        if step.kind == "broadcast"
    }
    _require_broadcasts(pipelines, broadcast_ids)
    found = failover_regions(graph_of_operators(nodes))
    regions = tuple(
        Region(
            name=each.name,
            pipeline=pipeline,
            source_id=nodes[source].operator_id,
            sinks={
                nodes[at].operator_id: sink
                for at, sink in zip(sinks, taking_dead_letters(pipeline), strict=True)
            },
            stateful=keeps_state,
            step_ids=tuple(nodes[at].operator_id for at in steps),
            broadcast_ids=broadcast_ids,
        )
        for pipeline, keeps_state, (source, steps, sinks) in zip(
            pipelines, stateful, positions, strict=True
        )
        for each in found
        if any(subtask.vertex_id == nodes[source].operator_id for subtask in each.subtasks)
    )
    return nodes, regions


def require_chained(pipelines: Sequence[Pipeline]) -> None:
    """Approximate recovery needs tasks that read, apply and write by themselves.

    Raises:
        ConfigError: a pipeline passes records between tasks, by state or a shuffle; or keeps state
            for keys, which a dropped range would make wrong for good.
    """
    keyed = [p.source.name for p in pipelines if p.is_keyed]
    if keyed:
        raise ConfigError(
            "recovery='approximate' is not possible with keyed state",
            {"sources": ",".join(keyed)},
            "Use recovery='region', or recovery='single-point': both are exactly once.",
        )
    planned = [p.source.name for p in pipelines if not p.is_chained]
    if planned:
        raise ConfigError(
            "recovery='approximate' needs chained pipelines, but there is a transform",
            {"sources": ",".join(planned)},
            "Use map_batches, or recovery='single-point', which retries a failed task of a "
            "transform alone, and exactly once.",
        )


def view_of_pipelines(pipelines: Sequence[Pipeline], *, parts: int = 1) -> GraphView:
    """The result of `regions_of` for display; sinks may still be missing.

    Raises:
        ConfigError: there is no source, or two operators or two regions have one name.
    """
    stateful = [False] * len(pipelines)
    return view_of_operators(_operators(pipelines, stateful, _of_each(parts, pipelines))[0])


def _of_each(parts: int | Sequence[int], pipelines: Sequence[Pipeline]) -> Sequence[int]:
    """The parts of each pipeline; one table is kept by one region."""
    found = [parts] * len(pipelines) if isinstance(parts, int) else parts
    return [1 if p.broadcast else n for p, n in zip(pipelines, found, strict=True)]


def _operators(
    pipelines: Sequence[Pipeline], stateful: Sequence[bool], parts: Sequence[int]
) -> tuple[tuple[OperatorNode, ...], list[tuple[int, list[int], list[int]]]]:
    """The operators with ids and parallelism; each pipeline's positions, see `_add_operators`."""
    if not pipelines:
        raise ConfigError("the job has no source", {}, "Call job.source(…) and .sink(…).")
    specs: list[OperatorSpec] = []
    positions = [_add_operators(specs, pipeline) for pipeline in pipelines]
    nodes = build_graph(specs)
    rescaled = {
        nodes[at].operator_id
        for pipeline, keeps_state, mine, (_, steps, _) in zip(
            pipelines, stateful, parts, positions, strict=True
        )
        for step, at in zip(pipeline.steps, steps, strict=True)
        if step.kind == "transform" and not _joins(step, pipeline, mine, stateful=keeps_state)
    }
    sources = {
        nodes[source].operator_id: mine
        for mine, (source, _, _) in zip(parts, positions, strict=True)
    }
    return spread(nodes, sources, rescaled=rescaled), positions


def _joins(step: Step, pipeline: Pipeline, parts: int, *, stateful: bool) -> bool:
    """Whether a transform joins all parts; a stateful one does, as Spark keeps state by key."""
    return choose_distribution(
        parts,
        parts,
        wanted=Distribution.KEY_BY if stateful else Distribution.SHUFFLE,
        force_rescale=step.force_rescale,
        where={"source": pipeline.source.name, "function": step.name},
    ).joins


def _require_runnable(pipeline: Pipeline, *, stateful: bool) -> None:
    where = {"source": pipeline.source.name}
    if not pipeline.sinks and pipeline.broadcast is None:
        raise ConfigError(
            "a source has no sink", where, "End the pipeline with .sink(…) or .broadcast(…)."
        )
    exact = [sink.name for sink in pipeline.sinks if sink.is_exactly_once]
    exact += [] if pipeline.broadcast is None else [pipeline.broadcast.name]
    if exact and not pipeline.source.yields_only_committed:
        raise ConfigError(
            "a source of uncommitted records feeds an exactly-once sink",
            where | {"sinks": ",".join(exact)},
            "Let the source read committed records only, or set a weaker guarantee for the sinks.",
        )
    files = [sink.name for sink in pipeline.sinks if isinstance(sink, FrameSink)]
    if len(files) > 1:
        raise ConfigError(
            "a pipeline has two sinks that Spark's own writers write",
            where | {"sinks": ",".join(files)},
            "Use a second pipeline for the second one: a pipeline's rows go into one such sink.",
        )
    require_dead_letters_possible(pipeline)
    _require_state_possible(pipeline)
    random = [step.name for step in pipeline.steps if not step.deterministic]
    if random and (stateful or len(pipeline.sinks) > 1):
        raise ConfigError(
            "a nondeterministic function feeds state or several sinks",
            where | {"functions": ",".join(random), "sinks": len(pipeline.sinks)},
            "Make it deterministic, or write its rows to one topic and read that in a second "
            "pipeline.",
        )


def _require_broadcasts(pipelines: Sequence[Pipeline], ids: Mapping[int, str]) -> None:
    for pipeline in pipelines:
        for step in pipeline.steps:
            if any(id(each) not in ids for each in step.broadcasts.values()):
                raise ConfigError(
                    "a function reads a broadcast stream of another job",
                    {"source": pipeline.source.name, "function": step.name},
                    "Make the stream in this job: rules = job.source(…).broadcast(key=…).",
                )


def _require_state_possible(pipeline: Pipeline) -> None:
    """Functions with operator state are called once for each batch, and never again for a part."""
    stateful = [at for at, step in enumerate(pipeline.steps) if step.state is not None]
    tolerant = [at for at, step in enumerate(pipeline.steps) if step.policy is not None]
    if stateful and tolerant and max(tolerant) >= stateful[0]:
        raise ConfigError(
            "a function with on_error follows operator state, or has some",
            {
                "source": pipeline.source.name,
                "state": pipeline.steps[stateful[0]].name,
                "on_error": pipeline.steps[tolerant[-1]].name,
            },
            "Put functions with on_error first: a failing batch passes them again, in parts.",
        )


def _add_operators(
    specs: list[OperatorSpec], pipeline: Pipeline
) -> tuple[int, list[int], list[int]]:
    """Append the pipeline's operators; returns the positions of its source, steps and sinks."""
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
    return source, list(range(source + 1, last + 1)), sinks


def job_plan(
    name: str,
    graph: tuple[OperatorNode, ...],
    regions: Sequence[Region],
    *,
    checkpoints: CheckpointSettings,
    spark_version: str,
    cluster_ids: Sequence[str],
    continuous: Collection[str] = (),
) -> JobPlan:
    """The job as the coordinator sees it; settings with every secret redacted.

    Args:
        continuous: names of the continuous regions.
    """
    settings = {
        f"checkpoint.{each.name}": _text(getattr(checkpoints, each.name))
        for each in fields(checkpoints)
    }
    for region in regions:
        connectors: list[Source | Sink] = [region.pipeline.source, *region.sinks.values()]
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
                stateful_sink_ids=tuple(region.frame_sinks),
                list_ids=tuple(f.operator_id for f in region.functions or () if f.state),
                tables=numbered_tables(region.functions or (), ()),
                broadcast_id=region.step_ids[-1] if region.pipeline.broadcast else "",
                reads=tuple(b.operator_id for f in region.functions or () for b in f.broadcasts),
                waits_for=tuple(
                    b.operator_id for f in region.functions or () for b in f.broadcasts if b.waits
                ),
                stateful=region.stateful,
                chained=region.pipeline.is_chained and region.pipeline.is_stateless,
                keyed=region.pipeline.is_keyed,
                event_time=region.pipeline.event_time,
                # A repeated batch would make other messages of a repartition topic.
                deterministic=all(step.deterministic for step in region.pipeline.steps)
                and not _topics_written(region),
                follows=region.name in continuous,
                bounded=region.pipeline.source.bounded,
                rate_limit=_rate_limit(region.pipeline.source, checkpoints),
                upstream=tuple(
                    each.name for each in regions if region.source_id in _topics_written(each)
                ),
            )
            for region in regions
        ),
        graph=graph,
        settings=settings,
        forgotten=frozenset(
            (region.source_id, topic)
            for region in regions
            if isinstance(region.pipeline.source, ForgettingSource)
            for topic in region.pipeline.source.forgotten
        ),
        cluster_ids=tuple(sorted(set(cluster_ids))),
        sluice_version=version("sluice-spark"),
        spark_version=spark_version,
    )


def _topics_written(region: Region) -> set[str]:
    """Operator ids of the sources that read what a region writes."""
    return {s.source_id for s in region.sinks.values() if isinstance(s, JobTopicSink)}


def _rate_limit(source: Source, checkpoints: CheckpointSettings) -> PidRateLimit | None:
    limit = source.rate_limit if isinstance(source, RateLimitedSource) else None
    if limit is not None and not checkpoints.interval_s:
        raise ConfigError(
            "a rate limit needs an interval above 0",
            {"source": source.name, "interval_s": checkpoints.interval_s},
            "Set interval_s above 0, or remove the source's rate limit.",
        )
    return limit


def _text(value: object) -> str:
    return str(value.value) if isinstance(value, enum.Enum) else str(value)
