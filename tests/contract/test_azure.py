"""Checkpoints and files in Azure's store, by Azurite behind a proxy; ``make test-azure`` runs it."""

import pytest

from sluice.connectors.hdfs.committing.upload_committer import UploadCommitter
from sluice.connectors.hdfs.staging.uploaded_files import (
    UploadedFile,
    UploadSet,
    encode_upload_set,
)
from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.contracts import CommitOutcome, PublishOutcome
from sluice.runtime.errors import AuthenticationError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from sluice.runtime.storage.objects.multipart_uploads import MultipartUploads, UploadGoneError
from sluice.runtime.storage.objects.object_client import ObjectClient
from sluice.runtime.storage.objects.object_location import object_location
from sluice.runtime.storage.objects.object_uploads import uploads_at
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.files.published_records import TIMEOUT_S, publish
from tests.kit.objects.azurite import AzureContainer
from tests.kit.objects.s3_proxy import FaultKind

pytestmark = pytest.mark.azure

_MARK = "0123456789abcdef" * 2
_KEY = "out/dt=2026-01-01/city=Forlì%3A 1/part-1.parquet"
_BLOCK_LIST = "comp=blocklist"


def opened(container: AzureContainer) -> FileSystem:
    options = {**container.environment, "timeout": "5s"}
    return open_file_system(f"{container.uri}/a job", storage_options=options)


def uploads_in(container: AzureContainer) -> MultipartUploads:
    return uploads_at(object_location(f"{container.uri}/lake", container.environment))


@pytest.mark.parametrize(
    "kind",
    [
        FaultKind.DROPPED_BEFORE,
        FaultKind.DROPPED_AFTER,
        FaultKind.REPEATED,
        FaultKind.REFUSED,
        FaultKind.REFUSED_AFTER,
    ],
)
@pytest.mark.parametrize("times", [1, 3])
def test_publish_whole_a_fault_of_the_put_is_settled_by_reading_back(
    azure: AzureContainer, kind: FaultKind, times: int
) -> None:
    azure.proxy.add(kind, method="PUT", key=r"/_metadata$", times=times)
    publish(CheckpointStore(opened(azure)), record(1))
    assert CheckpointStore(opened(azure)).read(1) == record(1)
    other = record(1, leader_session_id="second")
    taken = CheckpointStore(opened(azure)).publish(other, timeout_s=TIMEOUT_S)
    assert taken is PublishOutcome.TAKEN


def test_a_directory_is_listed_copied_and_deleted(azure: AzureContainer) -> None:
    """Directories are not there without blobs, and a name is no prefix of another one."""
    fs = opened(azure)
    store = CheckpointStore(fs)
    for each in range(3):
        publish(store, record(each))
    assert store.slots() == [0, 1, 2]
    fs.write_temporary("state/r1/a file", b"changes")
    fs.write_temporary("state-2/other", b"kept")
    assert [each.name for each in fs.entries("state")] == ["r1"]
    digest = fs.copy_from(fs, "state/r1/a file", "saved/a file")
    assert digest == fs.digest("state/r1/a file")
    fs.delete("state")
    assert not fs.exists("state")
    assert fs.read("state-2/other") == b"kept"
    fs.delete(slot_name(1))
    assert store.slots() == [0, 2]


def test_a_directory_that_cannot_be_deleted_is_no_error(azure: AzureContainer) -> None:
    """An account without a hierarchical namespace, such as Azurite's, has none."""
    client = ObjectClient(object_location(f"{azure.uri}/a job", azure.environment))
    client.delete_directory("a job/state")
    refused = azure.proxy.add(FaultKind.REFUSED, method="POST", times=99)
    client.delete_directory("a job/state")
    refused.wait()


def test_a_wrong_key_is_said(azure: AzureContainer) -> None:
    options = azure.environment | {"AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="}
    with pytest.raises(AuthenticationError):
        open_file_system(f"{azure.uri}/a job", storage_options=options).read("x")


