"""Mutants of writing to Kafka: produce, flush and pre-commit."""

from tests.mutants.model import Edit, Mutant

MUTANTS = (
    Mutant(
        name="delivery-reports-ignored",
        rules=("pre-commit-confirmed",),
        wrong="A flush that returns 0 counts as complete even if a delivery report has an error.",
        catchers=(
            "tests/unit/connectors/kafka/sink/writer/test_kafka_writer.py::test_a_record_refused_by_the_broker_is_never_pre_committed",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.writer.sender:RecordSender._check",
                old="""
                if self._stops_at_errors:
                    self._delivery.check()
                """,
                new="pass",
            ),
            Edit(
                function="sluice.connectors.kafka.sink.writer.sender:flush",
                old="""
                if stops_at_errors or not left:
                    delivery.check()
                """,
                new="",
            ),
            Edit(
                function="sluice.connectors.kafka.sink.writer.kafka_writer:TransactionalWriter.pre_commit",
                old="self._delivery.check()",
                new="",
            ),
        ),
    ),
    Mutant(
        name="unconfirmed-records-flushed",
        rules=("pre-commit-confirmed",),
        wrong="Records that the broker has not confirmed before the timeout count as flushed.",
        catchers=(
            "tests/unit/connectors/kafka/sink/writer/test_kafka_writer.py::test_records_that_are_not_confirmed_are_never_pre_committed",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.writer.sender:flush",
                old="""
                if not left:
                    return
                if clock() > deadline:
                """,
                new="""
                if not left or clock() > deadline:
                    return
                if left < 0:
                """,
            ),
        ),
    ),
    Mutant(
        name="refused-record-left-out",
        rules=("pre-commit-confirmed",),
        wrong="A record that the client does not accept is left out, and the epoch continues.",
        catchers=(
            "tests/unit/connectors/kafka/sink/writer/test_kafka_writer.py::test_a_record_that_the_client_does_not_accept_is_never_left_out",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.writer.sender:RecordSender._refused",
                old="""
                self._delivery.refused(
                    refusal.args[0], topic=topic, partition=partition, rows=rows, row=row
                )
                self._check()
                """,
                new="",
            ),
        ),
    ),
    Mutant(
        name="epoch-not-compared-after-flush",
        rules=("handle-from-producer",),
        wrong="A pre-commit does not check that producer id and epoch are still the registered ones.",
        catchers=(
            "tests/unit/connectors/kafka/sink/writer/test_kafka_writer.py::test_another_producer_epoch_after_the_flush_is_never_pre_committed",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.producers.transactional_producer:TransactionalProducer.confirm",
                old='if not same or state != "InTransaction":',
                new='if state != "InTransaction":',
            ),
        ),
    ),
    Mutant(
        name="state-not-checked-after-flush",
        rules=("handle-from-producer",),
        wrong="A pre-commit does not ask the client whether its transaction is still open.",
        catchers=(
            "tests/unit/connectors/kafka/sink/writer/test_kafka_writer.py::test_a_transaction_that_ended_unseen_is_never_pre_committed",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.producers.transactional_producer:TransactionalProducer.confirm",
                old='if not same or state != "InTransaction":',
                new="if not same:",
            ),
        ),
    ),
    Mutant(
        name="empty-epoch-has-a-handle",
        rules=("outcome-from-broker",),
        wrong="A task without records begins a transaction, and reports its handle.",
        catchers=(
            "tests/unit/connectors/kafka/sink/writer/test_kafka_writer.py::test_an_epoch_without_records_costs_no_transaction",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.writer.kafka_writer:TransactionalWriter.write",
                old="""
                if batch.num_rows == 0:
                    return
                """,
                new="",
            ),
        ),
    ),
)
