"""One suite for the committer that many regions share, around each connector's own committer.

Regions and failed tasks are injected: what a regional checkpoint publishes, holds and throws away.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol, cast

import pytest

from sluice.connectors.hdfs.committing.file_committer import FileCommitter
from sluice.connectors.hdfs.staging.committables import FileSet, StagedFile, encode_file_set
from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.runtime.contracts import (
    CommitOutcome,
    CommitReport,
    Committer,
    FailedScope,
    FailedTask,
    FailureReason,
    RegionCheckpointFailedDetail,
    RegionProgress,
    SinkCoordinator,
)
from sluice.runtime.coordinator.committing.sink_committer import SerialSink, SharedCommitter
from sluice.runtime.errors import IllegalTransitionError, UnreachableError
from sluice.runtime.model.checkpoint_record import RegionStatus, StateEntry
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.files.fake_file_system import Disk, FakeFileSystem
from tests.kit.kafka.transaction_harness import FakeHarness, committable

_TIMEOUT_S = 300.0
_SCOPES = pytest.mark.parametrize("scope", list(FailedScope))


class Remote(Protocol):
    """Where regions write to, as a writer and a reader see it."""

    def committer(self) -> Committer: ...

    def write(self, name: str) -> StateEntry: ...

    def visible(self) -> set[str]: ...

    def discarded(self) -> set[str]: ...


@dataclass(slots=True)
class KafkaRemote:
    """A fake broker; each piece of work is a transaction of one record."""

    harness: FakeHarness = field(default_factory=lambda: FakeHarness(2))
    ids: dict[str, str] = field(default_factory=dict)

    def committer(self) -> Committer:
        return KafkaCommitter(self.harness.wire)

    def write(self, name: str) -> StateEntry:
        attempt = self.harness.open()
        attempt.produce(1)
        self.ids[name] = attempt.identity.transactional_id
        return committable(attempt.identity, records=1)

    def visible(self) -> set[str]:
        return self._in_state("commit")

    def discarded(self) -> set[str]:
        return self._in_state("abort")

    def _in_state(self, word: str) -> set[str]:
        states = self.harness.broker.ids
        return {name for name, i in self.ids.items() if word in states[i].state.name.lower()}


@dataclass(slots=True)
class FileRemote:
    """A target with its staging; each piece of work is a file."""

    parent: str
    open: Callable[[str], FileSystem]
    stagings: dict[str, str] = field(default_factory=dict)
    made: list[FileCommitter] = field(default_factory=list)

    def committer(self) -> Committer:
        self.made.append(FileCommitter(self.open, at_once=2))
        return self.made[-1]

    def write(self, name: str) -> StateEntry:
        self.stagings[name] = staging = f".staging/{uuid.uuid4().hex}"
        self.open(self.parent).write_temporary(f"{staging}/part", name.encode())
        file = StagedFile(staged="part", final=name, length_bytes=len(name), rows=1)
        return encode_file_set(
            FileSet(target=f"{self.parent}/orders", staging=staging, rows=1, files=(file,)),
            operator_id="sink-1",
        )

    def visible(self) -> set[str]:
        return {entry.name for entry in self.open(self.parent).entries("orders")}

    def discarded(self) -> set[str]:
        fs, seen = self.open(self.parent), self.visible()
        gone = {name for name, path in self.stagings.items() if not fs.entries(path)}
        return gone - seen


@pytest.fixture(params=["kafka", "memory files", "local files"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Remote]:
    if request.param == "kafka":
        yield KafkaRemote()
        return
    if request.param == "memory files":
        disk = Disk()
        files = FileRemote(parent="fake:///data", open=partial(_in_memory, disk))
    else:
        files = FileRemote(parent=tmp_path.as_uri(), open=open_file_system)
    yield files
    for committer in files.made:
        committer.close()


def _in_memory(disk: Disk, uri: str) -> FileSystem:
    return FakeFileSystem(disk, uri=uri)


class Counted:
    """A `Committer` that notes what it is asked for, and may be out of reach.

    Attributes:
        asked: (what, number of committables), in order.
        unreachable: committables that cannot be finished now.
        progress: what it was reported its regions, by checkpoint.
    """

    def __init__(self, inner: Committer) -> None:
        self._inner = inner
        self.asked: list[tuple[str, int]] = []
        self.unreachable: set[StateEntry] = set()
        self.away = False
        self.follows = CommitOutcome.COMMITTED
        self.progress: dict[int, Sequence[RegionProgress]] = {}

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        self.asked.append(("verdict first" if after_crash else "commit", len(committables)))
        if self.away:
            raise UnreachableError("it does not answer", {}, "Ask again.")
        reached = [entry for entry in committables if entry not in self.unreachable]
        found = self._inner.commit(reached, timeout_s=timeout_s, after_crash=after_crash)
        reports = dict(zip(reached, found, strict=True))
        pending = CommitReport(outcome=CommitOutcome.PENDING, detail="not now")
        return [reports.get(entry, pending) for entry in committables]

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        self.asked.append(("abort", len(committables)))
        return self._inner.abort(committables, timeout_s=timeout_s)

    def await_visible(self, *, timeout_s: float) -> bool:
        return self._inner.await_visible(timeout_s=timeout_s)

    def regions_published(
        self, checkpoint_id: int, regions: Sequence[RegionProgress], *, timeout_s: float
    ) -> CommitReport:
        if self.away:
            raise UnreachableError("it does not answer", {}, "Ask again.")
        self.progress[checkpoint_id] = regions
        return CommitReport(outcome=self.follows)


def _shared(committer: Committer) -> SharedCommitter:
    sink = SimpleNamespace(committer=committer)
    return SharedCommitter(SerialSink(cast(SinkCoordinator, sink)), name="sink")


class Coordinator:
    """The notifications of one committer; regions ``a``, ``b``, ``c``."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self.restart()

    def restart(self) -> None:
        self.inner = Counted(self.remote.committer())
        self.committer = _shared(self.inner)

    def write(self, checkpoint_id: int, *regions: str) -> dict[str, list[StateEntry]]:
        work = {
            region: [self.remote.write(f"{region}{checkpoint_id}-{part}") for part in range(2)]
            for region in regions
        }
        self.committer.pre_committed(checkpoint_id, work)
        return work

    def complete(
        self, checkpoint_id: int, *, after_crash: bool = False
    ) -> Mapping[StateEntry, CommitReport]:
        return self.committer.notify_checkpoint_complete(
            checkpoint_id, timeout_s=_TIMEOUT_S, after_crash=after_crash
        )

    def regional(
        self,
        checkpoint_id: int,
        *failed: str,
        scope: FailedScope = FailedScope.UP_STREAM,
        reason: FailureReason = FailureReason.EXPIRED,
    ) -> Mapping[StateEntry, CommitReport]:
        tasks = tuple(
            FailedTask(
                subtask_id=number,
                task_name=f"task {number}.0",
                region=None
                if scope is FailedScope.DOWN_STREAM and region == "follower"
                else region,
                reason=reason,
                message="injected",
            )
            for region in failed
            for number in range(2)
        )
        return self.committer.notify_regional_checkpoint_complete(
            RegionCheckpointFailedDetail(
                checkpoint_id=checkpoint_id, scope=scope, failed_tasks=tasks
            ),
            timeout_s=_TIMEOUT_S,
            after_crash=False,
        )


