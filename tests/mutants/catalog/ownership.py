"""Mutants of the lease on outputs."""

from tests.mutants.model import Edit, Mutant

MUTANTS = (
    Mutant(
        name="pauses-count-as-waiting",
        rules=("lease-guards-outputs",),
        wrong="After a pause of its process, a decision no longer waits for the check of the lease, which was about to find another job.",
        catchers=(
            "tests/unit/runtime/ownership/test_lease.py::test_lease_guards_outputs_a_decision_waits_from_the_beginning_after_a_pause",
        ),
        edits=(
            Edit(
                function="sluice.runtime.ownership.lease_watch:LeaseWatch._wait_for_renewals",
                old="waited_s, pauses = 0.0, pauses + 1",
                new="pauses += 1",
            ),
        ),
    ),
    Mutant(
        name="second-job-accepted",
        rules=("lease-guards-outputs",),
        wrong="A lease of another job that changes while it is watched is taken over.",
        catchers=(
            "tests/unit/runtime/ownership/test_lease.py::test_lease_guards_outputs_a_second_live_job_is_refused_before_it_writes",
        ),
        edits=(
            Edit(
                function="sluice.runtime.ownership.lease:Lease._watch",
                old="""
                if now != found:
                    raise self._refusal(now)
                """,
                new="found = now",
            ),
        ),
    ),
    Mutant(
        name="replaced-holder-writes",
        rules=("lease-guards-outputs",),
        wrong="A holder that finds another session in the lease overwrites it.",
        catchers=(
            "tests/unit/runtime/ownership/test_lease.py::test_lease_guards_outputs_a_holder_that_was_replaced_stops_and_does_not_write",
        ),
        edits=(
            Edit(
                function="sluice.runtime.ownership.lease:Lease._is_overwritten",
                old="""
                if not self._is_over(found) or not self._late_writes:
                    raise self._refusal(found)
                """,
                new="",
            ),
        ),
    ),
)
