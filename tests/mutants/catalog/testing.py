"""Mutants of `assert_exactly_once`: each leaves out the check for one kind of fault."""

from tests.mutants.model import Edit, Mutant

_UNIT = "tests/unit/connectors/testing/test_assertions.py"
_KILLS = "tests/unit/connectors/testing/test_killing.py::test_a_kill_needs_its_signal_and_at_a_step_its_failpoint"
_ORACLE = "tests/property/test_checker_oracle.py::test_the_verdict_is_the_oracles"
_EXAMINATION = "sluice.runtime.checker.examination:Examination"
_EACH = f"{_UNIT}::test_each_fault_is_named_alone_with_its_place"

MUTANTS = (
    Mutant(
        name="checker-ignores-lost",
        rules=(),
        wrong="The checker does not count lost records.",
        catchers=(_EACH,),
        edits=(
            Edit(
                function=f"{_EXAMINATION}._lose",
                old="self._add(Kind.LOST, lost, self._wanted)",
                new="",
            ),
        ),
    ),
    Mutant(
        name="checker-ignores-duplicated",
        rules=(),
        wrong="The checker does not count duplicated records.",
        catchers=(_EACH,),
        edits=(
            Edit(
                function=f"{_EXAMINATION}._settle",
                old="self._add(Kind.DUPLICATED, have.at(pairing.duplicated), self._had)",
                new="",
            ),
        ),
    ),
    Mutant(
        name="checker-ignores-unexpected",
        rules=(),
        wrong="The checker does not count unexpected records.",
        catchers=(_EACH,),
        edits=(
            Edit(
                function=f"{_EXAMINATION}.pair_names",
                old="self._add(Kind.UNEXPECTED, unexpected.at(np.sort(strays)), self._had)",
                new="",
            ),
        ),
    ),
    Mutant(
        name="checker-ignores-reordered",
        rules=(),
        wrong="The checker does not count records out of order.",
        catchers=(_EACH,),
        edits=(
            Edit(
                function=f"{_EXAMINATION}.judge_order",
                old="self._tally.add(Kind.REORDERED, ranked, len(faults))",
                new="",
            ),
        ),
    ),
    Mutant(
        name="checker-ignores-corrupted",
        rules=(),
        wrong="The checker does not count corrupted records.",
        catchers=(_EACH,),
        edits=(
            Edit(
                function=f"{_EXAMINATION}.pair_names",
                old="self._add(Kind.CORRUPTED, corrupted, self._had, sources=sources)",
                new="",
            ),
        ),
    ),
    Mutant(
        name="checker-expects-aborted",
        rules=(),
        wrong="The checker accepts records that a pipeline makes of aborted input.",
        catchers=(_ORACLE,),
        edits=(
            Edit(
                function=f"{_EXAMINATION}._settle",
                old=(
                    "self._add(Kind.ABORTED, f.at(is_hidden), self._had, sources=e.at(is_hidden))"
                ),
                new="",
            ),
        ),
    ),
    Mutant(
        name="checker-misses-aborted",
        rules=(),
        wrong="The checker counts aborted input without output as lost.",
        catchers=(_ORACLE,),
        edits=(
            Edit(
                function=f"{_EXAMINATION}._settle",
                old="lost = lost.at(lost.lanes >= 0)",
                new="",
            ),
        ),
    ),
    Mutant(
        name="checker-ignores-torn",
        rules=(),
        wrong="The checker does not count transactions that are partly in the output.",
        catchers=(
            "tests/property/test_spilled_checker.py::test_part_of_a_transaction_is_torn_and_a_whole_one_missing_is_not",
        ),
        edits=(
            Edit(
                function=f"{_EXAMINATION}.verdict",
                old="self._tally.add(Kind.TORN, torn, len(torn))",
                new="",
            ),
        ),
    ),
    Mutant(
        name="faults-pass",
        rules=(),
        wrong="The assertion returns a verdict with faults.",
        catchers=(_EACH,),
        edits=(
            Edit(
                function="sluice.connectors.testing.assertions:assert_exactly_once",
                old="if verdict.faults:",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="nothing-passes",
        rules=(),
        wrong="An empty input and an empty output count as exactly once.",
        catchers=(f"{_UNIT}::test_where_nothing_was_compared_the_assertion_fails",),
        edits=(
            Edit(
                function="sluice.connectors.kafka.tools.verify.verification:verify",
                old="""
                if not len(want) + len(have):
                    raise _nothing_to_compare(plan, records_read, elsewhere)
                """,
                new="",
            ),
        ),
    ),
    Mutant(
        name="last-value-not-compared",
        rules=(),
        wrong="The last record of a key may have any value.",
        catchers=(f"{_UNIT}::TestLastPerKey",),
        edits=(
            Edit(
                function="sluice.connectors.testing.last_values:last_values",
                old="if record.value != value:",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="any-sigkill-is-a-kill",
        rules=(),
        wrong="A program that something else killed counts as killed at its step.",
        catchers=(_KILLS,),
        edits=(
            Edit(
                function="sluice.connectors.testing.killing:ProgramRun.is_killed",
                old="return is_signalled and (self.failpoint is not None or not isinstance(self.at, str))",
                new="return is_signalled",
            ),
        ),
    ),
    Mutant(
        name="any-end-is-a-kill",
        rules=(),
        wrong="A program that ended by itself counts as killed.",
        catchers=(_KILLS,),
        edits=(
            Edit(
                function="sluice.connectors.testing.killing:ProgramRun.is_killed",
                old="is_signalled = self.at is not None and self.exit_code == -signal.SIGKILL",
                new="is_signalled = self.at is not None",
            ),
        ),
    ),
)
