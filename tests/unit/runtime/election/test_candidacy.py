"""The rules by which a candidate takes and keeps the lead."""

import itertools
from dataclasses import replace

import pytest

from sluice.runtime.election.candidacy import (
    TRANSITIONS,
    Candidacy,
    Event,
    Presence,
    State,
    advance,
)
from sluice.runtime.election.leader_election import Candidate
from sluice.runtime.election.lease_record import Holding, LeaseRecord
from sluice.runtime.errors import IllegalTransitionError, JobFinishedError, LeadershipLostError

_ME = Candidate(host="a", pid=1)
_OTHER = Candidate(host="b", pid=2)
_HELD = LeaseRecord(number=7, term=3, session_id="other", candidate=_OTHER, duration_s=6.0)


def _candidacy() -> Candidacy:
    return Candidacy(_ME, session_id="mine", duration_s=4.0)


def _leading() -> Candidacy:
    candidacy = _candidacy()
    candidacy.observe(None, 0.0)
    candidacy.observe(candidacy.claim(Presence.UNKNOWN, 0.0), 0.0)
    assert candidacy.state is State.LEADING
    return candidacy


class TestAStandby:
    def test_claims_the_first_record_of_a_job(self) -> None:
        candidacy = _candidacy()
        candidacy.observe(None, 10.0)
        claim = candidacy.claim(Presence.UNKNOWN, 10.0)
        assert claim is not None
        assert (claim.number, claim.term, claim.session_id) == (1, 1, "mine")
        assert candidacy.state is State.STANDBY, (
            "a record that may not be there elects no candidate"
        )

    def test_waits_for_the_duration_of_the_holder_by_its_own_clock(self) -> None:
        """The holder's duration counts, and begins when the record was first seen."""
        candidacy = _candidacy()
        candidacy.observe(_HELD, 100.0)
        candidacy.observe(_HELD, 105.9)
        assert candidacy.claim(Presence.UNKNOWN, 105.9) is None
        candidacy.observe(_HELD, 106.0)
        claim = candidacy.claim(Presence.UNKNOWN, 106.0)
        assert claim is not None
        assert (claim.number, claim.term, claim.duration_s) == (8, 4, 4.0)

    def test_knows_when_it_may_claim(self) -> None:
        """So it reads again at that time, and not at its next poll."""
        candidacy = _candidacy()
        assert candidacy.due_in_s(Presence.UNKNOWN, 90.0) is None
        candidacy.observe(_HELD, 100.0)
        assert candidacy.due_in_s(Presence.UNKNOWN, 101.0) == 5.0
        assert candidacy.due_in_s(Presence.GONE, 101.0) == 2.0
        assert candidacy.due_in_s(Presence.ALIVE, 101.0) is None
        assert _leading().due_in_s(Presence.UNKNOWN, 1.0) is None

    def test_a_renewal_begins_the_wait_again(self) -> None:
        candidacy = _candidacy()
        candidacy.observe(_HELD, 100.0)
        candidacy.observe(replace(_HELD, number=8), 105.0)
        assert candidacy.claim(Presence.UNKNOWN, 110.9) is None
        assert candidacy.claim(Presence.UNKNOWN, 111.0) is not None

    def test_another_session_under_the_same_number_begins_the_wait_again(self) -> None:
        """As after a person has deleted the records."""
        candidacy = _candidacy()
        candidacy.observe(_HELD, 0.0)
        candidacy.observe(replace(_HELD, session_id="third"), 5.0)
        assert candidacy.claim(Presence.UNKNOWN, 10.0) is None

    @pytest.mark.parametrize("holding", [Holding.RELEASED, Holding.FINISHED])
    def test_claims_at_once_what_was_given_up(self, holding: Holding) -> None:
        candidacy = _candidacy()
        candidacy.observe(replace(_HELD, holding=holding), 0.0)
        assert candidacy.claim(Presence.UNKNOWN, 0.0) is not None

    def test_ends_when_the_leader_for_which_it_waited_has_finished(self) -> None:
        candidacy = _candidacy()
        candidacy.observe(_HELD, 0.0)
        with pytest.raises(JobFinishedError):
            candidacy.observe(replace(_HELD, number=8, holding=Holding.FINISHED), 1.0)

    def test_is_elected_by_its_own_record_alone(self) -> None:
        candidacy = _candidacy()
        candidacy.observe(_HELD, 0.0)
        claim = candidacy.claim(Presence.UNKNOWN, 6.0)
        candidacy.observe(claim, 6.0)
        assert candidacy.state is State.LEADING

    def test_is_not_elected_by_a_record_below_another_one(self) -> None:
        """A candidate that was paused may create a record whose name is free again."""
        candidacy = _candidacy()
        candidacy.observe(_HELD, 0.0)
        assert candidacy.claim(Presence.UNKNOWN, 6.0) is not None
        candidacy.observe(replace(_HELD, number=50, session_id="third"), 6.0)
        assert candidacy.state is State.STANDBY


