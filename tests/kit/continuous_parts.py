"""Parts of a continuous task that are played: logs to follow, and writers that remember."""

from collections.abc import Callable, Collection, Mapping, Sequence

import pyarrow as pa

from sluice.runtime.continuous.task_loop import EpochScope
from sluice.runtime.contracts import RecordsRead
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import SplitKey, SplitRange
from tests.kit.coordinator.core_driver import committable

_BATCH = 10


def rows_of(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    """(partition, offset) of each record."""
    columns = (batch.column("partition").to_pylist(), batch.column("offset").to_pylist())
    return list(zip(*columns, strict=True))


class LogFollower:
    """A `RecordStream` over logs whose record at an offset is its offset; ten records a poll.

    Attributes:
        logs: end of each partition's log; a test raises them.
        read: how far records came of a partition, where that is not up to its position.
        markers: partitions that hold nothing else.
        skipping: partitions of which the client fetches what it does not return.
        paused: splits that are not read.
    """

    def __init__(self, splits: Sequence[SplitRange], logs: dict[int, int]) -> None:
        self.logs = logs
        self.read: dict[int, RecordsRead] = {}
        self.markers: set[int] = set()
        self.skipping: set[int] = set()
        self.paused: frozenset[SplitKey] = frozenset()
        self.is_closed = False
        self._at: dict[SplitKey, int] = {}
        self.restart_at(splits)

    def poll(self) -> pa.RecordBatch | None:
        """From one partition after the other, the one that has been read least first."""
        for key in sorted(self._at, key=lambda key: (self._at[key], key)):
            start = self._at[key]
            end = min(self.logs.get(key[2], 0), start + _BATCH)
            if end > start and key not in self.paused:
                self._at[key] = end
                offsets = list(range(start, end))
                return pa.RecordBatch.from_pydict(
                    {
                        "topic": [key[1]] * len(offsets),
                        "partition": [key[2]] * len(offsets),
                        "offset": offsets,
                    }
                )
        return None

    def positions(self) -> Mapping[SplitKey, int]:
        """See `RecordStream.positions`."""
        return dict(self._at)

    def active(self) -> frozenset[SplitKey]:
        """See `RecordStream.active`."""
        return frozenset(key for key in self._at if key[2] in self.skipping)

    def pause(self, splits: Collection[SplitKey]) -> None:
        """See `RecordStream.pause`."""
        self.paused = frozenset(splits)

    def records_read(self) -> Mapping[SplitKey, RecordsRead]:
        """See `RecordStream.records_read`."""
        return {
            key: self.read.get(key[2], RecordsRead(at, None))
            for key, at in self._at.items()
            if at > self._began[key] and key[2] not in self.markers
        }

    def restart_at(self, splits: Sequence[SplitRange]) -> None:
        """See `RecordStream.restart_at`."""
        self._at = {split.key: split.start_offset for split in splits}
        self._began = dict(self._at)
        self.paused = frozenset()

    def close(self) -> None:
        """See `RecordStream.close`."""
        self.is_closed = True


class RecordingWriter:
    """A `ContinuousWriter` whose committable is named after its batch.

    Attributes:
        events: what was asked of it, in order.
        ranges: that its epoch has read, as it was reported at the end.
        records: (partition, offset) of what was written.
        failure: what its pre-commit raises.
        on_commit: what its commit does, and whether that is acknowledged.
    """

    def __init__(self, scope: EpochScope) -> None:
        self.scope = scope
        self.events: list[str] = []
        self.ranges: tuple[SplitRange, ...] = ()
        self.records: list[tuple[int, int]] = []
        self.failure: Exception | None = None
        self.decide_by_s: float | None = None
        self.on_commit: Callable[[], bool] = lambda: True

    def write(self, batch: pa.RecordBatch) -> None:
        """See `SinkWriter.write`."""
        self.events.append("write")
        self.records += rows_of(batch)

    def end_epoch(self, ranges: Sequence[SplitRange], *, checkpoint_id: int) -> None:
        """See `ContinuousWriter.end_epoch`."""
        del checkpoint_id
        self.ranges = tuple(ranges)
        self.events.append("end")

    def pre_commit(self) -> list[StateEntry]:
        """See `SinkWriter.pre_commit`."""
        if self.failure is not None:
            raise self.failure
        self.events.append("pre-commit")
        batch = self.scope.batch
        return [committable(f"{batch.region}.{batch.attempt_id}.{batch.batch_id}")]

    def commit(self, *, timeout_s: float) -> bool:
        """See `ContinuousWriter.commit`."""
        del timeout_s
        self.events.append("commit")
        return self.on_commit()

    def release(self) -> None:
        """See `ContinuousWriter.release`."""
        self.events.append("release")

    def abort(self) -> None:
        """See `SinkWriter.abort`."""
        self.events.append("abort")
