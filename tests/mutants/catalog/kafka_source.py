"""Mutants of the Kafka source."""

from tests.mutants.model import Edit, Mutant

MUTANTS = (
    Mutant(
        name="stale-metadata-trusted",
        rules=("two-phase-repair",),
        wrong="A repair checks with another region's older metadata whether its ranges still belong to the same log.",
        catchers=(
            "tests/unit/runtime/test_vanished_partitions.py::test_whoever_has_read_a_range_is_reported_what_it_is_of_now",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.source.enumerator.enumerator:KafkaSplitEnumerator.readable",
                old="self._shared.forget()",
                new="",
            ),
        ),
    ),
    Mutant(
        name="first-batch-not-empty",
        rules=("start-offsets-once",),
        wrong="The drop-in source cuts a batch at the first request, so the resolved start offsets are in no log.",
        catchers=(
            "tests/unit/connectors/kafka/test_drop_in_reader.py::test_start_offsets_once_the_first_batch_is_empty_whatever_has_come_since",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.kafka_drop_in_source:KafkaStreamReader.latestOffset",
                old='if not once and not self._initial_given and start.get("run") == self._run:',
                new='if once and not self._initial_given and start.get("run") == self._run:',
            ),
        ),
    ),
    Mutant(
        name="available-now-never-ends",
        rules=("trigger-is-barrier",),
        wrong="Under availableNow the end offsets advance with records that are written meanwhile.",
        catchers=(
            "tests/unit/connectors/kafka/test_drop_in_reader.py::test_trigger_is_barrier_available_now_ends_where_it_was_prepared",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.kafka_drop_in_source:KafkaStreamReader.prepareForTriggerAvailableNow",
                old="self._enumerator.fix_ends(timeout_s=_TIMEOUT_S)",
                new="self._enumerator.latest()",
            ),
        ),
    ),
    Mutant(
        name="open-transaction-ends-the-log",
        rules=("commit-acknowledged",),
        wrong="Records that an open transaction hides count as truncated, so a position after them goes back.",
        catchers=(
            "tests/unit/runtime/test_hidden_ends.py::test_a_bounded_run_after_an_open_transaction_has_nothing_to_read",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.source.enumerator.lost_ranges:_log_end",
                old="end, visible_by = view.log_ends.get(key), view.latest[key].leader_epoch",
                new="end, visible_by = view.latest.get(key), view.latest[key].leader_epoch",
            ),
        ),
    ),
    Mutant(
        name="epoch-of-the-first-record",
        rules=("read-committed-end",),
        wrong="The leader epoch of a log's first record counts as the present one, so reading stops after a leader change.",
        catchers=(
            "tests/unit/connectors/kafka/source/test_source_changes.py::test_records_of_earlier_leaders_in_a_log_say_nothing_of_its_leader",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.source.enumerator.lost_ranges:LossDetector.without_former_leaders",
                old="for key, fact in view.latest.items()",
                new="for key, fact in (*view.latest.items(), *view.earliest.items())",
            ),
        ),
    ),
    Mutant(
        name="offsets-counted",
        rules=("read-committed-end",),
        wrong="A position advances by the number of received records, so the reader waits for the offsets of transaction markers.",
        catchers=("tests/property/test_source_splits.py",),
        edits=(
            Edit(
                function="sluice.connectors.kafka.source.reader.ranges:RangeProgress.accept",
                old="self._received[slots] = np.maximum(self._received[slots], offsets + 1)",
                new="np.add.at(self._received, slots, 1)",
            ),
        ),
    ),
    Mutant(
        name="aborted-records-are-silence",
        rules=("read-committed-end",),
        wrong="A client that is busy with aborted records counts as silent, so the read of the range fails.",
        catchers=(
            "tests/unit/connectors/kafka/source/reader/test_source_reader.py::test_aborted_records_that_a_client_is_busy_with_are_progress",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.source.reader.fetch_positions:FetchPositions.moved",
                old='if at > seen or facts.get("broker") in delaying:',
                new='if facts.get("broker") in delaying:',
            ),
        ),
    ),
)
