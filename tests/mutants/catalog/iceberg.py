"""Mutants of the Iceberg sink."""

from tests.mutants.model import Edit, Mutant

_COMMITS = "tests/contract/test_iceberg_commits.py"
_UPSERTS = "tests/unit/connectors/iceberg/test_iceberg_upserts.py"
_SWEEP = "tests/unit/connectors/iceberg/test_iceberg_sweep.py"
_ANSWERED = f"{_COMMITS}::test_whatever_the_catalog_answered_the_files_are_there_once"
_ICEBERG = "sluice.connectors.iceberg"

MUTANTS = (
    Mutant(
        name="iceberg-ignores-the-positions",
        rules=(),
        wrong="A commit whose answer was lost appends its files again.",
        catchers=(_ANSWERED,),
        edits=(
            Edit(
                function=f"{_ICEBERG}.committing.iceberg_committer:IcebergCommitter._try",
                old="todo = [work for work in works if not positions.covers(work.attempt)]",
                new="todo = list(works)",
            ),
        ),
    ),
    Mutant(
        name="iceberg-deletes-the-manifests-of-a-refused-commit",
        rules=(),
        wrong="A repeated request is refused, and the table loses the manifests of the first one.",
        catchers=(_ANSWERED,),
        edits=(
            Edit(
                function=f"{_ICEBERG}.committing.table_commit:append_files",
                old="transaction._snapshot_producers.clear()",
                new="",
            ),
        ),
    ),
    Mutant(
        name="iceberg-sweeps-what-a-decision-names",
        rules=(),
        wrong="The sweep deletes files of a decided checkpoint.",
        catchers=(
            f"{_SWEEP}::test_files_of_an_attempt_that_is_over_are_deleted_and_protected_ones_stay",
        ),
        edits=(
            Edit(
                function=f"{_ICEBERG}.committing.iceberg_sweep:orphaned_attempts",
                old="if attempt not in protected",
                new="if True",
            ),
        ),
    ),
    Mutant(
        name="iceberg-starts-from-an-older-copy",
        rules=(),
        wrong="A start from an older copy of the checkpoint directory appends rows a second time.",
        catchers=(
            f"{_SWEEP}::test_a_table_with_later_commits_than_the_checkpoint_directory_refuses_the_start",
        ),
        edits=(
            Edit(
                function=f"{_ICEBERG}.committing.iceberg_sink_coordinator:_require_older_commits",
                old="if is_later or position.attempt_id >= context.attempt_id:",
                new="if position.attempt_id >= context.attempt_id:",
            ),
        ),
    ),
    Mutant(
        name="iceberg-sweeps-what-an-earlier-commit-has",
        rules=(),
        wrong="A note that reaches the store late makes the sweep delete committed files.",
        catchers=(f"{_SWEEP}::test_a_note_that_arrives_after_a_later_commit_costs_no_file",),
        edits=(
            Edit(
                function=f"{_ICEBERG}.committing.iceberg_sweep:sweep_attempts",
                old="if _may_be_committed(attempt, view, positions, operator_id=operator_id):",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="iceberg-upserts-keep-the-first-row",
        rules=(),
        wrong="Of two rows of a key in one epoch, the first one stays.",
        catchers=(
            f"{_UPSERTS}::TestRows::test_the_last_row_of_each_key_stays_in_the_order_of_arrival",
        ),
        edits=(
            Edit(
                function=f"{_ICEBERG}.writing.upsert_rows:last_of_each_key",
                old='last = numbered.group_by(list(columns)).aggregate([("row", "max")])["row_max"]',
                new='last = numbered.group_by(list(columns)).aggregate([("row", "min")])["row_min"]',
            ),
        ),
    ),
    Mutant(
        name="iceberg-upserts-have-one-sequence-number",
        rules=(),
        wrong="A key that two tasks write in one epoch has two rows.",
        catchers=(f"{_UPSERTS}::test_a_key_in_two_tasks_of_an_epoch_has_one_row",),
        edits=(
            Edit(
                function=f"{_ICEBERG}.committing.table_commit:_upsert",
                old="for number, (work, run) in enumerate(runs, first):",
                new="for number, (work, run) in ((first + len(runs) - 1, one) for one in runs):",
            ),
        ),
    ),
    Mutant(
        name="iceberg-upserts-in-any-order",
        rules=(),
        wrong="In a commit of several batches, an older one replaces a newer one.",
        catchers=(f"{_UPSERTS}::test_batches_of_a_region_in_one_commit_keep_their_order",),
        edits=(
            Edit(
                function=f"{_ICEBERG}.committing.table_commit:runs_of",
                old="key=lambda work: (work.attempt.batch.region, work.attempt.position, work.attempt.attempt),",
                new="key=lambda work: -work.attempt.batch.batch_id,",
            ),
        ),
    ),
    Mutant(
        name="iceberg-upserts-beside-an-older-spec",
        rules=(),
        wrong="Deletes do not reach rows of an older partition spec, and a key has two rows.",
        catchers=(
            f"{_UPSERTS}::test_rows_of_an_older_partition_spec_refuse_the_upsert",
            f"{_UPSERTS}::test_a_spec_that_changes_after_the_decision_stops_the_commit",
        ),
        edits=(
            Edit(
                function=f"{_ICEBERG}.table.upsert_key:foreign_specs",
                old="and manifest.partition_spec_id != spec_id",
                new="and False",
            ),
        ),
    ),
    Mutant(
        name="iceberg-ids-of-a-key-are-long",
        rules=(),
        wrong="Java's readers fail on the table.",
        catchers=(f"{_UPSERTS}::test_the_ids_of_a_key_have_the_type_of_the_specification",),
        edits=(
            Edit(
                function=f"{_ICEBERG}.committing.row_delta:_with_int_ids",
                old="elif field.field_id == _EQUALITY_IDS and isinstance(kind, ListType):",
                new="elif False:",
            ),
        ),
    ),
)
