"""Merges staged files into one; values stay as they were written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from sluice.connectors.hdfs.writing.frame_writer import StagingDirectory
from sluice.runtime.contracts import Frame
from sluice.runtime.failpoints import failpoint

__all__ = ["FileMerger", "JoiningMerger", "MergedFile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFile:
    """A durable file that a merge wrote.

    Attributes:
        staged: relative to the staging directory.
        length_bytes: of it.
        rows: in it; None if the format has no row count in its footer.
    """

    staged: str
    length_bytes: int
    rows: int | None


class FileMerger(Protocol):
    """Merges staged files of one layout. Driver, in the batch callback."""

    @property
    def counts_rows(self) -> bool:
        """Whether it counts the rows of the files that it wrote, so that a loss is noticed."""
        ...

    def merge(
        self, frame: Frame, groups: Sequence[Sequence[str]], directory: StagingDirectory
    ) -> list[list[MergedFile]]:
        """Write each group's rows into one file; more only where the writer splits files.

        Args:
            frame: of the present batch; only its columns and its session are used.
            groups: paths relative to the root of the file system; the merge does not change these
                files.
            directory: of the present attempt.
        """
        ...


@dataclass(frozen=True, slots=True)
class JoiningMerger:
    """Concatenates files: JSON lines, or CSV without a header, plain or in gzip, whose members
    readers read one after the other."""

    counts_rows: ClassVar[bool] = False

    def merge(
        self, frame: Frame, groups: Sequence[Sequence[str]], directory: StagingDirectory
    ) -> list[list[MergedFile]]:
        """See `FileMerger`."""
        del frame
        found: list[list[MergedFile]] = []
        for number, sources in enumerate(groups):
            _, _, written = sources[0].rpartition("/")
            staged = f"merged/{number:05d}/{written}"
            length = directory.fs.join(sources, f"{directory.path}/{staged}")
            failpoint("mid-merge")
            found.append([MergedFile(staged=staged, length_bytes=length, rows=None)])
        directory.make_names_durable(file.staged for files in found for file in files)
        return found
