"""The checkpoint client of a continuous task: how it reports, wakes its task and ends; a fake coordinator answers."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from sluice.runtime.continuous import checkpoint_client as module
from sluice.runtime.continuous.checkpoint_client import CheckpointClient, TaskRegistry
from sluice.runtime.continuous.task_messages import CommittedEpoch, EpochResult, NextBarrier
from sluice.runtime.contracts import RegisteredAttempt
from sluice.runtime.errors import CoordinatorLostError, FencedError, UnreachableError
from sluice.runtime.model.splits import Barrier, BatchKey
from tests.kit.coordinator.core_driver import split
from tests.kit.fakes import ManualClock
from tests.kit.waiting import PATIENCE_S, join, wait_for


@dataclass
class PlayedLink:
    """Answers as the test has laid down; an exception is raised."""

    answers: list[NextBarrier | Exception] = field(default_factory=list)
    acks: list[EpochResult] = field(default_factory=list)
    refusals: list[Exception] = field(default_factory=list)
    asked: int = 0
    committed: list[CommittedEpoch] = field(default_factory=list)
    on_silence: Callable[[], None] = lambda: None

    def next_barrier(
        self,
        region: str,
        attempt_id: int,
        *,
        wait_s: float,
        has_read: bool,
        committed: Sequence[CommittedEpoch] = (),
    ) -> NextBarrier:
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else NextBarrier(barrier=None, is_over=True)
        if isinstance(answer, Exception):
            self.on_silence()
            raise answer
        self.committed += committed
        return answer

    def acknowledge_epoch(self, result: EpochResult) -> None:
        if self.refusals:
            self.on_silence()
            raise self.refusals.pop(0)
        self.acks.append(result)


@dataclass
class PlayedEpoch:
    """An ended epoch whose batch id is that of its checkpoint; it remembers what became of it."""

    checkpoint_id: int
    events: list[str] = field(default_factory=list)

    def pre_commit(self) -> EpochResult:
        self.events.append("pre-commit")
        return _result(self.checkpoint_id)

    def commit(self, *, timeout_s: float) -> tuple[str, ...]:
        del timeout_s
        self.events.append("commit")
        return ("sink",)

    def release(self) -> None:
        self.events.append("release")

    def abort(self) -> None:
        self.events.append("abort")


def _checkpoint_client(link: PlayedLink, clock: ManualClock) -> CheckpointClient:
    return CheckpointClient(link, "main", 7, lost_timeout_s=60.0, clock=clock)


def _barrier(checkpoint_id: int) -> NextBarrier:
    barrier = Barrier(
        checkpoint_id=checkpoint_id, region="main", attempt_id=7, splits=(split(0, 0, 5),)
    )
    return NextBarrier(barrier=barrier, committed_batch=checkpoint_id - 2)


def _taken(checkpoint_client: CheckpointClient) -> Barrier:
    found: list[Barrier] = []

    def has_come() -> bool:
        barrier = checkpoint_client.take_barrier()
        if barrier is not None:
            found.append(barrier)
        return bool(found)

    wait_for(has_come)
    return found[0]


def _result(checkpoint_id: int) -> EpochResult:
    batch = BatchKey(region="main", attempt_id=7, batch_id=checkpoint_id)
    return EpochResult(batch=batch, checkpoint_id=checkpoint_id, ranges=())


def test_a_silent_coordinator_is_asked_again_and_the_acknowledgement_is_kept() -> None:
    """A lost answer is no reason to write an epoch again."""
    silence = UnreachableError("silent", {}, "")
    link = PlayedLink(answers=[silence, silence, _barrier(4)], refusals=[silence, silence])
    checkpoint_client = _checkpoint_client(link, ManualClock())
    checkpoint_client.start()
    _taken(checkpoint_client)
    checkpoint_client.submit_epoch(PlayedEpoch(4))
    wait_for(lambda: checkpoint_client.is_over)
    assert [ack.checkpoint_id for ack in link.acks] == [4]


@pytest.mark.parametrize("lost_timeout_s", [60.0, 8.0])
def test_a_task_that_stood_still_asks_again_before_it_gives_the_coordinator_up(
    lost_timeout_s: float,
) -> None:
    clock = ManualClock()
    link = PlayedLink(
        answers=[UnreachableError("silent", {}, ""), _barrier(4)],
        on_silence=lambda: clock.advance(10_000.0),
    )
    checkpoint_client = CheckpointClient(
        link, "main", 7, lost_timeout_s=lost_timeout_s, clock=clock
    )
    checkpoint_client.start()
    assert _taken(checkpoint_client).checkpoint_id == 4
    checkpoint_client.close()


def test_tries_that_always_take_too_long_end_the_task_too() -> None:
    clock = ManualClock()
    link = PlayedLink(
        answers=[UnreachableError("silent", {}, "") for _ in range(100)],
        on_silence=lambda: clock.advance(100.0),
    )
    checkpoint_client = _checkpoint_client(link, clock)
    checkpoint_client.start()
    wait_for(lambda: _has_failed(checkpoint_client))
    assert link.asked == 2


def test_a_superseded_coordinator_ends_the_task_at_once() -> None:
    """Nothing is asked twice of one that says so."""
    link = PlayedLink(answers=[FencedError("another one leads", {}, "")])
    checkpoint_client = _checkpoint_client(link, ManualClock())
    checkpoint_client.start()
    wait_for(lambda: _has_failed(checkpoint_client))
    assert link.asked == 1


def test_what_is_decided_is_committed_once_and_reported_with_the_next_question() -> None:
    told = NextBarrier(barrier=None, to_commit=(4,))
    link = PlayedLink(answers=[_barrier(4), told, told, _barrier(5)])
    checkpoint_client = _checkpoint_client(link, ManualClock())
    epochs = [PlayedEpoch(4), PlayedEpoch(5)]
    checkpoint_client.start()
    for epoch in epochs:
        assert _taken(checkpoint_client).checkpoint_id == epoch.checkpoint_id
        checkpoint_client.submit_epoch(epoch)
    wait_for(lambda: checkpoint_client.is_over)
    checkpoint_client.close()
    assert epochs[0].events == ["pre-commit", "commit"]
    assert link.committed == [
        CommittedEpoch(batch_id=4, operators=("sink",)),
        CommittedEpoch(batch_id=4),  # asked for once more: nothing is left that could report it
    ]


def test_what_a_lost_answer_reported_is_reported_again() -> None:
    silence = UnreachableError("silent", {}, "")
    told = NextBarrier(barrier=None, to_commit=(4,))
    link = PlayedLink(answers=[_barrier(4), told, silence, silence])
    checkpoint_client = _checkpoint_client(link, ManualClock())
    checkpoint_client.start()
    _taken(checkpoint_client)
    checkpoint_client.submit_epoch(PlayedEpoch(4))
    wait_for(lambda: checkpoint_client.is_over)
    assert link.committed == [CommittedEpoch(batch_id=4, operators=("sink",))]


def test_a_barrier_beside_a_commit_is_given_first() -> None:
    """The task ends its epoch while the last one is committed; that is reported before the next one."""
    both = replace(_barrier(5), to_commit=(4,))
    link = PlayedLink(answers=[_barrier(4), both, _barrier(5)])
    checkpoint_client = _checkpoint_client(link, ManualClock())
    epoch = PlayedEpoch(4)
    checkpoint_client.start()
    _taken(checkpoint_client)
    checkpoint_client.submit_epoch(epoch)
    assert _taken(checkpoint_client).checkpoint_id == 5
    wait_for(lambda: link.committed, what="the commit, told before the epoch has ended")
    assert [ack.checkpoint_id for ack in link.acks] == [4]
    checkpoint_client.submit_epoch(PlayedEpoch(5))
    wait_for(lambda: checkpoint_client.is_over)
    assert [ack.checkpoint_id for ack in link.acks] == [4, 5]


def test_outcome_from_broker_what_the_driver_has_finished_is_let_go_and_not_committed_again() -> (
    None
):
    """It is committed on record: a late EndTxn of this producer must not be sent."""
    link = PlayedLink(answers=[_barrier(4), NextBarrier(barrier=None, committed_batch=4)])
    checkpoint_client = _checkpoint_client(link, ManualClock())
    epoch = PlayedEpoch(4)
    checkpoint_client.start()
    _taken(checkpoint_client)
    checkpoint_client.submit_epoch(epoch)
    wait_for(lambda: checkpoint_client.is_over)
    assert epoch.events == ["pre-commit", "release"]


def test_ids_never_reused_an_epoch_is_let_go_before_its_ids_may_be_used_again() -> None:
    link = PlayedLink(answers=[_barrier(4), NextBarrier(barrier=None, committed_batch=4)])
    checkpoint_client = _checkpoint_client(link, ManualClock())
    known: list[int] = []

    class Held(PlayedEpoch):
        def release(self) -> None:
            known.append(checkpoint_client.committed_batch)

    checkpoint_client.start()
    _taken(checkpoint_client)
    checkpoint_client.submit_epoch(Held(4))
    wait_for(lambda: checkpoint_client.is_over)
    assert known == [2]
    assert checkpoint_client.committed_batch == 4


def test_an_epoch_that_nobody_took_is_aborted_with_the_task() -> None:
    """The life ended between its barrier and the epoch: readers do not wait for a sweep."""
    link = PlayedLink(answers=[replace(_barrier(4), to_commit=(3,)), FencedError("over", {}, "")])
    checkpoint_client = _checkpoint_client(link, ManualClock())
    epoch, is_taken = PlayedEpoch(4), threading.Event()
    link.on_silence = lambda: _wait(is_taken)
    checkpoint_client.start()
    _taken(checkpoint_client)
    is_taken.set()
    wait_for(lambda: _has_failed(checkpoint_client))
    checkpoint_client.submit_epoch(epoch)
    for _ in range(2):
        checkpoint_client.close()
    assert epoch.events == ["abort"]


def _wait(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S)


def _has_failed(checkpoint_client: CheckpointClient) -> bool:
    try:
        checkpoint_client.take_barrier()
    except (FencedError, UnreachableError):
        return True
    return False


def test_a_task_that_waits_for_brokers_hears_from_its_courier_that_it_shall_end() -> None:
    """It asks its coordinator, too; that one may be gone by then."""
    told: list[str] = []

    class Client:
        def register(self, attempt: RegisteredAttempt) -> float:
            raise AssertionError(attempt)

        def waits(self, batch: BatchKey, what: str, *, why: str) -> None:
            told.append(f"{what}: {why}")

        def waited(self, batch: BatchKey, what: str) -> None:
            told.append(f"{what}: over")

    checkpoint_client = _checkpoint_client(PlayedLink(), ManualClock())
    registry = TaskRegistry(Client(), checkpoint_client)
    batch = BatchKey(region="main", attempt_id=7, batch_id=1)
    registry.waits(batch, "a producer", why="away")
    checkpoint_client.start()  # and hears that the attempt is being stopped
    wait_for(lambda: checkpoint_client.is_over)
    with pytest.raises(FencedError, match="driver stops this attempt"):
        registry.waits(batch, "a producer", why="away")
    registry.waited(batch, "a producer")
    assert told == ["a producer: away", "a producer: over"]


class SilentClient:
    """Nobody answers; each try takes its time."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.tries = 0

    def register(self, attempt: RegisteredAttempt) -> float:
        self.tries += 1
        self.clock.advance(6.0)
        raise UnreachableError("silent", {}, "")

    def waits(self, batch: BatchKey, what: str, *, why: str) -> None:
        raise AssertionError(what)

    def waited(self, batch: BatchKey, what: str) -> None:
        raise AssertionError(what)


