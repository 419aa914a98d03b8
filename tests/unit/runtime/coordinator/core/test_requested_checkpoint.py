"""Savepoints, full checkpoints and stops in the core: begun again if aborted, and protected."""

from dataclasses import replace

import pytest

from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    CheckpointRequested,
    CopyFiles,
    EndJob,
    FilesCopied,
    Publish,
    RegionFailed,
    RequestEnded,
    RestartRequested,
    SplitsDiscovered,
    StepFailed,
    StopRequested,
    TriggerRequested,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import OnRegionFailure, RegionPlan
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.errors import ConfigError, FencedError, StorageError, WaitedTooLongError
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    RegionStatus,
    StateSnapshot,
    Verdict,
)
from sluice.runtime.model.splits import BatchKey, SplitKey
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver

ONE_AT_A_TIME = replace(FAST, max_concurrent=1)
SPLIT: SplitKey = ("source", "input", 0)
_STATE = StateSnapshot(
    provider="x",
    checkpoint_format_version=1,
    state_version=2,
    state_partitions=1,
    location="spark/main/state-0/state",
)


def request(
    driver: CoreDriver,
    kind: CheckpointKind = CheckpointKind.FINAL,
    *,
    is_copied: bool = False,
    drain_to: dict[SplitKey, int] | None = None,
    limit_s: float = 60.0,
) -> None:
    """Somebody requests it."""
    driver.tell(
        CheckpointRequested(
            kind=kind, is_copied=is_copied, drain_to=drain_to or {}, limit_s=limit_s
        )
    )


def decided(driver: CoreDriver) -> list[Publish]:
    """Decisions so far."""
    return [action for action in driver.seen(Publish) if action.verdict is Verdict.DECIDED]


