"""One suite for the committer of files on every file system: the promises of `Committer`."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from sluice.connectors.hdfs.committing.file_committer import FileCommitter
from sluice.connectors.hdfs.staging.committables import FileSet, StagedFile, encode_file_set
from sluice.runtime.contracts import CommitOutcome, CommitReport, Committer
from sluice.runtime.errors import StorageError, StorageUnreachableError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.files.fake_file_system import Disk, FakeFileSystem

_TIMEOUT_S = 300.0
_FINAL = ("dt=2026-01-01/part-1", "dt=2026-01-02/part-1", "part-1")


@dataclass(slots=True)
class Place:
    """A target with its staging, on some file system; as a reader and a writer see it."""

    parent: str
    open: Callable[[str], FileSystem]
    _fs: FileSystem = field(init=False)

    def __post_init__(self) -> None:
        self._fs = self.open(self.parent)

    def stage(self, number: int = 0) -> StateEntry:
        staging = f".staging/{number}-{uuid.uuid4().hex}"
        files = tuple(
            StagedFile(staged=name, final=f"{name}-{number}", length_bytes=len(name), rows=1)
            for name in _FINAL
        )
        for file in files:
            self._fs.write_temporary(f"{staging}/{file.staged}", file.staged.encode())
        found = FileSet(target=f"{self.parent}/orders", staging=staging, rows=3, files=files)
        return encode_file_set(found, operator_id="op")

    def commit(
        self, *entries: StateEntry, after_crash: bool = False, is_staged_verified: bool = True
    ) -> list[CommitReport]:
        committer = FileCommitter(self.open, is_staged_verified=is_staged_verified)
        try:
            return committer.commit(entries, timeout_s=_TIMEOUT_S, after_crash=after_crash)
        finally:
            committer.close()

    def abort(self, *entries: StateEntry) -> list[CommitReport]:
        committer = FileCommitter(self.open)
        try:
            return committer.abort(entries, timeout_s=_TIMEOUT_S)
        finally:
            committer.close()

    def published(self) -> dict[str, bytes | None]:
        return {path: self._fs.read(f"orders/{path}") for path in self._below("orders", "")}

    def staged(self) -> list[str]:
        return list(self._below(".staging", ""))

    def spoil(self, path: str) -> None:
        self._fs.replace(path, b"something else")

    def remove(self, path: str) -> None:
        self._fs.delete(path)

    def _below(self, root: str, below: str) -> Iterator[str]:
        for entry in self._fs.entries(f"{root}/{below}" if below else root):
            path = f"{below}/{entry.name}" if below else entry.name
            if entry.is_directory:
                yield from self._below(root, path)
            else:
                yield path


@pytest.fixture(params=["fake", "file", pytest.param("hdfs", marks=pytest.mark.integration)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place on each kind of file system, with a space in its name."""
    if request.param == "fake":
        disk = Disk()
        return Place(parent="fake:///my data", open=lambda uri: FakeFileSystem(disk, uri=uri))
    if request.param == "file":
        return Place(parent=f"file://{tmp_path}/my data", open=open_file_system)
    servers = request.getfixturevalue("hdfs")
    client = request.getfixturevalue("hadoop_client")
    parent = f"{servers.uri}/{uuid.uuid4().hex}/my data"
    return Place(parent=parent, open=lambda uri: open_file_system(uri, client))


def outcomes(reports: list[CommitReport]) -> list[CommitOutcome]:
    return [report.outcome for report in reports]


def test_it_fulfils_the_contract(place: Place) -> None:
    """The class is what the coordinator was written against."""
    committer: Committer = FileCommitter(place.open)
    assert committer.await_visible(timeout_s=0)


def test_nothing_is_seen_before_the_commit_and_everything_after(place: Place) -> None:
    """Whole files, in their partition directories; nothing of the attempt is left."""
    entry = place.stage()
    assert place.published() == {}
    assert outcomes(place.commit(entry)) == [CommitOutcome.COMMITTED]
    assert place.published() == {f"{name}-0": name.encode() for name in _FINAL}
    assert place.staged() == []


def test_commit_is_idempotent_after_coordinator_restart(place: Place) -> None:
    """A recovery that knows nothing commits again, and changes nothing."""
    entries = [place.stage(0), place.stage(1)]
    place.commit(*entries)
    before = place.published()
    for after_crash in (True, False):
        reports = place.commit(*entries, after_crash=after_crash)
        assert outcomes(reports) == [CommitOutcome.COMMITTED] * 2
    assert place.published() == before
    assert len(before) == 6


def test_a_commit_that_died_half_way_is_finished(place: Place) -> None:
    entry = place.stage()
    fs = place.open(place.parent)
    staging = next(iter(place.staged())).split("/")[0]
    fs.make_directories("orders/dt=2026-01-01")
    assert fs.move(f".staging/{staging}/{_FINAL[0]}", f"orders/{_FINAL[0]}-0")
    assert outcomes(place.commit(entry, after_crash=True)) == [CommitOutcome.COMMITTED]
    assert len(place.published()) == 3


