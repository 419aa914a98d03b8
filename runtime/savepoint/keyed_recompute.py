"""Makes a savepoint with another number of key groups, or of partitions of a repartition topic.

::

    state/R/0-0-….merged    the state of R's new splits: one section each
    spark/…, state/…        all other state: copied, or linked
    _metadata               the same positions; written last

A repartition topic is a new one in every restored job, so its splits begin at offset 0. Rows in
flight are copied into it from the topic of the old job: the setting `IN_FLIGHT` has the positions.
"""

import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sluice.runtime.coordinator.policy.assignment import assignment_of
from sluice.runtime.errors import ConfigError, DamagedCheckpointError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.checkpoint_record import CheckpointKind, CheckpointRecord, RegionRecord
from sluice.runtime.model.event_time import least_of
from sluice.runtime.model.splits import SplitKey, SplitRange
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.key_groups import LARGEST_MAX_PARALLELISM
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.savepoint.keyed_rows import local_state
from sluice.runtime.savepoint.savepoint import Savepoint, StateFile
from sluice.runtime.savepoint.savepoint_writer import (
    Written,
    abandoned_on_error,
    publish_copies,
    self_contained,
)
from sluice.runtime.savepoint.spark_files import is_shared
from sluice.runtime.savepoint.state_redistribution import KeyGroups, Redistribution
from sluice.runtime.state.state_files import StateStore, state_file_name
from sluice.runtime.state.state_parts import PlacedPart, keyed_state
from sluice.runtime.storage.file_copies import FileCopy, copy_files
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.local_fs import LocalFileSystem
from sluice.runtime.storage.task_files import LocalTaskFiles

__all__ = ["IN_FLIGHT", "Recompute"]

log = logging.getLogger(__name__)

