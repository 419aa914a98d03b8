"""One suite for the uploads of every store: the promises of `MultipartUploads`."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from sluice.runtime.errors import AuthenticationError, StorageError, StorageUnreachableError
from sluice.runtime.storage.objects.multipart_uploads import (
    LEAST_PART_BYTES,
    MultipartUploads,
    UploadGoneError,
)
from sluice.runtime.storage.objects.object_location import object_location
from sluice.runtime.storage.objects.object_uploads import s3_arguments, uploads_at
from tests.kit.objects.fake_uploads import Bucket, FakeUploads
from tests.kit.objects.s3_fixture import S3Bucket

_KEY = "out/dt=2026-01-01/city=Forlì%3A 1/part-1.parquet"
_MARK = "0123456789abcdef" * 2


@dataclass(slots=True)
class Place:
    uploads: MultipartUploads
    read: Callable[[str], bytes | None]


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "memory":
        bucket = Bucket()
        yield Place(FakeUploads(bucket), lambda key: bucket.objects.get(key, (None,))[0])
        return
    s3: S3Bucket = request.getfixturevalue("s3")
    location = object_location(f"{s3.uri}/lake", s3.storage_options, environment={})

    def read(key: str) -> bytes | None:
        path = urllib.request.quote(f"{s3.name}/lake/{key}")  # type: ignore[attr-defined]
        try:
            with urllib.request.urlopen(f"{s3.endpoint}/{path}") as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.client.NOT_FOUND:
                return None
            raise

    yield Place(uploads_at(location), read)


def test_upload_settled_parts_become_one_object(place: Place) -> None:
    """Any key; parts in their order; a part that is put again replaces the first one."""
    uploads, big = place.uploads, b"x" * LEAST_PART_BYTES
    upload_id = uploads.create(_KEY, mark=_MARK)
    second = uploads.put_part(_KEY, upload_id, 2, b"rest")
    uploads.put_part(_KEY, upload_id, 1, b"y" * LEAST_PART_BYTES)
    first = uploads.put_part(_KEY, upload_id, 1, big)
    assert place.read(_KEY) is None
    assert uploads.look(_KEY) is None

    uploads.complete(_KEY, upload_id, [first, second], mark=_MARK)
    assert place.read(_KEY) == big + b"rest"
    found = uploads.look(_KEY)
    assert found is not None
    assert (found.length_bytes, found.mark) == (LEAST_PART_BYTES + 4, _MARK)


def test_upload_settled_open_uploads_are_listed_below_a_prefix(place: Place) -> None:
    """Each with its own id; completed and aborted ones are gone."""
    uploads = place.uploads
    done = uploads.create("out/a", mark=_MARK)
    uploads.complete("out/a", done, [uploads.put_part("out/a", done, 1, b"1")], mark=_MARK)
    ids = {uploads.create("out/b", mark=_MARK) for _ in range(2)}
    ids.add(uploads.create(_KEY, mark=_MARK))
    gone = uploads.create("out/c", mark=_MARK)
    uploads.abort("out/c", gone)
    uploads.create("output/d", mark=_MARK)

    found = list(uploads.open_uploads("out/"))
    assert sorted(each.key for each in found) == sorted(["out/b", "out/b", _KEY])
    assert {each.upload_id for each in found} == ids


def test_upload_settled_an_aborted_upload_takes_no_part(place: Place) -> None:
    """It is gone for a task that comes late; a second abort is no error.

    S3 answers that there is no such upload, moto's server with an error of its own.
    """
    uploads = place.uploads
    upload_id = uploads.create(_KEY, mark=_MARK)
    for _ in range(2):
        uploads.abort(_KEY, upload_id)
    with pytest.raises(StorageError):
        uploads.put_part(_KEY, upload_id, 1, b"late")


def test_a_missing_bucket_and_a_dead_server_have_their_own_errors(s3: S3Bucket) -> None:
    """The remedy differs: make the bucket; or wait."""
    missing = object_location("s3://no-such-bucket-here", s3.storage_options, environment={})
    with pytest.raises(StorageError, match="there is no bucket") as caught:
        uploads_at(missing).create("k", mark=_MARK)
    assert not isinstance(caught.value, UploadGoneError)
    dead = s3.storage_options | {"aws_endpoint_url": "http://127.0.0.1:9"}
    with pytest.raises(StorageUnreachableError):
        uploads_at(object_location(s3.uri, dead, environment={})).look("k")


def test_no_credentials_are_said(s3: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any request: the remedy names the variables."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    options = {"aws_endpoint_url": s3.endpoint, "aws_region": "us-east-1"}
    with pytest.raises(AuthenticationError, match="AWS_ACCESS_KEY_ID"):
        uploads_at(object_location(s3.uri, options, environment={})).look("k")


def test_options_of_the_store_reach_its_uploads() -> None:
    """Keys, endpoint and region by obstore's names, and path-style addresses as obstore does."""
    location = object_location(
        "s3://b",
        {"fs.s3a.access.key": "a", "fs.s3a.secret.key": "s", "fs.s3a.endpoint": "http://h:1"},
        environment={"AWS_REGION": "eu-central-1", "AWS_SESSION_TOKEN": "t"},
    )
    client, config = s3_arguments(location.config, location.client)
    assert client == {
        "aws_access_key_id": "a",
        "aws_secret_access_key": "s",
        "aws_session_token": "t",
        "endpoint_url": "http://h:1",
        "region_name": "eu-central-1",
    }
    assert config == {"s3": {"addressing_style": "path"}}
