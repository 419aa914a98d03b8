"""The way of a continuous task to its leader, and the task's checkpoint client without its thread."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from sluice.runtime.continuous.checkpoint_client import CheckpointClient
from sluice.runtime.continuous.task_messages import CommittedEpoch, EpochResult, NextBarrier
from sluice.runtime.errors import (
    CoordinatorLostError,
    FencedError,
    NotLeaderError,
    UnreachableError,
)
from tests.simulation.led import Relay

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

T = TypeVar("T")


class PlayedLink:
    """From a task to its coordinator; an answer may be lost, and then the task asks again."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._world = relay.process.world

    @property
    def _process(self) -> "Process":
        return self._relay.process

    def _require_there(self) -> None:
        if self._world.profile.outlived:
            self._relay.require_heard()
        elif self._process.dead:
            raise UnreachableError("nobody answers", {}, "The courier gives up.")

    @contextmanager
    def _relayed(self) -> Iterator[None]:
        try:
            yield
        except FencedError as err:
            if self._world.profile.outlived and (
                isinstance(err, NotLeaderError) or self._process.core.is_fenced
            ):
                raise UnreachableError("another one leads", {}, "Ask again.") from err
            self._relay.is_over = True
            raise

    def next_barrier(
        self,
        region: str,
        attempt_id: int,
        *,
        wait_s: float,
        has_read: bool,
        committed: Sequence[CommittedEpoch] = (),
    ) -> NextBarrier:
        """See `CoordinatorLink.next_barrier`."""
        del wait_s
        self._require_there()
        barrier_service = self._process.engine.barrier_service
        with self._relayed():
            if self._world.fault(
                self._world.profile.unanswered / 2, "a barrier is asked for twice"
            ):
                barrier_service.next_barrier(
                    region, attempt_id, wait_s=0, has_read=has_read, committed=committed
                )
            answer = barrier_service.next_barrier(
                region, attempt_id, wait_s=0, has_read=has_read, committed=committed
            )
        self._relay.answered(answer)
        return answer

    def acknowledge_epoch(self, result: EpochResult) -> None:
        """See `CoordinatorLink.acknowledge_epoch`."""
        self._relay.keep(result)
        self._require_there()
        with self._relayed():
            self._process.engine.barrier_service.acknowledge(result)
            if self._world.fault(self._world.profile.unanswered / 2, "an epoch is reported twice"):
                self._process.engine.barrier_service.acknowledge(result)


class WaitsError(Exception):
    """Nobody leads: the task keeps what it has to say."""


class Courier(CheckpointClient):
    """Without its thread: it continues when it is reported, and waits for the task's epoch in between."""

    owes_epoch = False
    world: "World | None" = None
    """Of a task that may outlive its coordinator."""
    _unsent: Callable[[], object] | None = None
    _may_wait = True

    def start(self) -> None:
        """See `CheckpointClient.start`."""

    def close(self) -> None:
        """See `CheckpointClient.close`."""

    @property
    def holds(self) -> bool:
        """Whether there is something left to commit, or to be committed by others."""
        return bool(self._pre_committed)

    def go_on(self) -> bool:
        """As far as it comes without waiting; False: the attempt is being stopped."""
        if self._unsent is not None:
            self.call(self._unsent, is_needed=lambda: True)
            self._unsent = None
            return True
        if not self.owes_epoch:
            return self._run_epoch()
        if self._ended is None:
            return True
        self.owes_epoch = False
        return super()._acknowledge_epoch()

    def _poll(self, wait_s: float) -> NextBarrier | None:
        self._may_wait = wait_s > 0  # else it has a barrier already, and would take it twice
        try:
            return super()._poll(wait_s)
        finally:
            self._may_wait = True

    def call(self, call: Callable[[], T], *, is_needed: Callable[[], bool]) -> T | None:
        """See `CheckpointClient.call`: a task waits for a while, until somebody leads again."""
        if self.world is None:
            return super().call(call, is_needed=is_needed)
        try:
            return call()
        except UnreachableError as err:
            if not self._may_wait or self.world.calm or self.world.random.random() < 0.02:
                raise CoordinatorLostError("silent for too long", {}, "The task ends.") from err
            if (
                self._ended is None
                and self._pre_committed
                and call.__qualname__.startswith("CheckpointClient._acknowledge_epoch")
            ):
                self._unsent = call
            raise WaitsError from err

    def _acknowledge_epoch(self) -> bool:
        self.owes_epoch = True
        return True

    def let_go(self) -> None:
        """Its task ends: others finish what it holds."""
        for ended in self._pre_committed.values():
            ended.release()
