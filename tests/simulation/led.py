"""Leaders that take over running tasks: relays of region hosts, and the list of attempts.

A relay is what a region host keeps of one task: production's `AttemptRelay` and `LeaderLink`
without threads and HTTP. Its task asks the leader that the relay has joined last. Reports come
late, twice, or not at all, and messages may still reach a leader that is none any more.
"""

import re
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from sluice.runtime.checkpoint.resumable_attempts import ResumableAttempts
from sluice.runtime.continuous.task_messages import EpochResult, NextBarrier
from sluice.runtime.contracts import RegionRegistration, RegisteredAttempt
from sluice.runtime.coordinator.start.takeover import Takeover
from sluice.runtime.errors import NotLeaderError, StorageError, StreamError, UnreachableError
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.service.hosting.host_messages import AttemptReport
from sluice.runtime.service.hosting.relay import SplitsRead
from sluice.runtime.storage.file_system import FileSystem

if TYPE_CHECKING:
    from tests.simulation.continuous import Task
    from tests.simulation.process import Process

__all__ = ["AttemptFiles", "Relay", "takeover_of"]

_LOST = 0.15
_TWICE = 0.2


class Relay:
    """Between one task and the leader of its job.

    Attributes:
        process: the leader that it has joined last.
        is_over: the leader has refused a message of the attempt for good.
    """

    def __init__(self, process: "Process", restored: RegionRecord, attempt_id: int) -> None:
        splits = tuple(split.key for split in restored.splits)
        self._splits = SplitsRead(splits, restored.keyed_state)
        self.process = process
        self.is_over = False
        self._region, self._attempt_id = restored.region, attempt_id
        self._newest = process.found.attempt_id
        self._before: list[Process] = []
        self._results: dict[int, EpochResult] = {}
        self._registered: dict[RegisteredAttempt, None] = {}

    @property
    def is_heard(self) -> bool:
        """Whether its leader answers."""
        return self.process.running and not (self.process.dead or self.process.paused)

    def require_heard(self) -> None:
        """Raise if nobody answers, or somebody who leads no more."""
        if not self.is_heard or self.process.core.is_fenced:
            raise UnreachableError("nobody leads", {}, "Ask again.")

    def keep(self, result: EpochResult) -> None:
        """Before it is sent; at times it reaches an older leader first."""
        self._results[result.batch.batch_id] = result
        self._splits.note_epoch(result)
        old = [each for each in self._before if each.running and not each.dead]
        world = self.process.world
        if old and world.fault(0.2, "a message reaches an older leader"):
            with suppress(StreamError):
                world.random.choice(old).engine.barrier_service.acknowledge(result)

    def keep_registered(self, attempt: RegisteredAttempt) -> None:
        """Before its transaction begins."""
        self._registered[attempt] = None

    def answered(self, answer: NextBarrier) -> None:
        """Its leader has answered; the answer may still be lost."""
        self._splits.note_barrier(answer)
        committed_batch = answer.committed_batch
        for batch_id in [each for each in self._results if each <= committed_batch]:
            del self._results[batch_id]
        for each in [a for a in self._registered if a.batch.batch_id <= committed_batch]:
            del self._registered[each]

    def join(self, process: "Process", own_attempt: int) -> bool:
        """Ask this leader from now on; never an older one again."""
        if own_attempt <= self._newest:
            return False
        self._before.append(self.process)
        self.process, self._newest = process, own_attempt
        return True

    def report(self, *, is_running: bool) -> AttemptReport:
        """See `AttemptRelay.report`."""
        return AttemptReport(
            region=self._region,
            attempt_id=self._attempt_id,
            is_running=is_running and not self.is_over,
            splits=self._splits.known,
            keyed_state=self._splits.keyed_state,
            epochs=tuple(self._results[batch_id] for batch_id in sorted(self._results)),
            registered=tuple(self._registered),
        )


class AttemptFiles:
    """The files of `ResumableAttempts` in one directory; other processes move on during a write."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._world = process.world
        self._files = process.world.attempt_files

    def names(self, path: str, pattern: re.Pattern[str]) -> list[str]:
        """See `FileSystem.names`."""
        del path
        return [name for name in self._files if pattern.fullmatch(name)]

    def read(self, path: str) -> bytes | None:
        """See `FileSystem.read`."""
        return self._files.get(path)

    def replace(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        """See `FileSystem.replace`."""
        del is_private
        world = self._world
        if world.fault(world.profile.refused, "the list of attempts is not written"):
            raise StorageError("a simulated fault", {}, "Ask again.")
        world.meanwhile(self._process)
        self._files[path] = data
        world.meanwhile(self._process)
        if world.fault(world.profile.lost_answer, "the list of attempts is written in silence"):
            raise StorageError("a simulated fault", {}, "Ask again.")

    def delete(self, path: str) -> None:
        """See `FileSystem.delete`."""
        self._files.pop(path, None)


def takeover_of(process: "Process", joined: dict[tuple[str, int], "Task"]) -> Takeover:
    """How a process takes the tasks over; ``joined`` gets those that have joined it."""
    world = process.world

    def collect(own_attempt: int, regions: Collection[str]) -> list[RegionRegistration]:
        del regions
        reports = []
        for task in [each for each in world.tasks if not each.is_over]:
            if world.fault(_LOST, "a report is lost") or not task.relay.join(process, own_attempt):
                continue
            report = task.relay.report(is_running=True)
            joined[report.region, report.attempt_id] = task
            again = 1 + world.fault(_TWICE, "a report comes twice")
            reports += [report.registration] * again
        world.random.shuffle(reports)
        return reports

    files = cast(FileSystem, AttemptFiles(process))
    return Takeover(attempts=ResumableAttempts(files), collect=collect)


def as_unheard(error: StreamError) -> StreamError:
    """What a task gets from its relay for an error of the leader."""
    if isinstance(error, NotLeaderError):
        return UnreachableError("another one leads", {}, "Ask again.")
    return error
