"""Cleaning in any order of events, with a crash between any two deletions, never breaks a restore."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import PurePosixPath
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.runtime.checkpoint.checkpoint_slots import METADATA, RETIRED, slot_name
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.cleaning.clean_plan import (
    half_written_savepoints,
    leftovers,
)
from sluice.runtime.checkpoint.cleaning.directory_cleaning import (
    deletion_steps,
    survey_directory,
    survey_savepoints,
)
from sluice.runtime.checkpoint.format.metadata import decode, encode
from sluice.runtime.errors import DamagedCheckpointError
from sluice.runtime.model.checkpoint_record import (
    FENCING,
    CheckpointKind,
    CheckpointRecord,
    RegionRecord,
    RegionStatus,
    StateSnapshot,
    Verdict,
)
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.savepoint.savepoint import references_of
from sluice.runtime.savepoint.savepoint_writer import self_contained
from sluice.runtime.storage.file_system import FileSystem
from tests.kit.coordinator.checkpoint_records import JOB_UID, record
from tests.kit.files.fake_file_system import Disk, FakeFileSystem

_HOUR_MS = 3_600_000
_FULL = re.compile(rf"full/chk-\d+/{METADATA}")
_REGIONS = ("r0", "r1")
_STATE = StateSnapshot(
    provider="rocksdb", checkpoint_format_version=2, state_version=1, state_partitions=1
)


@dataclass
class _Copy:
    """A savepoint or a full checkpoint that is being written, one file at a time.

    Attributes:
        known: the files of the newest full checkpoint.
    """

    directory: str
    source: CheckpointRecord
    left: list[str]
    known: dict[str, FileReference]
    files: dict[str, FileReference] = field(default_factory=dict)
    pauses: int = 0


class _Disk(Disk):
    """Notes when its files change."""

    now_ms = 10**12

    def write(self, path: str, data: bytes) -> None:
        super().write(path, data)
        self.changed_ms[path] = self.now_ms

    def place(self, temporary: str, path: str) -> bool:
        self.changed_ms[path] = self.now_ms
        return super().place(temporary, path)


class _Store(CheckpointStore):
    """Decodes equal bytes once."""

    def _record_in(self, data: bytes, where: Mapping[str, object]) -> CheckpointRecord:
        return _decoded(data)


_decoded = cache(decode)


class World:
    """A job that runs, fails, restarts and saves, and a cleaner that anything may interrupt."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.next_id, self.serial = 0, 0
        self.disk = _Disk()
        self.fs: FileSystem = FakeFileSystem(self.disk)
        self.damaged: dict[str, bytes] = {}
        self.cleaning: Iterator[str] | None = None
        self.copies: list[_Copy] = []
        self.locations: dict[str, str] = {}
        self.snapshots: dict[str, RegionRecord] = {}
        self.chains: dict[str, list[FileReference]] = {name: [] for name in _REGIONS}
        self._publish(record(0, regions=()))
        self.run_id = 0
        for region in _REGIONS:
            self._attempt(region)

    # --- the job ------------------------------------------------------------------------------

    def _put(self, path: str, data: bytes = b"") -> bytes:
        self.serial += 1
        content = data or f"{path} {self.serial}".encode()
        self.disk.write(path, content)
        return content

    def _publish(self, made: CheckpointRecord) -> None:
        self._put(f"{slot_name(made.checkpoint_id)}/{METADATA}", encode(made))
        self.next_id = made.checkpoint_id + 1

    def _attempt(self, region: str, *, name: str = "") -> None:
        directory = f"spark/{region}/{name or f'state-{self.next_id - 1}'}"
        for each in ("offsets/0", "state/0/0/1.zip", f"state/0/0/{self.next_id}.changelog"):
            self._put(f"{directory}/{each}")
        self.locations[region] = f"{directory}/state"

    def _store(self) -> CheckpointStore:
        return _Store(self.fs)

    def _decided(self) -> list[CheckpointRecord]:
        store = self._store()
        found = []
        for each in store.slots():
            try:
                known = store.read(each)
            except DamagedCheckpointError:
                continue
            if known is not None and known.verdict is Verdict.DECIDED and known.regions:
                found.append(known)
        return found

    def _region(self, name: str) -> RegionRecord:
        state = replace(_STATE, location=self.locations[name])
        return RegionRecord(
            region=name,
            attempt_id=self.run_id,
            batch_id=0,
            state=state,
            keyed_state=KeyedState(files=tuple(self.chains[name])),
        )

    def _upload(self, region: str, *, late: bool = False) -> FileReference:
        """A file of keyed state, of the newest attempt or of a zombie."""
        attempt = self.random.randint(0, self.run_id) if late else self.next_id - 1
        path = f"state/{region}/{attempt}-{self.serial}-{self.serial:08x}.changes"
        return _reference(path, self._put(path))

    def change_state(self) -> None:
        """An epoch of a region; its chain stays short. It may never be decided."""
        region = self.random.choice(_REGIONS)
        chain = self.chains[region]
        if len(chain) > 2:
            del chain[: self.random.randint(1, 3)]
        chain.append(self._upload(region))

    def decide(self) -> None:
        """One or more decisions; a skipped region keeps its last snapshot."""
        skip = self.random.random() < 0.4
        for _ in range(self.random.randint(1, 3)):
            regions = {name: self._region(name) for name in _REGIONS}
            last = self.snapshots.get("r1")
            if skip and last is not None:
                named = last.snapshot_id or self.next_id - 1
                regions["r1"] = replace(last, status=RegionStatus.SKIPPED, snapshot_id=named)
            self._publish(record(self.next_id, regions=tuple(regions.values())))
            self.snapshots = regions

    def retire(self) -> None:
        store = self._store()
        store.retire(store.retirable(retain=self.random.randint(1, 3)))

    def restart_region(self) -> None:
        """A region that has decided nothing in this run begins in a directory of its own."""
        self._publish(record(self.next_id, verdict=Verdict.ABORTED, regions=()))
        self._attempt(self.random.choice(_REGIONS))

    def restart_job(self) -> None:
        """Another run, which may start from an older checkpoint. Its attempts go on in directories
        that the record names, or begin in their own."""
        decided = self._decided()
        self.copies.clear()
        self.run_id = self.next_id
        self.chains = {name: [] for name in _REGIONS}
        known = self.random.choice(decided) if decided and self.random.random() < 0.5 else None
        fencing = record(
            self.next_id,
            verdict=Verdict.ABORTED,
            requested_by=FENCING,
            regions=(),
            restored_from=None if known is None else known.checkpoint_id,
        )
        self._publish(fencing)
        self.snapshots = {}
        if known is not None:
            self.snapshots = {each.region: each for each in known.regions}
            self.locations = {
                each.region: each.state.location for each in known.regions if each.state
            }
            self.chains |= {
                each.region: list(each.keyed_state.files)
                for each in known.regions
                if each.keyed_state
            }
        else:
            for region in _REGIONS:
                self._attempt(region)

    def leave_behind(self) -> None:
        """Files of an earlier start."""
        name = self.random.choice(("restored-old", "17x", "0", "state-0"))
        path = f"spark/r0/{name}/left/1.zip"
        self._put(path, path.encode())
        self._upload("r0", late=True)
        restored = f"state/restored-old/r0/{self.serial}-1-a.changes"
        self._put(restored, restored.encode())

    def leave_temporary(self) -> None:
        paths = (".x.tmp", "spark/r1/0/offsets/.3.a.tmp", f"{slot_name(0)}/.a.tmp")
        self._put(self.random.choice(paths))

    def wait(self) -> None:
        """Nothing is written meanwhile. A copy is never paused for more than two age limits."""
        hours = self.random.choice((0.3, 0.3, 2, 30))
        for copy in [*self.copies]:
            copy.pauses += hours > 1
            if copy.pauses > 1:
                self.copies.remove(copy)
        self.disk.now_ms += int(hours * _HOUR_MS)

    def damage(self) -> None:
        """A record that is not the last one; what it names must stay all the same."""
        slots = [each.checkpoint_id for each in self._decided()[:-1]]
        found = [f"{slot_name(each)}/{METADATA}" for each in slots]
        found += filter(_FULL.fullmatch, self.disk.files)
        if found and not self.damaged:
            path = self.random.choice(found)
            self.damaged[path] = self.disk.files[path]
            self._put(path, b"damaged")

    # --- savepoints and full checkpoints ------------------------------------------------------

    def begin_copy(self) -> None:
        """The job decides a checkpoint first."""
        if self.copies:
            return
        self.decide()
        source = self._decided()[-1]
        paths = [
            path
            for region in source.regions
            if region.state is not None
            for path in self.disk.files
            if path.startswith(f"{PurePosixPath(region.state.location).parent}/")
        ]
        paths += [each.path for each in source.keyed_files]
        self.serial += 1
        known: dict[str, FileReference] = {}
        directory = f"savepoints/savepoint-{JOB_UID[:8]}-1-{self.serial:06x}"
        if self.random.random() < 0.5:
            directory = f"full/{slot_name(source.checkpoint_id)}"
            self._put(f"{directory}/_began")
            known = self._newest_full()
        self.copies.append(_Copy(directory, source, paths, known))

    def _newest_full(self) -> dict[str, FileReference]:
        for path in sorted(filter(_FULL.fullmatch, self.disk.files), reverse=True):
            if path in self.damaged or self._is_retired(path):
                return {}
            made = _decoded(self.disk.files[path])
            if made.verdict is Verdict.DECIDED:
                return {e.path.partition("/")[2]: e for e in references_of(made)}
        return {}

    def _is_retired(self, metadata: str) -> bool:
        return metadata.replace(METADATA, RETIRED) in self.disk.files

    def go_on_with_copy(self) -> None:
        """Copy some files; the last step of all is the record."""
        if not self.copies:
            return
        copy = self.copies[0]
        for _ in range(self.random.randint(1, 5)):
            if not copy.left:
                self.finish_copy(copy)
                return
            path = copy.left.pop()
            reference = copy.known.get(path)
            if reference is None:
                if path not in self.disk.files:  # its attempt is gone, so the copy fails
                    self.copies.remove(copy)
                    return
                content = self.disk.files[path]
                self._put(f"{copy.directory}/{path}", content)
                root, _, name = copy.directory.rpartition("/")
                reference = _reference(f"{name}/{path}" if root == "full" else path, content)
            copy.files[path] = reference

    def finish_copy(self, copy: _Copy) -> None:
        """Place the record, unless the directory was closed."""
        is_full = copy.directory.startswith("full/")
        kind = CheckpointKind.FULL if is_full else CheckpointKind.SAVEPOINT
        of_spark = {
            each.region: [path for path in copy.files if path.startswith(f"spark/{each.region}/")]
            for each in copy.source.regions
        }
        made = self_contained(copy.source, of_spark, copy.files, kind=kind)
        self._put(f"{copy.directory}/.x.tmp", encode(made))
        self.disk.place(f"{copy.directory}/.x.tmp", f"{copy.directory}/{METADATA}")
        self.copies.remove(copy)

    def retire_full(self) -> None:
        """The job does it between two full checkpoints, and deletes the files later, or never."""
        found = [path for path in self.disk.files if _FULL.fullmatch(path)]
        if found and not any(copy.directory.startswith("full/") for copy in self.copies):
            path = self.random.choice(found)
            self._put(path.replace(METADATA, RETIRED))
            if self.random.random() < 0.8:
                self.damaged.pop(path, None)
                self.disk.remove(path)

    # --- the cleaner --------------------------------------------------------------------------

    def begin_cleaning(self) -> None:
        self.cleaning = self._clean(self.random.choice((0, 1, 24)))

    def _clean(self, hours: int) -> Iterator[str]:
        times = {"now_ms": self.disk.now_ms, "older_than_ms": hours * _HOUR_MS}
        surveyed = survey_directory(self._store())
        own = leftovers(surveyed.listing, surveyed.records, **times)
        parent = _Below(self.fs, "savepoints")
        saved = survey_savepoints(parent)
        half = half_written_savepoints(saved.listing, saved.closed, job_uid=JOB_UID, **times)
        steps = deletion_steps(self.fs, own, surveyed.records)
        return chain(steps, deletion_steps(parent, half, surveyed.records))

    def go_on_cleaning(self) -> None:
        """The cleaner may be slow, or die here: anything may come next."""
        for _ in range(self.random.randint(1, 9)):
            if self.cleaning is not None and next(self.cleaning, None) is None:
                self.cleaning = None

    def clean_quietly(self) -> None:
        """A cleaning that nothing disturbs leaves nothing to a second one."""
        for _ in self._clean(0):
            pass
        surveyed = survey_directory(self._store())
        assert (
            leftovers(surveyed.listing, surveyed.records, now_ms=self.disk.now_ms, older_than_ms=0)
            == []
        )

    # --- the checker --------------------------------------------------------------------------

    def require_all_named(self) -> None:
        """With the same bytes: each file has its path in it, or a digest on record."""
        for path, data in list(self.disk.files.items()):
            if not path.endswith(METADATA):
                continue
            if path in self.damaged and self._is_retired(path):
                continue  # no full checkpoint any more, and nobody can read what it named
            made = _decoded(self.damaged.get(path, data) if data == b"damaged" else data)
            root = path.split("/")[0]
            for state in (each.state for each in made.regions if each.state is not None):
                for file in state.files:
                    at = "full" if root == "full" else path.removesuffix(f"/{METADATA}")
                    content = self.disk.files.get(f"{at}/{file.path}")
                    assert content is not None, (path, file.path)
                    assert _reference(file.path, content) == file
                if not state.files:
                    self._require_state(state.location)
            for file in made.keyed_files:
                at = "full/" if root == "full" else ""
                at = path.removesuffix(METADATA) if root == "savepoints" else at
                assert _reference(file.path, self.disk.files[f"{at}{file.path}"]) == file
        for location in self.locations.values():
            self._require_state(location)
        for file in chain.from_iterable(self.chains.values()):
            assert file.path in self.disk.files

    def _require_state(self, location: str) -> None:
        directory = str(PurePosixPath(location).parent)
        for each in ("offsets/0", "state/0/0/1.zip"):
            assert f"{directory}/{each}" in self.disk.files, f"{directory}/{each}"


