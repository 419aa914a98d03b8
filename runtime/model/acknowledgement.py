"""A region's answer to a barrier, with the counts of its functions. Frozen, picklable."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import BatchKey, SplitRange

__all__ = ["Acknowledgement", "RecordCounts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCounts:
    """Counts of one function; all >= 0.

    Attributes:
        read: rows that it received.
        skipped: source records that it left out because it raised for them.
        dead_lettered: source records that were written to a dead-letter topic because it raised for
            them.
        late: rows of a stateful transform that Spark dropped, because they were later than the
            watermark. A total of many rows of a batch may count as one.
    """

    read: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    late: int = 0

    def __post_init__(self) -> None:
        if min(self.read, self.skipped, self.dead_lettered, self.late) < 0:
            raise ConfigError(
                "record counts are out of range",
                asdict(self),
                "Restore from the previous checkpoint; report the damaged one.",
            )

    @property
    def failed(self) -> int:
        """Records that did not come through, for any reason."""
        return self.skipped + self.dead_lettered

    def __add__(self, other: "RecordCounts") -> "RecordCounts":
        return RecordCounts(
            read=self.read + other.read,
            skipped=self.skipped + other.skipped,
            dead_lettered=self.dead_lettered + other.dead_lettered,
            late=self.late + other.late,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """A region's answer to a barrier: its batch is pre-committed (step 3 of the protocol).

    Attributes:
        batch: identity; an older attempt is refused.
        checkpoint_id: the barrier's id, a hint (`batch-identity`); None for a batch without a
            barrier.
        region: the region for the record: splits, committables, state.
        again_in_s: a sink requests a batch again after so long, even without records.
        state_is_due: its state has more output in a following batch, even without records.
        counts: of the batch, by name of the function that counts.
        dropped: ranges of the batch that approximate recovery left out.
        decide_by_s: on the coordinator's boot-time clock: if undecided then, its pre-committed work
            may be lost; None: no earlier limit than the checkpoint timeout.
    """

    batch: BatchKey
    checkpoint_id: int | None
    region: RegionRecord
    again_in_s: float | None = None
    state_is_due: bool = False
    counts: Mapping[str, RecordCounts] = field(default_factory=dict)
    dropped: tuple[SplitRange, ...] = ()
    decide_by_s: float | None = None

    @property
    def late_rows(self) -> int:
        """Of all functions of the batch."""
        return sum(counts.late for counts in self.counts.values())
