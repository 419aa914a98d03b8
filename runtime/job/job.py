"""The Job API: sources, functions and sinks under one barrier checkpoint coordinator.

``Job("orders", spark, checkpoint_dir=…).source(KafkaSource(…)).map_batches(fn).sink(KafkaSink(…))``
only describes; `Job.run` checks, starts and watches it.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from sluice.runtime.contracts import EndableSource, Source, StoredSink
from sluice.runtime.coordinator.policy.balance import Balancer
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    TOLERABLE_FAILURES,
    CheckpointSettings,
    OnLost,
    OnRegionFailure,
)
from sluice.runtime.coordinator.policy.handlers import CheckpointHandler, GlobalCheckpointHandler
from sluice.runtime.coordinator.shell.action_dispatcher import ProgressListener
from sluice.runtime.coordinator.start.translation import RestoreRules, checked_origin
from sluice.runtime.election.ha_settings import DEFAULT_TIMEOUT_S, HaSettings
from sluice.runtime.errors import ConfigError
from sluice.runtime.failover.restart_strategies import RestartStrategy
from sluice.runtime.functions.at_most_once import AT_MOST_ONCE, DropLimit
from sluice.runtime.graph.pipeline import Engine, Pipeline, Recovery
from sluice.runtime.job.job_handle import JobHandle
from sluice.runtime.job.stream import Stream, own_steps
from sluice.runtime.job_registry.registration import REGISTRY_VARIABLE
from sluice.runtime.model.spelling import choice_of
from sluice.runtime.model.task_memory import DEFAULT_MIB, checked_mib
from sluice.runtime.process.interpreter import use_this_interpreter
from sluice.runtime.service.listening.service_settings import ServiceSettings, checked_port
from sluice.runtime.service.listening.service_tls import ServiceTls
from sluice.runtime.spark.run.job_spec import JobSpec
from sluice.runtime.spark.session.interrupts import is_interactive
from sluice.runtime.state.state_settings import StateSettings
from sluice.runtime.storage.file_system_opening import absolute_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sluice.runtime.graph.graph_view import GraphView
    from sluice.runtime.spark.run.spark_engine import JobResult

__all__ = [
    "Job",
    "Stream",
]

use_this_interpreter()


class Job:
    """Sources, functions and sinks with one checkpoint directory. Driver.

    Args:
        name: recorded in the checkpoints; the directory of another name is refused.
        spark: session that runs the regions.
        checkpoint_dir: directory or URI (``file``, ``hdfs``, ``s3``, ``gs``, ``abfss``) for the
            checkpoints of this job only.
        interval_s: from one barrier to the next, at least; 0: without a pause; >= 0.
        timeout_s: a checkpoint that is not complete after this time is aborted, and its records
            are read again; > 0.
        min_pause_s: from the end of a checkpoint to the next barrier; >= 0.
        tolerable_failures: failed or expired checkpoints in a row, of all regions together, after
            which regions restart at once; the next failure ends the job. None: 3; >= 0.
        restart_strategy: decides for each region by itself whether and when it restarts: a
            `FixedDelayRestart`, `ExponentialDelayRestart` or `FailureRateRestart`. None:
            ``tolerable_failures`` decides.
        on_region_failure: when a region fails for good, ``fail`` ends the job. ``suspend`` suspends
            the region and continues with the other regions; ``sluice job restart`` or a new start
            of the job restarts it. The last remaining region ends the job.
        pressure_alarm_s: a region under high pressure for this long is logged once, and once when
            the pressure ends; >= 0; None: never.
        outage_timeout_s: how long the job waits for an unavailable file system, or for a broker
            or store that must commit a decided checkpoint, before it ends. An outage does not
            count as a failure; > 0.
        retained: decided checkpoints to keep, and as many full checkpoints; >= 1.
        full_checkpoint_every: write a full checkpoint after so many committed checkpoints, below
            ``full`` in the checkpoint directory; >= 1. None: only on request.
        discovery_interval_s: how often the sources look for new partitions and topics; None: never.
        regions: number of parts that each source's splits are assigned to, if chained functions or
            a transform with ``force_rescale`` follow; >= 1. Each part has its own transactions and
            restarts alone. None: one, or as many as cores and partitions allow if all pipelines can
            be continuous. A start may use another number, unless a region with state would change.
        checkpoint_handler: None: a checkpoint is decided for all regions or aborted. A
            `RegionalCheckpointHandler` decides it without failed regions.
        engine: ``continuous``: each region is one long task with its own core, for chained
            pipelines into Kafka. ``micro-batch``: each region is a Spark query. ``auto``:
            continuous if the pipelines, the brokers and the number of cores allow it. A job may be
            started with another engine at any checkpoint.
        coordinator_lost_timeout_s: heartbeat timeout of a continuous task: without an answer of the
            driver for this long the task ends; > 0, below half its sinks' transaction timeout.
            None: 60, or less if needed.
        coordinator: ``driver``: the coordinator runs in this process. ``process``: it is a process
            of its own, ``sluice coordinator start``, and may die and be replaced while the tasks
            continue. Several drivers may run the same program then; each needs cores for all
            regions. For continuous regions.
        resource_timeout_s: how long the job may lack the cores that its regions need, at its start
            and later; its state is ``WAITING_FOR_RESOURCES`` meanwhile. Then it fails; > 0. None:
            it waits without a limit.
        recovery: cost of a failed task. ``region``: Spark retries it if the session allows, else
            its region restarts. ``single-point``: the same, and a session with one attempt for
            each task is refused. ``approximate``: its range is dropped, at most once; for chained
            pipelines in micro-batches.
        max_dropped_records: required by ``approximate``: offsets that one checkpoint may drop. A
            task above the bound is retried; an epoch above it is read again; >= 1.
        max_dropped_in_all: the same for all checkpoints of the directory; None: no bound.
        load_balancer: a `LoadBalancer` reassigns splits of slow chained regions with the decisions
            of checkpoints, except for regions with Spark's state or files. None: no reassignment.
        on_lost: a decided transaction that brokers aborted: ``fail`` stops the job. ``repair``
            writes it again, for chained regions of deterministic functions without state.
        task_memory_mib: MiB for the records of one task: fetched, in the current batch, and sent
            without acknowledgement. Queues and fetches adapt; ``kafka.*`` options count. Python,
            Spark and their libraries come on top; >= 64.
        state_backend: where a task keeps keyed state: ``memory``, the fastest; or ``rocksdb``, on
            its local disk, for state beyond memory (extra ``state``). A later start may change it.
        state_memory_mib: MiB of one task for keyed state and its changes in an epoch, beside
            ``task_memory_mib``; >= 64.
        restore_from: start from this checkpoint id instead of the last one. Later records are read
            and written again. A path or URI of a savepoint, a full checkpoint or a committed
            checkpoint begins a new job with its state instead, in an empty ``checkpoint_dir``. Done
            once: if the last run had the same value, this run continues from the newest checkpoint.
        topic_map: new names of topics that the restored positions belong to. A topic of another
            Kafka cluster needs an entry, too, also with its old name: it must have the same records
            at the same offsets.
        match: how a restore from a URI matches operators: ``name``, by uid, then id, then name;
            ``strict``, without names.
        allow_non_restored_state: whether a restore from a URI drops state that no operator takes.
        spark_checkpoint_dir: directory or URI for the logs and state that Spark itself keeps of
            micro-batch regions, of this job only; ``file`` needs a mount on every host if a
            transform keeps state. None: ``checkpoint_dir``. If Spark cannot write there, because it
            is an object store: a temporary directory, for regions without Spark's state.
        storage_options: for object stores: credentials, endpoint, region, time-outs, as
            ``aws_access_key_id`` or as ``fs.s3a.access.key``; before the session's
            ``spark.hadoop.fs.s3a.…``, and these before the usual environment variables.
        ha: starts of one job elect a leader, and the other ones are standbys that take over when it
            dies. ``lease``: by leases in ``checkpoint_dir``. ``zookeeper://host1:2181,host2:2181/path``:
            the same, and ZooKeeper shows earlier that the leader is gone (extra ``ha``). None: a
            later start takes the job over from a running one.
        ha_timeout_s: how long a leader may be silent before a standby takes over; >= 1.
        host: address of the driver for executors and Spark's Python processes. None: Spark's
            setting ``spark.sluice.service.host``, else loopback for a local master, else the
            address that Spark's own executors use, ``spark.driver.host``.
        bind_address: address that the driver's service listens on, in a container ``0.0.0.0``.
            None: ``spark.sluice.service.bindAddress``, else ``host``.
        service_port: port of that service; a range ``"7100-7115"`` takes the first free one, for
            several jobs on a host; 0: any free one. None: ``spark.sluice.service.port``, else 0.
        service_tls: a `ServiceTls` with the certificate of that service; True: the start makes a
            certificate, and the tasks get it with their plan (extra ``tls``); False: plain HTTP.
            None: ``spark.sluice.service.tls``, else False.
        metrics_port: serves ``/metrics`` and other read-only pages there without a token, from the
            start to the end; 0: a free port, which the log names; None: no such port.
        metrics_host: address that the read-only port listens on.
        registry: directory or URI in which jobs register for ``sluice serve``. None: the
            environment variable ``SLUICE_REGISTRY``, if it is set. No failure there reaches the
            job.
        listeners: objects with ``on_progress``, called for each change of a checkpoint.
    Raises:
        ConfigError: a setting is missing or out of range.
    """

    def __init__(
        self,
        name: str,
        spark: SparkSession,
        *,
        checkpoint_dir: str | os.PathLike[str] = "",
        interval_s: float = 1.0,
        timeout_s: float = 600.0,
        min_pause_s: float = 0.0,
        tolerable_failures: int | None = None,
        restart_strategy: RestartStrategy | None = None,
        on_region_failure: str = "fail",
        pressure_alarm_s: float | None = 60.0,
        outage_timeout_s: float = 900.0,
        retained: int = 3,
        full_checkpoint_every: int | None = None,
        discovery_interval_s: float | None = 10.0,
        regions: int | None = None,
        checkpoint_handler: CheckpointHandler | None = None,
        engine: str = "auto",
        coordinator_lost_timeout_s: float | None = None,
        coordinator: str = "driver",
        resource_timeout_s: float | None = 300.0,
        recovery: str = "region",
        max_dropped_records: int | None = None,
        max_dropped_in_all: int | None = None,
        load_balancer: Balancer | None = None,
        on_lost: str = "fail",
        task_memory_mib: int = DEFAULT_MIB,
        state_backend: str = "memory",
        state_memory_mib: int = DEFAULT_MIB,
        restore_from: int | str | os.PathLike[str] | None = None,
        topic_map: Mapping[str, str] | None = None,
        match: str = "name",
        allow_non_restored_state: bool = False,
        spark_checkpoint_dir: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        ha: str | None = None,
        ha_timeout_s: float = DEFAULT_TIMEOUT_S,
        host: str | None = None,
        bind_address: str | None = None,
        service_port: int | str | None = None,
        service_tls: bool | ServiceTls | None = None,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        registry: str | os.PathLike[str] | None = None,
        listeners: Iterable[ProgressListener] = (),
    ) -> None:
        service = partial(
            ServiceSettings.of,
            host=host,
            bind_address=bind_address,
            port=service_port,
            tls=service_tls,
        )
        settings = CheckpointSettings(
            interval_s=_interval(interval_s),
            timeout_s=timeout_s,
            min_pause_s=min_pause_s,
            tolerable_failures=_tolerable(tolerable_failures, restart_strategy),
            restart_strategy=restart_strategy,
            on_region_failure=OnRegionFailure.of(on_region_failure),
            pressure_alarm_s=pressure_alarm_s,
            settle_timeout_s=outage_timeout_s,
            retained=retained,
            full_checkpoint_every=_full_every(full_checkpoint_every),
            discovery_interval_s=discovery_interval_s,
            on_lost=OnLost.of(on_lost),
            handler=checkpoint_handler or GlobalCheckpointHandler(),
            balancer=load_balancer,
            drop_limit=_drop_limit(recovery, max_dropped_records, max_dropped_in_all),
        )
        self._spec = JobSpec(
            name=_required(name, "name"),
            spark=spark,
            checkpoint_dir=_required(os.fspath(checkpoint_dir), "checkpoint_dir"),
            spark_checkpoint_dir=_optional(spark_checkpoint_dir, "spark_checkpoint_dir"),
            storage_options=dict(storage_options or {}),
            settings=settings,
            regions=_regions(regions),
            engine=choice_of(Engine, engine, setting="engine"),
            coordinator_lost_timeout_s=_lost_timeout(coordinator_lost_timeout_s),
            resource_timeout_s=_resource_timeout(resource_timeout_s),
            recovery=_recovery(recovery),
            task_memory_mib=checked_mib(task_memory_mib, name="task_memory_mib"),
            state=StateSettings(
                backend=state_backend,
                memory_mib=checked_mib(state_memory_mib, name="state_memory_mib"),
            ),
            restore_from=checked_origin(restore_from),
            restore_rules=RestoreRules.of(
                restore_from, topic_map, match, allow_non_restored_state=allow_non_restored_state
            ),
            ha=HaSettings.of(ha, ha_timeout_s),
            service=service({}),
            metrics_port=checked_port(metrics_port, host=metrics_host),
            metrics_host=metrics_host,
            registry=_registry(registry),
            listeners=tuple(listeners),
            is_led_elsewhere=_is_led_elsewhere(coordinator),
        )
        self._service_of = service
        self._pipelines: list[Pipeline] = []

    @property
    def spec(self) -> JobSpec:
        """Settings and pipelines as described so far."""
        spec, pipelines = self._spec, tuple(self._pipelines)
        if any(pipeline.broadcast for pipeline in pipelines):
            # An epoch may use the table of the checkpoint before the last decided one.
            retained = max(spec.settings.retained, 2)
            spec = replace(spec, settings=replace(spec.settings, retained=retained))
        return replace(spec, pipelines=pipelines)

    def source(self, source: Source) -> Stream:
        """Begin a pipeline."""
        pipeline = Pipeline(source, steps=own_steps(source))
        self._pipelines.append(pipeline)
        return Stream(pipeline)

    def until_end(self) -> Job:
        """The same job, which ends after the records that are present at its start.

        Raises:
            ConfigError: one of its sources has no end.
        """
        job = copy.copy(self)
        made = [replace(each, source=_until_end(each.source)) for each in self._pipelines]
        ended = {id(old): new for old, new in zip(self._pipelines, made, strict=True)}
        for each in made:  # the other sides of joins end, too
            each.steps = [
                step if step.other is None else replace(step, other=ended[id(step.other)])
                for step in each.steps
            ]
        job._pipelines = made  # noqa: SLF001 - a job like this one
        return job

    def graph(self) -> GraphView:
        """Operators, edges and regions of the pipelines so far; starts nothing.

        ``print(job.graph().text())``, or ``.mermaid()`` for a diagram. `run` computes its regions
        in the same way; if the start chooses their number, it is shown as one.

        Raises:
            ConfigError: there is no source yet, or two operators or two regions have one name. Only
                `run` detects a transform that keeps state, because that needs Spark.
        """
        from sluice.runtime.graph.job_graph import view_of_pipelines
        from sluice.runtime.graph.repartitioning import Splitting

        parts = self._spec.regions or 1
        pipelines = Splitting(self._spec.name, regions=parts).pipelines(self._pipelines)
        view = view_of_pipelines(pipelines, parts=parts)
        return (
            view if self._spec.settings.drop_limit is None else replace(view, recovery=AT_MOST_ONCE)
        )

    def run(self) -> JobResult:
        """Run until every source has reached its end, or the job fails, or Ctrl-C.

        A terminal or a notebook shows progress.

        Returns:
            A summary of the run, after all committed records are visible to readers.

        Raises:
            StreamError: the job cannot start, or failed; nothing undecided became visible.
            SystemExit: 130 after Ctrl-C, 143 after SIGTERM, after the regions have stopped and
                undecided work is aborted; the next start resumes.
            KeyboardInterrupt: instead of both, in a notebook or a shell of Python or Spark, where
                an interrupt ends only the cell or the command.
        """
        from sluice.runtime.spark.run.spark_engine import run_job

        if is_interactive():
            return self.start().run_to_end()
        return run_job(self._described())

    def start(self) -> JobHandle:
        """Start the job in a thread of its own, and return its handle.

        It returns after the checks: the job then fences earlier runs, recovers, and runs until its
        end or `JobHandle.stop`. If this process still runs the same job with the same checkpoint
        directory, that run is stopped in order first. At the end of the program the job is stopped
        in order, too.

        Raises:
            StreamError: a check failed; nothing was changed. Later errors come from
                `JobHandle.wait`.
        """
        from sluice.runtime.spark.run.spark_engine import JobRun

        spec = self._described()
        handle = JobHandle(
            spec.name, absolute_uri(spec.checkpoint_dir), JobRun(spec, is_foreground=False)
        )
        handle.start()
        return handle

    def _described(self) -> JobSpec:
        if not self._pipelines:
            raise ConfigError(
                "a job has nothing to do",
                {"pipelines": 0},
                "Describe it first: job.source(KafkaSource(…)).sink(KafkaSink(…)).",
            )
        _require_session(self._spec.spark)
        from sluice.runtime.spark.session.spark_session import driver_address, storage_options_of

        spark = self._spec.spark
        service = self._service_of(spark.conf.getAll, default_host=driver_address(spark))
        options = storage_options_of(spark, self._spec.storage_options)
        for sink in (sink for pipeline in self._pipelines for sink in pipeline.sinks):
            if isinstance(sink, StoredSink):
                sink.use_storage_options(options)
        return replace(self.spec, service=service, storage_options=options)


def _required(text: str, setting: str) -> str:
    if not text.strip():
        raise ConfigError(
            "a setting of the job is empty",
            {"missing": setting},
            f"Give {setting} a value of this job's own.",
        )
    return text


def _optional(path: str | os.PathLike[str] | None, setting: str) -> str | None:
    return None if path is None else _required(os.fspath(path), setting)


def _require_session(spark: object) -> None:
    """Refuse a session that cannot run a job, before Spark fails with an obscure error."""
    context = getattr(spark, "sparkContext", None)
    if context is None:
        raise ConfigError(
            "a job runs in a SparkSession of its own process",
            {"given": f"{type(spark).__module__}.{type(spark).__qualname__}"},
            "Create a session without Spark Connect: without .remote(…) and SPARK_REMOTE.",
        )
    if getattr(context, "_jsc", True) is None:
        raise ConfigError(
            "the SparkSession of the job has been stopped",
            {"argument": "spark"},
            "Create a new session, and a new Job with it.",
        )


def _until_end(source: Source) -> Source:
    if source.bounded:
        return source
    if not isinstance(source, EndableSource):
        raise ConfigError(
            "this source has no end", {"source": source.name}, "Stop the job with its handle."
        )
    return source.until_end()


def _interval(seconds: float | None) -> float:
    """Refuse None: in a query, Spark's trigger is the barrier; a job would never take one."""
    if seconds is None:
        raise ConfigError(
            "a job needs an interval between its barriers",
            {"interval_s": None},
            "Use seconds; 0 takes barriers without a pause.",
        )
    return seconds


