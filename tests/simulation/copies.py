"""Savepoints, full checkpoints and stops in order: requested, copied, and judged."""

from collections import Counter
from typing import TYPE_CHECKING

from sluice.connectors.hdfs.staging.pending_files import PENDING_KIND
from sluice.runtime.coordinator.core.events import (
    Action,
    CheckpointRequested,
    CopyFiles,
    FilesCopied,
    RequestEnded,
)
from sluice.runtime.coordinator.shell.request_thread import CopyDue
from sluice.runtime.errors import ConfigError, StorageError, StreamError
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    RegionStatus,
    Verdict,
)
from sluice.runtime.model.splits import SplitKey
from tests.simulation.kafka import identities_of

if TYPE_CHECKING:
    from tests.simulation.process import Process

_LIMITS_S = (0.5, 5.0, 1000.0)


class Copies:
    """One process's request thread: what it requests, and what it copies.

    Attributes:
        ended: requests by how they ended.
    """

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._world = process.world
        self._due: list[CopyDue] = []
        self._is_stop = False
        self._drain_to: dict[SplitKey, int] = {}
        self.ended: Counter[str] = Counter()

    @property
    def are_due(self) -> bool:
        """Whether a copy is under way."""
        return bool(self._due)

    def request(self) -> None:
        """A person requests one; at times one is under way."""
        dice = self._world.random
        kinds = (CheckpointKind.SAVEPOINT, CheckpointKind.FULL, CheckpointKind.FINAL)
        kind = dice.choice(kinds)
        is_stop = kind is CheckpointKind.FINAL
        positions = self._process.core.positions().values()
        ends = {s.key: self._world.ends[s.partition] for splits in positions for s in splits}
        drain_to = ends if is_stop and dice.random() < 0.5 else {}
        event = CheckpointRequested(
            kind=kind,
            is_copied=not is_stop or dice.random() < 0.5,
            drain_to=drain_to,
            limit_s=dice.choice(_LIMITS_S),
        )
        self._world.note(f"somebody requests {event.kind.value}, copied={event.is_copied}")
        try:
            self._process.tell(event, raises=True)
        except ConfigError:
            self.ended["refused"] += 1
        else:
            self._is_stop, self._drain_to = is_stop, drain_to

    def begin(self, due: CopyDue | StreamError) -> None:
        """As the request thread's: the I/O thread has the record."""
        if not isinstance(due, StreamError):
            self._due.append(due)

    def end(self) -> None:
        """The copy is complete, or has failed."""
        action, record = self._due.pop(0)
        error = None
        if self._world.roll(0.3):
            error = StorageError("no space", {}, "Make some.")
        else:
            self._judge(action, record)
        self.ended["copied" if error is None else "not copied"] += 1
        was_over = self._process.core.is_over
        self._process.tell(FilesCopied(checkpoint_id=action.checkpoint_id, error=error))
        if self._is_stop and error is None and not was_over:
            self._require_settled()
            self._require_last(action.checkpoint_id)

    def ordered(self, action: Action) -> None:
        """The core has answered."""
        if isinstance(action, RequestEnded):
            self.ended["late" if action.error is not None else "stopped"] += 1
            if action.error is None:
                self._require_settled()

    def _judge(self, action: CopyFiles, record: CheckpointRecord) -> None:
        require, world = self._world.require, self._world
        require(record.verdict is Verdict.DECIDED, "a savepoint of what is not decided")
        store = world.store_without_faults()
        standing = store.read(record.checkpoint_id)
        effective = record.committables if standing is None else ()
        if standing is not None:
            require(store.is_committed(record.checkpoint_id), "a savepoint before its marker")
            effective = store.effective_committables(standing)
        for identity in identities_of(effective):
            require(world.watch.is_committed(identity), "a savepoint with open work")
        skipped = [r.region for r in record.regions if r.status is RegionStatus.SKIPPED]
        require(set(skipped) <= set(action.suspended), "a savepoint skips a region in service")
        kept = [e for r in record.regions for e in r.operator_states if e.kind == PENDING_KIND]
        held = [e for e in kept if not set(skipped) & {self._region_of(record, e)}]
        require(not held, "a savepoint names files outside")

    @staticmethod
    def _region_of(record: CheckpointRecord, entry: object) -> str:
        return next(r.region for r in record.regions if entry in r.operator_states)

    def _require_last(self, checkpoint_id: int) -> None:
        """The job that is restored from it would read later records again."""
        status = self._process.core.status(now_s=self._world.clock(), now_ms=0)
        is_last = status.last_decided == checkpoint_id
        self._world.require(is_last, "records are decided after the savepoint of a stop")

    def _require_settled(self) -> None:
        """The stop is over: everything decided is committed, and what was to be drained is."""
        core, require = self._process.core, self._world.require
        pending = core.status(now_s=self._world.clock(), now_ms=0).pending
        decided = [p.checkpoint_id for p in pending if p.state in ("decided", "committed")]
        require(not decided, "a stop leaves a decision open")
        for name, splits in core.positions().items():
            if core.is_suspended(name):
                continue
            for split in splits:
                is_read = split.end_offset >= self._drain_to.get(split.key, 0)
                require(is_read, "a drained job has left records unread")
