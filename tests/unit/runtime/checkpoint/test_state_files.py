"""Files of keyed state: they stay as long as a record names them, and no longer."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.retained_states import KeptStates, left_by_attempts_before
from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.coordinator.committing.commit_steps import drive
from sluice.runtime.coordinator.core.events import Publish, Published, Retire
from sluice.runtime.coordinator.shell.io_executor import IoExecutor
from sluice.runtime.errors import DamagedCheckpointError, FencedError, StorageError
from sluice.runtime.model.checkpoint_record import (
    FENCING,
    CheckpointKind,
    CheckpointRecord,
    RegionRecord,
    RegionStatus,
    Verdict,
)
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import KeyedState
from tests.kit.coordinator.checkpoint_records import keyed_state, record, state_file
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.run_io_executor import hands_of
from tests.kit.coordinator.starting_job import Job, aborted
from tests.kit.coordinator.starting_job import record as starting_record
from tests.kit.files.fake_file_system import Disk, FakeFileSystem


def _files(*names: str) -> tuple[FileReference, ...]:
    return tuple(state_file(f"0-{name}.changes") for name in names)


def _record(checkpoint_id: int, *names: str, **changes: object) -> CheckpointRecord:
    region = RegionRecord(region="r0", attempt_id=0, keyed_state=KeyedState(files=_files(*names)))
    made = record(checkpoint_id, regions=(region,), leader_session_id="session")
    return replace(made, **changes)  # type: ignore[arg-type]


def _store(*records: CheckpointRecord) -> FakeStore:
    store = FakeStore(records={each.checkpoint_id: each for each in records})
    store.committed |= store.records.keys()
    store.files = {file.path: file for each in records for file in each.keyed_files}
    return store


def _names(store: FakeStore) -> list[str]:
    return [path.removeprefix("state/r0/0-").removesuffix(".changes") for path in store.files]


def _retire(
    store: FakeStore,
    *,
    retained: int = 1,
    copied: int | None = None,
    kept: KeptStates | None = None,
) -> Iterator[str]:
    run = hands_of(store, kept=kept or KeptStates.read(store), attempt_id=max(store.records))
    return run.perform(Retire(retained=retained, copied=copied))


class TestRetirement:
    """Rule `retire-after-commit`: a file leaves with the last record that names it."""

    def test_files_of_retired_records_alone_are_deleted(self) -> None:
        store = _store(_record(0), _record(1, "a", "b"), _record(2, "b", "c"), _record(3, "c", "d"))
        list(_retire(store))
        assert store.retired == [1, 2]
        assert _names(store) == ["c", "d"]

    def test_a_skipped_region_keeps_the_files_of_its_snapshot(self) -> None:
        store = _store(_record(0), _record(1, "a"), _record(2, "b"), _record(3, "c"))
        skipped = replace(
            store.records[1].regions[0], region="r1", status=RegionStatus.SKIPPED, snapshot_id=1
        )
        store.records[3] = replace(store.records[3], regions=(*store.records[3].regions, skipped))
        list(_retire(store))
        assert sorted(_names(store)) == ["a", "c"]

    def test_a_record_that_is_being_copied_keeps_its_files(self) -> None:
        store = _store(_record(0), _record(1, "a"), _record(2, "b"), _record(3, "c"))
        kept = KeptStates.read(store)
        list(_retire(store, copied=1, kept=kept))
        assert sorted(_names(store)) == ["a", "c"]
        list(_retire(store, kept=kept))
        assert _names(store) == ["c"]

    def test_a_decision_that_is_on_its_way_keeps_its_files(self) -> None:
        """It was noted before it was published: it may be durable."""
        store = _store(_record(0), _record(1, "a"), _record(2, "b"))
        kept = KeptStates.read(store)
        kept.note(_record(3, "a"))
        list(_retire(store, kept=kept))
        assert sorted(_names(store)) == ["a", "b"]

    def test_a_file_that_the_store_did_not_delete_is_deleted_by_the_next_retirement(self) -> None:
        store = _store(_record(0), _record(1, "a"), _record(2, "b"))
        kept = KeptStates.read(store)

        def refuse(call: str) -> None:
            if call == "delete_files":
                raise StorageError("no answer", {}, "Retry.")

        store.on_call = refuse
        list(_retire(store, kept=kept))
        assert sorted(_names(store)) == ["a", "b"]
        store.on_call = lambda _: None
        list(_retire(store, kept=kept))
        assert _names(store) == ["b"]

    @pytest.mark.parametrize("point", ["before-state-files", "after-state-files"])
    def test_a_kill_leaves_no_record_without_its_files(self, point: str) -> None:
        """The record goes first; the next start sweeps files that are left then."""
        store = _store(_record(0), _record(1, "a"), _record(2, "b"))
        for each in _retire(store):
            if each == point:
                break
        assert 1 not in store.records
        for checkpoint_id in store.slots():
            store.require_files(store.records[checkpoint_id], whole=True)

    def test_a_run_that_was_taken_over_meanwhile_deletes_no_file(self) -> None:
        """The newer run may have begun with a record that this one has just retired."""
        store = _store(_record(0), _record(1, "a"), _record(2, "b"))
        for point in _retire(store):
            if point == "before-state-files":
                store.records[3] = aborted(3, requested_by=FENCING, leader_session_id="newer")
        assert sorted(_names(store)) == ["a", "b"]

    def test_the_cost_does_not_grow_with_the_records_of_the_past(self) -> None:
        """After each retirement, nothing is remembered of the retired records."""
        kept = KeptStates()
        for checkpoint_id in range(100):
            kept.note(_record(checkpoint_id, "base", str(checkpoint_id)))
            kept.forget([checkpoint_id - 3])
            kept.files_deleted(kept.unnamed_files())
        assert [kept.is_named(f"state/r0/0-{name}.changes") for name in ("base", "96", "97")] == [
            True,
            False,
            True,
        ]
        assert kept.unnamed_files() == []


class TestRetirementAfterAnUnansweredPut:
    """Rule `retire-after-commit`: a run looks for its successor after each slot that it has tried.

    The put of decision 3 has landed without an answer. Another run has gone back to checkpoint 1
    since, and has retired that decision: the slot after the last answered record is empty again.
    """

    @pytest.fixture
    def store(self) -> FakeStore:
        return _store(_record(0), _record(1, "one"), _record(2, "two"))

    @pytest.fixture
    def run(self, store: FakeStore) -> IoExecutor:
        run = hands_of(store, kept=KeptStates.read(store), attempt_id=2)
        store.lose_answer = lambda: True
        region = _record(3, "two").regions[0]
        found = drive(run.perform(_put(3, region)))
        assert isinstance(found, Published)
        assert found.outcome is PublishOutcome.UNKNOWN
        store.lose_answer = lambda: False
        return run

    @staticmethod
    def _goes_back(store: FakeStore) -> None:
        """Another run, which decides three times. The retirement after the last is yet to come."""
        store.committed.add(3)
        fencing_record = aborted(4, requested_by=FENCING, restored_from=1)
        store.records[4] = replace(fencing_record, leader_session_id="newer")
        for checkpoint_id in (2, 3):
            store.mark_superseded(checkpoint_id, by=4)
        for checkpoint_id, name in ((5, "five"), (6, "six"), (7, "seven")):
            made = _record(checkpoint_id, "one", name, leader_session_id="newer", restored_from=1)
            store.records[checkpoint_id] = made
            store.files |= {file.path: file for file in made.keyed_files}
            store.committed.add(checkpoint_id)
            if checkpoint_id == 5:
                store.retire(store.retirable(retain=3))
        assert 3 not in store.records

    def test_fence_first_a_successor_that_has_retired_the_put_is_seen(
        self, store: FakeStore, run: IoExecutor
    ) -> None:
        run.require_newest()
        self._goes_back(store)
        with pytest.raises(FencedError):
            run.require_newest()

    def test_no_file_is_deleted_that_the_successor_names(
        self, store: FakeStore, run: IoExecutor
    ) -> None:
        self._goes_back(store)
        before = dict(store.records), dict(store.files)
        list(run.perform(Retire(retained=3, copied=None)))
        assert (store.records, store.files) == before
        store.require_files(store.records[7], whole=True)

    def test_one_slot_is_read_once_the_put_is_answered(
        self, store: FakeStore, run: IoExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert drive(run.perform(_put(3, _record(3, "two").regions[0])))
        asked: list[int] = []
        monkeypatch.setattr(FakeStore, "read", lambda _, at: asked.append(at))
        run.require_newest()
        assert asked == [4]


def _put(checkpoint_id: int, *regions: RegionRecord) -> Publish:
    return Publish(
        checkpoint_id=checkpoint_id,
        kind=CheckpointKind.CHECKPOINT,
        verdict=Verdict.DECIDED,
        requested_by="interval",
        reason="",
        regions=regions,
    )


class TestSweepOfAStart:
    """A start deletes what no record names, and nothing of a run that may still decide."""

    @staticmethod
    def _job(*more: str) -> Job:
        """A job whose newest decision names one file, in a directory that has others too."""
        region = starting_record(1).regions[0]
        keyed = KeyedState(files=(state_file("0-1-named.changes"),))
        named = starting_record(1, regions=(replace(region, keyed_state=keyed),))
        job = Job(starting_record(0), named, committed=(0, 1))
        for path in (keyed.files[0].path, *more):
            job.store.files[path] = replace(keyed.files[0], path=path)
        return job

    def test_files_of_older_attempts_that_no_record_names_are_deleted(self) -> None:
        job = self._job("state/r0/0-2-aaaa.changes", "state/r9/1-0-4-bbbb.merged")
        assert job.start().attempt_id == 2
        assert list(job.store.files) == ["state/r0/0-1-named.changes"]

    def test_files_of_attempts_that_may_still_decide_stay(self) -> None:
        """Those of this run, and of a later one that has begun meanwhile."""
        paths = ["state/r0/2-0-aaaa.changes", "state/r0/7-0-aaaa.changes", "state/r0/notes.txt"]
        job = self._job(*paths)
        job.start()
        assert sorted(job.store.files) == sorted(["state/r0/0-1-named.changes", *paths])

    def test_a_late_file_of_a_zombie_goes_with_the_next_start(self) -> None:
        job = self._job()
        job.start()
        job.store.files["state/r0/0-2-late.changes"] = state_file("0-2-late.changes")
        job.start(session="newer")
        assert list(job.store.files) == ["state/r0/0-1-named.changes"]

    def test_nothing_is_deleted_before_older_coordinators_are_fenced(self) -> None:
        """A coordinator that is paused in its decision may yet publish a record that names it."""
        path = "state/r0/0-2-pending.changes"
        job = self._job(path)

        def at(point: str) -> None:
            if point == "before-fencing" and 2 not in job.store.records:
                region = job.store.records[1].regions[0]
                late = KeyedState(files=(state_file("0-2-pending.changes"),))
                job.store.records[2] = starting_record(
                    2, regions=(replace(region, keyed_state=late),)
                )
                job.store.committed.add(2)

        assert job.start(at=at).record.checkpoint_id == 2
        assert path in job.store.files

    def test_copies_of_other_restores_are_deleted(self) -> None:
        job = self._job("state/restored-dead/r0/5-1-aaaa.changes")
        job.start()
        assert list(job.store.files) == ["state/r0/0-1-named.changes"]

    def test_a_damaged_record_protects_all_files(self) -> None:
        """It may name any of them, and a person may have a copy of it."""
        path = "state/r0/0-0-aaaa.changes"
        job = self._job(path)
        job.store = _Damaged(
            records=job.store.records, committed=job.store.committed, files=job.store.files
        )
        job.start()
        assert path in job.store.files

    def test_a_store_that_deletes_nothing_ends_no_start(self) -> None:
        job = self._job("state/r0/0-2-aaaa.changes")

        def refuse(call: str) -> None:
            if call == "delete_files":
                raise StorageError("no answer", {}, "Retry.")

        job.store.on_call = refuse
        assert job.start().record.checkpoint_id == 1

    @pytest.mark.parametrize("change", [{}, {"length_bytes": 1}])
    def test_a_start_without_its_files_is_refused_before_anything_is_written(
        self, change: dict[str, int]
    ) -> None:
        job = self._job()
        file = job.store.files.pop("state/r0/0-1-named.changes")
        if change:
            job.store.files[file.path] = replace(file, **change)
        with pytest.raises(DamagedCheckpointError, match="0-1-named"):
            job.start()
        assert job.store.slots() == [0, 1]

    def test_a_restore_by_id_reads_the_files_whole(self) -> None:
        job = self._job()
        path = "state/r0/0-1-named.changes"
        job.store.files[path] = replace(job.store.files[path], sha256="0" * 64)
        with pytest.raises(DamagedCheckpointError, match="0-1-named"):
            job.start(restore_from=1)
        assert job.store.slots() == [0, 1]


class _Damaged(FakeStore):
    """A store whose checkpoint 0 cannot be read."""

    def read(self, checkpoint_id: int) -> CheckpointRecord | None:
        if checkpoint_id == 0:
            raise DamagedCheckpointError("cut off", {}, "Use another.")
        return super().read(checkpoint_id)


@pytest.mark.parametrize(
    ("path", "is_left"),
    [
        ("state/r0/11-3-0a1b2c3d.changes", True),
        ("state/r0/11-0-3-0a1b2c3d.merged", True),
        ("state/r0/12-3-0a1b2c3d.changes", False),
        ("state/r0/110-3-0a1b2c3d.changes", False),
        ("state/restored-other/r0/99-3-0a1b2c3d.changes", True),
        ("state/restored-mine/r0/1-3-0a1b2c3d.changes", False),
        ("state/r0/notes", False),
        ("state/11-3-0a1b2c3d.changes", False),
    ],
)
def test_a_file_belongs_to_the_attempt_in_its_name(path: str, is_left: bool) -> None:
    assert left_by_attempts_before(path, 12, session="mine") is is_left


def test_a_store_names_the_files_that_are_missing_or_differ() -> None:
    disk = Disk()
    store = CheckpointStore(FakeFileSystem(disk))
    state = keyed_state(("s", "t", 0), ("s", "t", 1))
    made = record(1, regions=(RegionRecord(region="r0", attempt_id=0, keyed_state=state),))
    disk.write(state.files[0].path, b"x" * state.files[0].length_bytes)
    with pytest.raises(DamagedCheckpointError, match=r"files=1 .*4e5f6071.changes=is missing"):
        store.require_files(made, whole=False)
    disk.write(state.files[1].path, b"short")
    with pytest.raises(DamagedCheckpointError, match="5 bytes instead of 900"):
        store.require_files(made, whole=False)
    disk.write(state.files[1].path, b"x" * 900)
    store.require_files(made, whole=False)
    with pytest.raises(DamagedCheckpointError, match=r"files=2 .*SHA-256 differs"):
        store.require_files(made, whole=True)
    assert store.state_files() == sorted(each.path for each in state.files)
    store.delete_files([state.files[0].path, "state/r0/gone"])
    assert store.state_files() == [state.files[1].path]
