"""Lost work is written again by whoever finds it, a start or a run: whole, half, or not at all."""

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from sluice.connectors.kafka.sink.handles import decode_handle
from sluice.runtime.checkpoint.lost_work import LostCommittables
from sluice.runtime.errors import StreamError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey, SplitRange
from tests.kit.files.fake_file_system import SimulatedCrashError
from tests.kit.kafka.fake_kafka import Fenced
from tests.simulation.kafka import entry_of
from tests.simulation.worker import Worker, scope_of

if TYPE_CHECKING:
    from tests.simulation.process import Process


class RewriteFailedError(StreamError):
    """A repair has failed half-way; nothing of it may be seen."""


class Rewriter:
    """A `sluice.runtime.coordinator.committing.repairs.Repairer` of one process, without Spark.

    It fails in the middle of a transaction, or between two: with an error, after which it aborts
    what it wrote, as far as the broker answers; or with its whole process.
    """

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._world = process.world

    def repair(
        self,
        checkpoint_id: int,
        lost: LostCommittables,
        *,
        job_uid: str,
        attempt_id: int,
        timeout_s: float,
    ) -> dict[bytes, StateEntry]:
        """See `Repairer.repair`."""
        batch = BatchKey(region=lost.region.region, attempt_id=attempt_id, batch_id=0)
        scope = scope_of(job_uid, batch, checkpoint_id=checkpoint_id, through=0)
        replaced: dict[bytes, StateEntry] = {}
        written: list[StateEntry] = []
        try:
            for entry in lost.committables:
                splits = _splits_of(lost, entry)
                transaction = Worker(self._world, scope).take_at_once(scope)
                written.append(entry_of(transaction, checkpoint_id, splits))
                for record in self._world.records_of(splits):
                    self._fail_at_times()
                    self._world.broker.append(transaction, *record)
                replaced[entry.payload] = written[-1]
                self._world.meanwhile(self._process)
        except Fenced as err:
            self._discard(written, timeout_s)
            raise RewriteFailedError("a repair was fenced", {"error": err}, "Again.") from err
        except StreamError:
            self._discard(written, timeout_s)
            raise
        self._world.repairs += 1
        return replaced

    def ranges(self, lost: LostCommittables) -> tuple[SplitRange, ...]:
        """See `Repairer.ranges`."""
        return tuple(split for entry in lost.committables for split in _splits_of(lost, entry))

    def _fail_at_times(self) -> None:
        chance = self._world.profile.broken_repairs
        if self._world.fault(chance / 4, "a coordinator dies in its repair"):
            raise SimulatedCrashError
        if self._world.fault(chance, "a repair fails half-way"):
            raise RewriteFailedError("a repair fails half-way", {}, "Start again.")

    def _discard(self, written: Iterable[StateEntry], timeout_s: float) -> None:
        with contextlib.suppress(StreamError):
            self._process.abort_at_the_broker(list(written), timeout_s=timeout_s)


def _splits_of(lost: LostCommittables, entry: StateEntry) -> tuple[SplitRange, ...]:
    by_name = {(split.topic, split.partition): split for split in lost.region.splits}
    return tuple(
        replace(
            by_name[source.topic, source.partition],
            start_offset=source.start_offset,
            end_offset=source.end_offset,
        )
        for source in decode_handle(entry).sources
    )
