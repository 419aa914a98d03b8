"""Mutants of the requests about transactions, and of their statistics."""

from tests.mutants.model import Edit, Mutant

MUTANTS = (
    Mutant(
        name="version-5-everywhere",
        rules=("endtxn-version",),
        wrong="EndTxn is sent in version 5 under every finalised transaction.version.",
        catchers=(
            "tests/unit/connectors/kafka/client/test_transaction_wire.py::test_endtxn_version_version_5_is_sent_only_where_its_level_is_finalised",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.committer.kafka_wire:_end_request",
                old="max_version=5 if level >= 1 else 4,",
                new="max_version=5,",
            ),
        ),
    ),
    Mutant(
        name="lost-request-forgotten",
        rules=("ids-never-reused",),
        wrong="A request for an id counts as answered, although the client has lost it and sent it again.",
        catchers=(
            "tests/contract/test_repeated_by_clients.py::test_ids_never_reused_a_request_that_was_lost_and_sent_again_is_reported",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.producers.transaction_status:may_arrive_late",
                old="return sent > 1 and given_up > 0",
                new="return sent > 9 and given_up > 0",
            ),
        ),
    ),
    Mutant(
        name="login-refused-forever",
        rules=("outcome-from-broker",),
        wrong="If one broker has refused a login once, the client answers every later request with that refusal.",
        catchers=(
            "tests/unit/connectors/kafka/client/test_refused_logins.py::test_a_log_in_that_one_broker_refuses_once_is_tried_again_by_the_next_call",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.committer.kafka_wire:TransactionWire._call",
                old="if client.refused is not None:",
                new="if client.refused is not None and request is None:",
            ),
        ),
    ),
    Mutant(
        name="late-answer-hides-a-loss",
        rules=("outcome-from-broker",),
        wrong="A late answer to a request before the begin counts as the answer to a request that was given up later.",
        catchers=(
            "tests/unit/connectors/kafka/sink/producers/test_given_up_requests.py::test_outcome_from_broker_a_late_answer_does_not_make_up_for_a_later_loss",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.producers.transaction_status:_unanswered",
                old='answered = broker["rx"] - broker["rxcorriderrs"]',
                new='answered = broker["rx"]',
            ),
        ),
    ),
    Mutant(
        name="pending-addition-ignored",
        rules=("outcome-from-broker",),
        wrong="A task commits its epoch natively although a request that begins it may have been lost and sent again since the newest report.",
        catchers=("tests/unit/connectors/kafka/sink/producers/test_given_up_requests.py",),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.producers.transaction_status:Additions.is_settled",
                old="return self._added > 0 and not self._was_added and not self._is_pending",
                new="return self._added > 0 and not self._was_added",
            ),
        ),
    ),
    Mutant(
        name="begun-again-after-its-commit",
        rules=("outcome-from-broker",),
        wrong="A transaction is pre-committed although a copy of a request that begins it may arrive after its commit.",
        catchers=(
            "tests/unit/connectors/kafka/sink/writer/test_kafka_writer.py::test_outcome_from_broker_a_transaction_that_may_be_begun_again_is_never_pre_committed",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.producers.transaction_status:Additions.may_come_late",
                old="return self.is_unknown or (self._added > 0 and self._given_up > 0)",
                new="return self.is_unknown or (self._added > 9 and self._given_up > 0)",
            ),
        ),
    ),
    Mutant(
        name="abort-by-initialisation",
        rules=("abort-by-endtxn",),
        wrong="An abort is an InitProducerId with the transaction's id and epoch, which aborts any open transaction of the id.",
        catchers=(
            "tests/unit/connectors/kafka/client/test_transaction_wire.py::test_abort_by_endtxn_an_abort_is_an_endtxn_with_the_transactions_own_epoch",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.committer.kafka_wire:_end_request",
                old="return EndTxnRequest(",
                new="""
                if not commit:
                    from kafka.protocol.producer.transaction import InitProducerIdRequest

                    return InitProducerIdRequest(
                        transactional_id=transaction.transactional_id,
                        transaction_timeout_ms=60_000,
                        producer_id=transaction.producer_id,
                        producer_epoch=transaction.producer_epoch,
                        min_version=3,
                    )
                return EndTxnRequest(
                """,
            ),
        ),
    ),
)
