"""The layout of a run: its operators, its regions with tuned connectors, and their engines."""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sluice.runtime.continuous.native_commits import LostTimeout, NativeCommits, TasksFirst
from sluice.runtime.contracts import RereadingSource, Sink, TunedSink, TunedSource
from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.job_graph import Region, regions_of
from sluice.runtime.graph.pipeline import Engine, Pipeline, Recovery
from sluice.runtime.model.checkpoint_record import OperatorNode
from sluice.runtime.model.task_memory import TaskMemory
from sluice.runtime.process.closing import close_logged
from sluice.runtime.spark.frames.plan_analysis import PlanAnalysis, analyse_plan, require_modules
from sluice.runtime.spark.run.engine_choice import choose_engine, choose_parts, hindrance_of
from sluice.runtime.spark.run.job_spec import JobSpec
from sluice.runtime.spark.session.spark_session import (
    idle_worker_timeout,
    task_slots,
    user_settings,
)

__all__ = ["Layout", "between_barriers_s", "lay_out", "refusals", "tuned"]

log = logging.getLogger(__name__)

_CHECK_TIMEOUT_S = 15.0  # an unreachable cluster is reported well within 30 s
_FETCH_TIMEOUT_S = 3.0
_AUTO_S = 60.0  # the executors of a cluster start within that, or the job runs in micro-batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The parts of a run.

    Attributes:
        graph: the operators.
        regions: of the job.
        continuous: names of the regions that run continuously.
        clusters: id of the cluster that each source reads, by operator id.
        analyses: of the regions' frames, by name.
    """

    graph: tuple[OperatorNode, ...]
    regions: tuple[Region, ...]
    continuous: frozenset[str]
    clusters: Mapping[str, str] = field(default_factory=dict)
    analyses: Mapping[str, PlanAnalysis] = field(default_factory=dict)

    @property
    def batched(self) -> tuple[Region, ...]:
        """The regions that run in micro-batches."""
        return tuple(each for each in self.regions if each.name not in self.continuous)


def between_barriers_s(job: JobSpec) -> float:
    """The longest time that an epoch is open before its barrier, without a delay."""
    return max(job.settings.interval_s or 0.0, job.settings.min_pause_s)


def lay_out(job: JobSpec) -> Layout:
    """Regions and their engines.

    Errors of the job itself are raised before the first remote call. Then the sources are checked,
    and also the sinks if the engine is to be chosen; a check changes nothing.

    Raises:
        ConfigError: the job cannot run like that.
        MissingRequirementError: a transform needs a package that is not installed.
        StreamError: the check of a source or a sink failed, or its cluster was not reached.
    """
    with user_settings():
        analyses = [analyse_plan(job.spark, pipeline) for pipeline in job.pipelines]
    for analysis in analyses:
        require_modules(analysis)
    first = _chosen(job, analyses)
    facts = [pipeline.source.check(timeout_s=_CHECK_TIMEOUT_S) for pipeline in job.pipelines]
    if job.engine is Engine.AUTO:
        refused = refusals(
            _sinks_of(first),
            between_barriers_s=between_barriers_s(job),
            lost_timeout_s=job.coordinator_lost_timeout_s,
        )
        if refused:
            first = _chosen(job, analyses, refused)
    found = _in_parts(job, analyses, first, facts)
    _warn_of_loops(job.pipelines)
    _warn_of_idle_regions(job, found, facts)
    return Layout(
        graph=found.graph,
        regions=tuple(tuned(found.regions, memory_mib=job.task_memory_mib)),
        continuous=found.continuous,
        clusters={
            region.source_id: each["cluster_id"]
            for pipeline, each in zip(job.pipelines, facts, strict=True)
            for region in found.regions
            if region.pipeline is pipeline and each.get("cluster_id")
        },
        analyses={
            region.name: analysis
            for pipeline, analysis in zip(job.pipelines, analyses, strict=True)
            for region in found.regions
            if region.pipeline is pipeline
        },
    )


def _chosen(
    job: JobSpec, analyses: Sequence[PlanAnalysis], refused: Mapping[str, str] | None = None
) -> Layout:
    """With as many regions as the user has set, or one for each pipeline."""
    stateful = [analysis.keeps_state for analysis in analyses]
    graph, regions = regions_of(job.pipelines, stateful, parts=job.regions or 1)
    if job.engine is Engine.MICRO_BATCH:
        return Layout(graph=graph, regions=regions, continuous=frozenset())
    hindrance = partial(
        hindrance_of,
        interval_s=between_barriers_s(job),
        is_approximate=job.recovery is Recovery.APPROXIMATE,
        refused=refused or {},
        session=idle_worker_timeout(job.spark),
    )
    # Without enough cores, `continuous` is refused, and `auto` chooses micro-batches.
    limit_s = _AUTO_S if job.engine is Engine.AUTO else job.resource_timeout_s
    slots = task_slots(job.spark, wanted=len(regions), timeout_s=limit_s)
    continuous = choose_engine(job.engine, regions, slots=slots, hindrance=hindrance)
    return Layout(graph=graph, regions=regions, continuous=continuous)


def _in_parts(
    job: JobSpec,
    analyses: Sequence[PlanAnalysis],
    first: Layout,
    facts: Sequence[Mapping[str, str]],
) -> Layout:
    """With as many regions as there are cores and partitions for, if all are continuous and the
    user has not set their number."""
    if job.regions is not None or len(first.continuous) != len(job.pipelines):
        return first
    parts = choose_parts(
        [int(each.get("partitions", 1)) for each in facts],
        slots=task_slots(job.spark, wanted=len(first.regions), timeout_s=_AUTO_S),
    )
    stateful = [analysis.keeps_state for analysis in analyses]
    graph, regions = regions_of(job.pipelines, stateful, parts=parts)
    names = frozenset(region.name for region in regions)
    return Layout(graph=graph, regions=regions, continuous=names)


def _warn_of_idle_regions(job: JobSpec, found: Layout, facts: Sequence[Mapping[str, str]]) -> None:
    """A region without a partition is no error: the topic may get more."""
    for pipeline, each in zip(job.pipelines, facts, strict=True):
        regions = sum(region.pipeline is pipeline for region in found.regions)
        partitions = int(each.get("partitions", regions))
        if regions > partitions:
            log.warning(
                "a source has fewer partitions than regions, so some read nothing: source=%s "
                "regions=%d partitions=%d. Lower Job(regions=…), or add partitions.",
                pipeline.source.name,
                regions,
                partitions,
            )


def _warn_of_loops(pipelines: Sequence[Pipeline]) -> None:
    """Usually a mistake, but allowed: a pipeline may write failed records back for a later try."""
    for pipeline in pipelines:
        source = pipeline.source
        for sink in pipeline.sinks:
            topic = source.rereads(sink) if isinstance(source, RereadingSource) else None
            if topic is not None:
                log.warning(
                    "a pipeline reads its own output again, perhaps forever: source=%s sink=%s "
                    "topic=%s",
                    source.name,
                    sink.name,
                    topic,
                )


def _sinks_of(layout: Layout) -> dict[str, Sink]:
    """The sinks that continuous tasks would write to, by operator id."""
    return {
        i: sink
        for region in layout.regions
        if region.name in layout.continuous
        for i, sink in region.sinks.items()
    }


def refusals(
    sinks: Mapping[str, Sink], *, between_barriers_s: float, lost_timeout_s: float | None
) -> dict[str, str]:
    """Why continuous tasks cannot write to a sink, by operator id: only its cluster knows how long
    a transaction may be open.

    Raises:
        StreamError: the check of a sink failed, as it would in either engine.
    """
    refused: dict[str, str] = {}
    for operator_id, sink in sinks.items():
        with contextlib.ExitStack() as stack:
            coordinator = sink.coordinator()
            stack.callback(close_logged, coordinator.close, f"sink {sink.name}")
            facts = coordinator.check(timeout_s=_CHECK_TIMEOUT_S)
        try:
            TasksFirst(
                NativeCommits(),
                LostTimeout(lost_timeout_s),
                between_barriers_s=between_barriers_s,
            ).require_short(facts)
        except ConfigError as error:
            refused[operator_id] = f"the sink {sink.name}: {error}"
    return refused


def tuned(regions: Sequence[Region], *, memory_mib: int) -> tuple[Region, ...]:
    """The regions with tuned sources and sinks: their tasks keep to the memory bound, and sinks
    compress like their source, unless the user has set a codec.

    A chained task reads and writes in one process. With Spark's planner between read and write,
    there is one process for each, and each keeps to the bound.

    Raises:
        ConfigError: the user's settings need more memory.
    """
    codecs: dict[str, str | None] = {}  # regions of one source share the codec
    return tuple(_tuned(region, codecs, memory_mib) for region in regions)


def _tuned(region: Region, codecs: dict[str, str | None], memory_mib: int) -> Region:
    source, is_chained = region.pipeline.source, region.pipeline.is_chained
    sinks = {i: sink for i, sink in region.sinks.items() if isinstance(sink, TunedSink)}
    reading = source.claimed_bytes if isinstance(source, TunedSource) else 0
    writing = sum(sink.claimed_bytes for sink in sinks.values())
    if isinstance(source, TunedSource):
        source = source.within(
            TaskMemory.of_mib(
                memory_mib,
                claimed_bytes=reading + (writing if is_chained else 0),
                sinks=len(sinks) if is_chained else 0,
            )
        )
        if region.source_id not in codecs and any(s.keeps_compression for s in sinks.values()):
            codecs[region.source_id] = _source_codec(source)
    memory = TaskMemory.of_mib(
        memory_mib,
        claimed_bytes=writing + (reading if is_chained else 0),
        reads=is_chained,
        sinks=len(sinks),
    )
    made: dict[str, Sink] = {
        i: _tuned_sink(sink, memory, codecs.get(region.source_id)) for i, sink in sinks.items()
    }
    return replace(
        region,
        pipeline=replace(region.pipeline, source=source),
        sinks={**region.sinks, **made},
    )


def _source_codec(source: TunedSource) -> str | None:
    codec = source.compression(timeout_s=_FETCH_TIMEOUT_S)
    log.info("compression of the source: source=%s codec=%s", source.name, codec or "unknown")
    return codec


def _tuned_sink(sink: TunedSink, memory: TaskMemory, codec: str | None) -> TunedSink:
    made = sink.within(memory)
    return made.compressed_as(codec) if codec is not None and made.keeps_compression else made
