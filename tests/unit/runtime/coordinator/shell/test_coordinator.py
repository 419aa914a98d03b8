"""The coordinator with its threads, on fakes: what engines, tasks and listeners rely on."""

import gc
import threading
import tracemalloc
from dataclasses import replace

import pytest

from sluice.runtime.contracts import SweepReport, SweepView
from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
)
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.errors import FencedError, StorageError, TransactionLostError, UnreachableError
from sluice.runtime.model.checkpoint_record import CheckpointKind, CheckpointRecord
from sluice.runtime.model.splits import Barrier, BatchKey
from tests.kit.coordinator.coordinated_job import QUICK, Job
from tests.kit.coordinator.core_driver import split as core_split
from tests.kit.fakes import FakeSink, TransactionState
from tests.kit.waiting import PATIENCE_S, join, wait_for


class _Listener:
    def __init__(self, *, raises: bool = False) -> None:
        self.seen: list[Progress] = []
        self._raises = raises

    def on_progress(self, progress: Progress) -> None:
        self.seen.append(progress)
        if self._raises:
            raise RuntimeError("a listener's own bug")


def _wait(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S)


def _await_committed(coordinator: BarrierCoordinator, checkpoint_id: int) -> None:
    wait_for(lambda: coordinator.last_committed >= checkpoint_id, poll_s=0.002)


# --- the whole way --------------------------------------------------------------------------------


def test_a_bounded_job_ends_when_readers_see_everything(job: Job) -> None:
    """Final checkpoint, visibility awaited (`commit-acknowledged`), group offsets reported,
    checkpoints retired."""
    job.source.ends.update({0: 50, 1: 70})
    job.source.bounded = True
    sink = FakeSink(job.broker)
    coordinator = job.coordinator(sink=sink)
    coordinator.start(300.0)
    region = job.region(coordinator)
    assert coordinator.wait(PATIENCE_S)
    coordinator.stop()
    region.stop()
    assert job.visible() == job.expected()
    assert job.store.history[-1].kind is CheckpointKind.FINAL
    assert job.source.group == job.source.ends
    assert sink.calls.index("await_visible") > sink.calls.index("commit")
    assert sink.closed
    assert job.source.closed


def test_two_phase_repair_what_ended_a_job_is_on_record_when_it_has_stopped(job: Job) -> None:
    """A person may accept it then, without another start."""

    def reached() -> bool:
        for transaction in job.broker.ongoing():
            transaction.state = TransactionState.ABORTED  # by the broker, for its age
        return True

    job.source.ends.update({0: 50, 1: 70})
    coordinator = job.coordinator(sink=FakeSink(job.broker, may_reach=reached))
    coordinator.start(300.0)
    region = job.region(coordinator)
    with pytest.raises(TransactionLostError):
        coordinator.wait(PATIENCE_S)
    coordinator.stop()
    region.stop()
    (work,) = job.store.unsettled(1)
    assert work.ranges == ("input-0:[0,50)", "input-1:[0,70)")


def test_two_regions_share_a_source_and_a_checkpoint(job: Job) -> None:
    job.regions = ("left", "right")
    job.source.ends.update({0: 40, 1: 40})
    job.source.bounded = True
    coordinator, _ = job.started()
    regions = [job.region(coordinator, name) for name in job.regions]
    assert coordinator.wait(PATIENCE_S)
    coordinator.stop()
    for region in regions:
        region.stop()
    assert job.visible() == job.expected()
    assert all(len(record.regions) == 2 for record in job.store.history)


def test_new_partitions_are_read_from_their_first_record(job: Job) -> None:
    """They join the least loaded region while the job runs."""
    coordinator, started = job.started()
    region = job.region(coordinator)
    job.source.ends[2] = 9
    wait_for(lambda: job.broker.read_committed(2) == [(2, n) for n in range(9)], poll_s=0.01)
    coordinator.cancel()
    region.stop()
    assert started.attempt_id == 0


def test_a_savepoint_is_taken_when_asked_for_and_kept(job: Job) -> None:
    coordinator, _ = job.started()
    region = job.region(coordinator)
    checkpoint_id = coordinator.trigger(CheckpointKind.SAVEPOINT, requested_by="user")
    wait_for(lambda: coordinator.last_committed == checkpoint_id, poll_s=0.01)
    record = job.store.read(checkpoint_id)
    assert (record.kind, record.requested_by) == (CheckpointKind.SAVEPOINT, "user")
    coordinator.cancel()
    region.stop()


# --- other coordinators ---------------------------------------------------------------------------


def test_a_second_coordinator_stops_the_first_before_it_decides(job: Job) -> None:
    job.source.ends.update({0: 5, 1: 5})
    old, _ = job.started()
    hold = threading.Event()
    region = job.region(old, before_ack=lambda _: _wait(hold))
    wait_for(lambda: len(job.broker.ongoing()) == 1, poll_s=0.01)
    new, started = job.started()
    hold.set()
    with pytest.raises(FencedError):
        old.wait(PATIENCE_S)
    region.join()
    assert isinstance(region.error, FencedError)
    assert job.visible() == {0: [], 1: []}
    second = job.region(new)
    wait_for(lambda: job.visible() == job.expected(), poll_s=0.01)
    assert started.attempt_id == 1
    assert old.status().state == "fenced"
    old.stop()
    new.cancel()
    second.stop()