class TestStop:
    """A stop in order."""

    def test_the_epoch_under_way_and_a_last_one_are_committed_before_the_job_ends(self) -> None:
        driver = CoreDriver(ONE_AT_A_TIME)
        driver.tick()
        under_way = driver.poll(3)
        request(driver)
        assert driver.status().state == "stopping"
        driver.ack(under_way)
        last = driver.poll(5)
        assert last is not None
        assert last.publishes_all
        driver.ack(last)
        assert [(p.kind, p.requested_by) for p in decided(driver)] == [
            (CheckpointKind.CHECKPOINT, "interval"),
            (CheckpointKind.FINAL, "stop"),
        ]
        assert driver.seen(RequestEnded) == [RequestEnded()]
        assert driver.seen(EndJob) == [EndJob(error=None)]
        assert driver.status().state == "stopped"
        assert not driver.status().pending

    def test_a_region_with_nothing_to_read_does_not_delay_it(self) -> None:
        driver = CoreDriver(ONE_AT_A_TIME)
        request(driver)
        assert driver.poll() is None
        assert driver.seen(EndJob) == [EndJob(error=None)]

    def test_the_last_epoch_is_read_again_after_a_failure(self) -> None:
        driver = CoreDriver(ONE_AT_A_TIME)
        request(driver)
        driver.poll(3)
        driver.tell(RegionFailed(region="main", attempt_id=0, error=RuntimeError("lost")))
        driver.tell(RestartRequested(region="main"))
        attempt_id = driver.restart()
        driver.tick()
        driver.ack(driver.poll(3, attempt_id=attempt_id), attempt_id=attempt_id)
        (last,) = decided(driver)
        assert last.kind is CheckpointKind.FINAL
        assert driver.seen(EndJob) == [EndJob(error=None)]

    def test_a_stop_is_not_the_end_of_the_input(self) -> None:
        """A region whose state waits for a watermark gets no batch for it."""
        plan = RegionPlan(name="main", source_ids=("source",), stateful=True)
        driver = CoreDriver(ONE_AT_A_TIME, regions=(plan,))
        request(driver)
        driver.ack(driver.poll(3))
        assert len(driver.seen(EndJob)) == 1
        assert not driver.core._state.regions["main"].owes_batch  # noqa: SLF001

    def test_a_late_one_fails_and_the_job_continues(self) -> None:
        driver = CoreDriver(ONE_AT_A_TIME)
        request(driver, limit_s=4.0)
        barrier = driver.poll(3)
        assert driver.core.deadline_s() == driver.clock() + 4.0
        driver.tick(4.0)
        (ended,) = driver.seen(RequestEnded)
        assert isinstance(ended.error, WaitedTooLongError)
        assert ended.error.args[1]["missing_regions"] == "main"
        driver.ack(barrier)
        assert decided(driver)[-1].kind is CheckpointKind.CHECKPOINT
        assert not driver.seen(EndJob)
        assert driver.epoch(9)

    def test_a_late_one_that_may_be_decided_is_awaited(self) -> None:
        driver = CoreDriver(ONE_AT_A_TIME)
        request(driver, limit_s=4.0)
        barrier = driver.poll(3)
        driver.auto = False
        driver.ack(barrier)
        assert driver.core.deadline_s() is None
        driver.tick(5.0)
        assert not driver.seen(RequestEnded)
        driver.auto = True
        for action in driver.held:
            driver.answer(action)
        assert driver.seen(EndJob) == [EndJob(error=None)]

    def test_a_drain_first_reads_to_the_given_ends(self) -> None:
        driver = CoreDriver(ONE_AT_A_TIME)
        request(driver, drain_to={SPLIT: 7})
        driver.tick()
        driver.ack(driver.poll(3))
        driver.tick(1.0)
        driver.ack(driver.poll(7))
        assert not driver.seen(EndJob)
        driver.ack(driver.poll(8))
        assert [p.kind for p in decided(driver)] == [
            CheckpointKind.CHECKPOINT,
            CheckpointKind.CHECKPOINT,
            CheckpointKind.FINAL,
        ]
        assert driver.seen(EndJob) == [EndJob(error=None)]

    def test_a_drain_reads_a_partition_that_no_checkpoint_has_yet(self) -> None:
        """It was discovered for the drain, and the region's limit leaves records for later."""
        driver = CoreDriver(ONE_AT_A_TIME)
        new = replace(driver.core.positions()["main"][0].at_end(), partition=7)
        driver.tell(SplitsDiscovered(source_id="source", splits=(new,)))
        request(driver, drain_to={SPLIT: 0, new.key: 7})
        driver.tick()
        driver.ack(driver.poll(3))
        assert not driver.seen(EndJob)
        driver.tick(1.0)
        driver.ack(driver.poll(7))
        driver.ack(driver.poll(8))
        assert [p.kind for p in decided(driver)][-1] is CheckpointKind.FINAL
        assert len(decided(driver)) == 3

    def test_no_checkpoint_begins_after_the_last_one(self) -> None:
        """Not even where two may be under way: a restored job would read its records again."""
        driver = CoreDriver(replace(FAST, max_concurrent=2))
        request(driver, is_copied=True)
        barrier = driver.poll(3)
        driver.tell(TriggerRequested(kind=CheckpointKind.CHECKPOINT, requested_by="person"))
        driver.tick(5.0)
        assert len(driver.status().pending) == 1
        driver.ack(barrier)
        driver.tick(5.0)
        (copy,) = driver.seen(CopyFiles)
        driver.tell(FilesCopied(checkpoint_id=copy.checkpoint_id))
        assert len(decided(driver)) == 1
        assert driver.seen(EndJob) == [EndJob(error=None)]

    def test_a_suspended_region_does_not_delay_it(self) -> None:
        settings = replace(
            ONE_AT_A_TIME,
            handler=RegionalCheckpointHandler(),
            on_region_failure=OnRegionFailure.SUSPEND,
        )
        driver = CoreDriver(settings, regions=TWO)
        error = RuntimeError("broken")
        driver.tell(RegionFailed(region="side", attempt_id=0, error=error, permanent=True))
        request(driver, is_copied=True)
        driver.ack(driver.poll(3))
        (copy,) = driver.seen(CopyFiles)
        assert copy.suspended == ("side",)
        statuses = {r.region: r.status for r in decided(driver)[-1].regions}
        assert statuses == {"main": RegionStatus.COMPLETED, "side": RegionStatus.SKIPPED}

    def test_a_second_request_is_refused(self) -> None:
        driver = CoreDriver(ONE_AT_A_TIME)
        request(driver)
        with pytest.raises(ConfigError, match="under way"):
            request(driver, CheckpointKind.SAVEPOINT, is_copied=True)

    def test_a_stop_at_once_ends_it(self) -> None:
        driver = CoreDriver(ONE_AT_A_TIME)
        request(driver)
        driver.poll(3)
        driver.tell(StopRequested())
        assert driver.seen(EndJob) == [EndJob(error=None)]
        assert not driver.seen(RequestEnded)
        assert driver.core._state.request is None  # noqa: SLF001

    def test_a_job_that_was_taken_over_does_not_stop_any_more(self) -> None:
        driver = CoreDriver(ONE_AT_A_TIME)
        request(driver)
        driver.tell(StepFailed(checkpoint_id=0, error=FencedError("newer", {}, "Stop.")))
        assert driver.status().state == "fenced"


