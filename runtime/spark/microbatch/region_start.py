"""Prepares the start of a region's query: its Spark directory, rewound, and its first offset
(`restore-by-attempt`)."""

import json
import logging
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePosixPath

from sluice.runtime.checkpoint.retention import EVERY_BATCH, spark_batches_to_retain
from sluice.runtime.contracts import MetadataStore
from sluice.runtime.errors import (
    DamagedCheckpointError,
    FencedError,
    StorageError,
    UnsupportedFormatError,
)
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.model import offsets
from sluice.runtime.model.checkpoint_record import CheckpointRecord, RegionRecord, Verdict
from sluice.runtime.model.splits import Barrier, SplitRange
from sluice.runtime.spark.microbatch import query_logs
from sluice.runtime.storage.file_system import FileSystem

__all__ = [
    "batches_to_retain",
    "delete_attempts",
    "delete_vanished",
    "initial_offset",
    "location_of",
    "make_ready",
    "replayed",
    "require_rewindable",
]

log = logging.getLogger(__name__)

_STATE = "state-"
_RESTORED = "restored-"
_SPARK_DEFAULT = 100  # spark.sql.streaming.minBatchesToRetain


def location_of(region: Region, restored: RegionRecord, *, attempt_id: int) -> str:
    """Spark's checkpoint location, relative to the job's.

    Each attempt of a stateless region has a new one. From its first decision on, a stateful region
    keeps its directory, which contains its state. Before that, each attempt has a directory of its
    own, so that a paused older run does not delete it.
    """
    directory = f"spark/{region.name}"
    if not region.stateful:
        return f"{directory}/{attempt_id}"
    if restored.state is not None:
        return str(PurePosixPath(restored.state.location).parent)
    return f"{directory}/{_STATE}{attempt_id}"


def make_ready(
    fs: FileSystem, region: Region, location: str, restored: RegionRecord, *, attempt_id: int
) -> None:
    """Remove all entries from Spark's logs that ``_metadata`` does not have; the new query resumes
    there.

    Args:
        attempt_id: the attempt that begins. This process may have been paused, and a newer run may
            have taken over.
    Raises:
        DamagedCheckpointError: a stateful region's logs contradict ``_metadata``, or lack batches.
        FencedError: a stateful region's logs belong to a newer run.
    """
    if not region.stateful:
        delete_attempts(fs, region.name, attempt_id=attempt_id)
        return
    if max(_attempts(fs, region.name).values(), default=-1) > attempt_id:
        raise FencedError(
            "a newer run of the job has taken over this region",
            {"region": region.name, "attempt_id": attempt_id, "location": location},
            "Let the newer one run, or stop it first. If there is none, checkpoints were deleted "
            "or restored manually: restore this directory from the same time, too, or delete it "
            "with the checkpoints, which loses the region's state.",
        )
    if restored.batch_id is None:  # never decided
        delete_attempts(fs, region.name, attempt_id=attempt_id)
        return
    _require_logged(fs, region, location, restored, batch_id=restored.batch_id)
    query_logs.rewind(fs, location, last_batch_id=restored.batch_id)
    _delete_other_copies(fs, region.name, location)


def replayed(
    fs: FileSystem, region: Region, location: str, restored: RegionRecord
) -> Barrier | None:
    """The decided batch that Spark replays when the query starts, from its log: the last attempt
    ended before Spark had logged the commit of that batch. None: there is none.

    Call it after `make_ready`.
    """
    batch_id = restored.batch_id
    if not region.stateful or batch_id is None or fs.exists(f"{location}/commits/{batch_id}"):
        return None
    return offsets.decode(query_logs.read_offset(fs, location, batch_id, region.source_name))


def require_rewindable(fs: FileSystem, regions: Iterable[Region], record: CheckpointRecord) -> None:
    """Spark's logs reach back to a checkpoint, for each region that keeps state.

    Raises:
        DamagedCheckpointError: they do not: a start from an older checkpoint has removed later
            batches, and begun to write other batches there.
    """
    stateful = {region.name: region for region in regions if region.stateful}
    for restored in record.regions:
        region = stateful.get(restored.region)
        if region is not None and restored.state is not None and restored.batch_id is not None:
            location = location_of(region, restored, attempt_id=restored.attempt_id)
            _require_logged(fs, region, location, restored, batch_id=restored.batch_id)


