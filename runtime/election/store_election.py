"""The election by leases in the checkpoint store, perhaps with ZooKeeper's help."""

import contextlib
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from sluice.runtime.checkpoint.run_record import RunRecord
from sluice.runtime.contracts import Clock
from sluice.runtime.election.candidacy import Candidacy, Presence, State
from sluice.runtime.election.leader_election import (
    Candidate,
    ElectionView,
    LeaderElection,
)
from sluice.runtime.election.lease_chain import LeaseChain, Survey
from sluice.runtime.election.lease_record import Holding
from sluice.runtime.errors import (
    JobFinishedError,
    LeadershipLostError,
    StorageError,
    StreamError,
)
from sluice.runtime.process.pause_tolerant_clock import PauseTolerantClock
from sluice.runtime.process.wait_log import WaitLog

__all__ = ["NoPresence", "PresenceService", "StoreElection"]

log = logging.getLogger(__name__)

_RENEWALS = 3  # in the duration of a lease
_POLLS = 6  # of a standby in the same time
_SHORTEST_POLL_S = 0.05
_SHOW_EVERY_S = 10.0
_JOIN_S = 5.0


class PresenceService(Protocol):
    """Shows in ZooKeeper that this process lives, and knows of other processes. Any thread; each
    call returns at once."""

    has_node: bool
    """Whether the own node exists."""

    def start(self, session_id: str, candidate: Candidate, on_change: Callable[[], None]) -> None:
        """Make the own node; ``on_change`` is called when an answer of `presence_of` changes."""
        ...

    def presence_of(self, session_id: str) -> Presence:
        """Whether the node of this session exists."""
        ...

    def announce(self, run: RunRecord) -> None:
        """Publish session and address of this leader."""
        ...

    def close(self) -> None:
        """Delete the own node, and end."""
        ...


class NoPresence(PresenceService):
    """Without ZooKeeper."""

    has_node = False

    def start(self, session_id: str, candidate: Candidate, on_change: Callable[[], None]) -> None:
        """See `PresenceService.start`."""

    def presence_of(self, session_id: str) -> Presence:
        """See `PresenceService.presence_of`."""
        del session_id
        return Presence.UNKNOWN

    def announce(self, run: RunRecord) -> None:
        """See `PresenceService.announce`."""

    def close(self) -> None:
        """See `PresenceService.close`."""


