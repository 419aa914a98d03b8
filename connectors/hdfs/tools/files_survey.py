"""Finds a job's files from its checkpoint directory and its file systems.

``sluice files`` shows and deletes them; it needs neither the job nor Spark.
"""

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sluice.connectors.hdfs.committing.file_committer import Step, next_step
from sluice.connectors.hdfs.committing.file_lease import LEASE_FILE, FileLeaseStore
from sluice.connectors.hdfs.committing.file_sweep import attempts_below
from sluice.connectors.hdfs.committing.upload_committer import Found, OpenUploads, found_object
from sluice.connectors.hdfs.committing.upload_sweep import uploads_of
from sluice.connectors.hdfs.staging.committables import (
    COMMITTABLE_KIND,
    FileSet,
    StagedFile,
    decode_file_set,
)
from sluice.connectors.hdfs.staging.pending_files import (
    PENDING_KIND,
    PendingFiles,
    decode_pending_files,
)
from sluice.connectors.hdfs.staging.staged_names import split_target, staging_root
from sluice.connectors.hdfs.staging.upload_names import sink_tag
from sluice.connectors.hdfs.staging.uploaded_files import (
    UPLOADS_KIND,
    UploadedFile,
    UploadSet,
    decode_upload_set,
)
from sluice.runtime.checkpoint.inspect.inspection import Slot
from sluice.runtime.checkpoint.retained_states import states_of
from sluice.runtime.errors import DamagedCheckpointError, FencedError
from sluice.runtime.model.checkpoint_record import CheckpointRecord
from sluice.runtime.ownership.lease import LeaseRecord, is_of_another_directory
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem
from sluice.runtime.storage.objects.multipart_uploads import MultipartUploads, OpenUpload
from sluice.runtime.storage.objects.object_location import OBJECT_SCHEMES

__all__ = [
    "FileLine",
    "Orphan",
    "Standing",
    "file_lines",
    "first_slot_of_newest_run",
    "orphans_of",
    "upload_lines",
]


class Standing(enum.Enum):
    """The place of a file that a checkpoint names."""

    PUBLISHED = "published"
    STAGED = "staged"
    PENDING = "pending"  # staged, for a later epoch to publish
    MISSING = "missing"  # neither, or of another length than recorded


