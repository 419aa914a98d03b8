"""A job as its coordinator needs it, without a Spark session; and the coordinator that it makes."""

import contextlib
import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark import cloudpickle

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.format.committable_kinds import installed_kinds
from sluice.runtime.continuous.native_commits import TasksFirst
from sluice.runtime.contracts import Sink, SinkCoordinator, Source, SplitEnumerator
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, JobPlan
from sluice.runtime.coordinator.shell.action_dispatcher import ProgressListener
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.coordinator.start.takeover import Takeover
from sluice.runtime.coordinator.start.translation import RestoreRules
from sluice.runtime.election.leader_election import LeaderElection
from sluice.runtime.errors import StreamError, UnsupportedFormatError
from sluice.runtime.graph.job_graph import Region, job_plan
from sluice.runtime.model.checkpoint_record import CheckpointRecord
from sluice.runtime.process.closing import close_logged
from sluice.runtime.spark.run.checkpoint_copies import CheckpointCopies
from sluice.runtime.spark.run.job_spec import JobSpec
from sluice.runtime.spark.run.range_repair import ChainRepairer
from sluice.runtime.spark.run.region_layout import Layout, between_barriers_s
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem

__all__ = ["JobDescription", "coordinator_of", "describe", "publish", "read_description"]

_FILE = "_job"
_VERSION = b"sluice-job-2\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDescription:
    """Picklable, with the user's functions; the coordinator's process needs their modules.

    Attributes:
        plan: of the job.
        settings: of its checkpoints.
        regions: with their sources, functions and sinks.
        continuous: names of the regions that run continuously.
        uid: known before the start, if topics are named after it; None: it is not.
        lost_timeout_s: the user's setting; None: the default.
        between_barriers_s: the longest time that an epoch is open before its barrier.
        restore_from: checkpoint id, or URI of another job's state; None: the newest checkpoint.
        restore_rules: of a restore from a URI.
        clusters: id of the cluster that each source reads, by operator id.
    """

    plan: JobPlan
    settings: CheckpointSettings
    regions: tuple[Region, ...] = field(repr=False)
    continuous: frozenset[str]
    uid: str | None
    lost_timeout_s: float | None
    between_barriers_s: float
    restore_from: int | str | None = None
    restore_rules: RestoreRules = field(default_factory=RestoreRules)
    clusters: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Equal for all drivers of one job that describe the same regions and operators, name the
        same topics, and request the same restore."""
        plan = self.plan
        told = (
            plan.name,
            [(each.name, each.source_ids, each.sink_ids) for each in plan.regions],
            [node.operator_id for node in plan.graph],
            self.uid,
            self.restore_from,
        )
        return hashlib.sha256(repr(told).encode()).hexdigest()


def describe(job: JobSpec, layout: Layout) -> JobDescription:
    """The job with the layout of its start."""
    return JobDescription(
        plan=job_plan(
            job.name,
            layout.graph,
            layout.regions,
            checkpoints=job.settings,
            spark_version=job.spark.version,
            cluster_ids=tuple(layout.clusters.values()),
            continuous=layout.continuous,
        ),
        settings=job.settings,
        regions=layout.regions,
        continuous=layout.continuous,
        uid=job.uid,
        lost_timeout_s=job.coordinator_lost_timeout_s,
        between_barriers_s=between_barriers_s(job),
        restore_from=job.restore_from,
        restore_rules=job.restore_rules,
        clusters=layout.clusters,
    )


def publish(
    fs: FileSystem, description: JobDescription, *, is_led: Callable[[], bool] = lambda: False
) -> None:
    """Put it into the checkpoint directory, for the coordinator of the job.

    Another job stays there as long as a leader runs it: the leader refuses this driver.

    Args:
        is_led: whether a leader answers.
    Raises:
        StreamError: something of it cannot be pickled, or the store does not answer.
    """
    try:
        pickled: bytes = cloudpickle.dumps(description)  # type: ignore[no-untyped-call]  # PySpark's
    except Exception as err:
        raise StreamError(
            "the job cannot be sent to its coordinator",
            {"job": description.plan.name, "reason": f"{type(err).__name__}: {err}"},
            "Keep open files, connections and locks out of sources, functions and sinks.",
        ) from err
    if not (_has_other(fs, description) and is_led()):
        fs.replace(_FILE, _VERSION + pickled, is_private=True)


def _has_other(fs: FileSystem, description: JobDescription) -> bool:
    try:
        found = read_description(fs)
    except UnsupportedFormatError:
        return True  # of another version, or with modules that are missing here
    return found is not None and found.digest != description.digest


def read_description(fs: FileSystem) -> JobDescription | None:
    """The job that a driver described last; None: no driver has yet.

    Raises:
        UnsupportedFormatError: another version of Sluice wrote it, or a module is missing here.
        StreamError: the store does not answer.
    """
    data = fs.read(_FILE)
    if data is None:
        return None
    where: dict[str, object] = {"uri": fs.uri, "file": _FILE}
    try:
        if not data.startswith(_VERSION):
            raise ValueError(data[: len(_VERSION)])
        found = pickle.loads(data[len(_VERSION) :])  # written by a driver of this user
        if not isinstance(found, JobDescription):
            raise TypeError(type(found).__name__)
    except Exception as err:
        raise UnsupportedFormatError(
            "the description of the job cannot be read here",
            {**where, "reason": f"{type(err).__name__}: {err}"},
            "Install the driver's version of sluice-spark, and the modules of the job's functions, "
            "for the coordinator.",
        ) from err
    return found


def coordinator_of(
    description: JobDescription,
    store: CheckpointStore,
    *,
    listeners: Sequence[ProgressListener],
    tasks_first: TasksFirst,
    open_fs: OpenFileSystem,
    files: FileSystem | None = None,
    spark_batches: int | None = None,
    require_restorable: Callable[[CheckpointRecord], None] = lambda _: None,
    election: LeaderElection | None = None,
    takeover: Takeover | None = None,
) -> tuple[BarrierCoordinator, dict[str, SplitEnumerator]]:
    """The coordinator, and its sources by operator id; it closes these and its sinks when it stops.

    Args:
        tasks_first: for the sinks that continuous tasks write to.
        open_fs: opens the directory of a savepoint.
        files: the checkpoint directory with Spark's files; None: they lie in it, or there are none.
        spark_batches: that Spark keeps of each region with state.
        require_restorable, election, takeover: see `BarrierCoordinator`.
    """
    regions = description.regions
    with contextlib.ExitStack() as opened:
        sources: dict[str, SplitEnumerator] = {}
        for i, source in _sources(regions).items():
            sources[i] = source.enumerator(i)
            opened.callback(close_logged, sources[i].close, f"source {source.name}")
        sinks: dict[str, SinkCoordinator] = {}
        theirs = {i for r in regions if r.name in description.continuous for i in r.sinks}
        for i, sink in _sinks(regions).items():
            sinks[i] = sink.coordinator()
            opened.callback(close_logged, sinks[i].close, f"sink {sink.name}")
        coordinator = BarrierCoordinator(
            description.plan,
            store,
            sinks=sinks,
            sources=sources,
            settings=replace(description.settings, spark_batches=spark_batches),
            listeners=listeners,
            repairer=ChainRepairer(
                regions={region.name: region for region in regions},
                sinks=sinks,
                job_name=description.plan.name,
            ),
            tasks_first=dict.fromkeys(theirs, tasks_first),
            require_known=installed_kinds().require_known,
            require_restorable=require_restorable,
            new_job_uid=description.uid,
            copier=CheckpointCopies(
                files or store.fs, open_fs=open_fs, retained=description.settings.retained
            ),
            election=election,
            takeover=takeover,
        )
        opened.pop_all()  # the coordinator closes them now
    return coordinator, sources


def _sinks(regions: Sequence[Region]) -> Mapping[str, Sink]:
    """By operator id; regions of one pipeline share theirs."""
    return {i: sink for region in regions for i, sink in region.sinks.items()}


def _sources(regions: Sequence[Region]) -> Mapping[str, Source]:
    return {region.source_id: region.pipeline.source for region in regions}
