"""A region's query as Spark would run it, in a thread: poll, write, acknowledge, wait, again."""

import itertools
import threading
from collections.abc import Callable

from sluice.runtime.contracts import OpenWork, RegionRegistration
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.errors import StreamError
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import Barrier, BatchKey
from tests.kit.fakes import FakeBroker, attempt_of, entry_of, transactional_id
from tests.kit.waiting import join

_POLL_S = 0.05
_JOIN_S = 600.0


class RegionThread:
    """Runs one attempt of a region until it is stopped or fails.

    Each record's value is (partition, offset), written to the output partition of the same number.

    Attributes:
        barriers: as received.
        error: why it ended.
        before_ack: called with each barrier once its batch is written; may raise or wait.
    """

    def __init__(
        self,
        coordinator: BarrierCoordinator,
        broker: FakeBroker,
        *,
        region: str = "main",
        attempt_id: int = 0,
        first_batch_id: int = 1,
        before_ack: Callable[[Barrier], None] = lambda _: None,
    ) -> None:
        self._coordinator = coordinator
        self._broker = broker
        self._region = region
        self._attempt_id = attempt_id
        self._batch_ids = itertools.count(first_batch_id)
        self._before_ack = before_ack
        self._stopping = threading.Event()
        self._acknowledged: int | None = None
        self._open: tuple[OpenWork, ...] = ()
        self.barriers: list[Barrier] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def start(self) -> "RegionThread":
        """Begin."""
        self._thread.start()
        return self

    def registration(self) -> RegionRegistration:
        """What it says of itself."""
        return RegionRegistration(
            region=self._region,
            attempt_id=self._attempt_id,
            acknowledged=self._acknowledged,
            open=self._open,
        )

    def prepare_stop(self) -> None:
        """It begins no further batch."""
        self._stopping.set()

    def stop(self) -> None:
        """After the batch under way; the caller has woken its wait if it must not be waited for."""
        self._stopping.set()
        join(self._thread, timeout_s=_JOIN_S)

    def join(self) -> None:
        """Until it has ended by itself."""
        join(self._thread, timeout_s=_JOIN_S)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                barrier = self._coordinator.poll_barrier(
                    self._region, self._attempt_id, wait_s=_POLL_S
                )
                if barrier is not None:
                    self._batch(barrier)
        except StreamError as err:
            self.error = err
            self._coordinator.fail(self._region, self._attempt_id, err)

    def _batch(self, barrier: Barrier) -> None:
        self.barriers.append(barrier)
        batch = BatchKey(
            region=self._region, attempt_id=self._attempt_id, batch_id=next(self._batch_ids)
        )
        committables = []
        if any(not split.is_empty for split in barrier.splits):
            started = self._coordinator.started
            assert started is not None
            transaction = self._broker.init(
                transactional_id(started.job_uid, batch, f"task-{batch.batch_id}")
            )
            self._coordinator.register(attempt_of(transaction, batch))
            for split in barrier.splits:
                for offset in range(split.start_offset, split.end_offset):
                    self._broker.append(transaction, split.partition, (split.partition, offset))
            committables.append(entry_of(transaction))
        self._open = (OpenWork(batch=batch, committables=tuple(committables)),)
        self._before_ack(barrier)
        self._coordinator.acknowledge(
            Acknowledgement(
                batch=batch,
                checkpoint_id=barrier.checkpoint_id,
                region=RegionRecord(
                    region=self._region,
                    attempt_id=self._attempt_id,
                    batch_id=batch.batch_id,
                    splits=barrier.splits,
                    committables=tuple(committables),
                ),
            )
        )
        self._acknowledged = barrier.checkpoint_id
        self._coordinator.await_committed(batch, timeout_s=_JOIN_S)
        self._open = ()
