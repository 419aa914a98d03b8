"""State files: whole and their own, or refused by name."""

import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.runtime.errors import (
    DamagedCheckpointError,
    StorageUnreachableError,
    UnsupportedFormatError,
)
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.state import state_files
from sluice.runtime.state.state_files import StateStore, state_file_name
from sluice.runtime.state.state_settings import StateSettings
from sluice.runtime.storage.task_files import LocalTaskFiles
from sluice.runtime.storage.web_hdfs import WebHdfsAddress
from sluice.runtime.storage.web_hdfs_client import WebHdfsTaskFiles
from tests.kit.files.fake_webhdfs import FakeWebHdfs
from tests.kit.state.state_beds import P0, StateTask, content_of, rows, state_store

_ROWS = [
    rows((1, None, b"a", b"1"), (1, None, b"b", None), (2, -5, b"", b"x" * 3_000_000)),
    rows((2, 7, b"z", b"")),
]


def _written(store: StateStore) -> tuple[FileReference, list[tuple[int, int]]]:
    """Two sections: `_ROWS`, and one row."""
    writer = store.create(state_file_name("r", 3, 8, "changes"))
    sections = [writer.write_section(_ROWS), writer.write_section([rows((9, None, b"k", b"v"))])]
    return writer.finish(), sections


def _read(
    store: StateStore, file: FileReference, section: tuple[int, int]
) -> list[dict[str, object]]:
    return [row for batch in store.rows(file, *section) for row in batch.to_pylist()]


