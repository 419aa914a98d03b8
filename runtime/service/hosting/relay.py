"""The service of a region host: it answers the tasks of its regions as their coordinator.

It passes their messages to the leader. For the next leader it keeps the epochs that are not
known to be committed on record, and the transactions that may be open.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sluice.runtime.continuous.barrier_service import AttemptEpochs
from sluice.runtime.continuous.task_messages import CommittedEpoch, EpochResult, NextBarrier
from sluice.runtime.contracts import RegisteredAttempt
from sluice.runtime.errors import FencedError, NotLeaderError, UnreachableError
from sluice.runtime.model.json_values import to_json
from sluice.runtime.model.splits import SplitKey
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.process.host_clock import age_clock
from sluice.runtime.service.coordinator_app import LONGEST_POLL_S, CoordinatorApp
from sluice.runtime.service.hosting.host_messages import AttemptReport
from sluice.runtime.service.hosting.leader_link import LeaderLink
from sluice.runtime.service.service_messages import (
    AttemptMessage,
    EpochMessage,
    Message,
    NextBarrierMessage,
    RegionMessage,
    WaitMessage,
)

__all__ = ["AttemptRelay", "RelayApp", "Relays", "SplitsRead"]

T = TypeVar("T")


@dataclass(slots=True)
class SplitsRead:
    """The splits that a task reads: those of its last epoch, unless a barrier has changed them.

    Attributes:
        known: None: a barrier was given, and the task has not ended an epoch with it.
        keyed_state: at the end of that epoch; before the first one, as the attempt began with it.
    """

    known: tuple[SplitKey, ...] | None
    keyed_state: KeyedState | None

    def note_barrier(self, answer: NextBarrier) -> None:
        """The task may get this barrier, or its answer is lost."""
        if answer.barrier is not None and self.known is not None:
            keys = tuple(split.key for split in answer.barrier.splits)
            self.known = self.known if set(keys) == set(self.known) else None

    def note_epoch(self, result: EpochResult) -> None:
        """The task has ended an epoch."""
        self.known = tuple(split.key for split in result.ranges)
        self.keyed_state = result.keyed_state


@dataclass(slots=True)
class AttemptRelay:
    """One attempt of a region in this process. Driver; the service's threads.

    Args:
        epochs: of the attempt; here only for its end and its heartbeat.
    """

    epochs: AttemptEpochs
    _results: dict[int, EpochResult] = field(default_factory=dict)
    _registered: dict[RegisteredAttempt, None] = field(default_factory=dict)
    _is_over: bool = False
    _splits: SplitsRead = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._splits = SplitsRead(self.epochs.splits, self.epochs.keyed_state)

    def next_barrier(
        self,
        link: LeaderLink,
        *,
        wait_s: float,
        has_read: bool,
        committed: Iterable[CommittedEpoch],
    ) -> NextBarrier:
        """See `AttemptEpochs.next_barrier`."""
        epochs, reported = self.epochs, tuple(committed)
        with epochs.heartbeat.request():
            if epochs.is_stopping:
                return NextBarrier(barrier=None, is_over=True)
            answer = self._call(
                lambda: link.call(
                    lambda session: session.client(epochs.region).next_barrier(
                        epochs.region,
                        epochs.attempt_id,
                        wait_s=wait_s,
                        has_read=has_read,
                        committed=reported,
                    )
                )
            )
            self._forget_through(answer.committed_batch)
            self._splits.note_barrier(answer)
            epochs.heartbeat.owes_epoch = answer.barrier is not None
        return answer

    def acknowledge(self, link: LeaderLink, result: EpochResult) -> None:
        """See `AttemptEpochs.acknowledge`. The result is kept before it is sent."""
        with self.epochs.heartbeat.request():
            with self._lock:
                self._results[result.batch.batch_id] = result
                self._splits.note_epoch(result)
            self._call(
                lambda: link.call(
                    lambda session: session.client(self.epochs.region).acknowledge_epoch(
                        session.on_its_clock(result)
                    )
                )
            )
            self.epochs.heartbeat.owes_epoch = False

    def register(self, link: LeaderLink, attempt: RegisteredAttempt) -> float:
        """See `sluice.runtime.contracts.AttemptRegistry.register`: a moment before the transaction
        begins, on the clock of this host."""
        at_s = age_clock()
        with self._lock:
            self._registered[attempt] = None
        self._call(
            lambda: link.call(
                lambda session: session.client(f"register {attempt.batch.region}").register(attempt)
            )
        )
        return at_s

    def report(self) -> AttemptReport:
        """For a new leader."""
        with self._lock:
            return AttemptReport(
                region=self.epochs.region,
                attempt_id=self.epochs.attempt_id,
                is_running=not (self._is_over or self.epochs.is_stopping),
                splits=self._splits.known,
                keyed_state=self._splits.keyed_state,
                epochs=tuple(self._results[batch_id] for batch_id in sorted(self._results)),
                registered=tuple(self._registered),
            )

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except FencedError:
            self._is_over = True  # its task ends when it gets this error
            raise

    def _forget_through(self, committed_batch: int) -> None:
        with self._lock:
            for batch_id in [each for each in self._results if each <= committed_batch]:
                del self._results[batch_id]
            for attempt in [a for a in self._registered if a.batch.batch_id <= committed_batch]:
                del self._registered[attempt]


class Relays:
    """All attempts in this process, the newest of each region. Driver; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: dict[str, AttemptRelay] = {}

    def open(self, epochs: AttemptEpochs) -> None:
        """Serve a region's new attempt; messages of an older one are refused from now on."""
        with self._lock:
            self._attempts[epochs.region] = AttemptRelay(epochs)

    def reports(self) -> tuple[AttemptReport, ...]:
        """For a new leader."""
        with self._lock:
            attempts = list(self._attempts.values())
        return tuple(attempt.report() for attempt in attempts)

    def of(self, region: str, attempt_id: int) -> AttemptRelay:
        """The relay of this attempt; FencedError if the region has another one."""
        with self._lock:
            found = self._attempts.get(region)
        if found is None or found.epochs.attempt_id != attempt_id:
            raise FencedError(
                "this host runs another attempt of the region",
                {
                    "region": region,
                    "attempt_id": attempt_id,
                    "newest": None if found is None else found.epochs.attempt_id,
                },
                "Let this attempt end: its open work is aborted, and its records are read again.",
            )
        return found


