"""Rules `fence-first` and `publish-whole` under any interleaving of publishers, crashes, lost
answers and late steps."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore, slot_name
from sluice.runtime.checkpoint.lost_work import digest_of
from sluice.runtime.contracts import AcceptedAs, AcceptedWork, PublishOutcome
from sluice.runtime.errors import ConfigError, StorageError
from sluice.runtime.model.checkpoint_record import CheckpointRecord, Verdict
from tests.kit.coordinator.checkpoint_records import committable, record
from tests.kit.effort import examples
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault, SimulatedCrashError
from tests.kit.threads.thread_turns import CallQueue

_PLACE = 5
_PATH = f"{slot_name(_PLACE)}/_metadata"
_orders = st.lists(st.integers(0, 3), max_size=60)
_faults = st.lists(st.sampled_from([Fault.NONE, Fault.NONE, *Fault]), max_size=12)


@dataclass(slots=True)
class _World:
    """The disk, and everything that was ever seen under the name of the record."""

    disk: Disk = field(default_factory=Disk)
    seen: list[bytes] = field(default_factory=list)

    def look(self) -> None:
        """After each step: what a reader would find now is whole, and stays."""
        found = self.disk.files.get(_PATH)
        if found is None:
            assert not self.seen, "a published record has vanished"
        elif found not in self.seen:
            self.seen.append(found)
            assert CheckpointStore(FakeFileSystem(self.disk)).read(_PLACE) is not None


@dataclass(slots=True)
class _Publisher:
    """One session that publishes its decision, and gives up when the answer stays unknown."""

    session: str
    store: CheckpointStore
    answer: PublishOutcome | str = "crashed"
    given_up: PublishOutcome | str | None = None

    @property
    def decision(self) -> CheckpointRecord:
        return record(_PLACE, leader_session_id=self.session)

    @property
    def abort(self) -> CheckpointRecord:
        return record(_PLACE, leader_session_id=self.session, verdict=Verdict.ABORTED)

    def run(self) -> None:
        try:
            for _ in range(2):  # asked again, as its answer says
                self.answer = "crashed"
                self.answer = self._publish(self.decision)
                if self.answer is not PublishOutcome.UNKNOWN:
                    return
            self.given_up = self._publish(self.abort)
        except SimulatedCrashError:
            return

    def _publish(self, wanted: CheckpointRecord) -> PublishOutcome | str:
        try:
            return self.store.publish(wanted, timeout_s=3)
        except StorageError:
            return "not published"


def _store(world: _World, faults: list[Fault], turn: Callable[[], None]) -> CheckpointStore:
    left = iter(faults)
    clock = itertools.count()
    fs = FakeFileSystem(world.disk, fault=lambda _: next(left, Fault.NONE), turn=turn)
    return CheckpointStore(fs, clock=lambda: next(clock), pause=lambda _: turn())


@settings(max_examples=examples(150), deadline=None)
@given(_orders, st.lists(_faults, min_size=2, max_size=3), st.lists(st.integers(0, 40), max_size=3))
@example([], [[Fault.NONE, Fault.LATE, *[Fault.REFUSED] * 9], [Fault.CRASH_BEFORE]], [])
@example([], [[Fault.NONE, Fault.LATE] * 6, [Fault.CRASH_BEFORE]], [])
@example([], [[Fault.NONE, Fault.LATE] * 6, [Fault.CRASH_BEFORE]], [33])  # before it is given up
@example([], [[Fault.NONE, Fault.LATE] * 3, [Fault.CRASH_BEFORE]], [])
def test_a_place_holds_one_record_whole_or_none(
    order: list[int], faults: list[list[Fault]], landings: list[int]
) -> None:
    """Whatever dies, lies or is late: one record for ever, and every answer given was true."""
    world = _World()
    steps = itertools.count()

    def between() -> None:
        if next(steps) in landings:
            world.disk.land_late_steps()
        world.look()

    turns = CallQueue(order, between=between)
    publishers = [
        _Publisher(session=f"s{n}", store=_store(world, mine, turns.wait))
        for n, mine in enumerate(faults)
    ]
    turns.run([publisher.run for publisher in publishers])
    world.disk.land_late_steps()
    world.look()

    assert len(world.seen) <= 1
    standing = CheckpointStore(FakeFileSystem(world.disk)).read(_PLACE)
    for publisher in publishers:
        _require_true(publisher, standing)


def _require_true(publisher: _Publisher, standing: CheckpointRecord | None) -> None:
    """The answers that one publisher was given, against what stands there in the end."""
    is_decided = standing == publisher.decision
    if publisher.answer is PublishOutcome.OURS:
        assert is_decided
    elif publisher.answer is PublishOutcome.TAKEN:
        assert standing is not None
        assert not is_decided
    elif publisher.answer == "not published":
        assert not is_decided
    if publisher.given_up is PublishOutcome.OURS:
        assert standing == publisher.abort
    elif publisher.given_up is PublishOutcome.TAKEN:
        assert standing is not None
        assert standing != publisher.abort
    elif publisher.given_up == "not published":
        assert standing != publisher.abort


@settings(max_examples=examples(150), deadline=None)
@given(_orders, st.lists(_faults, min_size=2, max_size=2))
def test_one_session_repairs_and_the_other_is_reported(
    order: list[int], faults: list[list[Fault]]
) -> None:
    """Rule `two-phase-repair`: two sessions that both found a transaction lost never both write it
    again."""
    world = _World()
    CheckpointStore(FakeFileSystem(world.disk)).publish(record(_PLACE), timeout_s=1)
    lost = committable().payload
    answers: dict[str, PublishOutcome] = {}
    turns = CallQueue(order, between=lambda: None)

    def repairer(session: str, mine: list[Fault]) -> Callable[[], None]:
        store = _store(world, mine, turns.wait)

        def run() -> None:
            replaced = {lost: committable(session.encode())}
            try:
                answers[session] = store.publish_repair(
                    _PLACE, replaced, session=session, timeout_s=3
                )
            except (StorageError, SimulatedCrashError):
                return

        return run

    turns.run([repairer(f"s{n}", mine) for n, mine in enumerate(faults)])
    world.disk.land_late_steps()
    store = CheckpointStore(FakeFileSystem(world.disk))
    (effective,) = store.effective_committables(record(_PLACE))
    assert len(store.repairs(_PLACE)) <= 1
    for session, answer in answers.items():
        if answer is not PublishOutcome.UNKNOWN:
            is_ours = effective == committable(session.encode())
            assert is_ours == (answer is PublishOutcome.OURS)


@settings(max_examples=examples(150), deadline=None)
@given(_orders, st.lists(_faults, min_size=2, max_size=2))
def test_two_phase_repair_lost_work_is_written_again_or_accepted_never_both(
    order: list[int], faults: list[list[Fault]]
) -> None:
    world = _World()
    CheckpointStore(FakeFileSystem(world.disk)).publish(record(_PLACE), timeout_s=1)
    lost = committable()
    word = AcceptedWork(digest=digest_of(lost), accepted_as=AcceptedAs.LOST, region="r0", ranges=())
    said: list[bool] = []
    answers: list[PublishOutcome] = []
    turns = CallQueue(order, between=lambda: None)
    accepting, repairing = (_store(world, mine, turns.wait) for mine in faults)

    def accept() -> None:
        with suppress(StorageError, SimulatedCrashError):
            try:
                accepting.accept(_PLACE, [word])
                said.append(True)
            except ConfigError:
                said.append(False)

    def repair() -> None:
        with suppress(StorageError, SimulatedCrashError):
            answers.append(
                repairing.publish_repair(
                    _PLACE, {lost.payload: committable(b"again")}, session="s", timeout_s=3
                )
            )

    turns.run([accept, repair])
    world.disk.land_late_steps()
    store = CheckpointStore(FakeFileSystem(world.disk))
    (effective,) = store.effective_committables(record(_PLACE))
    is_repaired = effective != lost
    assert not (is_repaired and store.accepted(_PLACE))
    assert said in ([], [not is_repaired])
    for answer in answers:
        if answer is not PublishOutcome.UNKNOWN:
            assert is_repaired == (answer is PublishOutcome.OURS)
