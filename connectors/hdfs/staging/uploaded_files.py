"""Files in an object store that one call completes, and the form in which checkpoints keep them.
Pure.

A task makes upload sets; a recovery in another process and ``sluice files`` read them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.connectors.hdfs.staging.committables import InvalidFileSetError, is_within
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.payloads import committable, content_of, number, rows, text

__all__ = [
    "UPLOADS_KIND",
    "UPLOADS_VERSION",
    "UploadSet",
    "UploadedFile",
    "decode_upload_set",
    "encode_upload_set",
]

UPLOADS_KIND = "uploaded-files"
UPLOADS_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedFile:
    """A whole file whose parts the store has, and keeps invisible.

    Attributes:
        final: relative to the target; it contains the attempt's id, so it never has another
            content.
        upload_id: drawn by the store.
        tags: of its parts, in order.
        length_bytes: > 0.
        rows: in the file, >= 1; None if several epochs' rows are published and the format has no
            row count in its footer.
    """

    final: str
    upload_id: str
    tags: tuple[str, ...]
    length_bytes: int
    rows: int | None

    def __post_init__(self) -> None:
        has_upload = bool(self.upload_id and self.tags and all(self.tags))
        if (
            not (is_within(self.final) and has_upload)
            or min(self.length_bytes, 1 if self.rows is None else self.rows) < 1
        ):
            raise InvalidFileSetError(
                "an uploaded file is out of range",
                {"final": self.final, "length": self.length_bytes, "rows": self.rows},
                "Restore from the previous checkpoint; report the damaged one.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSet:
    """The files that one attempt of one task wrote: any process may complete or abort them.

    Attributes:
        target: URI of the directory that readers read.
        endpoint: configured address of the store; None: the cloud's own.
        mark: kept with each object, so that a look recognises it.
        files: at least one.
    """

    target: str
    endpoint: str | None
    mark: str
    files: tuple[UploadedFile, ...]

    def __post_init__(self) -> None:
        parent, _, name = self.target.rpartition("/")
        if not (parent and name and self.mark and self.files):
            raise InvalidFileSetError(
                "a set of uploaded files is out of range",
                {"target": self.target, "mark": self.mark, "files": len(self.files)},
                "Restore from the previous checkpoint; report the damaged one.",
            )

    @property
    def parent(self) -> str:
        """URI of the directory that holds the target: keys are relative to it."""
        return self.target.rpartition("/")[0]

    def key(self, file: UploadedFile) -> str:
        """Relative to `parent`."""
        return f"{self.target.rpartition('/')[2]}/{file.final}"


def encode_upload_set(uploads: UploadSet, *, operator_id: str) -> StateEntry:
    """The committable that stands in an acknowledgement and in ``_metadata``."""
    content = {
        "target": uploads.target,
        "endpoint": uploads.endpoint,
        "mark": uploads.mark,
        "files": [
            [f.final, f.upload_id, list(f.tags), f.length_bytes, f.rows] for f in uploads.files
        ],
    }
    return committable(content, kind=UPLOADS_KIND, version=UPLOADS_VERSION, operator_id=operator_id)


def decode_upload_set(entry: StateEntry) -> UploadSet:
    """The upload set inside a committable.

    Raises:
        UnsupportedFormatError: another kind, or a version newer than this code.
        DamagedCheckpointError: the payload is not what its version promises.
        InvalidFileSetError: a value is out of range.
    """
    return content_of(
        entry,
        _from_content,
        kind=UPLOADS_KIND,
        version=UPLOADS_VERSION,
        what="a set of uploaded files",
    )


def _from_content(content: Mapping[str, object]) -> UploadSet:
    return UploadSet(
        target=text(content["target"]),
        endpoint=None if content["endpoint"] is None else text(content["endpoint"]),
        mark=text(content["mark"]),
        files=tuple(
            UploadedFile(
                final=text(final),
                upload_id=text(upload_id),
                tags=tuple(map(text, _listed(tags))),
                length_bytes=number(length),
                rows=None if count is None else number(count),
            )
            for final, upload_id, tags, length, count in rows(content["files"])
        ),
    )


def _listed(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"not a list: {value!r}")
    return value
