"""What a run of a job consists of: its operators, its regions, and which of them are continuous."""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sluice.runtime.continuous.continuous_sink import require_short_epochs
from sluice.runtime.continuous.coordinator_timeout import LostTimeout
from sluice.runtime.contracts import RereadingSource, Sink
from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.job_graph import Region, regions_of
from sluice.runtime.graph.pipeline import Engine, Pipeline, Recovery
from sluice.runtime.model.model import OperatorNode
from sluice.runtime.process.closing import close_logged
from sluice.runtime.spark.frames.plan_analysis import PlanAnalysis, look_at, require_modules
from sluice.runtime.spark.run.engine_choice import choose_engine, choose_parts
from sluice.runtime.spark.run.job_spec import JobSpec
from sluice.runtime.spark.run.tuned_regions import tuned
from sluice.runtime.spark.session.spark_session import ends_quiet_workers, task_slots

__all__ = ["Layout", "between_barriers_s", "lay_out", "refusals"]

log = logging.getLogger(__name__)

_CHECK_TIMEOUT_S = 15.0  # what cannot be reached is said well within 30 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a run consists of.

    Attributes:
        graph: the operators.
        regions: of the job.
        continuous: names of those that run continuously.
        cluster_ids: that the sources read.
        analyses: at the frames of the regions, by name.
    """

    graph: tuple[OperatorNode, ...]
    regions: tuple[Region, ...]
    continuous: frozenset[str]
    cluster_ids: tuple[str, ...] = ()
    analyses: Mapping[str, PlanAnalysis] = field(default_factory=dict)


def between_barriers_s(job: JobSpec) -> float:
    """The longest time that an epoch is open before its barrier, if nothing hinders."""
    return max(job.settings.interval_s or 0.0, job.settings.min_pause_s)


def lay_out(job: JobSpec) -> Layout:
    """Regions and their engines. What is wrong with the job itself is said before a broker is
    asked; the sources, and where the engine is to be chosen the sinks, are checked, changing
    nothing.

    Raises:
        ConfigError: the job cannot run like that.
        MissingRequirementError: a transform needs what is not installed.
        StreamError: a source or a sink has refused its check, or was not reached.
    """
    analyses = [look_at(job.spark, pipeline) for pipeline in job.pipelines]
    for look in analyses:
        require_modules(look)
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
    return Layout(
        graph=found.graph,
        regions=tuple(tuned(found.regions, memory_mib=job.task_memory_mib)),
        continuous=found.continuous,
        cluster_ids=tuple(each["cluster_id"] for each in facts if each.get("cluster_id")),
        analyses={
            region.name: look
            for pipeline, look in zip(job.pipelines, analyses, strict=True)
            for region in found.regions
            if region.pipeline is pipeline
        },
    )


def _chosen(
    job: JobSpec, analyses: Sequence[PlanAnalysis], refused: Mapping[str, str] | None = None
) -> Layout:
    """With as many regions as the user has asked for, or one for each pipeline."""
    stateful = [look.keeps_state for look in analyses]
    graph, regions = regions_of(job.pipelines, stateful, parts=job.regions or 1)
    if job.engine is Engine.MICRO_BATCH:
        return Layout(graph=graph, regions=regions, continuous=frozenset())
    continuous = choose_engine(
        job.engine,
        regions,
        slots=task_slots(job.spark, wanted=len(regions)),
        interval_s=between_barriers_s(job),
        is_approximate=job.recovery is Recovery.APPROXIMATE,
        refused=refused or {},
        session=ends_quiet_workers(job.spark),
    )
    return Layout(graph=graph, regions=regions, continuous=continuous)


def _in_parts(
    job: JobSpec,
    analyses: Sequence[PlanAnalysis],
    first: Layout,
    facts: Sequence[Mapping[str, str]],
) -> Layout:
    """With as many regions as there are cores and partitions for, where all are continuous and
    nobody has said how many."""
    if job.regions is not None or len(first.continuous) != len(job.pipelines):
        return first
    parts = choose_parts(
        [int(each.get("partitions", 1)) for each in facts],
        slots=task_slots(job.spark, wanted=len(first.regions)),
    )
    stateful = [look.keeps_state for look in analyses]
    graph, regions = regions_of(job.pipelines, stateful, parts=parts)
    names = frozenset(region.name for region in regions)
    return Layout(graph=graph, regions=regions, continuous=names)


def _warn_of_loops(pipelines: Sequence[Pipeline]) -> None:
    """A mistake, most of the time; who wants it, for tries that come later, is not stopped."""
    for pipeline in pipelines:
        source = pipeline.source
        for sink in pipeline.sinks:
            topic = source.rereads(sink) if isinstance(source, RereadingSource) else None
            if topic is not None:
                log.warning(
                    "a pipeline writes what it reads again: source=%s sink=%s topic=%s. Without "
                    "an end, unless its functions leave records out.",
                    source.name,
                    sink.name,
                    topic,
                )


def _sinks_of(layout: Layout) -> dict[str, Sink]:
    """Those that continuous tasks would write to, by operator id."""
    return {
        i: sink
        for region in layout.regions
        if region.name in layout.continuous
        for i, sink in region.sinks.items()
    }


def refusals(
    sinks: Mapping[str, Sink], *, between_barriers_s: float, lost_timeout_s: float | None
) -> dict[str, str]:
    """Why continuous tasks cannot write to a sink, by operator id: only its cluster knows for how
    long a transaction may be open.

    Raises:
        StreamError: a sink has refused its check, which it would in either engine.
    """
    refused: dict[str, str] = {}
    for operator_id, sink in sinks.items():
        with contextlib.ExitStack() as stack:
            coordinator = sink.coordinator()
            stack.callback(close_logged, coordinator.close, f"sink {sink.name}")
            facts = coordinator.check(timeout_s=_CHECK_TIMEOUT_S)
        try:
            require_short_epochs(
                facts, LostTimeout(lost_timeout_s), between_barriers_s=between_barriers_s
            )
        except ConfigError as error:
            refused[operator_id] = f"the sink {sink.name}: {error}"
    return refused
