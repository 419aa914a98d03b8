"""Mutants of object stores: conditional puts, uploads and their sweep, Spark's own directory."""

from tests.mutants.model import Edit, Mutant

_STORES = "tests/contract/test_object_stores.py"
_GOOGLE = "tests/contract/test_google_interface.py"
_COMMITTER = "tests/contract/test_upload_committer.py"
_NAMES = "tests/unit/connectors/hdfs/staging/test_uploaded_files.py"
_WRITER = "tests/unit/connectors/hdfs/writing/test_upload_writer.py"
_CLEAN = "tests/unit/connectors/hdfs/tools/test_uploads_command.py"
_PLACE = "tests/unit/runtime/checkpoint/test_spark_place.py"

_CLIENT = "sluice.runtime.storage.objects.object_client"
_FILES = "sluice.runtime.storage.objects.object_file_system"
_COMMIT = "sluice.connectors.hdfs.committing.upload_committer"
_SWEEP = "sluice.connectors.hdfs.committing.upload_sweep"
_SPARK = "sluice.runtime.checkpoint.spark_place"

MUTANTS = (
    Mutant(
        name="put-without-condition",
        rules=("publish-whole",),
        wrong="A record is put over the one that stands.",
        catchers=(
            f"{_STORES}::test_fence_first_of_two_coordinators_on_one_bucket_one_decides",
            f"{_STORES}::test_publish_whole_a_fault_of_the_put_is_settled_by_reading_back",
        ),
        edits=(
            Edit(
                function=f"{_CLIENT}:ObjectClient.create",
                old='self._store, key, data, mode="create", use_multipart=False',
                new='self._store, key, data, mode="overwrite", use_multipart=False',
            ),
        ),
    ),
    Mutant(
        name="condition-not-checked",
        rules=("publish-whole",),
        wrong="A store that ignores the condition of a put is not found out at the start.",
        catchers=(
            f"{_GOOGLE}::test_publish_whole_a_store_that_ignores_the_condition_is_refused",
            f"{_STORES}::TestRefusals",
        ),
        edits=(
            Edit(
                function=f"{_FILES}:ObjectFileSystem.stage",
                old="self._require_condition()",
                new="",
            ),
        ),
    ),
    Mutant(
        name="refused-put-is-another-s-record",
        rules=("publish-whole",),
        wrong="A put that is refused counts as lost, though an earlier try of the client was heard.",
        catchers=(f"{_STORES}::test_publish_whole_a_fault_of_the_put_is_settled_by_reading_back",),
        edits=(
            Edit(
                function="sluice.runtime.checkpoint.slot_publishing:SlotPublication.run",
                old="""
                found = self._standing()
                self._discard()
                """,
                new="""
                found = PublishOutcome.TAKEN
                self._discard()
                """,
            ),
        ),
    ),
    Mutant(
        name="refused-put-is-our-record",
        rules=("publish-whole", "fence-first"),
        wrong="A put that is refused counts as our own repeated request, and the slot is not read.",
        catchers=(f"{_STORES}::test_fence_first_of_two_coordinators_on_one_bucket_one_decides",),
        edits=(
            Edit(
                function="sluice.runtime.checkpoint.slot_publishing:SlotPublication.run",
                old="""
                found = self._standing()
                self._discard()
                """,
                new="""
                found = PublishOutcome.OURS
                self._discard()
                """,
            ),
        ),
    ),
    Mutant(
        name="record-deleted-last",
        rules=("publish-whole",),
        wrong="Half a deleted tree still has its record.",
        catchers=(f"{_STORES}::test_publish_whole_a_killed_deletion_leaves_no_checkpoint",),
        edits=(
            Edit(
                function=f"{_FILES}:ObjectFileSystem.delete",
                old="if record in below:",
                new="if False:",
            ),
            Edit(
                function=f"{_FILES}:ObjectFileSystem.delete",
                old="self._client.delete([each for each in below if each != record] if below else [key])",
                new="""
                failpoint("after-record-deleted")
                self._client.delete(below or [key])
                """,
            ),
        ),
    ),
    Mutant(
        name="upload-completed-before-decision",
        rules=("files-with-decision", "upload-settled"),
        wrong="A task completes its uploads at the pre-commit.",
        catchers=(f"{_WRITER}::test_files_with_decision_uploads_are_whole_and_unseen",),
        edits=(
            Edit(
                function="sluice.connectors.hdfs.writing.upload_writer:UploadWriter.pre_commit",
                old="return [encode_upload_set(self._uploaded, operator_id=self._scope.operator_id)]",
                new="""
                entry = encode_upload_set(self._uploaded, operator_id=self._scope.operator_id)
                self.commit(timeout_s=60.0)
                return [entry]
                """,
            ),
        ),
    ),
    Mutant(
        name="unanswered-completion-is-done",
        rules=("upload-settled",),
        wrong="A completion without an answer counts as done, and its object is not looked at.",
        catchers=(f"{_COMMITTER}::test_upload_settled_a_lost_answer_is_settled_by_a_look",),
        edits=(
            Edit(
                function=f"{_COMMIT}:_complete_one",
                old="return _settled(uploads, files, file, err)",
                new="return DONE",
            ),
        ),
    ),
    Mutant(
        name="unanswered-completion-is-lost",
        rules=("upload-settled",),
        wrong="A completion whose answer was lost stops the job, though its object is there.",
        catchers=(f"{_COMMITTER}::test_upload_settled_a_lost_answer_is_settled_by_a_look",),
        edits=(
            Edit(
                function=f"{_COMMIT}:_settled",
                old="""
                if found is Found.OURS:
                    return DONE
                """,
                new="",
            ),
        ),
    ),
    Mutant(
        name="completed-upload-is-a-loss",
        rules=("upload-settled",),
        wrong="A second completion of an upload is a failure: the store has no such upload any more.",
        catchers=(f"{_COMMITTER}::test_upload_settled_a_commit_may_be_repeated",),
        edits=(
            Edit(
                function=f"{_COMMIT}:UploadCommitter._complete",
                old="looks_first = after_crash or files in self._completed",
                new="looks_first = False",
            ),
            Edit(
                function=f"{_COMMIT}:_settled",
                old="if found is Found.OURS:",
                new="if found is Found.OURS and not isinstance(err, UploadGoneError):",
            ),
        ),
    ),
    Mutant(
        name="vanished-upload-is-repeated",
        rules=("upload-settled",),
        wrong="An upload that the store does not have, without an object, is pending for ever.",
        catchers=(f"{_COMMITTER}::test_upload_settled_an_aborted_upload_is_never_seen",),
        edits=(
            Edit(
                function=f"{_COMMIT}:_settled",
                old="if found is Found.NOTHING and not isinstance(err, UploadGoneError):",
                new="if found is Found.NOTHING:",
            ),
        ),
    ),
    Mutant(
        name="other-object-is-ours",
        rules=("upload-settled",),
        wrong="An object of the right length counts as the upload's, without its mark.",
        catchers=(f"{_COMMITTER}::test_upload_settled_a_foreign_object_under_the_name_stops",),
        edits=(
            Edit(
                function=f"{_COMMIT}:found_object",
                old="is_ours = found.length_bytes == length_bytes and found.mark == mark",
                new="is_ours = found.length_bytes == length_bytes",
            ),
        ),
    ),
    Mutant(
        name="decided-upload-aborted",
        rules=("upload-settled", "fence-first"),
        wrong="The sweep aborts uploads of an ended attempt that a decision names.",
        catchers=(f"{_NAMES}::TestOrphans",),
        edits=(
            Edit(
                function=f"{_SWEEP}:orphan_uploads",
                old="if upload.upload_id not in named",
                new="if upload.upload_id",
            ),
        ),
    ),
    Mutant(
        name="living-upload-aborted",
        rules=("upload-settled",),
        wrong="The sweep aborts uploads of the attempt that runs.",
        catchers=(f"{_NAMES}::TestOrphans",),
        edits=(
            Edit(
                function=f"{_SWEEP}:orphan_uploads",
                old="view.is_attempt_over(name.attempt.batch.region, name.attempt.batch.attempt_id)",
                new="name.attempt.batch.attempt_id >= 0",
            ),
        ),
    ),
    Mutant(
        name="another-job-s-upload-aborted",
        rules=("upload-settled",),
        wrong="The sweep takes uploads of every job below the target for its own.",
        catchers=(f"{_NAMES}::TestOrphans",),
        edits=(
            Edit(
                function=f"{_SWEEP}:uploads_of",
                old="if name is not None and name.sink == sink:",
                new="if name is not None:",
            ),
        ),
    ),
    Mutant(
        name="clean-aborts-the-newest-run",
        rules=("upload-settled",),
        wrong="`sluice files clean` aborts uploads of the run that may still be writing.",
        catchers=(
            f"{_CLEAN}::test_upload_settled_clean_aborts_unnamed_uploads_of_earlier_runs_alone",
        ),
        edits=(
            Edit(
                function="sluice.connectors.hdfs.tools.files_survey:orphans_of",
                old="if its_name.attempt.batch.attempt_id < oldest_running",
                new="if its_name.attempt.batch.attempt_id >= 0",
            ),
        ),
    ),
    Mutant(
        name="clean-aborts-a-named-upload",
        rules=("upload-settled",),
        wrong="`sluice files clean` aborts uploads that a retained checkpoint names.",
        catchers=(
            f"{_CLEAN}::test_upload_settled_clean_aborts_unnamed_uploads_of_earlier_runs_alone",
        ),
        edits=(
            Edit(
                function="sluice.connectors.hdfs.tools.files_survey:orphans_of",
                old="and upload.upload_id not in named_uploads",
                new="",
            ),
        ),
    ),
    Mutant(
        name="unanswered-part-is-pre-committed",
        rules=("pre-commit-confirmed",),
        wrong="A part whose put failed is left out of the file, which is pre-committed.",
        catchers=(
            f"{_WRITER}::test_pre_commit_confirmed_an_upload_without_an_answer_fails_the_attempt",
        ),
        edits=(
            Edit(
                function="sluice.connectors.hdfs.writing.upload_files:_Upload.finish",
                old="tags = tuple(tag.result() for tag in self._tags)",
                new="tags = tuple(t.result() for t in self._tags if t.exception() is None) or ('x',)",
            ),
        ),
    ),
    Mutant(
        name="upload-of-a-fenced-task",
        rules=("ids-never-reused",),
        wrong="A task of an ended attempt begins an upload that no sweep ends.",
        catchers=(f"{_WRITER}::test_ids_never_reused_a_fenced_task_uploads_nothing",),
        edits=(
            Edit(
                function="sluice.connectors.hdfs.writing.upload_writer:UploadWriter._begun",
                old="""
                self._registry.register(
                    RegisteredAttempt(
                        batch=scope.batch,
                        operator_id=scope.operator_id,
                        resource=self._attempt.path,
                        checkpoint_id=scope.checkpoint_id,
                    )
                )
                """,
                new="",
            ),
        ),
    ),
    Mutant(
        name="spark-directory-shared",
        rules=("restore-by-attempt",),
        wrong="Two jobs keep Spark's logs and state in one directory.",
        catchers=(f"{_PLACE}::test_two_jobs_never_share_a_directory",),
        edits=(
            Edit(
                function=f"{_SPARK}:bind_spark_directory",
                old="if owner is not None and (place is None or owner.id != place.id):",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="lost-spark-state-accepted",
        rules=("restore-by-attempt",),
        wrong="A job whose Spark state is gone binds an empty directory, and begins without state.",
        catchers=(
            f"{_PLACE}::test_restore_by_attempt_lost_state_is_reported_before_anything_changes",
        ),
        edits=(
            Edit(
                function=f"{_SPARK}:bind_spark_directory",
                old="_require_state(main, spark, place)",
                new="pass",
            ),
        ),
    ),
    Mutant(
        name="spark-logs-beside-the-checkpoints",
        rules=("restore-by-attempt",),
        wrong="Sluice reads Spark's logs in the checkpoint directory, where Spark does not write them.",
        catchers=(f"{_PLACE}::test_restore_by_attempt_spark_s_paths_lead_to_the_other_directory",),
        edits=(
            Edit(
                function="sluice.runtime.storage.divided_directory:DividedDirectory.holder",
                old='is_sparks = path == SPARK or path.startswith(f"{SPARK}/")',
                new="is_sparks = path == SPARK",
            ),
        ),
    ),
    Mutant(
        name="any-404-is-an-absence",
        rules=("restore-by-attempt", "fence-first"),
        wrong="A record counts as absent because a proxy before the store answers 404.",
        catchers=(f"{_STORES}::test_a_404_of_another_server_does_not_mean_that_there_is_nothing",),
        edits=(
            Edit(
                function=f"{_CLIENT}:_require_absence",
                old="if not _NO_OBJECT.search(str(error)):",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="clean-aborts-a-resumed-attempt",
        rules=("upload-settled",),
        wrong="`sluice files clean` aborts uploads of an attempt that a later leader has resumed.",
        catchers=(
            f"{_CLEAN}::test_clean_leaves_uploads_of_an_attempt_that_a_later_leader_has_resumed",
        ),
        edits=(
            Edit(
                function="sluice.connectors.hdfs.tools.files_survey:orphans_of",
                old="oldest_running = min([first_slot_of_newest_run(records), *resumable.values()])",
                new="oldest_running = first_slot_of_newest_run(records)",
            ),
        ),
    ),
)