@pytest.mark.parametrize("after_crash", [True, False])
def test_rename_settled_what_is_not_as_recorded_stops_with_both_names(
    place: Place, *, after_crash: bool
) -> None:
    """Rule `rename-settled`: a missing or a changed file is never published, passed over or
    replaced."""
    missing, taken = place.stage(0), place.stage(1)
    for name in place.staged():
        if name.startswith("0-") and name.endswith(f"/{_FINAL[0]}"):
            place.remove(f".staging/{name}")
    place.spoil(f"orders/{_FINAL[0]}-1")
    reports = place.commit(missing, taken, after_crash=after_crash)
    assert outcomes(reports) == [CommitOutcome.UNKNOWN] * 2
    for report in reports:
        assert "orders/dt=2026-01-01/part-1-" in report.detail
        assert ".staging/" in report.detail
    assert place.published()[f"{_FINAL[0]}-1"] == b"something else"


@pytest.mark.parametrize("after_crash", [True, False])
def test_rename_settled_a_staged_file_of_another_length_is_not_published(
    place: Place, *, after_crash: bool
) -> None:
    """Rule `rename-settled`: a committer whose process has not seen it looks before the first
    rename, too.

    Its neighbours are decided and whole: they are published.
    """
    entry = place.stage()
    (staged,) = (name for name in place.staged() if name.endswith(f"/{_FINAL[0]}"))
    place.spoil(f".staging/{staged}")
    for _ in range(2):
        (report,) = place.commit(entry, after_crash=after_crash, is_staged_verified=False)
        assert report.outcome is CommitOutcome.UNKNOWN
        assert f".staging/{staged} has {len(b'something else')} bytes" in report.detail
    assert set(place.published()) == {f"{name}-0" for name in _FINAL[1:]}


@pytest.mark.parametrize("after_crash", [True, False])
def test_files_that_were_not_seen_are_published_as_others_are(
    place: Place, *, after_crash: bool
) -> None:
    entry = place.stage()
    for _ in range(2):
        reports = place.commit(entry, after_crash=after_crash, is_staged_verified=False)
        assert outcomes(reports) == [CommitOutcome.COMMITTED]
    assert place.published() == {f"{name}-0": name.encode() for name in _FINAL}


def test_abort_deletes_the_attempt_and_nothing_else(place: Place) -> None:
    """Another attempt's files stay; repeating is harmless."""
    kept, gone = place.stage(0), place.stage(1)
    for _ in range(2):
        assert outcomes(place.abort(gone)) == [CommitOutcome.ABORTED]
    assert {name.split("/")[0][0] for name in place.staged()} == {"0"}
    assert outcomes(place.commit(kept)) == [CommitOutcome.COMMITTED]
    assert len(place.published()) == 3


def test_what_there_was_no_time_for_is_pending(place: Place) -> None:
    """Nothing is said about it, and the next call does it."""
    entry = place.stage()
    committer = FileCommitter(place.open)
    late = committer.commit([entry], timeout_s=0, after_crash=False)
    assert outcomes(late) == [CommitOutcome.PENDING]
    again = committer.commit([entry], timeout_s=_TIMEOUT_S, after_crash=False)
    assert outcomes(again) == [CommitOutcome.COMMITTED]


class _Lying:
    """Answers wrongly of the first rename of each file."""

    def __init__(self, fs: FileSystem, *, happens: bool, answer: Exception | None) -> None:
        self._fs = fs
        self._happens = happens
        self._answer = answer
        self._lied: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def move(self, source: str, path: str) -> bool:
        if path in self._lied:
            return self._fs.move(source, path)
        self._lied.add(path)
        if self._happens:
            assert self._fs.move(source, path)
        if self._answer is not None:
            raise self._answer
        return False


@pytest.mark.parametrize("happens", [True, False], ids=["and it happened", "and it did not"])
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(StorageError("could not move", {}, "Retry."), id="an error"),
        pytest.param(StorageUnreachableError("no answer", {}, "Retry."), id="no answer"),
        pytest.param(None, id="false"),
    ],
)
def test_rename_settled_a_renames_answer_is_not_believed_unless_it_is_yes(
    place: Place, answer: Exception | None, *, happens: bool
) -> None:
    """Rule `rename-settled`: what became of it is looked up at once; nothing is moved twice, or
    given up."""
    entry = place.stage()
    lying = _Lying(place.open(place.parent), happens=happens, answer=answer)
    committer = FileCommitter(lambda _: cast(FileSystem, lying))
    reports = committer.commit([entry], timeout_s=_TIMEOUT_S, after_crash=False)
    committer.close()
    assert outcomes(reports) == [CommitOutcome.COMMITTED]
    assert place.published() == {f"{name}-0": name.encode() for name in _FINAL}
    assert place.staged() == []