def _registry(given: str | os.PathLike[str] | None) -> str | None:
    uri = os.environ.get(REGISTRY_VARIABLE) if given is None else os.fspath(given)
    return absolute_uri(uri) if uri else None


def _full_every(checkpoints: int | None) -> int | None:
    if checkpoints is not None and checkpoints < 1:
        raise ConfigError(
            "full checkpoints are too frequent",
            {"full_checkpoint_every": checkpoints},
            "Use 1 or more, or leave it out.",
        )
    return checkpoints


def _regions(number: int | None) -> int | None:
    if number is not None and number < 1:
        raise ConfigError("a job has at least one region", {"regions": number}, "Use 1 or more.")
    return number


def _is_led_elsewhere(coordinator: str) -> bool:
    if coordinator not in ("driver", "process"):
        raise ConfigError(
            "the job has no such place for its coordinator",
            {"coordinator": coordinator},
            "Use driver, or process with `sluice coordinator start`.",
        )
    return coordinator == "process"


def _lost_timeout(seconds: float | None) -> float | None:
    if seconds is not None and not 0 < seconds < math.inf:
        raise ConfigError(
            "a task needs a heartbeat timeout above zero",
            {"coordinator_lost_timeout_s": seconds},
            "Use seconds above 0, or leave it out.",
        )
    return seconds


