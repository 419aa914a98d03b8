"""The repartition topics of a run: their names before it starts, and the topics after its fencing
record."""

import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore, open_store
from sluice.runtime.contracts import JobTopic, JobTopicSource, TopicStart
from sluice.runtime.coordinator.policy.checkpoint_plan import StartedJob
from sluice.runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    FencedError,
    StorageError,
)
from sluice.runtime.failpoints import failpoint
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.graph.pipeline import Pipeline, Recovery
from sluice.runtime.graph.repartitioning import Splitting, on_topics
from sluice.runtime.spark.run.job_spec import JobSpec
from sluice.runtime.storage.file_system import FileSystem, close_quietly

__all__ = ["claimed_uid", "named", "prepared", "prepared_topics"]

log = logging.getLogger(__name__)

_TIMEOUT_S = 60.0
_UID_FILE = "_job-uid"


def named(job: JobSpec) -> JobSpec:
    """The job with a pipeline for each side of each ``key_by``, and names for their topics.

    Raises:
        ConfigError: rows cannot go through a topic there.
    """
    parts = _split(job, "")
    if not any(isinstance(each.source, JobTopicSource) for each in parts):
        return job
    if job.recovery is Recovery.APPROXIMATE:
        raise ConfigError(
            "recovery='approximate' cannot drop rows of a repartition topic",
            {"job": job.name},
            "Use recovery='region', or key_by(…, partitioned=True).",
        )
    jvm = job.spark.sparkContext._jvm  # noqa: SLF001 - PySpark's only way to Hadoop's classes
    store = open_store(job.checkpoint_dir, jvm, job.storage_options)
    try:
        uid = _uid_of(store) or (claimed_uid(store.fs) if job.is_led_elsewhere else _new_uid())
    finally:
        close_quietly(store.fs)
    return replace(job, pipelines=_split(job, uid), uid=uid)


def _split(job: JobSpec, uid: str) -> tuple[Pipeline, ...]:
    return Splitting(job.name, uid, regions=job.regions or 1).pipelines(job.pipelines)


def _uid_of(store: CheckpointStore) -> str:
    """The uid of the job in a checkpoint directory; empty if there is none yet."""
    for checkpoint_id in reversed(store.slots()):
        try:
            record = store.read(checkpoint_id)
        except DamagedCheckpointError:
            continue  # the start decides whether it needs this record
        if record is not None:
            return record.job_uid
    return ""


def _new_uid() -> str:
    return str(uuid.uuid4())


def claimed_uid(fs: FileSystem) -> str:
    """The uid of a new job that several drivers may describe at once: the first one draws it.

    The coordinator begins the job with this uid. So all drivers and leaders name the same topics.
    """
    data = f"{_new_uid()}\n".encode()
    if (found := fs.read(_UID_FILE)) is None:
        temporary = f".{_UID_FILE}.{uuid.uuid4().hex}.tmp"
        failpoint("before-job-uid")
        fs.stage(temporary, data)
        if not fs.place(temporary, _UID_FILE, data) and fs.has_temporaries:
            fs.delete(temporary)
        failpoint("after-job-uid")
        found = fs.read(_UID_FILE)
    if found is None:
        raise StorageError(
            "a file vanished that was just written",
            {"uri": fs.uri, "path": _UID_FILE},
            "Start the job again, and let no other program delete files there.",
        )
    return found.decode().strip()


def prepared(
    regions: Sequence[Region], started: StartedJob, job_uid: str | None
) -> tuple[Region, ...]:
    """The regions, after every topic between them was created or checked: see `prepared_topics`."""
    topics = prepared_topics(regions, started, job_uid)
    return tuple(on_topics(region, topics) for region in regions)


def prepared_topics(
    regions: Sequence[Region], started: StartedJob, job_uid: str | None
) -> dict[str, JobTopic]:
    """Create or check every topic between the regions; by operator id of its source.

    Args:
        job_uid: by which the topics were named; None: there are none.
    Raises:
        FencedError: another start of this new job was faster.
        StreamError: a topic is gone, unsafe, or was not created.
    """
    if job_uid is None:
        return {}
    if started.job_uid != job_uid:
        raise FencedError(
            "another process has started this new job at the same time",
            {"job_uid": started.job_uid},
            "Stop one of them. This one has named its topics after another job uid.",
        )
    sources = {region.source_id: region.pipeline.source for region in regions}
    return {
        source_id: _prepared(source_id, source, regions, started)
        for source_id, source in sources.items()
        if isinstance(source, JobTopicSource)
    }


def _prepared(
    source_id: str, source: JobTopicSource, regions: Sequence[Region], started: StartedJob
) -> JobTopic:
    start = TopicStart(
        readers=[started.regions[each.name] for each in regions if each.source_id == source_id],
        is_first=not started.restored_from,
        copy=started.copies.get(source_id),
    )
    source.prepare_topic(start, timeout_s=_TIMEOUT_S)
    log.info("repartition topic: topic=%s partitions=%d", source.topic, start.partitions)
    return JobTopic(
        partitions=start.partitions,
        max_parallelism=start.max_parallelism,
        lineage=started.lineage,
    )