_STANDING = {
    Step.MOVE: Standing.STAGED,
    Step.NONE: Standing.PUBLISHED,
    Step.DELETE_STAGED: Standing.PUBLISHED,
    Step.STOP: Standing.MISSING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLine:
    """One file that a checkpoint names.

    Attributes:
        checkpoint_id, checkpoint: the record, and how it stands (`Slot.standing`).
        sink: name of the operator.
        uri: the final name; a pending file has none yet, so its staged name.
        standing: where the file is now.
        rows: None if the format has no row count in its footer.
        length_bytes: as recorded.
    """

    checkpoint_id: int
    checkpoint: str
    sink: str
    uri: str
    standing: Standing
    rows: int | None
    length_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A staging directory, or an open upload, of an earlier run that no checkpoint names.

    Attributes:
        sink: name of the operator.
        parent: URI at which its file system is opened.
        path: of the directory, or key of the upload, relative to ``parent``.
        files: in it, markers and checksums included.
        length_bytes: of them all; 0 for an upload, whose store does not say.
        upload_id: of an upload; None: a directory.
    """

    sink: str
    parent: str
    path: str
    files: int
    length_bytes: int
    upload_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sink:
    operator_id: str
    name: str
    target: str


def file_lines(places: Sequence[Slot], open_file_system: OpenFileSystem) -> Iterator[FileLine]:
    """Every file that a checkpoint in the directory names, oldest checkpoint first."""
    for place in places:
        if place.record is None:
            continue
        names = {node.operator_id: node.name for node in place.record.graph}
        for operator_id, files in _file_sets(place.record):
            fs = open_file_system(files.parent)
            for file in files.files:
                yield FileLine(
                    checkpoint_id=place.checkpoint_id,
                    checkpoint=place.standing,
                    sink=names.get(operator_id, operator_id),
                    uri=f"{files.target}/{file.final}",
                    standing=_standing_of(fs, files, file),
                    rows=file.rows,
                    length_bytes=file.length_bytes,
                )
        for operator_id, pending in _pending_files(place.record):
            parent, _ = split_target(pending.target)
            fs = open_file_system(parent)
            for kept in pending.files:
                is_there = fs.length_bytes(kept.path) == kept.length_bytes
                yield FileLine(
                    checkpoint_id=place.checkpoint_id,
                    checkpoint=place.standing,
                    sink=names.get(operator_id, operator_id),
                    uri=f"{parent}/{kept.path}",
                    standing=Standing.PENDING if is_there else Standing.MISSING,
                    rows=kept.rows,
                    length_bytes=kept.length_bytes,
                )


def upload_lines(places: Sequence[Slot], open_uploads: OpenUploads) -> Iterator[FileLine]:
    """As `file_lines`, of files in object stores."""
    open_ids: dict[str, frozenset[str]] = {}
    for place in places:
        if place.record is None:
            continue
        names = {node.operator_id: node.name for node in place.record.graph}
        for operator_id, files in _upload_sets(place.record):
            uploads = open_uploads(files.parent)
            if files.target not in open_ids:
                found = uploads.open_uploads(f"{split_target(files.target)[1]}/")
                open_ids[files.target] = frozenset(each.upload_id for each in found)
            for file in files.files:
                yield FileLine(
                    checkpoint_id=place.checkpoint_id,
                    checkpoint=place.standing,
                    sink=names.get(operator_id, operator_id),
                    uri=f"{files.target}/{file.final}",
                    standing=_upload_standing(uploads, files, file, open_ids[files.target]),
                    rows=file.rows,
                    length_bytes=file.length_bytes,
                )


def orphans_of(
    places: Sequence[Slot],
    open_file_system: OpenFileSystem,
    open_uploads: OpenUploads,
    *,
    checkpoint_uri: str,
    resumable: Mapping[str, int],
) -> Iterator[Orphan]:
    """Staged attempts and open uploads of earlier runs that no checkpoint in the directory names.

    Those of the newest run and of attempts that it has resumed are left out: it may be running, and
    it or the next start sweeps them.

    Args:
        places: all of the checkpoint directory.
        checkpoint_uri: of that directory.
        resumable: see `ResumableAttempts.running`; read after the places.
    Raises:
        DamagedCheckpointError: a checkpoint cannot be read, and may name any of them.
        FencedError: a run of another checkpoint directory has or had the lease, and its checkpoints
            may name them.
    """
    records = [place.record for place in places if place.record is not None]
    if len(records) < len(places):
        raise DamagedCheckpointError(
            "orphans are unknown, because a checkpoint cannot be read",
            {"checkpoint_ids": [each.checkpoint_id for each in places if each.record is None]},
            "Run `sluice checkpoint list`: a damaged checkpoint may name any staged file.",
        )
    named = {files.staging for record in records for _, files in _file_sets(record)}
    for record in records:
        named.update(*(pending.stagings for _, pending in _pending_files(record)))
    named_uploads = {
        file.upload_id
        for record in records
        for _, files in _upload_sets(record)
        for file in files.files
    }
    oldest_running = min([first_slot_of_newest_run(records), *resumable.values()])
    for sink, job_uid in _sinks(records).items():
        parent, name = split_target(sink.target)
        root = staging_root(name, job_uid=job_uid, operator_id=sink.operator_id)
        fs = open_file_system(parent)
        _require_ours(
            FileLeaseStore(fs, root).read(),
            session=records[-1].leader_session_id,
            checkpoint_uri=checkpoint_uri,
            staging=f"{parent}/{root}",
        )
        for attempt in attempts_below(fs, root):
            path = f"{root}/{attempt.path}"
            if attempt.batch.attempt_id < oldest_running and path not in named:
                yield _orphan(fs, sink, parent, path)
        if parent.partition("://")[0] in OBJECT_SCHEMES:
            tag = sink_tag(job_uid=job_uid, operator_id=sink.operator_id)
            open_ones = open_uploads(parent).open_uploads(f"{name}/")
            yield from (
                _orphan_upload(sink, parent, upload)
                for upload, its_name in uploads_of(open_ones, sink=tag)
                if its_name.attempt.batch.attempt_id < oldest_running
                and upload.upload_id not in named_uploads
            )


def _require_ours(
    owner: LeaseRecord | None, *, session: str, checkpoint_uri: str, staging: str
) -> None:
    """Refuse a foreign lease: only its owner's checkpoints name the needed files
    (`lease-guards-outputs`)."""
    if owner is None or not is_of_another_directory(
        owner, session=session, checkpoint_uri=checkpoint_uri
    ):
        return
    raise FencedError(
        "a run of another checkpoint directory has the lease on this staging",
        {"staging": staging, "checkpoint": owner.checkpoint_uri, "host": owner.host},
        "Give the command that checkpoint directory: one is a copy of the other, and only its "
        "checkpoints name the needed files. If it was moved to here, or its job is gone for "
        f"good, delete the lease {LEASE_FILE!r} there.",
    )


def first_slot_of_newest_run(records: Sequence[CheckpointRecord]) -> int:
    """The attempt with which the newest run began: the id of its first own record."""
    session = records[-1].leader_session_id
    return min(r.checkpoint_id for r in records if r.leader_session_id == session)


def _sinks(records: Sequence[CheckpointRecord]) -> Mapping[_Sink, str]:
    """Every file sink that any run of the job had, with the job's uid."""
    found: dict[_Sink, str] = {}
    for record in records:
        for node in record.graph:
            target = record.settings.get(f"{node.name}.path")
            if node.kind == "sink" and target is not None:
                sink = _Sink(operator_id=node.operator_id, name=node.name, target=target)
                found[sink] = record.job_uid
    return found


def _file_sets(record: CheckpointRecord) -> Iterator[tuple[str, FileSet]]:
    for region in record.regions:
        for entry in region.committables:
            if entry.kind == COMMITTABLE_KIND:
                yield entry.operator_id, decode_file_set(entry)


def _upload_sets(record: CheckpointRecord) -> Iterator[tuple[str, UploadSet]]:
    for region in record.regions:
        for entry in region.committables:
            if entry.kind == UPLOADS_KIND:
                yield entry.operator_id, decode_upload_set(entry)


def _pending_files(record: CheckpointRecord) -> Iterator[tuple[str, PendingFiles]]:
    for entry in states_of(record):
        if entry.kind == PENDING_KIND:
            yield entry.operator_id, decode_pending_files(entry)


def _standing_of(fs: FileSystem, files: FileSet, file: StagedFile) -> Standing:
    staged, final = files.staged_path(file), files.final_path(file)
    step = next_step(
        fs.length_bytes(staged), fs.length_bytes(final), length_bytes=file.length_bytes
    )
    return _STANDING[step]


def _upload_standing(
    uploads: MultipartUploads, files: UploadSet, file: UploadedFile, open_ids: Collection[str]
) -> Standing:
    found = found_object(
        uploads.look(files.key(file)), length_bytes=file.length_bytes, mark=files.mark
    )
    if found is Found.OURS:
        return Standing.PUBLISHED
    is_open = found is Found.NOTHING and file.upload_id in open_ids
    return Standing.STAGED if is_open else Standing.MISSING


def _orphan_upload(sink: _Sink, parent: str, upload: OpenUpload) -> Orphan:
    return Orphan(
        sink=sink.name,
        parent=parent,
        path=upload.key,
        files=1,
        length_bytes=0,
        upload_id=upload.upload_id,
    )


def _orphan(fs: FileSystem, sink: _Sink, parent: str, path: str) -> Orphan:
    lengths = list(_lengths(fs, path))
    return Orphan(
        sink=sink.name,
        parent=parent,
        path=path,
        files=len(lengths),
        length_bytes=sum(lengths),
    )


def _lengths(fs: FileSystem, path: str) -> Iterator[int]:
    for entry in fs.entries(path):
        if entry.is_directory:
            yield from _lengths(fs, f"{path}/{entry.name}")
        else:
            yield entry.length_bytes
