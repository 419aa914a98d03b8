"""Where a region's query starts: its Spark directory, rewound, and its first offset (rule 9)."""

import json

from runtime import offsets
from runtime.checkpoint.file_system import FileSystem
from runtime.checkpoint.plan import StartedJob
from runtime.model import Barrier, RegionRecord, SplitRange
from runtime.spark import query_logs
from runtime.spark.job_graph import Region

__all__ = ["initial_offset", "location_of", "make_ready"]


def location_of(region: Region, generation: int) -> str:
    """Spark's checkpoint location, relative to the job's: new for each life of a stateless region.

    A stateful region keeps its directory, because its state lies in it.
    """
    return f"spark/{region.name}/{'state' if region.stateful else generation}"


def make_ready(fs: FileSystem, region: Region, location: str, restored: RegionRecord) -> None:
    """Let Spark's logs say no more than ``_metadata`` does; the new query then goes on there."""
    if region.stateful and restored.batch_id is not None:
        query_logs.rewind(fs, location, last_batch_id=restored.batch_id)
        return
    fs.delete(f"spark/{region.name}")  # older lives of a stateless region, or one never decided


def initial_offset(restored: RegionRecord, started: StartedJob) -> str:
    """The restored position as Spark's first offset: it reads nothing."""
    position = Barrier(
        checkpoint_id=started.restored_from or 0,
        region=restored.region,
        generation=started.generation,
        splits=tuple(_at_end(split) for split in restored.splits),
    )
    return json.dumps(offsets.encode(position, initial=True))


def _at_end(split: SplitRange) -> SplitRange:
    return SplitRange(
        source_id=split.source_id,
        topic=split.topic,
        topic_id=split.topic_id,
        partition=split.partition,
        start_offset=split.end_offset,
        end_offset=split.end_offset,
    )
