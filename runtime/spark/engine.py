"""Runs a `Job`: checks it, starts its coordinator and regions, watches them, ends them."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from runtime.checkpoint.commands import JobCommands
from runtime.checkpoint.coordinator import BarrierCoordinator
from runtime.checkpoint.kinds import installed_kinds
from runtime.checkpoint.leader import FileLeaderStore, Leader
from runtime.checkpoint.plan import StartedJob
from runtime.checkpoint.store import CheckpointStore, open_store
from runtime.continuous.desk import ContinuousDesk
from runtime.continuous.lost_timeout import LostTimeout
from runtime.continuous.native_commits import NativeCommits
from runtime.continuous.sink import ContinuousSink
from runtime.contracts import RegionLife, Sink, SinkCoordinator, Source
from runtime.drops import DropBudget, dropped_in_all
from runtime.job import Engine, Job, Recovery
from runtime.model import OperatorNode
from runtime.service.command_file import announced
from runtime.service.server import CoordinatorService
from runtime.spark.console import ConsoleProgress
from runtime.spark.engines import choose_engine, choose_parts
from runtime.spark.frame_look import look_at
from runtime.spark.hosts import HostExclusion, SparkExecutors
from runtime.spark.interrupts import Interrupts, ended_by_signals
from runtime.spark.job_graph import Region, job_plan, regions_of, require_chained
from runtime.spark.launcher import ColumnsRead, ContinuousRegions, RegionLauncher
from runtime.spark.lives import RegionLives
from runtime.spark.region_start import batches_to_retain, delete_vanished
from runtime.spark.repair import ChainRepairer
from runtime.spark.session import is_fair, prepare, require_task_retries, task_slots
from runtime.spark.tuned_regions import tuned
from runtime.spark.web_hdfs import checkpoint_web_address
from runtime.storage.looks import close_quietly
from runtime.storage.opening import absolute_uri

__all__ = ["JobResult", "run_job"]

log = logging.getLogger(__name__)

_START_TIMEOUT_S = 30.0
_CHECK_TIMEOUT_S = 15.0  # what cannot be reached is said well within 30 s
_WATCH_S = 0.1
_RESTLESS_S = 0.02  # three looks from the end of a region's life to the next one


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a finished run did.

    Attributes:
        job_uid: of the job.
        restored_from: checkpoint id it went on from, None for a new job.
        last_checkpoint_id: newest checkpoint that is committed on record.
        elapsed_s: of this run, Spark's own start not included.
    """

    job_uid: str
    restored_from: int | None
    last_checkpoint_id: int | None
    elapsed_s: float


