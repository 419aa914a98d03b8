"""Mutants of the producers of a task and of their transactional ids."""

from tests.mutants.model import Edit, Mutant

MUTANTS = (
    Mutant(
        name="ids-reused-before-the-mark",
        rules=("ids-never-reused",),
        wrong="A pre-committed id takes the next batch before its checkpoint is recorded as committed.",
        catchers=(
            "tests/unit/connectors/kafka/sink/producers/test_producer_slots.py::test_an_id_rests_until_its_checkpoint_is_committed_on_record",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.producers.producer_slots:_is_over",
                old="return slot.checkpoint_id <= scope.committed_through and slot.batch_id < scope.batch.batch_id",
                new="return slot.batch_id < scope.batch.batch_id",
            ),
        ),
    ),
    Mutant(
        name="unanswered-initialisation-repeated",
        rules=("ids-never-reused",),
        wrong="An id whose init_transactions was never answered is initialised and used again.",
        catchers=(
            "tests/unit/connectors/kafka/sink/producers/test_unanswered_ids.py::test_ids_never_reused_an_id_whose_initialisation_was_not_answered_is_never_used_again",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.producers.producer_slots:",
                old="(SlotState.PREPARING, SlotEvent.UNANSWERED): SlotState.RETIRED,",
                new="(SlotState.PREPARING, SlotEvent.UNANSWERED): SlotState.FREE,",
            ),
        ),
    ),
    Mutant(
        name="one-owner-for-all-processes",
        rules=("ids-never-reused",),
        wrong="Worker processes draw no owner, so two attempts share transactional ids.",
        catchers=(
            "tests/unit/connectors/kafka/sink/producers/test_producer_pools.py::test_ids_name_prefix_job_region_attempt_owner_and_slot",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.producers.producer_pool:ProducerPool.__init__",
                old="self._owner = owner or NewOwner()",
                new='self._owner = NewOwner("owner")',
            ),
        ),
    ),
    Mutant(
        name="pools-inherited-by-forks",
        rules=("ids-never-reused",),
        wrong="A forked worker uses the transactional ids of its parent.",
        catchers=(
            "tests/unit/connectors/kafka/sink/producers/test_producer_pools.py::test_a_forked_worker_owns_none_of_its_parents_ids",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.producers.producer_pool:process_pools",
                old="if os.getpid() != _pid:",
                new="if os.getpid() < 0:",
            ),
        ),
    ),
    Mutant(
        name="unanswered-abort-forgotten",
        rules=("ids-never-reused",),
        wrong="An id whose abort was never answered is used again after its checkpoint is recorded as committed.",
        catchers=(
            "tests/unit/connectors/kafka/sink/producers/test_unanswered_ids.py::test_ids_never_reused_an_id_whose_abort_was_not_answered_is_never_used_again",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.producers.producer_pool:ProducerPool.abort",
                old="self._return(lease, SlotEvent.ABORTED if acknowledged else SlotEvent.GIVEN_UP)",
                new="self._return(lease, SlotEvent.ABORTED if acknowledged else SlotEvent.SPEND)",
            ),
        ),
    ),
    Mutant(
        name="free-by-a-hinted-checkpoint",
        rules=("ids-never-reused",),
        wrong="An id whose checkpoint was unknown when it was taken becomes free with the checkpoint that its task guessed.",
        catchers=("tests/unit/connectors/kafka/sink/producers/test_producer_slots.py",),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.producers.producer_slots:_is_over",
                old="""
                if scope.committed_batch is not None:
                    return slot.batch_id <= scope.committed_batch
                """,
                new="",
            ),
        ),
    ),
    Mutant(
        name="id-of-another-writer-returned",
        rules=("ids-never-reused",),
        wrong="An abandoned writer returns an id that another writer has by now, so the id is initialised while the other writer uses it.",
        catchers=(
            "tests/unit/connectors/kafka/sink/producers/test_producer_pools.py::test_ids_never_reused_a_writer_that_was_given_up_does_not_give_back_the_id_of_another",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.producers.producer_pool:ProducerPool._is_open",
                old="return kept is not None and kept.producer is lease.producer",
                new="return kept is not None",
            ),
        ),
    ),
    Mutant(
        name="open-ids-of-ended-processes-used",
        rules=("ids-never-reused",),
        wrong="A worker initialises an id that its ended predecessor was about to initialise or had open.",
        catchers=(
            "tests/unit/connectors/kafka/sink/producers/test_id_owners.py::test_ids_never_reused_ids_of_a_process_pass_on_when_the_kernel_has_ended_it",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.producers.id_owners:_read",
                old="state = _AFTER.get(code, SlotState.RETIRED)",
                new="state = _AFTER.get(code, SlotState.FREE)",
            ),
        ),
    ),
    Mutant(
        name="owners-of-living-processes-used",
        rules=("ids-never-reused",),
        wrong="A worker takes the owner of a process that still runs, or is only stopped.",
        catchers=(
            "tests/unit/connectors/kafka/sink/producers/test_id_owners.py::test_ids_never_reused_ids_of_a_process_pass_on_when_the_kernel_has_ended_it",
        ),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.producers.id_owners:_locked",
                old="fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
                new="",
            ),
        ),
    ),
    Mutant(
        name="states-of-ids-kept-late",
        rules=("ids-never-reused",),
        wrong="The state of an id is kept for a later process only when a writer has it.",
        catchers=("tests/property/test_producer_pool.py",),
        edits=(
            Edit(
                function="sluice.connectors.kafka.sink.producers.producer_slots:SlotTable._advance",
                old="self._keep(number, kept)",
                new="None if state is SlotState.PREPARING else self._keep(number, kept)",
            ),
        ),
    ),
)
