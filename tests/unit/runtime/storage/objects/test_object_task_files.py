"""Files of tasks on an object store: whole or absent, settled after a lost answer."""

import pickle

import pytest

from sluice.runtime.errors import StorageError
from sluice.runtime.storage.objects.object_location import object_location
from sluice.runtime.storage.objects.object_task_files import ObjectTaskFiles
from tests.kit.objects.s3_fixture import ProxiedBucket, S3Bucket
from tests.kit.objects.s3_proxy import FaultKind


def files_of(bucket: S3Bucket) -> ObjectTaskFiles:
    """As a task gets them."""
    location = object_location(f"{bucket.uri}/job", bucket.storage_options)
    found = pickle.loads(pickle.dumps(ObjectTaskFiles(location)))
    assert isinstance(found, ObjectTaskFiles)
    return found


def write(files: ObjectTaskFiles, path: str, data: bytes) -> int:
    """In two pieces."""
    file = files.create(path)
    file.stream.write(data[:3])
    file.stream.write(data[3:])
    return file.finish()


@pytest.mark.parametrize("size", [0, 5, 9 << 20])
def test_a_finished_file_is_whole(s3: S3Bucket, size: int) -> None:
    files, data = files_of(s3), bytes(range(256)) * (size // 256 + 1)
    assert write(files, "/job/state/a", data[:size]) == size
    assert files.length_bytes("/job/state/a") == size
    assert files.read("/job/state/a", 0, size + 10) == data[:size]
    assert files.read("/job/state/a", size + 5, 10) == b""


def test_a_part_of_a_file_is_read(s3: S3Bucket) -> None:
    files = files_of(s3)
    write(files, "/job/a", b"0123456789")
    assert files.read("/job/a", 3, 4) == b"3456"
    with pytest.raises(StorageError, match="could not read"):
        files.read("/job/absent", 0, 1)
    assert files.length_bytes("/job/absent") is None


def test_a_file_that_is_not_finished_is_not_there(s3: S3Bucket) -> None:
    files = files_of(s3)
    file = files.create("/job/a")
    file.stream.write(b"x")
    file.abandon()
    assert files.length_bytes("/job/a") is None


@pytest.mark.parametrize(
    "kind", [FaultKind.DROPPED_AFTER, FaultKind.REPEATED, FaultKind.REFUSED_AFTER]
)
def test_a_lost_answer_is_settled_by_a_look_at_the_object(
    s3_proxied: ProxiedBucket, kind: FaultKind
) -> None:
    s3_proxied.proxy.add(kind, method="PUT", status=500)
    assert write(files_of(s3_proxied), "/job/a", b"12345") == 5


def test_another_files_name_is_never_taken(s3: S3Bucket) -> None:
    files = files_of(s3)
    write(files, "/job/a", b"first")
    with pytest.raises(StorageError, match="another file has the name"):
        write(files, "/job/a", b"other")
    assert files.read("/job/a", 0, 10) == b"first"
