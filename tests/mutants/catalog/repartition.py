"""Mutants of repartition topics: rows in flight, rewinds, and the end of a bounded job."""

from tests.mutants.model import Edit, Mutant

_LINEAGE = "tests/unit/runtime/model/test_batch_lineage.py"
_STARTS = "tests/unit/runtime/coordinator/start/test_lineage.py"
_MESSAGES = "tests/unit/connectors/kafka/repartition/test_repartition_messages.py"
_ENUMERATOR = "tests/unit/connectors/kafka/repartition/test_repartition_enumerator.py"
_READERS = "tests/unit/runtime/coordinator/core/test_topic_readers.py"

MUTANTS = (
    Mutant(
        name="rewound-rows-read-again",
        rules=("restore-by-attempt",),
        wrong="A reader of a repartition topic takes the rows of batches that a rewind has left, too.",
        catchers=(f"{_MESSAGES}::test_rows_of_rewound_batches_are_left_out",),
        edits=(
            Edit(
                function="sluice.connectors.kafka.repartition.repartition_decoder:RepartitionDecoder._has",
                old="return message.origin.is_copied or self.run.lineage.has(",
                new="return True or self.run.lineage.has(",
            ),
        ),
    ),
    Mutant(
        name="rows-of-other-key-groups-read",
        rules=("state-with-output",),
        wrong="A reader takes rows whose keys have their state in another partition.",
        catchers=(
            f"{_MESSAGES}::test_rows_that_were_divided_by_another_number_of_key_groups_are_refused",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.repartition.repartition_decoder:RepartitionDecoder._require_places",
                old="if message.partition != partition:",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="rewind-forgotten",
        rules=("restore-by-attempt",),
        wrong="A start from an older checkpoint adds no rewind to the lineage of its run.",
        catchers=(f"{_STARTS}::test_a_start_from_an_older_decision_leaves_out_later_batches",),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.recovery:lineage_of",
                old="return lineage_until(record, attempt_id=attempt_id)",
                new="return _lineage(record)",
            ),
        ),
    ),
    Mutant(
        name="earlier-rewinds-forgotten",
        rules=("restore-by-attempt",),
        wrong="A rewind replaces the earlier rewinds of the same past.",
        catchers=(f"{_LINEAGE}::test_a_run_sees_exactly_the_batches_of_its_past",),
        edits=(
            Edit(
                function="sluice.runtime.model.state.batch_lineage:BatchLineage.after",
                old="return BatchLineage((*self.rewinds, rewind))",
                new="return BatchLineage((rewind,))",
            ),
        ),
    ),
    Mutant(
        name="last-batch-of-a-rewind-lost",
        rules=("restore-by-attempt",),
        wrong="The last batch of the checkpoint that a run goes back to counts as rewound.",
        catchers=(f"{_LINEAGE}::test_a_run_sees_exactly_the_batches_of_its_past",),
        edits=(
            Edit(
                function="sluice.runtime.model.state.batch_lineage:Rewind.keeps",
                old="return (attempt_id, batch_id) <= last",
                new="return (attempt_id, batch_id) < last",
            ),
        ),
    ),
    Mutant(
        name="rows-of-a-region-that-left-lost",
        rules=("restore-by-attempt",),
        wrong="After a rewind, the rows of regions that the job had before are left out.",
        catchers=(f"{_LINEAGE}::test_a_run_sees_exactly_the_batches_of_its_past",),
        edits=(
            Edit(
                function="sluice.runtime.model.state.batch_lineage:Rewind.keeps",
                old="return attempt_id < self.run_attempt_id",
                new="return False",
            ),
        ),
    ),
    Mutant(
        name="reader-ends-before-its-writers",
        rules=("read-committed-end",),
        wrong="A reader of a repartition topic finishes while a writer has uncommitted output.",
        catchers=(
            f"{_READERS}::test_a_reader_may_finish_once_all_output_of_its_writers_is_committed",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.alignment:barrier_polled",
                old="may_finish=all(state.has_ended(name) for name in region.plan.upstream),",
                new="may_finish=True,",
            ),
        ),
    ),
    Mutant(
        name="repartition-topic-of-another-size",
        rules=("state-with-output",),
        wrong="A job continues with a repartition topic whose number of partitions has changed.",
        catchers=(
            f"{_ENUMERATOR}::test_another_number_of_partitions_is_refused_with_both_numbers",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.repartition.repartition_source:RepartitionEnumerator._require_count",
                old="if found != self._partitions:",
                new="if False:",
            ),
        ),
    ),
)
