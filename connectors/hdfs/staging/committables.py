"""Files that are staged and not yet published, and the form in which checkpoints keep them. Pure.

The driver makes file sets; a recovery in another process and ``sluice files`` read them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.runtime.errors import StreamError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.payloads import committable, content_of, number, rows, text

__all__ = [
    "COMMITTABLE_KIND",
    "COMMITTABLE_VERSION",
    "FileSet",
    "InvalidFileSetError",
    "StagedFile",
    "decode_file_set",
    "encode_file_set",
    "is_within",
]

COMMITTABLE_KIND = "staged-files"
COMMITTABLE_VERSION = 1


class InvalidFileSetError(StreamError):
    """A set of staged files is out of range: nothing may be published or deleted with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A whole file under a staged name, and the name that the decision gives it.

    Attributes:
        staged: relative to the set's staging directory.
        final: relative to the target; it contains the attempt's id, so it never has another
        content.
        length_bytes: > 0.
        rows: in the file; None if the format has no row count in its footer.
    """

    staged: str
    final: str
    length_bytes: int
    rows: int | None = None

    def __post_init__(self) -> None:
        are_within = all(is_within(path) for path in (self.staged, self.final))
        if not are_within or self.length_bytes <= 0 or (self.rows is not None and self.rows < 0):
            raise InvalidFileSetError(
                "a staged file is out of range",
                {
                    "staged": self.staged,
                    "final": self.final,
                    "length_bytes": self.length_bytes,
                    "rows": self.rows,
                },
                "Restore from the previous checkpoint; report the damaged one.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSet:
    """The files that one batch of one sink wrote: any process may publish or delete them, all at
    once.

    Attributes:
        target: URI of the directory that readers read.
        staging: directory of this attempt alone, relative to the parent of ``target``.
        rows: in all files; >= 1, because a batch without rows has no file set. None if several
            epochs' rows are published and the format has no row count in its footer.
        files: at least one.
    """

    target: str
    staging: str
    rows: int | None
    files: tuple[StagedFile, ...]

    def __post_init__(self) -> None:
        parent, _, name = self.target.rpartition("/")
        is_empty = self.rows == 0 or not self.files
        if not (parent and name and is_within(self.staging)) or (self.rows or 0) < 0 or is_empty:
            raise InvalidFileSetError(
                "a set of staged files is out of range",
                {"target": self.target, "staging": self.staging, "rows": self.rows},
                "Restore from the previous checkpoint; report the damaged one.",
            )

    @property
    def parent(self) -> str:
        """URI of the directory that holds target and staging: where a file system is opened."""
        return self.target.rpartition("/")[0]

    def staged_path(self, file: StagedFile) -> str:
        """Relative to `parent`."""
        return f"{self.staging}/{file.staged}"

    def final_path(self, file: StagedFile) -> str:
        """Relative to `parent`."""
        return f"{self.target.rpartition('/')[2]}/{file.final}"


def encode_file_set(files: FileSet, *, operator_id: str) -> StateEntry:
    """The committable that stands in an acknowledgement and in ``_metadata``."""
    content = {
        "target": files.target,
        "staging": files.staging,
        "rows": files.rows,
        "files": [[f.staged, f.final, f.length_bytes, f.rows] for f in files.files],
    }
    return committable(
        content, kind=COMMITTABLE_KIND, version=COMMITTABLE_VERSION, operator_id=operator_id
    )


def decode_file_set(entry: StateEntry) -> FileSet:
    """The file set inside a committable.

    Raises:
        UnsupportedFormatError: another kind, or a version newer than this code.
        DamagedCheckpointError: the payload is not what its version promises.
        InvalidFileSetError: a value is out of range.
    """
    return content_of(
        entry,
        _from_content,
        kind=COMMITTABLE_KIND,
        version=COMMITTABLE_VERSION,
        what="a set of staged files",
    )


def _from_content(content: Mapping[str, object]) -> FileSet:
    return FileSet(
        target=text(content["target"]),
        staging=text(content["staging"]),
        rows=None if content["rows"] is None else number(content["rows"]),
        files=tuple(
            StagedFile(
                staged=text(staged),
                final=text(final),
                length_bytes=number(length),
                rows=None if count is None else number(count),
            )
            for staged, final, length, count in rows(content["files"])
        ),
    )


def is_within(path: str) -> bool:
    """Whether a relative path stays below the directory that it is relative to."""
    return not {"", ".", ".."} & set(path.split("/"))