@pytest.fixture
def coordinator(remote: Remote) -> Coordinator:
    """One committer around the connector's own."""
    return Coordinator(remote)


def _names(*regions: str) -> set[str]:
    return {f"{region}-{part}" for region in regions for part in range(2)}


def _outcomes(reports: Mapping[StateEntry, CommitReport]) -> set[CommitOutcome]:
    return {report.outcome for report in reports.values()}


def test_a_complete_checkpoint_publishes_every_region(coordinator: Coordinator) -> None:
    """One committer, three regions, one call to the connector."""
    coordinator.write(1, "a", "b", "c")
    assert coordinator.remote.visible() == set()
    reports = coordinator.complete(1)
    assert _outcomes(reports) == {CommitOutcome.COMMITTED}
    assert len(reports) == 6
    assert coordinator.remote.visible() == _names("a1", "b1", "c1")
    assert coordinator.inner.asked == [("commit", 6)]


@_SCOPES
def test_failed_regions_work_is_held_until_their_next_good_checkpoint(
    coordinator: Coordinator, scope: FailedScope
) -> None:
    """Design section 5: in every scope the completed regions' work is published, no other."""
    coordinator.write(1, "a", "b", "c")
    held = coordinator.regional(1, "b", scope=scope)
    assert len(held) == 4
    assert coordinator.remote.visible() == _names("a1", "c1")
    assert coordinator.remote.discarded() == set()
    coordinator.write(2, "a", "c")
    coordinator.regional(2, "b", "c", scope=scope)
    assert coordinator.remote.visible() == _names("a1", "c1", "a2")
    coordinator.write(3, "b")
    coordinator.complete(3)
    assert coordinator.remote.visible() == _names("a1", "b1", "c1", "a2", "c2", "b3")


