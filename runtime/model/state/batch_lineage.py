"""Which batches precede a checkpoint, after rewinds of the job. Pure.

A run that resumes from an older checkpoint leaves committed rows in the job's own topics: the later
batches of the runs before it, which it makes again. `BatchLineage` says which batches are valid.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from sluice.runtime.model.checkpoint_record import RegionRecord

__all__ = ["BatchLineage", "Rewind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """A start from an older checkpoint.

    Attributes:
        attempt_id: of the run that made the start: its batches are newer than the rewind.
        run_attempt_id: of the run that had decided the checkpoint: all its attempts have this id or
            a later one.
        batches: attempt and last batch of each region in that checkpoint; -1: no batch.
    """

    attempt_id: int
    run_attempt_id: int
    batches: Mapping[str, tuple[int, int]]

    @classmethod
    def to(cls, regions: Iterable[RegionRecord], *, run_attempt_id: int, attempt_id: int) -> Self:
        """The start of run ``attempt_id`` from a checkpoint with these regions."""
        return cls(
            attempt_id=attempt_id,
            run_attempt_id=run_attempt_id,
            batches={
                region.region: (
                    region.attempt_id,
                    -1 if region.batch_id is None else region.batch_id,
                )
                for region in regions
            },
        )

    def keeps(self, region: str, attempt_id: int, batch_id: int) -> bool:
        """Whether the batch is in the checkpoint, or newer than the rewind. Its region may have
        existed only in runs before the checkpoint's."""
        if attempt_id >= self.attempt_id:
            return True
        last = self.batches.get(region)
        if last is None:
            return attempt_id < self.run_attempt_id
        return (attempt_id, batch_id) <= last


@dataclass(frozen=True, slots=True)
class BatchLineage:
    """The rewinds in the past of a run, oldest first."""

    rewinds: tuple[Rewind, ...] = ()

    def has(self, region: str, attempt_id: int, batch_id: int) -> bool:
        """Whether a committed batch belongs to the past of the run."""
        return all(rewind.keeps(region, attempt_id, batch_id) for rewind in self.rewinds)

    def after(self, rewind: Rewind) -> "BatchLineage":
        """The lineage of the run that makes this rewind."""
        return BatchLineage((*self.rewinds, rewind))

    def to_json(self) -> list[Any]:
        """Plain values."""
        return [
            [each.attempt_id, each.run_attempt_id, {n: list(b) for n, b in each.batches.items()}]
            for each in self.rewinds
        ]

    @classmethod
    def from_json(cls, values: Iterable[Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(
            tuple(
                Rewind(
                    attempt_id=attempt_id,
                    run_attempt_id=run_attempt_id,
                    batches={name: (last[0], last[1]) for name, last in batches.items()},
                )
                for attempt_id, run_attempt_id, batches in values
            )
        )
