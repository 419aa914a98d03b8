"""A region's answer to a barrier, with the counts of its functions and the times of its stages.
Frozen, picklable."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import BatchKey, SplitKey, SplitRange
from sluice.runtime.model.state.key_sample import KeySample
from sluice.runtime.model.state.keyed_state import Due

__all__ = ["Acknowledgement", "RecordCounts", "RegionTimes", "StageTimes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCounts:
    """Counts of one function; all >= 0.

    Attributes:
        read: rows that it received.
        skipped: source records that it left out because it raised for them.
        dead_lettered: source records that were written to a dead-letter topic because it raised for
            them.
        late: rows that were later than the watermark: of a keyed function, or those that Spark
            dropped in a stateful transform, where a total of many rows of a batch may count as one.
        counters: of the user, by name; see `sluice.FunctionContext`.
    """

    read: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    late: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = (self.read, self.skipped, self.dead_lettered, self.late, *self.counters.values())
        if min(numbers) < 0:
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
            counters={
                name: self.counters.get(name, 0) + other.counters.get(name, 0)
                for name in (*self.counters, *other.counters)
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds that the slowest task of a batch spent in each stage; None: not known.

    Attributes:
        read_s: fetching records, and waiting for them.
        function_s: in the user's functions, and in deserializers.
        write_s: passing rows to the sinks.
        flush_s: until the sinks had confirmed all rows.
    """

    read_s: float | None = None
    function_s: float | None = None
    write_s: float | None = None
    flush_s: float | None = None

    @property
    def sum_s(self) -> float:
        """Of the known stages."""
        return sum(getattr(self, name) or 0.0 for name in _STAGES)

    @staticmethod
    def slowest(found: Iterable["StageTimes | None"]) -> "StageTimes | None":
        """The times of the task that took longest; None: no task knows them."""
        known = (times for times in found if times is not None)
        return max(known, key=lambda times: times.sum_s, default=None)


_STAGES = ("read_s", "function_s", "write_s", "flush_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionTimes(StageTimes):
    """The stages of a region's batch in a checkpoint.

    Attributes:
        acknowledged_s: from the checkpoint's barrier to the region's acknowledgement; None: its
            batch had been acknowledged before.
    """

    acknowledged_s: float | None = None


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
        due: when its keyed functions have more output, even without records; None: never.
        key_samples: some keys of its splits, if key_by says that each is in one partition only.
        paused: splits that the task does not read, because they are too far ahead of others.
        counts: of the batch, by name of the function that counts.
        dropped: ranges of the batch that approximate recovery left out.
        decide_by_s: on the coordinator's boot-time clock: if undecided then, its pre-committed work
            may be lost; None: no earlier limit than the checkpoint timeout.
        stages: times of its slowest task; None: not measured.
    """

    batch: BatchKey
    checkpoint_id: int | None
    region: RegionRecord
    again_in_s: float | None = None
    state_is_due: bool = False
    due: Due | None = None
    key_samples: tuple[KeySample, ...] = ()
    paused: tuple[SplitKey, ...] = ()
    counts: Mapping[str, RecordCounts] = field(default_factory=dict)
    dropped: tuple[SplitRange, ...] = ()
    decide_by_s: float | None = None
    stages: StageTimes | None = None

    @property
    def late_rows(self) -> int:
        """Of all functions of the batch."""
        return sum(counts.late for counts in self.counts.values())
