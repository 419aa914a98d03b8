"""How far each region of a job has committed to a table: a property that each commit also sets.

The property stands in the metadata that the commit makes current. It is there if and only if the
snapshot was appended; other writers, expired snapshots and compaction do not change it. Pure.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from sluice.connectors.iceberg.table.writing_plan import PROPERTY_PREFIX
from sluice.connectors.iceberg.written_files import WriteAttempt, WrittenFiles
from sluice.runtime.errors import DamagedCheckpointError
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.payloads import number, rows, text

__all__ = ["CommitPosition", "CommitPositions", "position_key"]

_VERSION = 1


def position_key(*, job_uid: str, operator_id: str, region: str) -> str:
    """Name of a region's property."""
    return f"{PROPERTY_PREFIX}{job_uid}.{operator_id}.{region}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPosition:
    """The last batch of a region whose files the table has.

    Attributes:
        attempt_id, batch_id: of the batch: both only grow, and a region commits in their order.
        checkpoint_id: that decided it.
        works: shortened ids of its write attempts: a batch of several tasks has several, and a
            commit may have had a part of them.
    """

    attempt_id: int
    batch_id: int
    checkpoint_id: int
    works: tuple[str, ...]

    @property
    def order(self) -> tuple[int, int]:
        """As `WriteAttempt.position`."""
        return self.attempt_id, self.batch_id

    def covers(self, attempt: WriteAttempt) -> bool:
        """Whether the table has the files of a decided attempt."""
        if attempt.position != self.order:
            return attempt.position < self.order
        return _short(attempt) in self.works

    def encoded(self) -> str:
        """The value of the property."""
        content = [
            _VERSION,
            self.attempt_id,
            self.batch_id,
            self.checkpoint_id,
            list(self.works),
        ]
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def decode(cls, value: str, *, key: str) -> Self:
        """The inverse of `encoded`.

        Raises:
            DamagedCheckpointError: it is not what this version or an earlier one wrote.
        """
        try:
            ((version, attempt_id, batch_id, checkpoint_id, works),) = rows([parsed_json(value)])
            if number(version) != _VERSION:
                raise ValueError(f"version {version}")
            (ids,) = rows([works])
            return cls(
                attempt_id=number(attempt_id),
                batch_id=number(batch_id),
                checkpoint_id=number(checkpoint_id),
                works=tuple(map(text, ids)),
            )
        except (ValueError, TypeError) as err:
            raise DamagedCheckpointError(
                "a table property with a commit position cannot be read",
                {"property": key, "value": value, "error": str(err)},
                "Restore the property from an earlier metadata file of the table, or use the "
                "version of Sluice that wrote it.",
            ) from err


@dataclass(frozen=True, slots=True)
class CommitPositions:
    """The positions of all regions of one sink of one job, from the properties of its table."""

    of_regions: Mapping[str, CommitPosition]

    @classmethod
    def read(cls, properties: Mapping[str, str], *, job_uid: str, operator_id: str) -> Self:
        """Raises DamagedCheckpointError as `CommitPosition.decode`."""
        start = position_key(job_uid=job_uid, operator_id=operator_id, region="")
        return cls(
            {
                key.removeprefix(start): CommitPosition.decode(value, key=key)
                for key, value in properties.items()
                if key.startswith(start)
            }
        )

    def covers(self, attempt: WriteAttempt) -> bool:
        """Whether the table has the files of a decided attempt."""
        position = self.of_regions.get(attempt.batch.region)
        return position is not None and position.covers(attempt)

    def after(self, works: Iterable[WrittenFiles], *, checkpoint_id: int | None) -> Self:
        """The positions after a commit that appends these files."""
        found = dict(self.of_regions)
        for work in works:
            attempt = work.attempt
            before = found.get(attempt.batch.region)
            ids = before.works if before and before.order == attempt.position else ()
            if before is not None and before.order > attempt.position:
                continue  # `covers` has left such work out
            found[attempt.batch.region] = CommitPosition(
                attempt_id=attempt.batch.attempt_id,
                batch_id=attempt.batch.batch_id,
                checkpoint_id=work.checkpoint_id if checkpoint_id is None else checkpoint_id,
                works=(*ids, _short(attempt)),
            )
        return type(self)(found)


def _short(attempt: WriteAttempt) -> str:
    """Enough to distinguish the tasks of one batch; the whole ids would make large properties."""
    return hashlib.sha256(attempt.attempt.encode()).hexdigest()[:12]
