"""Requests to Google's store: a proxy plays the XML interface before moto's S3 server.

Google's servers were not tried. This shows which conditions and headers they get, and that each
call is answered where the two interfaces agree.
"""

from collections.abc import Iterator

import pytest

from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.errors import ConfigError
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from sluice.runtime.storage.objects.object_location import object_location
from sluice.runtime.storage.objects.object_uploads import uploads_at
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.files.published_records import TIMEOUT_S, publish
from tests.kit.objects.s3_fixture import ProxiedBucket, new_bucket
from tests.kit.objects.s3_proxy import FaultKind, S3Proxy

_MARK = "0123456789abcdef" * 2


@pytest.fixture
def google(s3_endpoint: str) -> Iterator[ProxiedBucket]:
    direct = new_bucket(s3_endpoint)
    with S3Proxy(s3_endpoint, plays_google=True) as proxy:
        yield ProxiedBucket(name=direct.name, endpoint=proxy.endpoint, proxy=proxy, direct=direct)


def _options(google: ProxiedBucket) -> dict[str, str]:
    """As the variable that Google's own clients read."""
    return {"STORAGE_EMULATOR_HOST": google.endpoint.removeprefix("http://"), "timeout": "5s"}


def opened(google: ProxiedBucket) -> FileSystem:
    return open_file_system(f"gs://{google.name}/a job", storage_options=_options(google))


@pytest.mark.parametrize(
    "kind", [FaultKind.DROPPED_BEFORE, FaultKind.DROPPED_AFTER, FaultKind.REPEATED]
)
def test_publish_whole_a_record_has_the_condition_of_no_generation(
    google: ProxiedBucket, kind: FaultKind
) -> None:
    google.proxy.add(kind, method="PUT", key=r"/_metadata$")
    publish(CheckpointStore(opened(google)), record(1))
    sent = [each for each in google.proxy.requests if each.key.endswith("/_metadata")]
    assert all(each.conditional for each in sent if each.method == "PUT")
    other = record(1, leader_session_id="second")
    taken = CheckpointStore(opened(google)).publish(other, timeout_s=TIMEOUT_S)
    assert taken is PublishOutcome.TAKEN
    assert CheckpointStore(opened(google)).read(1) == record(1)


def test_publish_whole_a_store_that_ignores_the_condition_is_refused(
    google: ProxiedBucket,
) -> None:
    google.proxy.add(FaultKind.UNCONDITIONAL, times=None)
    with pytest.raises(ConfigError, match="ignores the condition of a put"):
        publish(CheckpointStore(opened(google)), record(1))


def test_a_directory_is_listed_copied_and_deleted(google: ProxiedBucket) -> None:
    fs = opened(google)
    store = CheckpointStore(fs)
    for each in range(3):
        publish(store, record(each))
    fs.write_temporary("state/a file", b"changes")
    assert fs.copy_from(fs, "state/a file", "saved/a file") == fs.digest("state/a file")
    fs.delete("state")
    fs.delete(slot_name(1))
    assert store.slots() == [0, 2]
    assert [each.name for each in fs.entries("saved")] == ["a file"]


def test_a_deletion_that_is_repeated_leaves_no_object(google: ProxiedBucket) -> None:
    """The repetition of one whose answer was lost finds no object, and the others still go."""
    fs = opened(google)
    for each in range(30):
        fs.write_temporary(f"state/{each:02d}", b"changes")
    lost = google.proxy.add(
        FaultKind.REFUSED_AFTER, method="DELETE", key=r"state/03$", status=404, code="NoSuchKey"
    )
    fs.delete("state")
    assert lost.seen
    assert fs.entries("state") == []


def test_upload_settled_an_upload_is_completed_and_recognised(google: ProxiedBucket) -> None:
    """Its mark is in Google's own header."""
    location = object_location(f"gs://{google.name}/lake", _options(google))
    uploads = uploads_at(location)
    done, dead = (uploads.create(f"out/{name}", mark=_MARK) for name in ("done", "dead"))
    tag = uploads.put_part("out/done", done, 1, b"rows")
    assert uploads.look("out/done") is None
    uploads.complete("out/done", done, [tag], mark=_MARK)
    found = uploads.look("out/done")
    assert found is not None
    assert (found.length_bytes, found.mark) == (4, _MARK)
    assert [each.upload_id for each in uploads.open_uploads("out/")] == [dead]
    uploads.abort("out/dead", dead)
    assert list(uploads.open_uploads("out/")) == []