def _require_logged(
    fs: FileSystem, region: Region, location: str, restored: RegionRecord, *, batch_id: int
) -> None:
    logged = query_logs.read_offset(fs, location, batch_id, region.source_name)
    query_logs.require_ends(offsets.decode(logged).splits, restored)


def delete_attempts(fs: FileSystem, region: str, *, attempt_id: int) -> None:
    """Delete Spark's logs of a region's attempts up to this one. It keeps logs of a newer run, also
    those that begin meanwhile: this process may have been paused, and a newer run may have taken
    over."""
    for path, newest in _attempts(fs, region).items():
        if newest <= attempt_id:
            fs.delete(path)


def _delete_other_copies(fs: FileSystem, region: str, location: str) -> None:
    """Delete what starts have copied that did not become the job: they were killed, or another
    start was faster. An error is harmless."""
    directory = f"spark/{region}"
    try:
        for entry in fs.entries(directory):
            path = f"{directory}/{entry.name}"
            if entry.name.startswith(_RESTORED) and path != location:
                fs.delete(path)
    except StorageError as err:  # the next start tries again
        log.warning("copies of other starts were not deleted: region=%s error=%s", region, err)


def _attempts(fs: FileSystem, region: str) -> dict[str, int]:
    """The directories of a region's attempts, with the newest attempt that has used each."""
    directory = f"spark/{region}"
    found = {}
    for entry in fs.entries(directory):
        path = f"{directory}/{entry.name}"
        number = entry.name.removeprefix(_STATE)
        begun = int(number) if number.isdecimal() else -1
        # An attempt with a directory of its own may have logged no batch yet.
        found[path] = max(begun, query_logs.newest_attempt_id(fs, path))
    return found


def delete_vanished(fs: FileSystem, regions: Collection[str], *, attempt_id: int) -> None:
    """Delete Spark's logs of regions that the job no longer has. They had no state, because the
    start refuses to drop state. An error is harmless."""
    try:
        for entry in fs.entries("spark"):
            if entry.is_directory and entry.name not in regions:
                delete_attempts(fs, entry.name, attempt_id=attempt_id)
    except StorageError as err:  # the next start tries again
        log.warning("logs of vanished regions were not deleted: error=%s", err)


def initial_offset(restored: RegionRecord, *, attempt_id: int, after: int) -> str:
    """The restored position, decided by checkpoint ``after`` or an earlier one, as the first offset
    of an attempt: it reads nothing."""
    position = Barrier(
        checkpoint_id=after,
        region=restored.region,
        attempt_id=attempt_id,
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


def batches_to_retain(store: MetadataStore, *, retained: int) -> int:
    """``minBatchesToRetain`` of a run: Spark keeps every batch that a record here names.

    Called before the start, while this process makes no other use of the store.
    """
    try:
        fenced = store.known_fencing_records()
        decided = [
            record
            for place in store.slots()
            if place not in fenced
            and (record := store.read(place)) is not None
            and record.verdict is Verdict.DECIDED
            # Kept for ever. Its batch comes from another job, whose savepoint still has it.
            and place > 0
        ]
    except (DamagedCheckpointError, UnsupportedFormatError):
        return EVERY_BATCH  # an unreadable record may name any batch
    needed = spark_batches_to_retain(decided, _next_batches(decided), retain=retained)
    return max(_SPARK_DEFAULT, needed)


def _next_batches(decided: Sequence[CheckpointRecord]) -> dict[tuple[str, int], int]:
    """By region and attempt; batch ids of a stateful region continue over its attempts."""
    newest = {region.region: region for record in decided[-1:] for region in record.regions}
    return {
        (region.region, region.attempt_id): last.batch_id + 1
        for record in decided
        for region in record.regions
        if (last := newest.get(region.region)) is not None and last.batch_id is not None
    }
