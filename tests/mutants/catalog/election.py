"""Mutants of the election of a leader."""

from tests.mutants.model import Edit, Mutant

_CANDIDACY = "tests/unit/runtime/election/test_candidacy.py"
_STARTS = "tests/unit/runtime/coordinator/start/test_elected_starts.py"

MUTANTS = (
    Mutant(
        name="fences-a-later-leader",
        rules=("fence-first",),
        wrong="A start that was paused after its election fences the leader that was elected meanwhile, and both runs end.",
        catchers=(
            f"{_STARTS}::test_fence_first_a_start_checks_its_election_after_each_reading_of_the_slots",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.startup:StartSequence._fence",
                old="self.require_elected()",
                new="",
            ),
        ),
    ),
    Mutant(
        name="first-record-without-election",
        rules=("fence-first",),
        wrong="The start of a new job publishes checkpoint 0 although another process was elected.",
        catchers=(f"{_STARTS}::test_fence_first_a_start_that_lost_its_election_writes_no_record",),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.startup:StartSequence._publish_first",
                old="self.require_elected()",
                new="",
            ),
        ),
    ),
    Mutant(
        name="elected-by-its-own-claim",
        rules=("fence-first",),
        wrong="A candidate leads as soon as it has created a record, also below the newest one.",
        catchers=(f"{_CANDIDACY}::TestAStandby::test_claims_the_first_record_of_a_job",),
        edits=(
            Edit(
                function="sluice.runtime.election.candidacy:Candidacy.claim",
                old="return self._first(number=1, term=1)",
                new="""
                self.state = advance(self.state, Event.ELECTED)
                return self._first(number=1, term=1)
                """,
            ),
        ),
    ),
    Mutant(
        name="loser-stays-leader",
        rules=("fence-first",),
        wrong="A leader that reads the record of another session continues to lead.",
        catchers=(f"{_CANDIDACY}::TestALeader::test_is_lost_with_a_record_of_another_session",),
        edits=(
            Edit(
                function="sluice.runtime.election.candidacy:Candidacy.observe",
                old="self.state = advance(self.state, Event.OVERTAKEN)",
                new="pass",
            ),
        ),
    ),
    Mutant(
        name="renewal-does-not-count",
        rules=("fence-first",),
        wrong="A standby measures the lease from the first record of a leader, however often that renews.",
        catchers=(f"{_CANDIDACY}::TestAStandby::test_a_renewal_begins_the_wait_again",),
        edits=(
            Edit(
                function="sluice.runtime.election.candidacy:Candidacy.observe",
                old="self._seen_s = self._alive_s = now_s",
                new="self._seen_s = self._alive_s = self._seen_s or now_s",
            ),
        ),
    ),
    Mutant(
        name="living-leader-is-replaced",
        rules=("fence-first",),
        wrong="A leader that ZooKeeper shows as alive is replaced once its lease is over.",
        catchers=(
            f"{_CANDIDACY}::TestZooKeeper::test_a_holder_that_lives_is_not_replaced_however_late_it_renews",
        ),
        edits=(
            Edit(
                function="sluice.runtime.election.candidacy:Candidacy.claim",
                old="self._alive_s = now_s",
                new="pass",
            ),
        ),
    ),
    Mutant(
        name="gone-session-is-enough",
        rules=("fence-first",),
        wrong="A leader that has lost only ZooKeeper, and still renews, is replaced.",
        catchers=(
            f"{_CANDIDACY}::TestZooKeeper::test_a_holder_that_is_gone_is_replaced_after_half_of_the_lease",
        ),
        edits=(
            Edit(
                function="sluice.runtime.election.candidacy:Candidacy._expires_s",
                old="return self._seen_s + newest.duration_s * STALE_PART",
                new="return self._seen_s",
            ),
        ),
    ),
    Mutant(
        name="finished-job-is-started-again",
        rules=("fence-first",),
        wrong="A standby starts a job that its leader has finished.",
        catchers=(
            f"{_CANDIDACY}::TestAStandby::test_ends_when_the_leader_for_which_it_waited_has_finished",
        ),
        edits=(
            Edit(
                function="sluice.runtime.election.candidacy:Candidacy.observe",
                old="self._waited_for = newest.session_id",
                new="pass",
            ),
        ),
    ),
    Mutant(
        name="outage-expires-leases",
        rules=("fence-first",),
        wrong="A standby counts the time in which the store has answered no process.",
        catchers=("tests/property/test_elections.py::test_a_healthy_leader_is_never_replaced",),
        edits=(
            Edit(
                function="sluice.runtime.election.store_election:StoreElection.__init__",
                old="self._observed = PauseTolerantClock(clock, longest_step_s=3 * self._poll_s)",
                new="self._observed = clock",
            ),
        ),
    ),
    Mutant(
        name="old-address-in-zookeeper",
        rules=("fence-first",),
        wrong="A leader that was paused replaces the address of its successor in ZooKeeper.",
        catchers=(
            "tests/unit/runtime/election/test_leader_lookup.py::TestAnAddressInZooKeeper::test_of_a_paused_leader_replaces_none_of_its_successors",
        ),
        edits=(
            Edit(
                function="sluice.runtime.election.zookeeper_presence:is_replaced_by",
                old="return found is None or found.job_uid != run.job_uid or found.attempt_id < run.attempt_id",
                new="return True",
            ),
        ),
    ),
    Mutant(
        name="zookeeper-alone-is-asked",
        rules=("fence-first",),
        wrong="A reader believes ZooKeeper, which holds an older leader after a failed write.",
        catchers=(
            "tests/unit/runtime/election/test_leader_lookup.py::TestALookup::test_reads_the_store_where_zookeeper_names_no_later_one",
        ),
        edits=(
            Edit(
                function="sluice.runtime.election.leader_lookup:LeaderLookup.later_leader",
                old="if not self._is_later(found):",
                new="if found is None:",
            ),
        ),
    ),
)