class TestZooKeeper:
    def test_a_holder_that_lives_is_not_replaced_however_late_it_renews(self) -> None:
        candidacy = _candidacy()
        candidacy.observe(_HELD, 0.0)
        assert candidacy.claim(Presence.ALIVE, 60.0) is None
        assert candidacy.claim(Presence.UNKNOWN, 65.9) is None, "it lived 5.9 s ago"
        assert candidacy.claim(Presence.UNKNOWN, 66.0) is not None

    def test_a_holder_that_is_gone_is_replaced_after_half_of_the_lease(self) -> None:
        candidacy = _candidacy()
        candidacy.observe(_HELD, 0.0)
        assert candidacy.claim(Presence.GONE, 2.9) is None, "it may have lost only ZooKeeper"
        assert candidacy.claim(Presence.GONE, 3.0) is not None

    def test_the_half_begins_with_the_last_renewal(self) -> None:
        candidacy = _candidacy()
        candidacy.observe(_HELD, 0.0)
        assert candidacy.claim(Presence.ALIVE, 8.0) is None
        assert candidacy.claim(Presence.GONE, 8.0) is not None


class TestALeader:
    def test_renews_with_the_next_number_and_the_same_session(self) -> None:
        renewal = _leading().renewal(address="http://a:1", has_node=True)
        assert (renewal.number, renewal.term, renewal.session_id) == (2, 1, "mine")
        assert (renewal.address, renewal.has_node) == ("http://a:1", True)

    def test_is_lost_with_a_record_of_another_session(self) -> None:
        candidacy = _leading()
        candidacy.observe(replace(_HELD, number=2), 1.0)
        assert candidacy.state is State.LOST
        assert candidacy.claim(Presence.UNKNOWN, 99.0) is None, "it does not campaign again"

    def test_keeps_the_lead_where_a_person_has_deleted_the_records(self) -> None:
        candidacy = _leading()
        candidacy.observe(None, 1.0)
        assert candidacy.state is State.LEADING
        assert candidacy.renewal(address="", has_node=False).number == 1

    def test_names_its_successor(self) -> None:
        with pytest.raises(LeadershipLostError, match="driver 2 on b"):
            _leading().require_leading(_HELD)

    def test_gives_up_by_the_next_record(self) -> None:
        candidacy = _leading()
        last = candidacy.resignation(Holding.FINISHED)
        assert last is not None
        assert (last.number, last.holding) == (2, Holding.FINISHED)
        assert candidacy.resignation(Holding.FINISHED) is None

    def test_a_loser_gives_nothing_up(self) -> None:
        candidacy = _leading()
        candidacy.observe(_HELD, 1.0)
        assert candidacy.resignation(Holding.RELEASED) is None


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_each_pair_of_state_and_event_is_in_the_table_or_refused(
    state: State, event: Event
) -> None:
    if (state, event) in TRANSITIONS:
        assert advance(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransitionError):
            advance(state, event)
