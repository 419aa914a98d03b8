"""Mutants of the Kafka committer, its verdicts and its sweep."""

from tests.mutants.model import Edit, Mutant

MUTANTS = (
    Mutant(
        name="any-ongoing-is-ours",
        rules=("handle-from-producer",),
        wrong="Any open transaction of the id counts as ours, even one of a later attempt.",
        catchers=(
            "tests/unit/connectors/kafka/sink/committer/test_transaction_answers.py::test_outcome_from_broker_every_state_and_epoch_has_one_verdict",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.committer.commit_outcomes:judge",
                old="open=is_ongoing and step is EpochStep.SAME,",
                new="open=is_ongoing,",
            ),
        ),
    ),
    Mutant(
        name="sweep-takes-current-work",
        rules=("ids-never-reused",),
        wrong="The sweep aborts every open transaction of the present attempt.",
        catchers=(
            "tests/unit/connectors/kafka/sink/committer/test_sweep.py::test_ids_never_reused_the_present_attempt_is_left_alone",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.committer.transaction_sweep:_is_orphan",
                old="return name.attempt_id == view.attempt_ids.get(name.region) and identity in declared",
                new="return name.attempt_id == view.attempt_ids.get(name.region)",
            ),
        ),
    ),
    Mutant(
        name="sweep-takes-other-jobs",
        rules=("ids-never-reused",),
        wrong="The sweep takes transactions of other jobs with the same prefix.",
        catchers=(
            "tests/unit/connectors/kafka/sink/committer/test_sweep.py::test_ids_never_reused_other_jobs_and_prefixes_are_never_touched",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.committer.transaction_sweep:_is_orphan",
                old="if name is None or name.prefix != prefix or name.job_uid != view.job_uid:",
                new="if name is None or name.prefix != prefix:",
            ),
        ),
    ),
    Mutant(
        name="sweep-takes-decided-work",
        rules=("ids-never-reused",),
        wrong="The sweep aborts transactions that a decision names and that are not committed yet.",
        catchers=(
            "tests/unit/connectors/kafka/sink/committer/test_sweep.py::test_ids_never_reused_a_decided_transaction_is_never_touched",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.committer.transaction_sweep:orphans",
                old="and one.transactional_id not in protected",
                new="",
            ),
        ),
    ),
    Mutant(
        name="abort-before-verdict",
        rules=("outcome-from-broker",),
        wrong="An abort is sent before the verdict, although version 5 accepts it after the writer's own commit and reports those records as aborted.",
        catchers=(
            "tests/contract/test_committer.py::test_outcome_from_broker_an_abort_does_not_hide_that_the_writer_has_committed",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.committer.kafka_committer:KafkaCommitter.abort_transactions",
                old="verdict_first=True,",
                new="verdict_first=False,",
            ),
        ),
    ),
    Mutant(
        name="end-before-verdict",
        rules=("outcome-from-broker",),
        wrong="After a crash, EndTxn is sent before the state of the transaction is checked.",
        catchers=(
            "tests/unit/connectors/kafka/sink/committer/test_committer_faults.py::test_outcome_from_broker_after_a_crash_nothing_is_sent_before_the_verdict_allows_it",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.committer.kafka_committer:KafkaCommitter.commit",
                old="verdict_first=after_crash,",
                new="verdict_first=False,",
            ),
        ),
    ),
    Mutant(
        name="refused-end-is-done",
        rules=("outcome-from-broker",),
        wrong="Any answer to EndTxn counts as a commit, even an error.",
        catchers=(
            "tests/unit/connectors/kafka/sink/committer/test_committer_faults.py::test_a_lost_request_or_answer_ends_in_one_visible_commit",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.committer.kafka_committer:KafkaCommitter._end",
                old="if answer.outcome is EndOutcome.DONE:",
                new="if answer.outcome is not EndOutcome.UNKNOWN:",
            ),
        ),
    ),
    Mutant(
        name="later-epoch-means-aborted",
        rules=("outcome-from-broker",),
        wrong="An id that was initialised again counts as aborted, so committed records are written again.",
        catchers=(
            "tests/unit/connectors/kafka/sink/committer/test_transaction_answers.py::test_outcome_from_broker_every_state_and_epoch_has_one_verdict",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.committer.commit_outcomes:judge",
                old="outcome = TABLE.get((described.state, step), CommitOutcome.UNKNOWN)",
                new="outcome = TABLE.get((described.state, step), CommitOutcome.ABORTED)",
            ),
        ),
    ),
    Mutant(
        name="expired-id-means-aborted",
        rules=("outcome-from-broker",),
        wrong="An id that the transaction coordinator no longer knows counts as aborted.",
        catchers=(
            "tests/unit/connectors/kafka/sink/committer/test_transaction_answers.py::test_outcome_from_broker_an_unknown_id_is_unknown",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.committer.commit_outcomes:judge",
                old='outcome=CommitOutcome.UNKNOWN, detail="the coordinator no longer knows this id"',
                new='outcome=CommitOutcome.ABORTED, detail="the coordinator no longer knows this id"',
            ),
        ),
    ),
    Mutant(
        name="native-commit-means-lost",
        rules=("outcome-from-broker",),
        wrong="CompleteCommit counts only under the epoch that EndTxn version 5 leaves, so a native commit looks lost.",
        catchers=(
            "tests/unit/connectors/kafka/sink/committer/test_transaction_answers.py::test_outcome_from_broker_every_state_and_epoch_has_one_verdict",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.committer.commit_outcomes:",
                old="(_State.COMPLETE_COMMIT, _Step.SAME): CommitOutcome.COMMITTED,",
                new="(_State.COMPLETE_COMMIT, _Step.SAME): CommitOutcome.ABORTED,",
            ),
        ),
    ),
    Mutant(
        name="abort-commits",
        rules=("abort-by-endtxn",),
        wrong="The abort request commits.",
        catchers=(
            "tests/contract/test_committer.py::test_abort_by_endtxn_abort_discards_exactly_one_transaction",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.committer.kafka_committer:KafkaCommitter.abort_transactions",
                old="commit=False,",
                new="commit=True,",
            ),
        ),
    ),
    Mutant(
        name="abort-of-any-open-transaction",
        rules=("abort-by-endtxn",),
        wrong="An abort uses the epoch that the broker describes now instead of the transaction's own, and ends a later attempt.",
        catchers=(
            "tests/contract/test_committer.py::test_abort_by_endtxn_abort_with_a_stale_epoch_leaves_the_live_transaction_alone",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.committer.kafka_committer:KafkaCommitter.abort_transactions",
                old="""
                return self._finish(
                    transactions,
                    commit=False,
                    verdict_first=True,
                    deadline=self._clock() + timeout_s,
                """,
                new="""
                deadline = self._clock() + timeout_s
                ids = [each.transactional_id for each in transactions]
                found = self._wire.describe(ids, timeout_s=self._attempt_s(deadline))
                known = [found.get(each.transactional_id) for each in transactions]
                return self._finish(
                    [
                        each if one is None else one.identity
                        for each, one in zip(transactions, known, strict=True)
                    ],
                    commit=False,
                    verdict_first=True,
                    deadline=deadline,
                """,
            ),
        ),
    ),
    Mutant(
        name="listed-counts-as-swept",
        rules=("wait-for-all-brokers",),
        wrong="A transaction counts as swept although its coordinator died after it was listed and before it was described.",
        catchers=(
            "tests/unit/connectors/kafka/sink/committer/test_sweep.py::test_wait_for_all_brokers_what_is_listed_and_not_described_is_not_swept",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.committer.transaction_sweep:Sweeper.sweep",
                old="missing = (*listing.missing, *untold)",
                new="missing = listing.missing if untold else listing.missing",
            ),
        ),
    ),
)
