"""What a checkpoint keeps of uploads, and what their names say to a sweep."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.hdfs.committing.upload_sweep import UploadSweeper, orphan_uploads
from sluice.connectors.hdfs.staging.committables import InvalidFileSetError
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt
from sluice.connectors.hdfs.staging.upload_names import UploadName, short_region, sink_tag
from sluice.connectors.hdfs.staging.uploaded_files import (
    UPLOADS_KIND,
    UploadedFile,
    UploadSet,
    decode_upload_set,
    encode_upload_set,
)
from sluice.runtime.contracts import RegisteredAttempt, SweepView
from sluice.runtime.errors import (
    DamagedCheckpointError,
    StorageUnreachableError,
    UnsupportedFormatError,
)
from sluice.runtime.model.checkpoint_record import Redistribution, StateEntry
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.storage.objects.multipart_uploads import OpenUpload
from tests.kit.objects.fake_uploads import Bucket, FakeUploads

VERSION_1 = Path(__file__).parents[4] / "data" / "uploaded-files-v1.json"
_SINK = sink_tag(job_uid="job", operator_id="op")


def _entry(payload: bytes, *, kind: str = UPLOADS_KIND, version: int = 1) -> StateEntry:
    return StateEntry(
        operator_id="op",
        state_name="committables",
        kind=kind,
        version=version,
        redistribution=Redistribution.SPLIT,
        payload=payload,
    )


class TestCommittable:
    """What a recovery in another process reads."""

    def test_version_1_is_read_for_ever(self) -> None:
        """The bytes of an older checkpoint give the same upload set, and are written alike."""
        entry = _entry(VERSION_1.read_bytes().strip())
        found = decode_upload_set(entry)
        assert (found.parent, found.endpoint) == ("s3://lake/data", "http://127.0.0.1:9000")
        (file,) = found.files
        assert found.key(file).startswith("orders/dt=1/part-000000000042-main-")
        assert (file.upload_id, file.tags, file.rows) == ("upload-1", ('"tag-1"', '"tag-2"'), 3)
        assert encode_upload_set(found, operator_id="op") == entry

    @pytest.mark.parametrize(
        "payload",
        [b"{}", b"[]", b"x", b'{"target":"s3://b/o","endpoint":null,"mark":"m","files":[["f"]]}'],
    )
    def test_a_damaged_payload_is_refused(self, payload: bytes) -> None:
        """No upload is completed or aborted by what cannot be read."""
        with pytest.raises(DamagedCheckpointError):
            decode_upload_set(_entry(payload))

    def test_a_later_version_is_refused(self) -> None:
        """A newer program may have written what this one would misread."""
        with pytest.raises(UnsupportedFormatError):
            decode_upload_set(_entry(VERSION_1.read_bytes(), version=2))

    @pytest.mark.parametrize(
        "wrong",
        [
            {"final": "../part"},
            {"final": ""},
            {"upload_id": ""},
            {"tags": ()},
            {"tags": ("",)},
            {"length_bytes": 0},
            {"rows": 0},
        ],
    )
    def test_values_out_of_range_are_refused(self, wrong: dict[str, object]) -> None:
        """A path outside of the target, or an upload without parts, is never acted on."""
        right: dict[str, object] = {
            "final": "part",
            "upload_id": "u",
            "tags": ("t",),
            "length_bytes": 1,
            "rows": 1,
        }
        UploadedFile(**right)  # type: ignore[arg-type]
        with pytest.raises(InvalidFileSetError):
            UploadedFile(**(right | wrong))  # type: ignore[arg-type]


_REGIONS = st.text(st.sampled_from("ab-.0123456789"), min_size=1, max_size=300)


@given(region=_REGIONS, other=_REGIONS, numbers=st.tuples(*[st.integers(0, 10**7)] * 5))
def test_upload_settled_a_name_says_who_began_the_upload(
    region: str, other: str, numbers: tuple[int, int, int, int, int]
) -> None:
    """Whatever the region is called, the sweep reads back the attempt; the name fits a disk."""
    attempt_id, batch_id, subtask, number, checkpoint_id = numbers
    name = UploadName(
        sink=_SINK,
        attempt=StagingAttempt.draw(
            BatchKey(region=region, attempt_id=attempt_id, batch_id=batch_id)
        ),
        subtask=subtask,
        number=number,
        checkpoint_id=checkpoint_id,
        extension=".snappy.parquet",
    )
    assert len(str(name)) <= 255
    assert UploadName.parse(str(name), regions=[region, other]) == name
    short = UploadName.parse(str(name))
    assert short is not None
    assert short.attempt.batch.region == short_region(region)


def test_upload_settled_foreign_names_are_no_uploads_of_ours() -> None:
    """Files of other writers, also of Spark, are left alone."""
    for name in ("part-00000-x-c000.snappy.parquet", "part-000000000001-main-00000-x.json", "a"):
        assert UploadName.parse(name) is None


def _upload(
    *, sink: str = _SINK, region: str = "main", attempt_id: int = 3, batch_id: int = 7
) -> OpenUpload:
    attempt = StagingAttempt.draw(BatchKey(region=region, attempt_id=attempt_id, batch_id=batch_id))
    name = UploadName(
        sink=sink, attempt=attempt, subtask=0, number=0, checkpoint_id=1, extension=".json"
    )
    return OpenUpload(key=f"out/dt=1/{name}", upload_id=f"id-of-{attempt.attempt}")


def _committable(upload: OpenUpload, *, operator_id: str = "op") -> StateEntry:
    file = UploadedFile(
        final=upload.key.removeprefix("out/"),
        upload_id=upload.upload_id,
        tags=("t",),
        length_bytes=1,
        rows=1,
    )
    found = UploadSet(target="s3://b/out", endpoint=None, mark="m", files=(file,))
    return encode_upload_set(found, operator_id=operator_id)


def _view(**given: object) -> SweepView:
    defaults: dict[str, object] = {
        "job_uid": "job",
        "attempt_ids": {"main": 3},
        "protected": (),
        "orphans": (),
    }
    return SweepView(**(defaults | given))  # type: ignore[arg-type]


def _orphans(view: SweepView, *found: OpenUpload) -> list[OpenUpload]:
    return orphan_uploads(found, view, sink=_SINK, operator_id="op")


class TestOrphans:
    """Which open uploads a sweep may abort."""

    def test_upload_settled_work_under_way_is_left_alone(self) -> None:
        """An undecided batch of the present attempt, and an attempt newer than the view."""
        assert _orphans(_view(), _upload(), _upload(attempt_id=4)) == []

    def test_upload_settled_an_upload_of_an_older_attempt_is_aborted(self) -> None:
        """Also of a region that no longer exists, and of a start that was killed."""
        old = [
            _upload(attempt_id=2),
            _upload(region="gone", attempt_id=2),
            _upload(region="probe", attempt_id=0, batch_id=0),
        ]
        assert _orphans(_view(), *old) == old

    def test_upload_settled_what_a_decision_names_is_never_aborted(self) -> None:
        """Neither of an older attempt, nor of a settled batch, nor of a declared one."""
        old, settled = _upload(attempt_id=2), _upload()
        view = _view(protected=(_committable(old), _committable(settled)), settled={"main": 7})
        assert _orphans(view, old, settled) == []

    def test_upload_settled_a_leaked_upload_of_a_named_name_is_aborted(self) -> None:
        """A repeated request began two uploads: only the id says which one is named."""
        named = _upload(attempt_id=2)
        leaked = OpenUpload(key=named.key, upload_id="another")
        assert _orphans(_view(protected=(_committable(named),)), named, leaked) == [leaked]

    def test_upload_settled_another_operator_s_committable_protects_nothing(self) -> None:
        """Uploads are compared within their own operator."""
        old = _upload(attempt_id=2)
        view = _view(protected=(_committable(old, operator_id="other"),))
        assert _orphans(view, old) == [old]

    def test_upload_settled_another_job_s_upload_is_never_aborted(self) -> None:
        """Several jobs may write into one directory."""
        for uid, operator in (("other", "op"), ("job", "other")):
            foreign = _upload(sink=sink_tag(job_uid=uid, operator_id=operator), attempt_id=1)
            assert _orphans(_view(), foreign) == []

    def test_upload_settled_a_declared_attempt_is_aborted(self) -> None:
        """Exactly the attempt that the coordinator names."""
        mine, other = _upload(), _upload()
        name = UploadName.parse(mine.key.rpartition("/")[2])
        assert name is not None
        declared = RegisteredAttempt(
            batch=name.attempt.batch, operator_id="op", resource=name.attempt.path
        )
        assert _orphans(_view(orphans=(declared,)), mine, other) == [mine]


def test_upload_settled_a_sweep_aborts_orphans_and_survives_an_outage() -> None:
    """It lists below the target alone, and the next sweep repeats what failed."""
    bucket, away = Bucket(), [True]

    def fail(point: str) -> None:
        if away and point == "before abort":
            away.pop()
            raise StorageUnreachableError("no answer", {}, "Try again.")

    uploads = FakeUploads(bucket, fail=fail)
    old, young = _upload(attempt_id=2), _upload()
    for each in (old, young):
        uploads.create(each.key, mark="m")
    uploads.create(f"other/{old.key.rpartition('/')[2]}", mark="m")
    sweeper = UploadSweeper(uploads, target_name="out", sink=_SINK, operator_id="op")

    assert sweeper.sweep(_view()) == 0
    assert sweeper.sweep(_view()) == 1
    assert sweeper.sweep(_view()) == 0
    assert sorted(u.key for u in uploads.open_uploads("out/")) == [young.key]
    assert len(list(uploads.open_uploads("other/"))) == 1
