"""Copies Spark's state of a region into the directory of a restored job.

Most files stay as they are. Three kinds name the query or its directory: ``metadata`` has its id,
each entry of the offset log has its source by name, with the region and attempt in the source's
offset, and the description of an operator may have absolute paths of schema files.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from sluice.runtime.coordinator.start.restoring import RestoredState
from sluice.runtime.errors import DamagedCheckpointError
from sluice.runtime.graph.operator_ids import spark_source_name
from sluice.runtime.model import offsets
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.savepoint.operator_metadata import is_operator_metadata, with_location
from sluice.runtime.savepoint.savepoint import Savepoint, StateFile
from sluice.runtime.savepoint.spark_files import is_shared, location_of
from sluice.runtime.spark.microbatch import query_logs
from sluice.runtime.storage.divided_directory import spark_root
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import hadoop_uri

__all__ = ["copy_states"]

_METADATA = "metadata"
_OFFSETS = "offsets"
_THREADS = 4  # each has a whole file in memory


def copy_states(
    savepoint: Savepoint, states: Sequence[RestoredState], fs: FileSystem
) -> Iterator[None]:
    """Copy the files of each state, whole and synced; yields between files.

    Args:
        fs: rooted at the checkpoint directory of the restored job.
    Raises:
        DamagedCheckpointError: a file is missing, or is not as the savepoint describes it. Or the
            offset log does not end at the restored positions.
        StorageError: the store does not take a file.
    """
    for state in states:
        copied = _StateCopy(savepoint, state, fs)
        yield from copied.run()
        copied.require_logged()


@dataclass(frozen=True, slots=True)
class _StateCopy:
    savepoint: Savepoint
    state: RestoredState
    fs: FileSystem

    def run(self) -> Iterator[None]:
        files = {
            name: file
            for file in self.savepoint.state_files(self.state.taken.before.region)
            if not _is_checksum(name := self._name(file))
        }
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="sluice-restore")
        try:
            for done in as_completed(
                [pool.submit(self._copy, name, file) for name, file in files.items()]
            ):
                done.result()
                yield
        finally:
            pool.shutdown(cancel_futures=True)
        for directory in sorted({str(PurePosixPath(name).parent) for name in files}):
            self.fs.sync_directory(f"{self._location}/{directory}")

    def require_logged(self) -> None:
        """The copied log ends at the positions of checkpoint 0."""
        now = self.state.now
        assert now.batch_id is not None  # it has state
        for source_id in self.state.taken.sources.values():
            name = spark_source_name(source_id)
            logged = query_logs.read_offset(self.fs, self._location, now.batch_id, name)
            query_logs.require_ends(offsets.decode(logged).splits, now)

    @property
    def _location(self) -> str:
        assert self.state.now.state is not None  # only such regions are restored
        return location_of(self.state.now.state)

    def _name(self, file: StateFile) -> str:
        """The path below Spark's checkpoint location."""
        assert self.state.taken.before.state is not None
        return str(PurePosixPath(file.path).relative_to(location_of(self.state.taken.before.state)))

    def _copy(self, name: str, file: StateFile) -> None:
        path, source = f"{self._location}/{name}", self.savepoint.fs
        directory, _, number = name.rpartition("/")
        if name == _METADATA:
            self.fs.write_temporary(path, json.dumps({"id": self.state.now.query_id}).encode())
        elif directory == _OFFSETS and number.isdecimal():
            content = self._content(file)
            self.fs.write_temporary(path, self._with_new_names(file, content))
        elif is_operator_metadata(name):
            location = f"{hadoop_uri(spark_root(self.fs))}/{self._location}"
            content = with_location(self._content(file), location)
            self.fs.write_temporary(path, content)
        else:
            # A link to a file that Spark may replace would change the savepoint with it.
            found = self.fs.copy_from(source, file.source, path, may_link=is_shared(file.path))
            self._require_whole(file, found.sha256)

    def _content(self, file: StateFile) -> bytes:
        content = self.savepoint.fs.read(file.source)
        if content is None:
            raise self._damaged(file)
        self._require_whole(file, hashlib.sha256(content).hexdigest())
        return content

    def _require_whole(self, file: StateFile, sha256: str) -> None:
        """The file is as it was when the savepoint was verified."""
        if file.reference is not None and file.reference.sha256 != sha256:
            raise self._damaged(file)

    def _damaged(self, file: StateFile) -> DamagedCheckpointError:
        return DamagedCheckpointError(
            "a file of the state has vanished, or has other content",
            {"uri": self.savepoint.uri, "path": file.source},
            "Copy the savepoint again from where it is whole, or restore from another one.",
        )

    def _with_new_names(self, file: StateFile, content: bytes) -> bytes:
        """An entry of the offset log for the new job; other lines stay byte for byte."""
        sources = self.state.taken.sources
        named = {f"{spark_source_name(old)}:": now for old, now in sources.items()}
        lines = content.decode().split("\n")
        found = 0
        for at, line in enumerate(lines):
            for prefix, now in named.items():
                if line.startswith(prefix):
                    offset = self._offset(parsed_json(line.removeprefix(prefix)), now)
                    lines[at] = f"{spark_source_name(now)}:{offset}"
                    found += 1
        if found != len(named):
            raise DamagedCheckpointError(
                "an entry of Spark's offset log lacks the source of its region",
                {"uri": self.savepoint.uri, "path": file.source, "sources": ",".join(named)},
                "Restore from another savepoint or checkpoint, and report this one.",
            )
        return "\n".join(lines).encode()

    def _offset(self, logged: object, source_id: str) -> str:
        barrier = offsets.decode(logged)
        renamed = replace(
            barrier,
            region=self.state.now.region,
            attempt_id=0,
            checkpoint_id=0,
            splits=tuple(self._splits(barrier.splits, source_id)),
        )
        assert isinstance(logged, dict)  # it was decoded
        return json.dumps(offsets.encode(renamed, initial=offsets.is_initial(logged)))

    def _splits(self, ranges: Iterable[SplitRange], source_id: str) -> Iterator[SplitRange]:
        """The ranges in the new topics, without topics that the new job gives up."""
        topics = self.state.taken.topics
        ids = {split.topic: split.topic_id for split in self.state.now.splits}
        for split in ranges:
            topic = topics.get(split.topic, split.topic)
            if topic in ids:
                now = replace(split, source_id=source_id, topic=topic, topic_id=ids[topic])
                is_other = split.topic in topics
                yield replace(now, leader_epoch=None, leader_epoch_end=None) if is_other else now


def _is_checksum(name: str) -> bool:
    """Whether Hadoop's local file system made it: a rewritten file has another checksum, and a
    missing one is not an error."""
    last = PurePosixPath(name).name
    return last.startswith(".") and last.endswith(".crc")