@_SCOPES
def test_failed_regions_work_is_aborted_with_their_checkpoint(
    coordinator: Coordinator, scope: FailedScope
) -> None:
    first = coordinator.write(1, "a", "b")
    coordinator.regional(1, "b", scope=scope, reason=FailureReason.ERROR)
    coordinator.write(2, "a", "b")
    reports = coordinator.committer.abort(first["b"], timeout_s=_TIMEOUT_S)
    assert _outcomes(reports) == {CommitOutcome.ABORTED}
    assert coordinator.remote.discarded() == _names("b1", "b2")
    coordinator.complete(2)
    assert coordinator.remote.visible() == _names("a1", "a2")


def test_down_stream_failures_hold_back_no_writer(coordinator: Coordinator) -> None:
    """A region that follows the sink has no work in it: all of the writers' is published."""
    coordinator.write(1, "a", "b")
    coordinator.regional(1, "follower", scope=FailedScope.DOWN_STREAM)
    assert coordinator.remote.visible() == _names("a1", "b1")


def test_a_late_region_joins_the_checkpoint_that_names_its_work(coordinator: Coordinator) -> None:
    """Its batch is reported again for the next checkpoint, and published once, with that."""
    work = coordinator.write(1, "a", "b")
    coordinator.regional(1, "b")
    assert coordinator.committer.pending("b", through=1) == tuple(work["b"])
    coordinator.committer.pre_committed(2, {"a": (), "b": work["b"]})
    assert coordinator.committer.pending("b", through=1) == ()
    reports = coordinator.complete(2)
    assert set(work["b"]) <= set(reports)
    assert coordinator.remote.visible() == _names("a1", "b1")


def test_a_repeated_notification_does_nothing_twice(coordinator: Coordinator) -> None:
    coordinator.write(1, "a", "b")
    first = coordinator.regional(1, "b")
    asked = list(coordinator.inner.asked)
    assert coordinator.regional(1, "b") == first
    coordinator.write(2, "a")
    coordinator.complete(2)
    coordinator.complete(2)
    assert coordinator.regional(1, "b").keys() >= first.keys()
    assert coordinator.inner.asked == [*asked, ("commit", 2), ("commit", 2)]


def test_a_checkpoint_has_one_set_of_failed_regions(coordinator: Coordinator) -> None:
    """Reported otherwise the second time, nothing is published: one of both is wrong."""
    coordinator.write(1, "a", "b")
    coordinator.regional(1, "b")
    with pytest.raises(IllegalTransitionError):
        coordinator.complete(1)
    assert coordinator.remote.visible() == _names("a1")


def test_a_late_repetition_of_a_finished_checkpoint_decides_nothing(
    coordinator: Coordinator,
) -> None:
    coordinator.write(1, "a", "b")
    for checkpoint_id in (1, 2):
        coordinator.regional(checkpoint_id, "b")
        coordinator.committer.regions_published(checkpoint_id, (), timeout_s=_TIMEOUT_S)
    assert coordinator.complete(1) == {}
    assert coordinator.remote.visible() == _names("a1")


def test_continuous_order_a_regions_epochs_are_published_in_order(coordinator: Coordinator) -> None:
    """Rule `continuous-order`: what waits for an older epoch of its region is PENDING; other
    regions continue."""
    first = coordinator.write(1, "a", "b")
    coordinator.inner.unreachable = {first["a"][1]}
    assert _outcomes(coordinator.complete(1)) == {CommitOutcome.COMMITTED, CommitOutcome.PENDING}
    second = coordinator.write(2, "a", "b")
    reports = coordinator.complete(2)
    assert {reports[entry].outcome for entry in second["a"]} == {CommitOutcome.PENDING}
    assert coordinator.remote.visible() == {"a1-0", *_names("b1", "b2")}
    coordinator.inner.unreachable.clear()
    assert _outcomes(coordinator.complete(2)) == {CommitOutcome.COMMITTED}
    assert coordinator.remote.visible() == _names("a1", "a2", "b1", "b2")


