"""Names of staged and published files. Pure.

Staging is a hidden directory beside the target. Below the target, a reader's pattern might find it.
In the same parent, a rename publishes a file (`rename-settled`). A staged file has no name of its
format, so a reader that also lists hidden directories does not take it.
"""

import re
import uuid
from dataclasses import dataclass
from typing import Self

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.splits import BatchKey

__all__ = [
    "HIDDEN",
    "StagingAttempt",
    "final_name",
    "rolled_name",
    "split_target",
    "staged_name",
    "staging_root",
    "written_type",
]

_PREFIX = ".sluice-staging-"
_URI = re.compile(r"(?P<parent>.*[^/])/+(?P<name>[^/]+)/*")
HIDDEN = (".", "_")
"""First characters of names that Hadoop's and Spark's readers skip."""
_ATTEMPT = re.compile(r"(?P<batch>\d+)-(?P<attempt>[0-9a-f]{32})")
# A name has at most 255 bytes, and a longer one would fail after the decision. A region may be
# named after many topics; the attempt alone makes the name unique.
_MOST_OF_A_REGION = 100
_STAGED, _DOT = ".staged", "~"
_SPARKS = re.compile(r"part-(?P<subtask>\d+)-[0-9a-f-]{36}(?P<rest>.*)")


def split_target(uri: str) -> tuple[str, str]:
    """The parent's URI and the name of a target directory.

    Raises:
        ConfigError: the target has no parent to stage in, or a name that readers skip.
    """
    match = _URI.fullmatch(uri)
    if match is None or match["parent"].endswith(":") or match["name"].startswith(HIDDEN):
        raise ConfigError(
            "this directory cannot be the target of a file sink",
            {"path": uri},
            "Give a directory below another one, whose name begins neither with '.' nor '_'.",
        )
    return match["parent"], match["name"]


def staging_root(target_name: str, *, job_uid: str, operator_id: str) -> str:
    """The staging directory of one sink of one job, relative to the target's parent."""
    return f"{_PREFIX}{target_name}/{job_uid}/{operator_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingAttempt:
    """``{region}.{attempt_id}/{batch id}-{attempt_id}``: a directory that one attempt writes.

    Attributes:
        batch: that it was written for.
        attempt: 32 random hexadecimal digits, so that a zombie cannot overwrite another attempt's
            file.
    """

    batch: BatchKey
    attempt: str

    @classmethod
    def draw(cls, batch: BatchKey) -> Self:
        """A new attempt for a batch."""
        return cls(batch=batch, attempt=uuid.uuid4().hex)

    @property
    def directory(self) -> str:
        """Directory of its region's attempt, relative to `staging_root`."""
        return f"{self.batch.region}.{self.batch.attempt_id}"

    @property
    def path(self) -> str:
        """Path relative to `staging_root`; the attempt registers under it with the coordinator."""
        return f"{self.directory}/{self.batch.batch_id}-{self.attempt}"

    @classmethod
    def parse(cls, path: str) -> Self | None:
        """The inverse of `path`; None for a name that is not ours."""
        directory, _, name = path.partition("/")
        region, _, attempt_id = directory.rpartition(".")
        match = _ATTEMPT.fullmatch(name)
        if match is None or not region or not (attempt_id.isascii() and attempt_id.isdecimal()):
            return None
        batch = BatchKey(region=region, attempt_id=int(attempt_id), batch_id=int(match["batch"]))
        return cls(batch=batch, attempt=match["attempt"])


def staged_name(written: str) -> str:
    """The name until publication: ``*.parquet``, ``*.json*`` and the like do not match it."""
    return f"{written.replace('.', _DOT)}{_STAGED}"


def final_name(attempt: StagingAttempt, written: str, *, checkpoint_id: int) -> str:
    """The name that readers see: it shows the file's origin, and never has another content.

    Args:
        attempt: that wrote it.
        written: the writer's name, as Spark's writers give it:
            ``part-{subtask}-{uuid}{-c000 and extension}``.
        checkpoint_id: that the batch was expected to join.
    """
    match = _SPARKS.fullmatch(written)
    if match is None:
        raise ConfigError(
            "a file in the staging directory has a foreign name",
            {"name": written, "staging": attempt.path},
            "Unset spark.sql.sources.commitProtocolClass: files need Spark's own names.",
        )
    subtask, rest = match["subtask"], match["rest"]
    region = attempt.batch.region[:_MOST_OF_A_REGION]
    return f"part-{checkpoint_id:012d}-{region}-{subtask}-{attempt.attempt}{rest}"


def rolled_name(attempt: StagingAttempt, written: str, *, number: int, checkpoint_id: int) -> str:
    """As `final_name`, for a file whose rows may come from several tasks and epochs.

    Args:
        attempt: whose decision publishes it.
        written: the `staged_name` of a writer's name, whose first dot begins the file's type.
        number: among the files that the decision publishes in one directory.
        checkpoint_id: that the batch was expected to join.
    """
    region = attempt.batch.region[:_MOST_OF_A_REGION]
    kind = written_type(written)
    return f"part-{checkpoint_id:012d}-{region}-{number:05d}-{attempt.attempt}{kind}"


def written_type(staged: str) -> str:
    """The type of a staged file, from the first dot of its writer's name on."""
    name = staged.rpartition("/")[2].removesuffix(_STAGED).replace(_DOT, ".")
    _, dot, kind = name.partition(".")
    return f"{dot}{kind}"