IN_FLIGHT = "repartition_positions"
"""Setting of a recomputed savepoint: by operator id of a source its old topic, and what the old
job has read of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """One call of the command.

    Attributes:
        savepoint: the source; only read.
        max_parallelism: new number of key groups.
        partitions: new number of partitions of each repartition topic; None: as before.
        parent: the directory that the new savepoint gets a directory in.
        name: of that directory.
        progress: called with the bytes of state that were read, and of all.
    """

    savepoint: Savepoint
    max_parallelism: int
    partitions: int | None
    parent: FileSystem
    name: str
    progress: Callable[[int, int], None] = lambda *_: None

    def run(self) -> Written:
        """Write the savepoint.

        Raises:
            ConfigError: there is nothing to recompute, or the numbers do not fit.
            DamagedCheckpointError: a file of the source is damaged, or entries differ after it.
        """
        chosen = self._chosen()
        failpoint("before-recompute")
        with abandoned_on_error(self.parent, self.name):
            files = self._files_of_spark()
            kept = self._copied(chosen, files)
            failpoint("after-recompute-copy")
            made = {region.region: region for region in self._recomputed(chosen)}
            failpoint("after-recompute")
            record = self._record(chosen, files, kept, made)
        return publish_copies(
            self.parent, self.name, record, copied_bytes=sum(f.length_bytes for f in kept.values())
        )

    def _chosen(self) -> dict[str, list[RegionRecord]]:
        """The regions of each repartition topic whose state is recomputed, by source."""
        record = self.savepoint.record
        where = {"uri": self.savepoint.uri, "max_parallelism": self.max_parallelism}
        states = [r.keyed_state for r in record.regions if r.keyed_state is not None]
        topics = sorted(
            {split.source_id for s in states if s.max_parallelism for split in s.splits}
        )
        # A reader that has had no row yet has no state, but it has partitions of the topic.
        found = {
            topic: [r for r in record.regions if any(s.source_id == topic for s in r.splits)]
            for topic in topics
        }
        if not found:
            what = (
                "keyed state of this savepoint belongs to the partitions of its input"
                if states
                else "the savepoint has no keyed state"
            )
            raise ConfigError(
                what,
                where,
                "Recompute state of key_by() with a repartition topic. State of "
                "key_by(partitioned=True) follows its partitions: any regions= works.",
            )
        for regions in found.values():
            wanted = self.partitions or _partitions(regions)
            if not 1 <= wanted <= self.max_parallelism <= LARGEST_MAX_PARALLELISM:
                raise ConfigError(
                    "partitions and maximum parallelism do not fit together",
                    {**where, "partitions": wanted},
                    f"Use 1 <= partitions <= max_parallelism <= {LARGEST_MAX_PARALLELISM}.",
                )
        if all(self._is_same(regions) for regions in found.values()):
            raise ConfigError(
                "the savepoint has these numbers already",
                {**where, "partitions": self.partitions},
                "Give another --max-parallelism or --partitions.",
            )
        return found

    def _is_same(self, regions: Sequence[RegionRecord]) -> bool:
        count = _partitions(regions)
        before = KeyedState.key_groups_of(_states(regions))
        return before == self.max_parallelism and (self.partitions or count) == count

    # --- other state: as it is -------------------------------------------------------------------

    def _files_of_spark(self) -> dict[str, list[StateFile]]:
        names = (region.region for region in self.savepoint.record.regions)
        return {name: self.savepoint.state_files(name) for name in names}

    def _copied(
        self, chosen: dict[str, list[RegionRecord]], of_spark: dict[str, list[StateFile]]
    ) -> dict[str, FileReference]:
        """The copy of each file that stays, by its path in the source."""
        left = {region.region for regions in chosen.values() for region in regions}
        needed = {
            file.path
            for region in self.savepoint.record.regions
            if region.keyed_state is not None and region.region not in left
            for file in region.keyed_state.files
        }
        files = [each for mine in of_spark.values() for each in mine]
        files += [each for each in self.savepoint.keyed_files() if each.source in needed]
        copies = [FileCopy(e.source, f"{self.name}/{e.path}", is_shared(e.path)) for e in files]
        found = copy_files(self.savepoint.fs, self.parent, copies)
        for file, copy in zip(files, found, strict=True):
            if file.reference is not None and file.reference.sha256 != copy.sha256:
                raise _damaged(self.savepoint.uri, file.source)
        return {
            file.source: replace(copy, path=file.path)
            for file, copy in zip(files, found, strict=True)
        }

    # --- keyed state of repartition topics -------------------------------------------------------

    def _recomputed(self, chosen: dict[str, list[RegionRecord]]) -> Iterator[RegionRecord]:
        total = sum(_bytes(region) for regions in chosen.values() for region in regions)
        done = 0

        def progress(length_bytes: int) -> None:
            nonlocal done
            done += length_bytes
            self.progress(done, total)

        for regions in chosen.values():
            with tempfile.TemporaryDirectory(prefix="sluice-recompute-") as scratch:
                yield from self._of_topic(regions, Path(scratch), progress)

    def _of_topic(
        self, regions: Sequence[RegionRecord], scratch: Path, progress: Callable[[int], None]
    ) -> Iterator[RegionRecord]:
        state = KeyedState.merged(_states(regions))
        assert state is not None  # `_chosen` looks
        groups = KeyGroups(
            max_parallelism=self.max_parallelism,
            partitions=self.partitions or _partitions(regions),
        )
        with local_state(self.savepoint, state.files) as source:
            redistribution = Redistribution(
                source, state, groups, scratch=scratch, progress=progress
            )
        target = self._target(scratch)
        ranges = _new_ranges(regions, groups.partitions)
        declared = replace(
            state, max_parallelism=groups.max_parallelism, partitions=groups.partitions
        )
        for at, region in enumerate(regions):
            mine = tuple(ranges[at :: len(regions)])
            parts = self._written(redistribution, target, region.region, mine)
            redistribution.check(target, {key[2]: part for key, part in parts.items()})
            chains = {split.key: [parts[split.key]] if split.key in parts else [] for split in mine}
            found = keyed_state(declared, chains)
            self._bring(found.files, target)
            yield replace(
                region,
                splits=mine,
                least_watermark_ms=least_of(split.watermark_ms for split in mine),
                keyed_state=found,
                committables=(),
            )
        redistribution.require_same()
        log.info(
            "keyed state recomputed: rows=%d max_parallelism=%d partitions=%d",
            redistribution.rows,
            groups.max_parallelism,
            groups.partitions,
        )

    def _target(self, scratch: Path) -> StateStore:
        """The directory of new files: the new savepoint's, if it is on this host."""
        root = scratch / "new"
        if isinstance(self.parent, LocalFileSystem):
            root = self.parent.host_path(self.name)
        return StateStore(files=LocalTaskFiles(), root=str(root))

    def _bring(self, files: Sequence[FileReference], target: StateStore) -> None:
        """Copy new files into the savepoint, if they are not written there."""
        if isinstance(self.parent, LocalFileSystem):
            return
        copies = [FileCopy(file.path, f"{self.name}/{file.path}", may_link=False) for file in files]
        found = copy_files(LocalFileSystem(Path(target.root)), self.parent, copies)
        for file, copy in zip(files, found, strict=True):
            if file.sha256 != copy.sha256:
                raise _damaged(self.parent.uri, copy.path)

    def _written(
        self,
        redistribution: Redistribution,
        target: StateStore,
        region: str,
        splits: Sequence[SplitRange],
    ) -> dict[SplitKey, PlacedPart]:
        """The new part of each split that has state, all in one file."""
        splits = [split for split in splits if redistribution.has(split.partition)]
        if not splits:
            return {}
        writer = target.create(state_file_name(region, 0, 0, "merged"))
        try:
            sections = {
                split.key: redistribution.write(split.partition, writer) for split in splits
            }
            file = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        return {
            key: PlacedPart(file=file, offset=offset, length=length, is_base=True)
            for key, (offset, length) in sections.items()
        }

    # --- the record ------------------------------------------------------------------------------

    def _record(
        self,
        chosen: dict[str, list[RegionRecord]],
        files: dict[str, list[StateFile]],
        kept: dict[str, FileReference],
        made: dict[str, RegionRecord],
    ) -> CheckpointRecord:
        before = self.savepoint.record
        known = json.loads(before.settings.get(IN_FLIGHT, "{}"))
        in_flight = {
            source_id: _positions(regions) for source_id, regions in chosen.items()
        } | known
        of_spark = {name: [each.source for each in mine] for name, mine in files.items()}
        others = [region for region in before.regions if region.region not in made]
        copied = self_contained(
            replace(before, regions=tuple(others)), of_spark, kept, kind=CheckpointKind.SAVEPOINT
        )
        regions = {region.region: self._divided_alike(region) for region in copied.regions} | made
        whole = tuple(regions[region.region] for region in before.regions)
        return replace(
            copied,
            regions=whole,
            assignment=assignment_of(whole),
            settings={**before.settings, IN_FLIGHT: json.dumps(in_flight)},
            requested_by="user",
            reason=f"{self.max_parallelism} key groups, from {self.savepoint.uri}",
            created_at_ms=time.time_ns() // 1_000_000,
        )

    def _divided_alike(self, region: RegionRecord) -> RegionRecord:
        """A region without splits has the number of key groups of all repartition topics."""
        state = region.keyed_state
        if state is None or state.splits or not state.max_parallelism:
            return region
        return replace(region, keyed_state=replace(state, max_parallelism=self.max_parallelism))