def run_job(job: Job) -> JobResult:
    """See `runtime.job.Job.run`."""
    started_at = time.monotonic()
    prepare(job.spark)
    if job.recovery is not Recovery.REGION:
        require_task_retries(job.spark, recovery=job.recovery.value)
    if job.recovery is Recovery.APPROXIMATE:
        require_chained(job.pipelines)
    with ended_by_signals() as interrupts, contextlib.ExitStack() as stack:
        layout = _layout(job)
        regions = layout.regions
        jvm = job.spark.sparkContext._jvm  # noqa: SLF001 - PySpark's only way to Hadoop's classes
        store = open_store(job.checkpoint_dir, jvm=jvm)
        stack.callback(close_quietly, store.fs)
        retain = batches_to_retain(store, retained=job.settings.retained)
        listeners = list(job.listeners)
        if sys.stderr.isatty():
            listeners.append(stack.enter_context(contextlib.closing(ConsoleProgress(job.name))))
        commits, lost_timeout = NativeCommits(), LostTimeout(job.coordinator_lost_timeout_s)
        sources = {i: source.enumerator(i) for i, source in _sources(regions).items()}
        by_tasks = partial(
            ContinuousSink,
            commits=commits,
            lost_timeout=lost_timeout,
            between_barriers_s=_between_barriers_s(job),
        )
        sinks = _coordinators(regions, layout.continuous, by_tasks)
        coordinator = BarrierCoordinator(
            job_plan(
                job.name,
                layout.graph,
                regions,
                checkpoints=job.settings,
                spark_version=job.spark.version,
                cluster_ids=layout.cluster_ids,
                continuous=layout.continuous,
            ),
            store,
            sinks=sinks,
            sources=sources,
            settings=job.settings,
            listeners=listeners,
            repairer=ChainRepairer(
                regions={region.name: region for region in regions},
                sinks=sinks,
                job_name=job.name,
            ),
            require_known=installed_kinds().require_known,
        )
        stack.callback(coordinator.stop)
        started = coordinator.start(timeout_s=_START_TIMEOUT_S, restore_from=job.restore_from)
        names = {region.name for region in regions}
        delete_vanished(store.fs, names, generation=started.generation)
        following = ContinuousRegions(
            names=layout.continuous,
            desk=ContinuousDesk(coordinator, commits),
            ends=lambda source_id: sources[source_id].fixed_ends(),
            lost_timeout_s=lost_timeout.seconds,
        )
        _run_regions(job, layout, started, coordinator, store, retain, interrupts, following)
    return JobResult(
        job_uid=started.job_uid,
        restored_from=started.restored_from,
        last_checkpoint_id=coordinator.last_committed,
        elapsed_s=time.monotonic() - started_at,
    )


def _sinks(regions: Sequence[Region]) -> dict[str, Sink]:
    """By operator id; regions of one pipeline share theirs."""
    return {i: sink for region in regions for i, sink in region.sinks.items()}


def _coordinators(
    regions: Sequence[Region],
    continuous: Collection[str],
    by_tasks: Callable[[SinkCoordinator], SinkCoordinator],
) -> dict[str, SinkCoordinator]:
    """The driver's side of every sink; continuous tasks commit what they have written."""
    theirs = {i for region in regions if region.name in continuous for i in region.sinks}
    made = {i: sink.coordinator() for i, sink in _sinks(regions).items()}
    return {i: by_tasks(each) if i in theirs else each for i, each in made.items()}


def _between_barriers_s(job: Job) -> float:
    return max(job.settings.interval_s or 0.0, job.settings.min_pause_s)


def _sources(regions: Sequence[Region]) -> dict[str, Source]:
    return {region.source_id: region.pipeline.source for region in regions}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """What a run consists of.

    Attributes:
        graph: the operators.
        regions: of the job.
        continuous: names of those that run continuously.
        cluster_ids: that the sources read.
        columns: see `ColumnsRead`.
    """

    graph: tuple[OperatorNode, ...]
    regions: tuple[Region, ...]
    continuous: frozenset[str]
    cluster_ids: tuple[str, ...]
    columns: ColumnsRead


def _layout(job: Job) -> _Layout:
    """Regions and their engines. What is wrong with the job itself is said before a broker is
    asked; the sources are checked, changing nothing."""
    looks = [look_at(job.spark, pipeline) for pipeline in job.pipelines]
    stateful = [look.keeps_state for look in looks]
    graph, regions = regions_of(job.pipelines, stateful, parts=job.regions or 1)
    continuous = _continuous(job, regions)
    facts = [pipeline.source.check(timeout_s=_CHECK_TIMEOUT_S) for pipeline in job.pipelines]
    if job.regions is None and len(continuous) == len(job.pipelines):
        parts = choose_parts(
            [int(each.get("partitions", 1)) for each in facts],
            slots=task_slots(job.spark, wanted=len(regions)),
        )
        graph, regions = regions_of(job.pipelines, stateful, parts=parts)
        continuous = frozenset(region.name for region in regions)
    return _Layout(
        graph=graph,
        regions=tuple(tuned(regions, memory_mib=job.task_memory_mib)),
        continuous=continuous,
        cluster_ids=tuple(each["cluster_id"] for each in facts if each.get("cluster_id")),
        columns={
            region.name: look.columns
            for pipeline, look in zip(job.pipelines, looks, strict=True)
            for region in regions
            if region.pipeline is pipeline
        },
    )


