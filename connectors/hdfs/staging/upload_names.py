"""Names of files that are uploads until their decision. Pure.

An object store has no rename, so an upload begins under its final name. The name says which attempt
of which job began the upload: the sweep reads it from the store's list of open uploads.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from sluice.connectors.hdfs.staging.staged_names import StagingAttempt
from sluice.runtime.model.splits import BatchKey

__all__ = ["UploadName", "sink_tag"]

_LONGEST_REGION = 100  # a name has at most 255 bytes where objects are copied to a disk
_DIGEST = 16
_NAME = re.compile(
    r"part-(?P<checkpoint>\d{12})-(?P<region>.+)-(?P<subtask>\d{5,})-(?P<number>\d{3,})"
    r"-(?P<attempt_id>\d+)-(?P<batch>\d+)-(?P<sink>[0-9a-f]{16})-(?P<attempt>[0-9a-f]{32})"
    r"(?P<rest>\..*)?"
)


def sink_tag(*, job_uid: str, operator_id: str) -> str:
    """16 hexadecimal digits for one sink of one job: several jobs may write into one directory."""
    return hashlib.sha256(f"{job_uid}/{operator_id}".encode()).hexdigest()[:_DIGEST]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadName:
    """The name of a file, without its directory.

    Attributes:
        sink: its `sink_tag`.
        attempt: that wrote it; its region may be shortened (`short_region`).
        subtask: of the sink; >= 0.
        number: among the files of the attempt.
        checkpoint_id: that the batch was expected to join.
        extension: of the format.
    """

    sink: str
    attempt: StagingAttempt
    subtask: int
    number: int
    checkpoint_id: int
    extension: str

    def __str__(self) -> str:
        batch = self.attempt.batch
        return (
            f"part-{self.checkpoint_id:012d}-{short_region(batch.region)}-{self.subtask:05d}"
            f"-{self.number:03d}-{batch.attempt_id}-{batch.batch_id}-{self.sink}"
            f"-{self.attempt.attempt}{self.extension}"
        )

    @classmethod
    def parse(cls, name: str, *, regions: Iterable[str] = ()) -> Self | None:
        """The inverse of ``str``; None for a name that is not ours.

        Args:
            regions: full names of those that exist now; another region keeps its shortened name.
        """
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        full = {short_region(region): region for region in regions}
        batch = BatchKey(
            region=full.get(match["region"], match["region"]),
            attempt_id=int(match["attempt_id"]),
            batch_id=int(match["batch"]),
        )
        return cls(
            sink=match["sink"],
            attempt=StagingAttempt(batch=batch, attempt=match["attempt"]),
            subtask=int(match["subtask"]),
            number=int(match["number"]),
            checkpoint_id=int(match["checkpoint"]),
            extension=match["rest"] or "",
        )


def short_region(region: str) -> str:
    """A region's name, or its beginning and a digest if it is long."""
    if len(region) <= _LONGEST_REGION:
        return region
    digest = hashlib.sha256(region.encode()).hexdigest()[:_DIGEST]
    return f"{region[: _LONGEST_REGION - 1 - _DIGEST]}-{digest}"
