"""The rules by which one candidate takes and keeps the lead: states and observations in, the record
to create out. Pure.

Clocks are never compared between hosts: an observer measures by its own clock how long ago it first
saw the newest record.
"""

import enum
from collections.abc import Mapping

from sluice.runtime.election.leader_election import Candidate
from sluice.runtime.election.lease_record import Holding, LeaseRecord
from sluice.runtime.errors import IllegalTransitionError, JobFinishedError, LeadershipLostError

__all__ = ["TRANSITIONS", "Candidacy", "Event", "Presence", "State", "advance"]

STALE_PART = 0.5
"""If ZooKeeper says that the holder is gone, this part of the lease without a renewal is enough."""


class State(enum.Enum):
    """Of one candidate."""

    STANDBY = "standby"
    LEADING = "leading"
    LOST = "lost"  # another candidate leads
    ENDED = "ended"  # it has resigned


class Event(enum.Enum):
    """An event of a candidate."""

    ELECTED = "elected"
    OVERTAKEN = "overtaken"
    RESIGNED = "resigned"


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.STANDBY, Event.ELECTED): State.LEADING,
    (State.STANDBY, Event.RESIGNED): State.ENDED,
    (State.LEADING, Event.OVERTAKEN): State.LOST,  # never back to standby: its run is over
    (State.LEADING, Event.RESIGNED): State.ENDED,
    (State.LOST, Event.RESIGNED): State.ENDED,
    (State.ENDED, Event.RESIGNED): State.ENDED,
}


def advance(state: State, event: Event) -> State:
    """The next state; pure."""
    target = TRANSITIONS.get((state, event))
    if target is None:
        raise IllegalTransitionError(
            f"{event.value!r} is not legal while {state.value!r}",
            {"machine": "election"},
            "Bug in the election: stop the process, keep its log, start it again.",
        )
    return target


class Presence(enum.Enum):
    """The holder of the newest record, as ZooKeeper shows it."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"  # it does not answer, or the holder has no node there


class Candidacy:
    """One candidate. The caller reads the newest record, then calls `observe` with the time.

    Args:
        candidate: this process.
        session_id: leader session id, used by no other candidacy.
        duration_s: of its own lease.

    Attributes:
        state: of the candidate.
        newest: the newest record that it has seen.
    """

    def __init__(self, candidate: Candidate, *, session_id: str, duration_s: float) -> None:
        self.session_id = session_id
        self.state = State.STANDBY
        self.newest: LeaseRecord | None = None
        self._candidate = candidate
        self._duration_s = duration_s
        self._seen_s = 0.0  # when it first saw the newest record
        self._alive_s = 0.0  # when ZooKeeper last said that the holder lives
        self._waited_for = ""  # session of the last leader that it saw

    def observe(self, newest: LeaseRecord | None, now_s: float) -> None:
        """Note the newest record, and become leader or loser by it.

        Args:
            newest: None: there is no record.
            now_s: by a clock that is paused while the store does not answer: the holder cannot
                renew either.
        Raises:
            JobFinishedError: the leader for which this candidate waited has finished the job.
        """
        is_new = newest is None or self.newest is None or _id(newest) != _id(self.newest)
        self.newest = newest
        if is_new:
            self._seen_s = self._alive_s = now_s
        is_ours = newest is not None and newest.session_id == self.session_id
        if self.state is State.LEADING and newest is not None and not is_ours:
            self.state = advance(self.state, Event.OVERTAKEN)
        if self.state is not State.STANDBY or newest is None:
            return
        if is_ours:  # created by a call whose answer was lost, or a moment ago
            self.state = advance(self.state, Event.ELECTED)
        elif newest.holding is Holding.HELD:
            self._waited_for = newest.session_id
        elif newest.holding is Holding.FINISHED and newest.session_id == self._waited_for:
            raise JobFinishedError(
                "the leader has finished the job",
                {"session_id": newest.session_id, "leader": newest.candidate},
                "Start the job again only if it has new work.",
            )

    def claim(self, presence: Presence, now_s: float) -> LeaseRecord | None:
        """The record by which a standby takes over; None: the holder may still lead."""
        if self.state is not State.STANDBY:
            return None
        newest = self.newest
        if newest is None:
            return self._first(number=1, term=1)
        if presence is Presence.ALIVE:
            self._alive_s = now_s
        if newest.holding is Holding.HELD and not self._is_expired(newest, presence, now_s):
            return None
        return self._first(number=newest.number + 1, term=newest.term + 1)

    def due_in_s(self, presence: Presence, now_s: float) -> float | None:
        """How long after ``now_s`` a standby may take over if it sees no newer record; None: not by
        time alone."""
        newest = self.newest
        if self.state is not State.STANDBY or newest is None or presence is Presence.ALIVE:
            return None
        return self._expires_s(newest, presence) - now_s

    def renewal(self, *, address: str, has_node: bool) -> LeaseRecord:
        """The record by which the leader renews its lease."""
        if self.newest is None:  # a person has deleted the records
            return self._first(number=1, term=1)
        return self.newest.renewed(address=address, has_node=has_node)

    def resignation(self, holding: Holding) -> LeaseRecord | None:
        """The record by which the leader gives up; None: it does not lead. Ends the candidacy."""
        is_leading = self.state is State.LEADING
        self.state = advance(self.state, Event.RESIGNED)
        return self.newest.given_up(holding) if is_leading and self.newest is not None else None

    def require_leading(self, newest: LeaseRecord | None) -> None:
        """Raise LeadershipLostError if this record, read just now, is of another candidate."""
        if newest is not None and newest.session_id != self.session_id:
            raise self.lost(newest)

    def lost(self, newest: LeaseRecord | None) -> LeadershipLostError:
        """The error of a leader that the holder of this record has replaced."""
        return LeadershipLostError(
            "another process leads this job now",
            {
                "session_id": self.session_id,
                "leader": "" if newest is None else newest.candidate,
                "leader_session_id": "" if newest is None else newest.session_id,
            },
            "Start this process again: it waits as a standby. Nothing undecided of it is visible.",
        )

    def _is_expired(self, newest: LeaseRecord, presence: Presence, now_s: float) -> bool:
        return now_s >= self._expires_s(newest, presence)

    def _expires_s(self, newest: LeaseRecord, presence: Presence) -> float:
        if presence is Presence.GONE:
            return self._seen_s + newest.duration_s * STALE_PART
        return max(self._seen_s, self._alive_s) + newest.duration_s

    def _first(self, *, number: int, term: int) -> LeaseRecord:
        return LeaseRecord(
            number=number,
            term=term,
            session_id=self.session_id,
            candidate=self._candidate,
            duration_s=self._duration_s,
        )


def _id(record: LeaseRecord) -> tuple[int, str]:
    return record.number, record.session_id
