"""Many staged files into one, each value as it was written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from sluice.connectors.hdfs.writing.frame_writer import StagingDirectory
from sluice.runtime.contracts import Frame
from sluice.runtime.failpoints import failpoint

__all__ = ["FileMerger", "JoiningMerger", "MergedFile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFile:
    """What a merge wrote, durable.

    Attributes:
        staged: relative to the staging directory.
        length_bytes: of it.
        rows: in it; None where the format does not tell without reading it.
    """

    staged: str
    length_bytes: int
    rows: int | None


class FileMerger(Protocol):
    """Merges staged files of one layout. Driver, in the batch callback."""

    @property
    def counts_rows(self) -> bool:
        """Whether it tells the rows of what it wrote, by which a loss is noticed."""
        ...

    def merge(
        self, frame: Frame, groups: Sequence[Sequence[str]], directory: StagingDirectory
    ) -> list[list[MergedFile]]:
        """Write each group's rows into one file; more only where the writer splits files.

        Args:
            frame: of the present batch; only its columns and its session are asked for.
            groups: paths relative to the root of the file system; they stay as they are.
            directory: of the present attempt.
        """
        ...


@dataclass(frozen=True, slots=True)
class JoiningMerger:
    """For formats whose files stay whole when one is put behind the other: JSON lines and CSV
    without a header, plain or in gzip, which is read member by member."""

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