def test_what_was_tried_before_is_looked_at_first(coordinator: Coordinator) -> None:
    """Rule `outcome-from-broker`: an answer may have been lost, so the second try asks for the
    verdict."""
    coordinator.write(1, "a")
    coordinator.inner.away = True
    assert _outcomes(coordinator.complete(1)) == {CommitOutcome.PENDING}
    coordinator.inner.away = False
    coordinator.complete(1)
    assert coordinator.inner.asked == [("commit", 2), ("verdict first", 2)]
    assert coordinator.remote.visible() == _names("a1")


def test_decided_work_is_never_aborted(coordinator: Coordinator) -> None:
    """Invariant 2: not even what could not be published yet."""
    work = coordinator.write(1, "a", "b")
    coordinator.inner.away = True
    coordinator.regional(1, "b")
    with pytest.raises(IllegalTransitionError):
        coordinator.committer.abort([*work["b"], *work["a"]], timeout_s=_TIMEOUT_S)
    assert coordinator.remote.discarded() == set()
    coordinator.inner.away = False
    coordinator.complete(2)
    assert coordinator.remote.visible() == _names("a1", "b1")


def test_another_process_continues_from_what_the_records_name(coordinator: Coordinator) -> None:
    """Nothing that a recovery needs was in memory: decided work is reported again, held is not."""
    decided = coordinator.write(1, "a", "b")
    coordinator.inner.unreachable = {decided["a"][0]}
    coordinator.regional(1, "b")
    coordinator.restart()
    coordinator.committer.pre_committed(1, {"a": decided["a"]})
    reports = coordinator.regional(1, "b")
    assert set(reports) == set(decided["a"])
    assert _outcomes(reports) == {CommitOutcome.COMMITTED}
    coordinator.committer.abort(decided["b"], timeout_s=_TIMEOUT_S)  # by the sweep
    assert coordinator.remote.visible() == _names("a1")
    assert coordinator.remote.discarded() == _names("b1")


def test_a_repair_takes_the_place_of_what_it_replaces(coordinator: Coordinator) -> None:
    """Rule `two-phase-repair`: reported again for its checkpoint, with other work; the lost one is not
    asked for."""
    work = coordinator.write(1, "a")
    lost, kept = work["a"]
    coordinator.inner.unreachable = {lost}
    coordinator.complete(1)
    instead = coordinator.remote.write("a1-again")
    coordinator.committer.pre_committed(1, {"a": [instead, kept]})
    with pytest.raises(IllegalTransitionError):  # it is as decided as what it replaces
        coordinator.committer.abort([instead], timeout_s=_TIMEOUT_S)
    reports = coordinator.complete(1)
    assert set(reports) == {instead, kept}
    assert coordinator.remote.visible() == {"a1-again", "a1-1"}


def test_a_sink_learns_how_far_its_regions_are_once_all_is_published(
    coordinator: Coordinator,
) -> None:
    """Not before; and the checkpoint is not finished until the sink has followed."""
    coordinator.write(1, "a", "b")
    coordinator.inner.away = True
    coordinator.regional(1, "b")
    progress = (
        RegionProgress(region="a", status=RegionStatus.COMPLETED, least_watermark_ms=7),
        RegionProgress(region="b", status=RegionStatus.SKIPPED, least_watermark_ms=3),
    )

    def follow() -> CommitOutcome:
        return coordinator.committer.regions_published(1, progress, timeout_s=1.0).outcome

    assert follow() is CommitOutcome.PENDING
    assert coordinator.inner.progress == {}
    coordinator.inner.away = False
    coordinator.regional(1, "b")
    coordinator.inner.away = True
    assert follow() is CommitOutcome.PENDING, "it is reported once the sink answers"
    coordinator.inner.away = False
    coordinator.inner.follows = CommitOutcome.PENDING
    assert follow() is CommitOutcome.PENDING
    coordinator.inner.follows = CommitOutcome.COMMITTED
    assert follow() is CommitOutcome.COMMITTED
    assert coordinator.inner.progress == {1: progress}
    assert coordinator.regional(1, "b") == {}  # finished, and forgotten
    assert len(coordinator.committer.pending("b", through=1)) == 2


def test_a_connectors_committer_that_follows_nothing_is_done_at_once(remote: Remote) -> None:
    committer = _shared(remote.committer())
    report = committer.regions_published(1, (), timeout_s=1.0)
    assert report.outcome is CommitOutcome.COMMITTED