def _resource_timeout(seconds: float | None) -> float | None:
    if seconds is not None and not 0 < seconds < math.inf:
        raise ConfigError(
            "the time limit for missing cores must be above zero",
            {"resource_timeout_s": seconds},
            "Use seconds above 0, or None for no limit.",
        )
    return seconds


def _recovery(text: str) -> Recovery:
    remedy = "Use region or single-point to retry tasks alone, or approximate to drop their input."
    return choice_of(Recovery, text, setting="recovery", remedy=remedy)


def _drop_limit(recovery: str, records: int | None, in_all: int | None) -> DropLimit | None:
    settings = {"max_dropped_records": records, "max_dropped_in_all": in_all}
    if _recovery(recovery) is not Recovery.APPROXIMATE:
        given = {name: value for name, value in settings.items() if value is not None}
        if given:
            raise ConfigError(
                "only approximate recovery has a bound of dropped records",
                {"recovery": recovery, **given},
                "Leave the bound out, or use recovery='approximate'.",
            )
        return None
    if records is None:
        raise ConfigError(
            "approximate recovery needs a bound",
            {"recovery": recovery, "missing": "max_dropped_records"},
            "Set the number of records that a checkpoint may drop after task failures.",
        )
    return DropLimit(per_checkpoint=records, in_all=in_all)


def _tolerable(failures: int | None, strategy: RestartStrategy | None) -> int:
    if failures is not None and strategy is not None:
        raise ConfigError(
            "a job has a restart strategy and tolerable failures",
            {"tolerable_failures": failures, "restart_strategy": strategy},
            "Leave one out: the strategy alone counts failures, for each region separately.",
        )
    return TOLERABLE_FAILURES if failures is None else failures
