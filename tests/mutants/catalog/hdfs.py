"""Mutants of the file sink: staging, publishing and sweep."""

from tests.mutants.model import Edit, Mutant

MUTANTS = (
    Mutant(
        name="open-files-swept",
        rules=("files-with-decision",),
        wrong="The sweep deletes staged files that a record holds over epochs.",
        catchers=("tests/unit/connectors/hdfs/staging/test_staged_files.py::TestOrphans",),
        edits=(
            Edit(
                function="sluice.connectors.hdfs.committing.file_sweep:orphans",
                old="protected |= decode_pending_files(entry).stagings",
                new="decode_pending_files(entry)",
            ),
        ),
    ),
    Mutant(
        name="rename-before-decision",
        rules=("files-with-decision",),
        wrong="Files get their final names as soon as they are staged, before a decision names them.",
        catchers=(
            "tests/unit/connectors/hdfs/writing/test_task_writer.py::test_files_with_decision_no_reader_sees_a_file_before_the_decision",
        ),
        edits=(
            Edit(
                function="sluice.connectors.hdfs.writing.frame_writer:FileFrameWriter.write",
                old="return StagedFrame(",
                new="""
                for file in found.files:
                    self._fs.move(found.staged_path(file), found.final_path(file))
                return StagedFrame(
                """,
            ),
        ),
    ),
    Mutant(
        name="missing-file-is-published",
        rules=("rename-settled",),
        wrong="A staged file that is missing counts as published.",
        catchers=(
            "tests/unit/connectors/hdfs/staging/test_staged_files.py::test_rename_settled_the_step_for_a_file_follows_from_both_its_names",
        ),
        edits=(
            Edit(
                function="sluice.connectors.hdfs.committing.file_committer:next_step",
                old="if found != {length_bytes}:",
                new="if found - {length_bytes}:",
            ),
        ),
    ),
    Mutant(
        name="other-length-is-published",
        rules=("rename-settled",),
        wrong="A file under the final name counts as published even if its length differs.",
        catchers=(
            "tests/unit/connectors/hdfs/staging/test_staged_files.py::test_rename_settled_the_step_for_a_file_follows_from_both_its_names",
        ),
        edits=(
            Edit(
                function="sluice.connectors.hdfs.committing.file_committer:next_step",
                old="if found != {length_bytes}:",
                new="if not found:",
            ),
        ),
    ),
    Mutant(
        name="rename-answer-trusted",
        rules=("rename-settled",),
        wrong="A rename that returns false counts as done.",
        catchers=(
            "tests/contract/test_file_committer.py::test_rename_settled_a_renames_answer_is_not_believed_unless_it_is_yes",
        ),
        edits=(
            Edit(
                function="sluice.connectors.hdfs.committing.file_committer:_publish_one",
                old="""
                if fs.move(staged, final):
                    return DONE
                """,
                new="""
                fs.move(staged, final)
                return DONE
                """,
            ),
        ),
    ),
    Mutant(
        name="one-name-for-all-attempts",
        rules=("rename-settled",),
        wrong="Attempts of a batch share their staging directory and the names of their files.",
        catchers=("tests/unit/connectors/hdfs/staging/test_staged_files.py::TestNames",),
        edits=(
            Edit(
                function="sluice.connectors.hdfs.staging.staged_names:StagingAttempt.draw",
                old="return cls(batch=batch, attempt=uuid.uuid4().hex)",
                new="return cls(batch=batch, attempt=uuid.UUID(int=0).hex)",
            ),
        ),
    ),
    Mutant(
        name="copied-files-job-accepted",
        rules=("lease-guards-outputs",),
        wrong="A file sink does not check which job has its staging directory.",
        catchers=(
            "tests/unit/runtime/ownership/test_file_lease.py::test_lease_guards_outputs_a_copy_of_a_job_of_files_that_runs_is_refused",
        ),
        edits=(
            Edit(
                function="sluice.connectors.hdfs.committing.file_sink_coordinator:FileSinkCoordinator.claim",
                old="lease.acquire()",
                new="",
            ),
        ),
    ),
)