_ATTEMPT = RegisteredAttempt(
    batch=BatchKey(region="main", attempt_id=7, batch_id=1),
    operator_id="sink",
    resource="r",
    checkpoint_id=1,
)


def test_a_task_that_registers_hears_from_its_courier_that_the_coordinator_is_lost() -> None:
    clock = ManualClock()
    checkpoint_client = _checkpoint_client(
        PlayedLink(answers=[FencedError("superseded", {}, "")]), clock
    )
    checkpoint_client.start()
    wait_for(lambda: _has_failed(checkpoint_client))
    client = SilentClient(clock)
    with pytest.raises(FencedError, match="superseded"):
        TaskRegistry(client, checkpoint_client).register(_ATTEMPT)
    assert client.tries == 1


def test_a_registration_that_nobody_answers_ends_the_task_too() -> None:
    clock = ManualClock()
    client = SilentClient(clock)
    registry = TaskRegistry(client, _checkpoint_client(PlayedLink(), clock))
    with pytest.raises(CoordinatorLostError, match=r"main.*waited_s=60"):
        registry.register(_ATTEMPT)
    assert client.tries == 10


def test_a_task_that_stood_still_registers_once_more_before_it_gives_the_coordinator_up() -> None:
    clock = ManualClock()
    tries: list[RegisteredAttempt] = []

    class Client(SilentClient):
        def register(self, attempt: RegisteredAttempt) -> float:
            tries.append(attempt)
            if len(tries) == 1:
                clock.advance(10_000.0)
                raise UnreachableError("silent", {}, "")
            return 4.0

    link = PlayedLink()
    checkpoint_client = CheckpointClient(link, "main", 7, lost_timeout_s=8.0, clock=clock)
    registry = TaskRegistry(Client(clock), checkpoint_client)
    assert registry.register(_ATTEMPT) == 4.0