class TestStopWithSavepoint:
    """The job ends with its savepoint, or continues."""

    def committed(self) -> tuple[CoreDriver, int]:
        """Its last checkpoint is committed, and its files are being copied."""
        driver = CoreDriver(ONE_AT_A_TIME)
        request(driver, is_copied=True)
        driver.ack(driver.poll(3))
        (copy,) = driver.seen(CopyFiles)
        return driver, copy.checkpoint_id

    def test_no_epoch_begins_while_the_files_are_copied(self) -> None:
        driver, _ = self.committed()
        driver.tick(30.0)
        assert driver.poll(9) is None
        assert not driver.core._state.pending  # noqa: SLF001
        assert not driver.seen(EndJob)

    def test_the_job_ends_after_the_copy(self) -> None:
        driver, checkpoint_id = self.committed()
        driver.tell(FilesCopied(checkpoint_id=checkpoint_id))
        assert driver.seen(EndJob) == [EndJob(error=None)]

    def test_the_job_continues_without_a_copy(self) -> None:
        driver, checkpoint_id = self.committed()
        error = StorageError("no space", {}, "Make some.")
        driver.tell(FilesCopied(checkpoint_id=checkpoint_id, error=error))
        assert not driver.seen(EndJob)
        driver.tick(1.0)
        driver.ack(driver.poll(9))
        assert decided(driver)[-1].kind is CheckpointKind.CHECKPOINT

    def test_a_region_that_fails_meanwhile_restarts(self) -> None:
        driver, checkpoint_id = self.committed()
        driver.tell(RegionFailed(region="main", attempt_id=0, error=RuntimeError("lost")))
        assert driver.restart() > checkpoint_id
        driver.tell(FilesCopied(checkpoint_id=checkpoint_id))
        assert driver.seen(EndJob) == [EndJob(error=None)]


class TestProtection:
    """What is being copied stays until it is copied."""

    def driver(self) -> CoreDriver:
        plans = (
            RegionPlan(name="main", source_ids=("source",), stateful=True),
            RegionPlan(name="side", source_ids=("source",)),
        )
        return CoreDriver(replace(ONE_AT_A_TIME, spark_batches=8), regions=plans)

    def batch(self, driver: CoreDriver, end: int) -> bool:
        """One checkpoint; whether the region with state had a batch."""
        driver.tick(1.0)
        barriers = {name: driver.poll(end, region=name) for name in ("side", "main")}
        for name, barrier in barriers.items():
            if barrier is None:
                continue
            batch = BatchKey(region=name, attempt_id=0, batch_id=end)
            found = driver.acknowledgement(batch, barrier)
            state = _STATE if name == "main" else None
            driver.tell(Acknowledged(ack=replace(found, region=replace(found.region, state=state))))
        return barriers["main"] is not None

    def test_copy_protected_no_batch_begins_with_which_spark_could_delete_the_named_one(
        self,
    ) -> None:
        driver = self.driver()
        request(driver, CheckpointKind.SAVEPOINT, is_copied=True)
        assert self.batch(driver, 1)
        (copy,) = driver.seen(CopyFiles)
        assert [self.batch(driver, end) for end in range(2, 7)] == [True, True, False, False, False]
        assert driver.core.last_committed == decided(driver)[-1].checkpoint_id
        assert len(decided(driver)) == 6  # the other region is not delayed
        driver.tell(FilesCopied(checkpoint_id=copy.checkpoint_id))
        assert self.batch(driver, 7)

    def test_nothing_is_withheld_without_a_copy(self) -> None:
        driver = self.driver()
        assert all(self.batch(driver, end) for end in range(1, 20))


class TestPublishesAll:
    """Savepoints, full and final checkpoints: no sink keeps rows back."""

    @pytest.mark.parametrize("kind", [CheckpointKind.SAVEPOINT, CheckpointKind.FULL])
    def test_copy_protected_a_sink_that_keeps_rows_publishes_them(
        self, kind: CheckpointKind
    ) -> None:
        driver = CoreDriver(ONE_AT_A_TIME)
        driver.tick()
        first = driver.poll(3)
        assert first is not None
        assert not first.publishes_all
        driver.ack(first, again_in_s=300.0)
        request(driver, kind, is_copied=True)
        barrier = driver.poll(3)
        assert barrier is not None
        assert barrier.publishes_all
        assert all(split.is_empty for split in barrier.splits)

    def test_a_batch_that_an_earlier_decision_skipped_is_decided_first(self) -> None:
        """Its sink may have kept rows: it did not know of the savepoint."""
        handler = RegionalCheckpointHandler(region_timeout_s=2.0)
        settings = replace(ONE_AT_A_TIME, handler=handler, interval_s=30.0, timeout_s=60.0)
        driver = CoreDriver(settings, regions=TWO)
        driver.tick()
        slow, fast = driver.poll(3, region="side"), driver.poll(3)
        driver.ack(fast)
        driver.tick(2.0)
        assert len(decided(driver)) == 1
        request(driver, CheckpointKind.SAVEPOINT, is_copied=True)
        driver.ack(slow, region="side")
        assert not driver.core._state.pending  # noqa: SLF001
        driver.tick(30.0)
        driver.poll(3)
        assert [p.kind for p in decided(driver)] == [CheckpointKind.CHECKPOINT] * 2
        barriers = [driver.poll(4, region=name) for name in ("main", "side")]
        assert all(barrier is not None and barrier.publishes_all for barrier in barriers)
