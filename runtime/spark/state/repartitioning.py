"""Makes a savepoint with another number of state partitions, through Spark's own repartition.

::

    spark/R/state-5/offsets/41, offsets/42    as before; 42 with the new number of partitions
                    commits/42                ids of the new state versions
                    state/0/0 … state/0/N-1   snapshots of version 43
    _metadata                                 batch 42, the same positions; written last

Spark adds one batch to a copy, which reads nothing. Then the command compares the keys and values
that are stored after both batches. A process that dies leaves a directory without ``_metadata``,
which is no savepoint.
"""

import contextlib
import logging
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from sluice.runtime.checkpoint.checkpoint_slots import METADATA
from sluice.runtime.checkpoint.format.metadata import encode
from sluice.runtime.errors import ConfigError, DamagedCheckpointError, StorageError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    RegionRecord,
    StateSnapshot,
)
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.savepoint.operator_metadata import is_operator_metadata, with_location
from sluice.runtime.savepoint.savepoint import Savepoint, StateFile
from sluice.runtime.savepoint.spark_files import files_of_batch, is_shared, location_of
from sluice.runtime.spark.state.command_session import state_session
from sluice.runtime.spark.state.stored_state import StoredState, spark_errors
from sluice.runtime.storage.divided_directory import SPARK, holder_of, spark_root
from sluice.runtime.storage.file_copies import FileCopy, copy_files
from sluice.runtime.storage.file_system import FileDigest, FileSystem
from sluice.runtime.storage.file_system_opening import hadoop_uri

__all__ = ["Repartition"]

log = logging.getLogger(__name__)