@pytest.fixture(params=["local", "hdfs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    """On a local disk, and over WebHDFS."""
    if request.param == "local":
        yield state_store(tmp_path)
        return
    with FakeWebHdfs() as fake:
        address = WebHdfsAddress(name_nodes=(fake.address,), user="ada")
        yield StateStore(files=WebHdfsTaskFiles(address=address, deadline_s=0.3), root="/dir")


def test_sections_are_read_as_they_were_written(store: StateStore) -> None:
    """Each by itself; the whole file has the digest that its reference names."""
    file, sections = _written(store)
    assert re.fullmatch(r"state/r/3-8-[0-9a-f]{8}\.changes", file.path)
    store.require(file)
    assert _read(store, file, sections[0]) == [row for b in _ROWS for row in b.to_pylist()]
    assert [row["key"] for row in _read(store, file, sections[1])] == [b"k"]
    assert sum(sections[-1]) == file.length_bytes


def test_names_are_never_used_twice() -> None:
    assert len({state_file_name("r", 1, 1, "merged") for _ in range(100)}) == 100


def test_a_missing_file_is_refused_by_name(store: StateStore) -> None:
    file, _ = _written(store)
    gone = replace(file, path="state/r/1-1-00000000.changes")
    with pytest.raises(DamagedCheckpointError, match=r"missing.*path=state/r/1-1-00000000"):
        store.require(gone)


def _damage(root: Path, file: FileReference, content: bytes) -> None:
    (root / file.path).write_bytes(content)


class TestDamage:
    @pytest.mark.parametrize("step", range(12))
    def test_a_changed_byte_is_found(self, tmp_path: Path, step: int) -> None:
        """Anywhere in the section."""
        store = state_store(tmp_path)
        file, sections = _written(store)
        whole = bytearray((tmp_path / file.path).read_bytes())
        at = (sections[0][1] - 1) * step // 11
        whole[at] ^= 0x10
        _damage(tmp_path, file, bytes(whole))
        with pytest.raises((DamagedCheckpointError, UnsupportedFormatError), match=file.path):
            _read(store, file, sections[0])
        assert _read(store, file, sections[1])

    def test_another_length_is_refused(self, tmp_path: Path) -> None:
        store = state_store(tmp_path)
        file, _ = _written(store)
        whole = (tmp_path / file.path).read_bytes()
        for wrong in (whole[:-1], whole + b"x"):
            _damage(tmp_path, file, wrong)
            with pytest.raises(DamagedCheckpointError, match=f"found_bytes={len(wrong)}"):
                store.require(file)

    def test_a_file_that_became_shorter_is_refused(self, tmp_path: Path) -> None:
        """Between the check and the read."""
        store = state_store(tmp_path)
        file, sections = _written(store)
        _damage(tmp_path, file, (tmp_path / file.path).read_bytes()[:-1])
        with pytest.raises(DamagedCheckpointError, match=file.path):
            _read(store, file, sections[1])

    def test_another_file_under_the_name_is_refused(self, tmp_path: Path) -> None:
        """Whole, of the same length, with valid digests."""
        store = state_store(tmp_path)
        file, sections = _written(store)
        other, _ = _written(store)
        assert other.length_bytes == file.length_bytes
        _damage(tmp_path, file, (tmp_path / other.path).read_bytes())
        with pytest.raises(DamagedCheckpointError, match="content of another file"):
            _read(store, file, sections[0])

    def test_a_section_beyond_the_file_is_refused(self, tmp_path: Path) -> None:
        store = state_store(tmp_path)
        file, _ = _written(store)
        for wrong in ((0, file.length_bytes + 1), (-1, 50), (0, 32)):
            with pytest.raises(DamagedCheckpointError, match=file.path):
                _read(store, file, wrong)

    def test_a_later_version_is_refused_by_number(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = state_store(tmp_path)
        with monkeypatch.context() as later:
            later.setattr(state_files, "_VERSION", b"2")
            file, sections = _written(store)
        with pytest.raises(UnsupportedFormatError, match="version=2"):
            _read(store, file, sections[0])

    def test_a_restore_from_a_damaged_file_fails_by_name(self, tmp_path: Path) -> None:
        """Nothing of it is used."""
        store = state_store(tmp_path)
        task = StateTask(store, {P0: None})
        task.put(P0, {b"%d" % at: b"x" for at in range(10_000)})
        state = task.end_epoch()
        task.close()
        (file,) = state.files
        whole = bytearray((tmp_path / file.path).read_bytes())
        whole[len(whole) // 2] ^= 1
        _damage(tmp_path, file, bytes(whole))
        with pytest.raises(DamagedCheckpointError, match=file.path):
            StateTask(store, {P0: state})


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_load_tells_of_its_progress_and_ends_with_its_attempt(
    tmp_path: Path, backend: str
) -> None:
    store = state_store(tmp_path)
    task = StateTask(store, {P0: None})
    task.put(P0, {b"%d" % number: b"" for number in range(40_000)})
    state = task.end_epoch()
    task.close()
    told: list[int] = []
    settings = StateSettings(backend=backend)
    loaded = settings.open(store, lambda: told.append(1))
    loaded.add_split(P0, state)
    assert len(told) == 3, "one for each batch of rows"
    loaded.close()
    ended = settings.open(store, _ends)
    with pytest.raises(InterruptedError):
        ended.add_split(P0, state)
    ended.close()


class TestOutages:
    def test_an_outage_is_the_error_that_engines_wait_for(self) -> None:
        """Of a write, a look-up and a read."""
        with FakeWebHdfs() as fake:
            address = WebHdfsAddress(name_nodes=(fake.address,), user="ada")
            files = WebHdfsTaskFiles(address=address, deadline_s=0.1)
            store = StateStore(files=files, root="/dir")
            file, sections = _written(store)
            fake.is_standby = True
            for call in (
                lambda: store.create("state/r/1-1-0.changes"),
                lambda: store.require(file),
                lambda: _read(store, file, sections[0]),
            ):
                with pytest.raises(StorageUnreachableError, match="path=state/r/"):
                    call()

    def test_an_epoch_waits_for_the_store(self) -> None:
        """The file has another name at each try; the next epoch goes on."""
        with FakeWebHdfs() as fake:
            address = WebHdfsAddress(name_nodes=(fake.address,), user="ada")
            files = WebHdfsTaskFiles(address=address, deadline_s=0.05)
            store = StateStore(files=files, root="/dir")
            task = StateTask(store, {P0: None})
            task.put(P0, {b"a": b"1"})
            fake.is_standby = True
            task.on_outage = lambda: setattr(fake, "is_standby", len(task.outages) < 3)
            first = task.end_epoch()
            assert len(task.outages) == 3
            task.put(P0, {b"b": b"2"})
            second = task.end_epoch()
            task.close()
            assert [file.path for file in second.files][:1] == [file.path for file in first.files]
            again = StateTask(store, {P0: second})
            assert content_of(again.state, P0).plain == {b"a": b"1", b"b": b"2"}
            again.close()

    def test_a_task_that_may_not_wait_ends(self) -> None:
        """For example, because its attempt is over."""
        with FakeWebHdfs() as fake:
            address = WebHdfsAddress(name_nodes=(fake.address,), user="ada")
            store = StateStore(files=WebHdfsTaskFiles(address=address, deadline_s=0.05), root="/d")
            task = StateTask(store, {P0: None})
            task.put(P0, {b"a": b"1"})
            fake.is_standby = True
            task.on_outage = _ends
            with pytest.raises(InterruptedError):
                task.end_epoch()
            task.close()


def _ends() -> None:
    raise InterruptedError


def test_stores_are_picklable_values(tmp_path: Path) -> None:
    """Tasks get them from the driver."""
    store = StateStore(files=LocalTaskFiles(), root=str(tmp_path))
    copy = pickle.loads(pickle.dumps(store))
    file, sections = _written(copy)
    assert pa.Table.from_batches(list(copy.rows(file, *sections[1]))).num_rows == 1
