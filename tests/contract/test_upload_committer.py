"""One suite for the committer of uploads on every store: the promises of `Committer`."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from sluice.connectors.hdfs.committing.upload_committer import UploadCommitter
from sluice.connectors.hdfs.staging.uploaded_files import (
    UploadedFile,
    UploadSet,
    encode_upload_set,
)
from sluice.runtime.contracts import CommitOutcome, CommitReport
from sluice.runtime.errors import StorageError, StorageUnreachableError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.storage.objects.multipart_uploads import MultipartUploads
from sluice.runtime.storage.objects.object_location import object_location
from sluice.runtime.storage.objects.object_uploads import uploads_at
from tests.kit.objects.fake_uploads import Bucket, FakeUploads
from tests.kit.objects.s3_fixture import ProxiedBucket
from tests.kit.objects.s3_proxy import FaultKind

_TIMEOUT_S = 300.0
_MARK = "0123456789abcdef" * 2
_PART = b"x" * (5 << 20)


@dataclass(slots=True)
class Place:
    """A target in a store, as a task, a committer and a reader see it."""

    parent: str
    open: Callable[[], MultipartUploads]
    read: Callable[[str], bytes | None]
    uploads: MultipartUploads = field(init=False)
    entries: list[StateEntry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.uploads = self.open()

    def stage(
        self, *names: str, parts: Sequence[bytes] = (b"rows",), mark: str = _MARK
    ) -> StateEntry:
        """Uploads whose parts the store has."""
        files = []
        for name in names:
            upload_id = self.uploads.create(f"out/{name}", mark=mark)
            tags = tuple(
                self.uploads.put_part(f"out/{name}", upload_id, number, part)
                for number, part in enumerate(parts, 1)
            )
            length = sum(map(len, parts))
            files.append(
                UploadedFile(
                    final=name, upload_id=upload_id, tags=tags, length_bytes=length, rows=1
                )
            )
        found = UploadSet(target=f"{self.parent}/out", endpoint=None, mark=mark, files=tuple(files))
        return encode_upload_set(found, operator_id="op")

    def commit(self, *entries: StateEntry, after_crash: bool = False) -> list[CommitReport]:
        committer = UploadCommitter(lambda _: self.open())
        try:
            return committer.commit(entries, timeout_s=_TIMEOUT_S, after_crash=after_crash)
        finally:
            committer.close()

    def abort(self, *entries: StateEntry) -> list[CommitReport]:
        committer = UploadCommitter(lambda _: self.open())
        try:
            return committer.abort(entries, timeout_s=_TIMEOUT_S)
        finally:
            committer.close()

    def open_keys(self) -> list[str]:
        return sorted(upload.key for upload in self.uploads.open_uploads("out/"))


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "memory":
        bucket = Bucket()

        def read(key: str) -> bytes | None:
            found = bucket.objects.get(key)
            return None if found is None else found[0]

        yield Place("s3://fake", lambda: FakeUploads(bucket), read)
        return
    yield _s3_place(request.getfixturevalue("s3_proxied"))


def _s3_place(bucket: ProxiedBucket) -> Place:
    location = object_location(bucket.uri, bucket.storage_options, environment={})

    def read(key: str) -> bytes | None:
        try:
            with urllib.request.urlopen(f"{bucket.direct.endpoint}/{bucket.name}/{key}") as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.client.NOT_FOUND:
                return None
            raise

    return Place(bucket.uri, lambda: uploads_at(location), read)


def _outcomes(reports: Sequence[CommitReport]) -> list[CommitOutcome]:
    return [report.outcome for report in reports]


def test_upload_settled_no_reader_sees_a_file_before_its_completion(place: Place) -> None:
    """Parts are invisible; the committer makes the whole file visible, with every byte."""
    entry = place.stage("dt=1/part-1", "part-2", parts=(_PART, b"rest"))
    assert place.read("out/dt=1/part-1") is None

    assert _outcomes(place.commit(entry)) == [CommitOutcome.COMMITTED]
    assert place.read("out/dt=1/part-1") == place.read("out/part-2") == _PART + b"rest"
    assert place.open_keys() == []


@pytest.mark.parametrize("after_crash", [False, True])
def test_upload_settled_a_commit_may_be_repeated(place: Place, after_crash: bool) -> None:
    """Another process that commits again finds the completed object."""
    entry = place.stage("part-1")
    for _ in range(3):
        reports = place.commit(entry, after_crash=after_crash)
        assert _outcomes(reports) == [CommitOutcome.COMMITTED]
    assert place.read("out/part-1") == b"rows"


def test_upload_settled_an_aborted_upload_is_never_seen(place: Place) -> None:
    """An abort discards the parts; it may be repeated; a later commit finds nothing and says so."""
    entry = place.stage("part-1")
    for _ in range(2):
        assert _outcomes(place.abort(entry)) == [CommitOutcome.ABORTED]
    assert place.open_keys() == []

    (report,) = place.commit(entry)
    assert report.outcome is CommitOutcome.UNKNOWN
    assert "out/part-1 has no object" in report.detail
    assert place.read("out/part-1") is None


def test_upload_settled_an_abort_discards_no_completed_object(place: Place) -> None:
    """A late abort of an upload that was completed leaves the object."""
    entry = place.stage("part-1")
    place.commit(entry)
    place.abort(entry)
    assert place.read("out/part-1") == b"rows"


@pytest.mark.parametrize(("content", "mark"), [(b"another", _MARK), (b"ROWS", "f" * 32)])
def test_upload_settled_a_foreign_object_under_the_name_stops(
    place: Place, content: bytes, mark: str
) -> None:
    """An object of another length or origin is not taken for ours."""
    entry = place.stage("part-1")
    place.abort(entry)
    other = place.stage("part-1", parts=(content,), mark=mark)
    place.commit(other)

    for after_crash in (False, True):
        (report,) = place.commit(entry, after_crash=after_crash)
        assert report.outcome is CommitOutcome.UNKNOWN
        assert f"{len(content)} bytes" in report.detail
    assert place.read("out/part-1") == content


def test_upload_settled_only_its_own_upload_of_a_name_counts(place: Place) -> None:
    """A repeated request may have begun two uploads of one name: the named one is completed."""
    leaked = place.uploads.create("out/part-1", mark=_MARK)
    place.uploads.put_part("out/part-1", leaked, 1, b"part of a lost attempt")
    entry = place.stage("part-1")
    assert place.open_keys() == ["out/part-1", "out/part-1"]

    assert _outcomes(place.commit(entry)) == [CommitOutcome.COMMITTED]
    assert place.read("out/part-1") == b"rows"
    place.uploads.abort("out/part-1", leaked)
    assert place.read("out/part-1") == b"rows"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("times", [1, 2])
def test_upload_settled_a_lost_answer_is_settled_by_a_look(when: str, times: int) -> None:
    """Whether the store acted or not: PENDING until it is known, then committed once."""
    bucket, left = Bucket(), times

    def fail(point: str) -> None:
        nonlocal left
        if point == f"{when} complete" and left:
            left -= 1
            raise StorageUnreachableError("no answer", {}, "Try again.")

    place = Place("s3://fake", lambda: FakeUploads(bucket, fail=fail), lambda _: None)
    entry = place.stage("part-1")
    outcomes = [_outcomes(place.commit(entry))[0] for _ in range(times + 1)]

    expected = [CommitOutcome.PENDING] * times if when == "before" else []
    assert outcomes[: len(expected)] == expected
    assert outcomes[-1] is CommitOutcome.COMMITTED
    assert bucket.writes == ["out/part-1"]


@pytest.mark.parametrize("error", [StorageUnreachableError, StorageError])
def test_upload_settled_a_look_without_an_answer_decides_nothing(
    error: type[StorageError],
) -> None:
    """A commit whose look fails, too, is repeated."""
    bucket = Bucket()
    silent = True

    def fail(point: str) -> None:
        if silent and point in ("after complete", "before look"):
            raise error("no answer", {}, "Try again.")

    place = Place("s3://fake", lambda: FakeUploads(bucket, fail=fail), lambda _: None)
    entry = place.stage("part-1")
    assert _outcomes(place.commit(entry)) == [CommitOutcome.PENDING]
    silent = False
    assert _outcomes(place.commit(entry)) == [CommitOutcome.COMMITTED]
    assert bucket.writes == ["out/part-1"]


_ALWAYS = [
    (FaultKind.DROPPED_BEFORE, 503),
    (FaultKind.DROPPED_AFTER, 503),
    (FaultKind.REPEATED, 503),
    (FaultKind.REFUSED, 200),
    (FaultKind.REFUSED, 500),
    (FaultKind.REFUSED, 503),
    (FaultKind.REFUSED, 412),
    (FaultKind.REFUSED_AFTER, 500),
    (FaultKind.REFUSED_AFTER, 503),
    (FaultKind.REFUSED_AFTER, 412),
    (FaultKind.STRANGE, 404),
    (FaultKind.BLANK, 200),
    (FaultKind.TRUNCATED, 503),
]


@pytest.mark.extended
@pytest.mark.parametrize(("kind", "status"), _ALWAYS, ids=lambda value: str(value))
@pytest.mark.parametrize("times", [1, 2])
def test_upload_settled_a_completion_survives_what_a_network_does(
    s3_proxied: ProxiedBucket, kind: FaultKind, status: int, times: int
) -> None:
    """Each fault, once and twice in a row: the file is visible once, and the commit says so."""
    place = _s3_place(s3_proxied)
    entry = place.stage("part-1")
    s3_proxied.proxy.add(kind, method="POST", query="uploadId", times=times, status=status)

    for _ in range(times + 1):
        (report,) = place.commit(entry)
        assert report.outcome in (CommitOutcome.PENDING, CommitOutcome.COMMITTED)
        if report.outcome is CommitOutcome.COMMITTED:
            break
    assert report.outcome is CommitOutcome.COMMITTED
    assert place.read("out/part-1") == b"rows"
    assert place.open_keys() == []


@pytest.mark.parametrize("times", [1, None])
def test_upload_settled_a_success_that_the_store_did_not_report_is_none(
    s3_proxied: ProxiedBucket, times: int | None
) -> None:
    """A server before the store answers the completion by an empty 200: the store has no object."""
    place = _s3_place(s3_proxied)
    entry = place.stage("part-1")
    s3_proxied.proxy.add(FaultKind.BLANK, method="POST", query="uploadId", times=times)

    assert _outcomes(place.commit(entry)) == [CommitOutcome.PENDING]
    assert place.read("out/part-1") is None
    s3_proxied.proxy.clear()
    assert _outcomes(place.commit(entry)) == [CommitOutcome.COMMITTED]
    assert place.read("out/part-1") == b"rows"


_COMPLETION = {"method": "POST", "query": "uploadId"}
_NO_SUCH_UPLOAD = {"status": http.client.NOT_FOUND, "code": "NoSuchUpload"}


@pytest.mark.parametrize("after_crash", [False, True])
def test_upload_settled_no_such_upload_after_a_lost_answer_is_a_completed_file(
    s3_proxied: ProxiedBucket, after_crash: bool
) -> None:
    """The store acted, and the repeated completion finds no upload: the object is there."""
    place = _s3_place(s3_proxied)
    entry = place.stage("part-1")
    lost = s3_proxied.proxy.add(FaultKind.DROPPED_AFTER, **_COMPLETION)
    refused = s3_proxied.proxy.add(FaultKind.REFUSED, **_COMPLETION, **_NO_SUCH_UPLOAD, times=None)

    (report,) = place.commit(entry, after_crash=after_crash)
    assert report.outcome is CommitOutcome.COMMITTED
    assert lost.seen
    assert refused.seen, "the client repeated the completion"
    assert place.read("out/part-1") == b"rows"


@pytest.mark.parametrize("after_crash", [False, True])
@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "said to be gone"])
def test_upload_settled_no_such_upload_without_an_object_is_lost_work(
    s3_proxied: ProxiedBucket, after_crash: bool, is_gone: bool
) -> None:
    """A lifecycle rule aborts a decided upload, or the store forgets it: never a success, and the
    report names file and upload. If the store finds it again, the next commit completes it."""
    place = _s3_place(s3_proxied)
    entry = place.stage("dt=1/part-1")
    (upload,) = place.uploads.open_uploads("out/")
    if is_gone:
        place.uploads.abort(upload.key, upload.upload_id)
    else:
        s3_proxied.proxy.add(FaultKind.REFUSED, **_COMPLETION, **_NO_SUCH_UPLOAD)

    (report,) = place.commit(entry, after_crash=after_crash)
    assert report.outcome is CommitOutcome.UNKNOWN
    assert f"{s3_proxied.uri}/out/dt=1/part-1 has no object" in report.detail
    assert f"upload {upload.upload_id} is gone" in report.detail
    assert "4 bytes and 1 rows" in report.detail
    assert place.read("out/dt=1/part-1") is None

    again = _outcomes(place.commit(entry, after_crash=True))
    assert again == [CommitOutcome.UNKNOWN if is_gone else CommitOutcome.COMMITTED]


@pytest.mark.extended
@pytest.mark.parametrize("kind", [FaultKind.DROPPED_AFTER, FaultKind.REFUSED_AFTER])
def test_upload_settled_a_part_is_whole_after_lost_answers(
    s3_proxied: ProxiedBucket, kind: FaultKind
) -> None:
    """A part that was put twice counts once."""
    place = _s3_place(s3_proxied)
    s3_proxied.proxy.add(kind, method="PUT", query="partNumber=2", times=2)
    entry = place.stage("part-1", parts=(_PART, b"rest"))
    assert _outcomes(place.commit(entry)) == [CommitOutcome.COMMITTED]
    assert place.read("out/part-1") == _PART + b"rest"