_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    """One call of the command.

    Attributes:
        savepoint: the source; only read.
        partitions: new number of state partitions.
        regions: to repartition; empty: all with state.
        fs: the new savepoint's directory; nothing is there. A divided one has Spark's files in a
            directory that Spark can write; they are copied before the record is written.
        spark: of the command.
    """

    savepoint: Savepoint
    partitions: int
    regions: Sequence[str]
    fs: FileSystem
    spark: SparkSession

    def run(self) -> CheckpointRecord:
        """Write the savepoint; returns its record.

        Raises:
            ConfigError: there is no such region or state, Spark refuses, or the number is the same.
            DamagedCheckpointError: a file of the source is damaged, or the values differ after it.
        """
        chosen = self._chosen()
        failpoint("before-repartition")
        copied = {
            region.region: self._copied(region)
            for region in self.savepoint.record.regions
            if region.state is not None
        }
        keyed = self._copied_keyed()
        failpoint("after-repartition-copy")
        regions = []
        for region in self.savepoint.record.regions:
            if region.region in chosen:
                region = self._repartitioned(region)
            elif region.state is not None:
                files = tuple(copied[region.region])
                region = replace(region, state=replace(region.state, files=files))
            state = region.keyed_state
            named = state and replace(state, files=tuple(keyed[each.path] for each in state.files))
            regions.append(replace(region, committables=(), keyed_state=named))
        self._bring(regions)
        failpoint("after-repartition")
        record = replace(
            self.savepoint.record,
            kind=CheckpointKind.SAVEPOINT,
            regions=tuple(regions),
            requested_by="user",
            reason=f"{self.partitions} state partitions, from {self.savepoint.uri}",
            created_at_ms=time.time_ns() // 1_000_000,
            spark_version=self.spark.version,
        )
        self._publish(record)
        return record

    def _chosen(self) -> Collection[str]:
        """The regions to repartition; refuses a call that would change nothing."""
        where = {"uri": self.savepoint.uri, "partitions": self.partitions}
        stateful = {r.region: r.state for r in self.savepoint.record.regions if r.state is not None}
        for name in self.regions:
            if self.savepoint.region(name).state is None:
                raise ConfigError(
                    "the region keeps no state",
                    {**where, "region": name, "with_state": ",".join(stateful)},
                    "Choose a region with state.",
                )
        wanted = self.regions or stateful
        found = [name for name in wanted if stateful[name].state_partitions != self.partitions]
        if not found:
            raise ConfigError(
                "no state has another number of partitions",
                {**where, "regions": ",".join(wanted)},
                "Choose another number, or a savepoint of a job with state.",
            )
        return found

    # --- the copy -------------------------------------------------------------------------------

    def _copied(self, region: RegionRecord) -> list[FileReference]:
        with ThreadPoolExecutor(_THREADS, "sluice-repartition") as pool:
            return list(pool.map(self._copy, self.savepoint.state_files(region.region)))

    def _copied_keyed(self) -> dict[str, FileReference]:
        """Files of keyed state, which stay as they are, by their path in the source."""
        files = self.savepoint.keyed_files()
        with ThreadPoolExecutor(_THREADS, "sluice-repartition") as pool:
            found = pool.map(self._copy, files)
            return {each.source: copy for each, copy in zip(files, found, strict=True)}

    def _copy(self, file: StateFile) -> FileReference:
        if not self.savepoint.fs.exists(file.source):
            raise self._damaged(file)
        found = _reference(
            file.path,
            self.fs.copy_from(
                self.savepoint.fs, file.source, file.path, may_link=is_shared(file.path)
            ),
        )
        wanted = file.reference
        if wanted is not None and replace(wanted, path=file.path) != found:
            raise self._damaged(file)
        if is_operator_metadata(file.path):
            location = self._at(file.path.partition("/state/")[0])
            with self._parsing(file.source):
                content = with_location(self.fs.read(file.path) or b"", location)
            self.fs.replace(file.path, content)
            return self._durable(file.path)
        return found

    def _damaged(self, file: StateFile) -> DamagedCheckpointError:
        return DamagedCheckpointError(
            "a file of the state is missing or damaged",
            {"uri": self.savepoint.uri, "path": file.source},
            "Choose another savepoint; 'sluice savepoint verify' checks all of its files.",
        )

    @contextlib.contextmanager
    def _parsing(self, path: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, LookupError, TypeError) as error:
            raise DamagedCheckpointError(
                "Spark's description of an operator cannot be read",
                {"uri": self.savepoint.uri, "path": path, "error": repr(error)},
                "Choose another savepoint, and report this one.",
            ) from error

    def _at(self, path: str) -> str:
        return f"{hadoop_uri(spark_root(self.fs))}/{path}"

    # --- Spark's part ---------------------------------------------------------------------------

    def _repartitioned(self, region: RegionRecord) -> RegionRecord:
        state, batch_id = region.state, region.batch_id
        assert state is not None  # `_chosen` looks
        assert batch_id is not None  # it has state
        location = location_of(state)
        where = {"uri": self._at(location), "region": region.region, "batch_id": batch_id}
        with state_session(self.spark, state) as session:
            with spark_errors(
                "Spark cannot repartition this state",
                where,
                "Take a savepoint of the running job. If Spark names an operator that it does not "
                "support, keep the number of partitions.",
            ):
                manager: Any = session._streamingCheckpointManager  # noqa: SLF001 - Spark's own name
                manager.repartition(self._at(location), self.partitions)
            self._compare(session, location, batch_id)
        files = self._without_others(location, state, batch_id + 1)
        log.info(
            "state repartitioned: region=%s operators=%s before=%d partitions=%d",
            region.region,
            ",".join(name for _, name in state.operators),
            state.state_partitions,
            self.partitions,
        )
        return replace(
            region,
            batch_id=batch_id + 1,
            state=replace(
                state,
                state_version=state.state_version + 1,
                state_partitions=self.partitions,
                files=tuple(files),
            ),
        )

    def _compare(self, session: SparkSession, location: str, batch_id: int) -> None:
        """Require the same keys and values in both batches, each as often."""
        before, after = (
            StoredState(session, self._at(location), each) for each in (batch_id, batch_id + 1)
        )
        for (store, old), (_, new) in zip(before.stored(), after.stored(), strict=True):
            if old.count() != new.count() or not old.exceptAll(new).isEmpty():
                raise DamagedCheckpointError(
                    "the repartitioned state has other values than before",
                    {"uri": self._at(location), "store": store, "batch_id": batch_id},
                    "Report this, and keep the savepoint: it is unchanged.",
                )

    def _without_others(
        self, location: str, state: StateSnapshot, batch_id: int
    ) -> list[FileReference]:
        """Delete everything but what the added batch needs; its files, durable."""
        for number, _ in state.operators:
            operator = f"{location}/state/{number}"
            for entry in self.fs.entries(operator):
                if entry.name.isdecimal() and int(entry.name) >= self.partitions:
                    self.fs.delete(f"{operator}/{entry.name}")
        needed = files_of_batch(self.fs, location, batch_id)
        for path in set(_files_below(self.fs, location)) - set(needed):
            self.fs.delete(path)
        with ThreadPoolExecutor(_THREADS, "sluice-repartition") as pool:
            return list(pool.map(self._durable, needed))

    def _durable(self, path: str) -> FileReference:
        self.fs.make_durable(path)
        digest = self.fs.digest(path)
        if digest is None:
            raise StorageError(
                "a file that Spark has written is missing",
                {"uri": self.fs.uri, "path": path},
                "Look for another process that deletes files there, and repeat the command.",
            )
        return _reference(path, digest)

    def _bring(self, regions: Sequence[RegionRecord]) -> None:
        """Copy Spark's files into the savepoint, if they are not written there."""
        made, target = holder_of(self.fs, SPARK), holder_of(self.fs, METADATA)
        if made is target:
            return
        files = [file for region in regions if region.state for file in region.state.files]
        copies = [FileCopy(file.path, file.path, may_link=False) for file in files]
        if copy_files(made, target, copies) != files:
            raise StorageError(
                "a copied file differs from what Spark wrote",
                {"uri": target.uri},
                "Repeat the command, and check the disk of this machine.",
            )

    # --- the record -----------------------------------------------------------------------------

    def _publish(self, record: CheckpointRecord) -> None:
        temporary = f".{METADATA}.{uuid.uuid4().hex}.tmp"
        data = encode(record)
        self.fs.stage(temporary, data)
        failpoint("before-repartition-record")
        if not self.fs.place(temporary, METADATA, data) and self.fs.read(METADATA) != data:
            raise StorageError(
                "another process has written this savepoint",
                {"uri": self.fs.uri},
                "Repeat the command: it uses another name.",
            )
        failpoint("after-repartition-record")


def _reference(path: str, digest: FileDigest) -> FileReference:
    return FileReference(path=path, length_bytes=digest.length_bytes, sha256=digest.sha256)


def _files_below(fs: FileSystem, directory: str) -> Iterable[str]:
    for entry in fs.entries(directory):
        path = f"{directory}/{entry.name}"
        if entry.is_directory:
            yield from _files_below(fs, path)
        else:
            yield path