class RelayApp(CoordinatorApp):
    """Answers the tasks of this host; its other handlers are those of the regions.

    Args:
        relays: of the attempts.
    """

    def __init__(self, relays: Relays) -> None:
        self._relays = relays
        self._link: LeaderLink | None = None
        self._leader_session = ""
        super().__init__()

    def link_to(self, link: LeaderLink) -> None:
        """Pass messages on from now on."""
        self._link = link

    def obey(self, session: str) -> None:
        """Only the leader with this session may start and stop attempts from now on."""
        self._leader_session = session

    def _require_caller(self, session: str) -> None:
        if session != self._leader_session:
            raise NotLeaderError(
                "the message comes from an earlier leader of the job",
                {"leader_session_id": session},
                "Stop this coordinator: the host of the region has joined a later one.",
            )

    def _leader(self, body: Message) -> LeaderLink:
        self._require_session(body.leader_session_id)
        if self._link is None:
            raise UnreachableError("this host has no leader yet", {}, "Send the request again.")
        return self._link

    def _next_barrier(self, body: NextBarrierMessage) -> dict[str, Any]:
        link, relay = self._leader(body), self._relays.of(body.region, body.attempt_id)
        found = relay.next_barrier(
            link,
            wait_s=min(body.wait_s, LONGEST_POLL_S),
            has_read=body.has_read,
            committed=body.committed,
        )
        return {"next": to_json(found)}

    def _epochs(self, body: EpochMessage) -> dict[str, Any]:
        batch = body.epoch.batch
        link, relay = self._leader(body), self._relays.of(batch.region, batch.attempt_id)
        relay.acknowledge(link, body.epoch)
        return {}

    def _attempts(self, body: AttemptMessage) -> dict[str, Any]:
        batch = body.attempt.batch
        link, relay = self._leader(body), self._relays.of(batch.region, batch.attempt_id)
        return {"registered_s": relay.register(link, body.attempt)}

    def _task_inputs(self, body: RegionMessage) -> dict[str, Any]:
        link, _ = self._leader(body), self._relays.of(body.region, body.attempt_id)
        inputs = link.call(
            lambda session: session.client("inputs").task_inputs(body.region, body.attempt_id)
        )
        return {"inputs": to_json(inputs)}

    def _waiting(self, body: WaitMessage) -> dict[str, Any]:
        """Only the end of the attempt matters to its task, so an unanswered report is none."""
        link, batch = self._leader(body), body.batch
        relay = self._relays.of(batch.region, batch.attempt_id)
        with relay.epochs.heartbeat.request(), contextlib.suppress(UnreachableError):
            link.call(
                lambda session: session.client(f"waits {batch.region}").report_wait(
                    batch, body.what, body.why
                )
            )
        if relay.epochs.is_stopping:
            raise FencedError(
                "this attempt of the region is over",
                {"region": batch.region, "attempt_id": batch.attempt_id},
                "Let the task end: its open work is aborted.",
            )
        return {}