def _states(regions: Sequence[RegionRecord]) -> list[KeyedState]:
    return [region.keyed_state for region in regions if region.keyed_state is not None]


def _damaged(uri: str, path: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        "a file of the state is damaged",
        {"uri": uri, "path": path},
        "Choose another savepoint; 'sluice savepoint verify' checks all of its files.",
    )


def _partitions(regions: Sequence[RegionRecord]) -> int:
    return sum(len(region.splits) for region in regions)


def _bytes(region: RegionRecord) -> int:
    splits = () if region.keyed_state is None else region.keyed_state.splits
    return sum(part.length for split in splits for part in split.parts)


def _new_ranges(regions: Sequence[RegionRecord], partitions: int) -> list[SplitRange]:
    """The splits of the new topic, at its begin. They have passed only the time that all old ones
    have passed; a row is late if it was late for one of them."""
    before = [split for region in regions for split in region.splits]
    watermarks = [split.watermark_ms for split in before]
    closed = [s.barrier_watermark_ms for s in before if s.barrier_watermark_ms is not None]
    return [
        SplitRange(
            source_id=before[0].source_id,
            topic=before[0].topic,
            topic_id="",
            partition=partition,
            start_offset=0,
            end_offset=0,
            watermark_ms=None if None in watermarks else least_of(watermarks),
            barrier_watermark_ms=max(closed, default=None),
        )
        for partition in range(partitions)
    ]


def _positions(regions: Sequence[RegionRecord]) -> dict[str, object]:
    """The positions of the old job in its topic."""
    splits = [split for region in regions for split in region.splits]
    return {
        "topic_id": next((split.topic_id for split in splits if split.topic_id), ""),
        "offsets": {str(split.partition): split.end_offset for split in splits},
    }