class StoreElection(LeaderElection):
    """One candidate. Its thread reads the chain of leases, takes over, and renews.

    A leader whose store does not answer keeps the lead: no other candidate can take over either.

    Args:
        chain: of the job.
        candidate: this process.
        duration_s: of a lease: how long a leader may be silent.
        presence: of ZooKeeper.
        clock: monotonic seconds.
        draw: a number in [0, 1) for the jitter of polls.
    """

    def __init__(
        self,
        chain: LeaseChain,
        candidate: Candidate,
        *,
        duration_s: float,
        presence: PresenceService | None = None,
        clock: Clock = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._chain = chain
        self._me = candidate
        self._presence = presence or NoPresence()
        self._way = "lease" if presence is None else "zookeeper"
        self._renew_s = duration_s / _RENEWALS
        self._poll_s = duration_s / _POLLS
        self._clock = clock
        self._draw = draw
        # Paused while the store does not answer: it is read after each answer.
        self._observed = PauseTolerantClock(clock, longest_step_s=3 * self._poll_s)
        self._candidacy = Candidacy(candidate, session_id=str(uuid.uuid4()), duration_s=duration_s)
        self._address = ""
        self._survey = Survey(newest=None)
        self._shown_s: float | None = None
        self._due_in_s: float | None = None  # until this standby may claim, after its last read
        self._error: StreamError | None = None
        self._on_lost: Callable[[LeadershipLostError], None] | None = None
        self._lost: LeadershipLostError | None = None
        self._waits = WaitLog(log, clock)
        self._changed = threading.Condition()
        self._is_woken = False
        self._is_over = False
        self._is_started = self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="sluice-election", daemon=True)

    # --- what the owner calls ---------------------------------------------------------------------

    def campaign(self, *, timeout_s: float) -> str | None:
        if not self._is_started:
            self._is_started = True
            self._presence.start(self._candidacy.session_id, self._me, self._wake)
            self._thread.start()
        with self._changed:
            self._changed.wait_for(
                lambda: self._error is not None or self._candidacy.state is not State.STANDBY,
                timeout_s,
            )
        if self._error is not None:
            raise self._error
        if self._candidacy.state is State.STANDBY:
            return None
        if self._candidacy.state is not State.LEADING:
            raise self._candidacy.lost(self._candidacy.newest)
        return self._candidacy.session_id

    def require_leading(self) -> None:
        self._candidacy.require_leading(self._chain.survey().newest)

    def report_loss(self, on_lost: Callable[[LeadershipLostError], None]) -> None:
        with self._changed:
            self._on_lost = on_lost
            lost = self._lost
        if lost is not None:
            on_lost(lost)

    def announce(self, run: RunRecord) -> None:
        self._address = run.address
        self._presence.announce(run)
        self._wake()

    def view(self) -> ElectionView:
        newest = self._survey.newest
        return ElectionView(
            leader=None if newest is None else newest.leader,
            standbys=self._survey.standbys,
            way=self._way,
        )

    def resign(self, *, is_finished: bool = False) -> None:
        with self._changed:
            if self._is_over:
                return
            self._is_over = True
            self._changed.notify_all()
        if self._is_started:
            self._thread.join(_JOIN_S)
        if self._has_ended:  # else the store hangs, and the lease expires
            with contextlib.suppress(StreamError):
                self._give_up(Holding.FINISHED if is_finished else Holding.RELEASED)
        self._presence.close()

    def _give_up(self, holding: Holding) -> None:
        last = self._candidacy.resignation(holding)
        if last is not None:
            self._chain.create(last)
        else:
            self._hide()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.resign(is_finished=kind is None)

    # --- its thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._run_until_over()
        finally:
            self._has_ended = True

    def _run_until_over(self) -> None:
        while not self._is_over:
            began_s = self._clock()
            pause_s = self._step()
            with self._changed:
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._is_over or self._is_woken,
                    max(0.0, pause_s - (self._clock() - began_s)),
                )
                self._is_woken = False
            if self._candidacy.state is State.LOST or self._error is not None:
                return

    def _step(self) -> float:
        """Read, and claim or renew; returns the seconds until the next step."""
        try:
            if self._candidacy.state is State.LEADING:
                self._renew()
            else:
                self._claim()
            self._waits.is_over("the store of the election")
        except StreamError as err:
            if not self._is_transient(err):
                self._error = err
            self._waits.waits("the store of the election", err)
        except Exception as err:  # a bug in a client must not end all renewals
            log.exception("election failed, trying again: candidate=%s", self._me)
            self._waits.waits("the election", err)
        if self._candidacy.state is State.LOST:
            self._lose()
        if self._candidacy.state is State.LEADING:
            return self._renew_s
        poll_s = self._poll_s * (0.75 + self._draw() / 2)
        due_in_s, self._due_in_s = self._due_in_s, None
        return poll_s if due_in_s is None else min(poll_s, max(due_in_s, _SHORTEST_POLL_S))

    def _claim(self) -> None:
        now_s = self._observe()
        newest = self._survey.newest
        presence = Presence.UNKNOWN
        if newest is not None and newest.has_node:
            presence = self._presence.presence_of(newest.session_id)
        claim = self._candidacy.claim(presence, now_s)
        if claim is None:
            self._due_in_s = self._candidacy.due_in_s(presence, now_s)
            self._show(now_s)
            return
        log.info(
            "claims the lead: candidate=%s term=%d before=%s holding=%s presence=%s",
            *(self._me, claim.term, newest and newest.candidate),
            *(newest and newest.holding.value, presence.value),
        )
        self._chain.create(claim)
        self._observe()
        if self._candidacy.state is State.LEADING:
            self._hide()

    def _renew(self) -> None:
        self._chain.create(
            self._candidacy.renewal(address=self._address, has_node=self._presence.has_node)
        )
        self._observe()
        if self._candidacy.state is State.LEADING:
            self._chain.delete(self._survey.outdated)

    def _observe(self) -> float:
        """Read the chain; returns the time of the observation."""
        self._survey = self._chain.survey()
        now_s = self._observed()
        self._candidacy.observe(self._survey.newest, now_s)
        return now_s

    def _show(self, now_s: float) -> None:
        if self._shown_s is None or now_s >= self._shown_s + _SHOW_EVERY_S:
            self._chain.show_standby(self._me)
            self._shown_s = now_s

    def _hide(self) -> None:
        if self._shown_s is not None:
            self._chain.hide_standby(self._me)
            self._shown_s = None

    def _is_transient(self, err: StreamError) -> bool:
        """Whether the next try may succeed. A leader tries for ever: the slots protect it."""
        if isinstance(err, JobFinishedError):
            return False
        is_leading = self._candidacy.state is State.LEADING
        return is_leading or isinstance(err, StorageError)

    def _lose(self) -> None:
        lost = self._candidacy.lost(self._candidacy.newest)
        log.error("lead is lost: candidate=%s error=%s", self._me, lost)
        with self._changed:
            self._lost, on_lost = lost, self._on_lost
        if on_lost is not None:
            on_lost(lost)

    def _wake(self) -> None:
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()