class _Below(FakeFileSystem):
    """A directory of another file system."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        super().__init__(Disk())
        self._fs, self._directory = fs, directory

    def __getattribute__(self, name: str) -> object:
        if name in ("entries", "names", "read", "exists", "delete", "write_temporary"):
            fs, directory = self._fs, self._directory

            def call(path: str, *rest: object) -> object:
                return getattr(fs, name)(f"{directory}/{path}".rstrip("/"), *rest)

            return call
        if name == "place":
            fs, directory = self._fs, self._directory
            return lambda a, b, data: fs.place(f"{directory}/{a}", f"{directory}/{b}", data)
        return super().__getattribute__(name)


def _reference(path: str, data: bytes) -> FileReference:
    return FileReference(path=path, length_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


_WEIGHTS = {
    World.decide: 5,
    World.change_state: 5,
    World.retire: 3,
    World.restart_region: 2,
    World.restart_job: 4,
    World.leave_behind: 1,
    World.leave_temporary: 1,
    World.wait: 4,
    World.damage: 1,
    World.begin_copy: 3,
    World.go_on_with_copy: 9,
    World.retire_full: 2,
    World.begin_cleaning: 4,
    World.go_on_cleaning: 9,
    World.clean_quietly: 1,
}


@given(seed=st.integers(0, 2**32))
@example(seed=60460)
@settings(max_examples=80, deadline=None)
def test_cleaning_keeps_all_that_a_record_names(seed: int) -> None:
    """Whatever happens between the listing and the last deletion, and wherever the cleaner dies."""
    random = Random(seed)
    world = World(random)
    for step in random.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=60):
        step(world)
        world.require_all_named()