@pytest.mark.parametrize(
    "answer", [_barrier(4), FencedError("over", {}, ""), NextBarrier(barrier=None, is_over=True)]
)
def test_a_task_that_rests_is_woken_by_what_its_courier_has_heard(
    answer: NextBarrier | Exception,
) -> None:
    """A barrier waits for no pause of the task's, and neither does the end."""
    rests = threading.Event()
    link = PlayedLink(answers=[answer])
    checkpoint_client = _checkpoint_client(link, ManualClock())
    asked = link.next_barrier

    def once_it_rests(*who: object, **what: object) -> NextBarrier:
        assert rests.wait(PATIENCE_S)
        wait_for(lambda: checkpoint_client._changed._waiters, poll_s=0.001)  # type: ignore[attr-defined]  # noqa: SLF001
        return asked(*who, **what)  # type: ignore[arg-type]

    link.next_barrier = once_it_rests  # type: ignore[method-assign]
    task = threading.Thread(target=checkpoint_client.wait, args=(2 * PATIENCE_S,), daemon=True)
    checkpoint_client.start()
    task.start()
    rests.set()
    join(task)
    checkpoint_client.close()


def test_a_task_that_rests_does_so_until_its_time_is_up() -> None:
    checkpoint_client = _checkpoint_client(PlayedLink(), ManualClock())
    began_s = time.monotonic()
    checkpoint_client.wait(0.05)
    assert time.monotonic() - began_s >= 0.05