def test_upload_settled_blocks_become_one_blob(azure: AzureContainer) -> None:
    """Invisible until the list is put; a block that is put again replaces the first one."""
    uploads = uploads_in(azure)
    upload_id = uploads.create(_KEY, mark=_MARK)
    second = uploads.put_part(_KEY, upload_id, 2, b"rest")
    uploads.put_part(_KEY, upload_id, 1, b"wrong")
    first = uploads.put_part(_KEY, upload_id, 1, b"first ")
    assert azure.read(f"lake/{_KEY}") is None
    assert uploads.look(_KEY) is None

    uploads.complete(_KEY, upload_id, [first, second], mark=_MARK)
    assert azure.read(f"lake/{_KEY}") == b"first rest"
    found = uploads.look(_KEY)
    assert found is not None
    assert (found.length_bytes, found.mark) == (10, _MARK)


def test_upload_settled_a_second_list_changes_nothing(azure: AzureContainer) -> None:
    """Also of a dead attempt under the same name, whose blocks are discarded with the first."""
    uploads = uploads_in(azure)
    dead, alive = (uploads.create("out/a", mark=mark) for mark in ("dead", "alive"))
    of_dead = uploads.put_part("out/a", dead, 1, b"dead")
    of_alive = uploads.put_part("out/a", alive, 1, b"alive")
    uploads.complete("out/a", alive, [of_alive], mark="alive")
    for upload_id, tag, mark in ((alive, of_alive, "alive"), (dead, of_dead, "dead")):
        with pytest.raises(UploadGoneError):
            uploads.complete("out/a", upload_id, [tag], mark=mark)
    assert azure.read("lake/out/a") == b"alive"


def test_upload_settled_open_blocks_of_a_dead_attempt_are_invisible(
    azure: AzureContainer,
) -> None:
    """Azure lists no uploads and discards blocks itself: a sweep finds nothing to do."""
    uploads = uploads_in(azure)
    uploads.put_part("out/dead", uploads.create("out/dead", mark=_MARK), 1, b"rows")
    assert list(uploads.open_uploads("out/")) == []
    with azure.client() as client:
        assert [each.name for each in client.list_blobs()] == []
        found = client.list_blobs(include=["uncommittedblobs"])
        assert [each.name for each in found] == ["lake/out/dead"]


@pytest.mark.parametrize(
    "kind", [FaultKind.DROPPED_AFTER, FaultKind.REFUSED_AFTER, FaultKind.REPEATED]
)
@pytest.mark.parametrize("times", [1, 6])
def test_upload_settled_a_completion_without_an_answer_is_settled_by_a_look(
    azure: AzureContainer, kind: FaultKind, times: int
) -> None:
    azure.proxy.add(kind, method="PUT", query=_BLOCK_LIST, times=times)
    entry = _staged(azure, "a", "b")
    committer = UploadCommitter(lambda _: uploads_in(azure))
    for _ in range(2):
        (found,) = committer.commit([entry], timeout_s=300.0, after_crash=True)
        assert found.outcome is CommitOutcome.COMMITTED
    assert azure.read("lake/out/a") == azure.read("lake/out/b") == b"rows"


def test_upload_settled_blocks_that_expired_are_reported(azure: AzureContainer) -> None:
    """After a week without the list. Here the blocks were never put: nothing is guessed."""
    entry = _staged(azure, "a", tags=("0" * 32 + "-00001",))
    committer = UploadCommitter(lambda _: uploads_in(azure))
    (found,) = committer.commit([entry], timeout_s=300.0, after_crash=True)
    assert found.outcome is CommitOutcome.UNKNOWN
    assert "no object" in found.detail
    assert azure.read("lake/out/a") is None


def _staged(azure: AzureContainer, *names: str, tags: tuple[str, ...] | None = None) -> StateEntry:
    uploads, files = uploads_in(azure), []
    for name in names:
        upload_id = uploads.create(f"out/{name}", mark=_MARK)
        put = tags or (uploads.put_part(f"out/{name}", upload_id, 1, b"rows"),)
        files.append(
            UploadedFile(final=name, upload_id=upload_id, tags=put, length_bytes=4, rows=1)
        )
    target = f"{azure.uri}/lake/out"
    found = UploadSet(target=target, endpoint=None, mark=_MARK, files=tuple(files))
    return encode_upload_set(found, operator_id="op")