class _Unleased(FakeSink):
    """Has no lease."""

    def renew(self) -> None:
        pass


def test_fence_first_an_older_run_without_anything_to_decide_ends(job: Job) -> None:
    """Its sinks have no lease either: the directory alone says that another run continues."""
    settings = replace(QUICK, sweep_interval_s=0.01)
    job.source.ends.update({0: 5, 1: 5})
    old = job.coordinator(settings, sink=_Unleased(job.broker))
    old.start(300.0)
    region = job.region(old)
    wait_for(lambda: job.visible() == job.expected(), poll_s=0.01)
    _await_committed(old, 1)
    new = job.coordinator(sink=_Unleased(job.broker))
    new.start(300.0)
    with pytest.raises(FencedError, match="taken over"):
        old.wait(PATIENCE_S)
    region.join()


class _SlowStart(FakeSink):
    """Its first sweep waits, as for a broker, until the lease was renewed thrice."""

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        wait_for(lambda: self.calls.count("renew") >= 3, poll_s=0.005)
        return super().sweep(view, timeout_s=timeout_s)


def test_lease_guards_outputs_a_start_that_takes_long_renews_its_lease(job: Job) -> None:
    """Another job, which watches it for three renewals, would take this one for dead."""
    sink = _SlowStart(job.broker)
    made = job.coordinator(CheckpointSettings(renew_interval_s=0.01), sink=sink)
    made.start(300.0)
    assert sink.calls.index("claim") < sink.calls.index("sweep")


def test_no_region_begins_before_what_is_decided_is_committed(job: Job) -> None:
    job.source.ends.update({0: 5, 1: 5})
    reaches = threading.Event()
    old = job.coordinator(sink=FakeSink(job.broker, may_reach=reaches.is_set))
    old.start(300.0)
    region = job.region(old)
    wait_for(lambda: 1 in job.store.records, poll_s=0.01)
    sink = FakeSink(job.broker, may_reach=reaches.is_set)
    new = job.coordinator(sink=sink)
    starting = threading.Thread(target=new.start, args=(300.0,))
    starting.start()
    wait_for(lambda: sink.calls.count("commit") > 1, poll_s=0.01)
    try:
        assert new.started is None
        with pytest.raises(UnreachableError, match="not been started"):
            new.poll_barrier("main", 2, wait_s=0.0)
    finally:
        reaches.set()
        join(starting)
    assert new.started is not None
    assert job.visible() == job.expected()
    old.cancel()
    region.stop()


# --- waiting and stopping -------------------------------------------------------------------------


def test_a_cancel_wakes_every_callback_and_poller(job: Job) -> None:
    """Rule `callback-after-commit`: the callback waits only on what a cancel sets first."""
    coordinator, _ = job.started()
    job.source.ends[0] = 4
    job.store.lose_answer = lambda: True
    region = job.region(coordinator)
    wait_for(lambda: len(job.store.history) == 2, poll_s=0.01)
    coordinator.cancel()
    region.join()
    assert isinstance(region.error, FencedError)
    job.store.lose_answer = lambda: False


def test_start_offsets_once_what_is_left_of_a_batch_that_is_read_again_is_asked_of_its_source(
    job: Job,
) -> None:
    coordinator, _ = job.started()
    job.source.ends[0] = 4
    batch = Barrier(checkpoint_id=1, region="main", attempt_id=0, splits=(core_split(0, 0, 9),))
    left = replace(batch, splits=(core_split(0, 0, 4),))
    assert coordinator.replayable(batch) == left


def test_waiting_for_a_batch_that_nobody_acknowledged_fails_at_once(job: Job) -> None:
    """A callback never hangs on a batch that cannot be committed."""
    coordinator, _ = job.started()
    with pytest.raises(FencedError):
        coordinator.await_committed(BatchKey(region="main", attempt_id=0, batch_id=7))


def test_waiting_has_a_bound(job: Job) -> None:
    coordinator, _ = job.started()
    job.source.ends[0] = 4
    waited: list[BaseException] = []

    def look(barrier: Barrier) -> None:
        batch = BatchKey(region="main", attempt_id=0, batch_id=1)
        try:
            coordinator.await_committed(batch, timeout_s=0.01)
        except (FencedError, UnreachableError) as err:
            waited.append(err)

    region = job.region(coordinator, before_ack=look)
    wait_for(lambda: coordinator.last_committed == 1, poll_s=0.01)
    assert waited
    coordinator.cancel()
    region.stop()