def _continuous(job: Job, regions: Sequence[Region]) -> frozenset[str]:
    if job.engine is Engine.MICRO_BATCH:
        return frozenset()
    return choose_engine(
        job.engine,
        regions,
        slots=task_slots(job.spark, wanted=len(regions)),
        interval_s=_between_barriers_s(job),
        is_approximate=job.recovery is Recovery.APPROXIMATE,
    )


def _run_regions(
    job: Job,
    layout: _Layout,
    started: StartedJob,
    coordinator: BarrierCoordinator,
    store: CheckpointStore,
    retain: int,
    interrupts: Interrupts,
    continuous: ContinuousRegions,
) -> None:
    """Serve the coordinator, run every region, and watch until the end."""
    regions = layout.regions
    hosts = HostExclusion(SparkExecutors(job.spark))
    _warn_of_shared_cores(job, len(regions) - len(continuous.names))
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(
            CoordinatorService(
                coordinator,
                host=job.host,
                checkpoint_uri=absolute_uri(store.fs.uri),
                checkpoint_web=checkpoint_web_address(job.spark.sparkContext, store.fs.uri),
                commands=JobCommands(coordinator, hosts=hosts),
                desk=continuous.desk,
            )
        )
        FileLeaderStore(store.fs).announce(
            Leader(
                leader_session_id=started.session,
                address=service.address,
                generation=started.generation,
            )
        )
        stack.enter_context(announced(store.fs, service.command_address))
        launcher = RegionLauncher(
            job,
            {region.name: region for region in regions},
            coordinator,
            store.fs,
            job_uid=started.job_uid,
            address=service.coordinator_address,
            batches_to_retain=retain,
            continuous=continuous,
            drops=_drop_budget(job, started),
            columns=layout.columns,
        )
        lives = RegionLives(
            coordinator, launcher.handles(), outage_limit_s=job.settings.settle_timeout_s
        )
        stack.callback(lives.stop)
        try:
            with interrupts.held():
                for region in regions:
                    lives.begin(_first_life(started, region))
                    interrupts.check()
                _watch(coordinator, lives, hosts, interrupts)
        except SystemExit:
            log.warning(
                "interrupted: job=%s last_committed=%d", job.name, coordinator.last_committed
            )
            raise


def _first_life(started: StartedJob, region: Region) -> RegionLife:
    return RegionLife(
        generation=started.generation,
        restored=started.regions[region.name],
        after=started.restored_from or 0,
    )


def _watch(
    coordinator: BarrierCoordinator,
    lives: RegionLives,
    hosts: HostExclusion,
    interrupts: Interrupts,
) -> None:
    """Until the job's end; raises what ended it."""
    while not coordinator.wait(timeout_s=_RESTLESS_S if lives.is_restless else _WATCH_S):
        interrupts.check()
        lives.watch()
        hosts.look()


def _warn_of_shared_cores(job: Job, micro_batches: int) -> None:
    if micro_batches > 1 and not is_fair(job.spark):
        log.warning(
            "the regions share Spark's cores first come, first served: start the session with "
            "spark.scheduler.mode=FAIR, and one with a backlog does not hold back the others"
        )


def _drop_budget(job: Job, started: StartedJob) -> DropBudget | None:
    limit = job.settings.drop_limit
    if limit is None:
        return None
    so_far = {name: dropped_in_all(r.operator_states) for name, r in started.regions.items()}
    log.warning(
        "approximate recovery: what a failed task had to read is dropped: job=%s "
        "max_dropped_records=%d max_dropped_in_all=%s dropped_so_far=%d",
        job.name,
        limit.per_checkpoint,
        limit.in_all,
        sum(so_far.values()),
    )
    return DropBudget(limit, so_far)