def _ends_at_once(checkpoint_client: CheckpointClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_JOIN_S", PATIENCE_S)
    checkpoint_client.close()
    assert not checkpoint_client._thread.is_alive()  # noqa: SLF001 - nobody else has it


def test_a_courier_that_waits_for_an_epoch_ends_with_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = PlayedLink(answers=[_barrier(4), _barrier(5)])
    checkpoint_client = _checkpoint_client(link, ManualClock())
    epoch = PlayedEpoch(4)
    checkpoint_client.start()
    _taken(checkpoint_client)
    checkpoint_client.submit_epoch(epoch)
    assert _taken(checkpoint_client).checkpoint_id == 5
    _ends_at_once(checkpoint_client, monkeypatch)
    assert epoch.events == ["pre-commit", "release"]
    assert checkpoint_client.take_barrier() is None, "and has met no error in that"


def test_a_courier_that_asks_ends_with_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    link = PlayedLink()
    checkpoint_client = _checkpoint_client(link, ManualClock())
    nothing = NextBarrier(barrier=None)
    link.next_barrier = lambda *_, **__: nothing  # type: ignore[method-assign]
    checkpoint_client.start()
    _ends_at_once(checkpoint_client, monkeypatch)
    assert not checkpoint_client.is_over, "nobody has said so"


def test_an_attempt_that_is_stopped_after_its_barrier_waits_for_no_epoch() -> None:
    link = PlayedLink(answers=[replace(_barrier(4), to_commit=(3,))])  # then it is over
    checkpoint_client = _checkpoint_client(link, ManualClock())
    checkpoint_client.start()
    _taken(checkpoint_client)
    wait_for(lambda: checkpoint_client.is_over)
    checkpoint_client.close()
    assert link.acks == []