def test_a_poller_can_be_called_away(job: Job) -> None:
    """Its query is being stopped, or has to do something else: it does not sit out its wait."""
    long_s = 10 * PATIENCE_S
    coordinator, _ = job.started(CheckpointSettings(interval_s=long_s, idle_poll_s=long_s))
    looked, away = threading.Event(), threading.Event()
    found: list[Barrier | None] = []

    def called_away() -> bool:
        looked.set()
        return away.is_set()

    def poll() -> None:
        found.append(coordinator.poll_barrier("main", 0, wait_s=long_s, until=called_away))

    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    _wait(looked)
    away.set()
    coordinator.wake_waiters()
    join(poller)
    assert found == [None]


def test_whether_a_batch_is_committed_can_be_asked_at_any_time(job: Job) -> None:
    """Decided is not enough: readers cannot see it yet."""
    coordinator = job.coordinator(sink=job.sink)
    coordinator.start(300.0)
    batch = BatchKey(region="main", attempt_id=0, batch_id=1)
    job.source.ends[0] = 4
    job.sink.may_reach = lambda: False
    region = job.region(coordinator)
    wait_for(lambda: coordinator.is_decided(batch), poll_s=0.002)
    assert not coordinator.is_committed(batch)
    job.sink.may_reach = lambda: True
    wait_for(lambda: coordinator.is_committed(batch), poll_s=0.002)
    coordinator.cancel()
    region.stop()


def test_a_stop_may_be_repeated_and_needs_no_start(job: Job) -> None:
    coordinator = job.coordinator()
    coordinator.stop()
    coordinator.stop()
    with pytest.raises(UnreachableError):
        coordinator.poll_barrier("main", 0, wait_s=0.0)


def test_a_stop_by_the_user_does_not_wait_for_readers(job: Job) -> None:
    sink = FakeSink(job.broker)
    coordinator = job.coordinator(sink=sink)
    coordinator.start(300.0)
    coordinator.cancel()
    assert coordinator.wait(PATIENCE_S)
    coordinator.stop()
    assert "await_visible" not in sink.calls
    assert coordinator.status().state == "stopped"


def test_a_stop_leaves_nothing_open(job: Job) -> None:
    coordinator, _ = job.started()
    job.source.ends[0] = 4
    hold = threading.Event()
    region = job.region(coordinator, before_ack=lambda _: _wait(hold))
    wait_for(lambda: len(job.broker.ongoing()) == 1, poll_s=0.01)
    coordinator.stop()
    assert not job.broker.ongoing()
    hold.set()
    region.join()
    assert isinstance(region.error, FencedError)


# --- listeners and memory -------------------------------------------------------------------------


def test_listeners_only_listen(job: Job) -> None:
    bad, good = _Listener(raises=True), _Listener()
    coordinator = job.coordinator(listeners=(bad, good))
    coordinator.start(300.0)
    job.source.ends[0] = 4
    region = job.region(coordinator)
    wait_for(lambda: any(seen.state is State.MARKED for seen in good.seen), poll_s=0.01)
    coordinator.cancel()
    region.stop()
    coordinator.stop()
    (marked,) = [seen for seen in good.seen if seen.state is State.MARKED]
    assert marked.records == 4
    assert marked.decided_s is not None
    assert marked.marked_s is not None
    assert marked.decided_s <= marked.marked_s


@pytest.mark.extended
def test_memory_stays_flat_over_many_epochs(job: Job) -> None:
    """Nothing of a settled epoch is kept: waiters, attempts, records, positions."""
    coordinator, _ = job.started(
        CheckpointSettings(interval_s=0.0, idle_poll_s=0.001, sweep_interval_s=0.01)
    )
    region = job.region(coordinator)
    job.store.history = _Forgetful()

    def run_to(checkpoint_id: int) -> int:
        for number in range(coordinator.last_committed + 1, checkpoint_id + 1):
            job.source.ends[0] = number
            _await_committed(coordinator, number)
        job.broker.logs.clear()
        job.broker.transactions.clear()
        job.broker.latest.clear()
        job.source.limits.clear()
        region.barriers.clear()
        # An attempt is offered to many sweeps, and these may come late on a busy machine.
        core = coordinator._running().loop._core  # noqa: SLF001 - nobody is reported when they end
        attempts = core._registered  # noqa: SLF001 - the same
        wait_for(lambda: len(attempts) < 10, what="the last sweeps of what was settled")
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    run_to(50)
    tracemalloc.start()
    try:
        before = run_to(100)
        after = run_to(400)
    finally:
        tracemalloc.stop()
    assert after - before < 200_000
    coordinator.cancel()
    region.stop()


class _Forgetful(list[CheckpointRecord]):
    """A history that is not one: the fake's own memory must not count."""

    def append(self, record: CheckpointRecord) -> None:
        """Forget it."""


def test_nothing_is_swallowed_when_a_start_fails(job: Job) -> None:
    """The error comes out, and a stop still works."""

    def refuse(name: str) -> None:
        raise StorageError("no space left", {"call": name}, "Make room.")

    job.store.on_call = refuse
    coordinator = job.coordinator()
    with pytest.raises(UnreachableError):
        coordinator.start(0.2)
    assert not any(t.state is TransactionState.ONGOING for t in job.broker.transactions.values())
    coordinator.stop()
