"""What must hold as a run takes its decisions: judged where its core orders them, by what its
regions reported it before."""

from collections import Counter
from typing import TYPE_CHECKING

from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.runtime.contracts import FailureReason
from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    Action,
    CoreEvent,
    Progress,
    Publish,
    RestartCommanded,
    SplitsDiscovered,
    SweepOrphans,
)
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.model.checkpoint_record import CheckpointKind, RegionStatus, StateEntry, Verdict
from sluice.runtime.model.splits import SplitKey
from tests.simulation.kafka import identities_of

if TYPE_CHECKING:
    from tests.simulation.process import Process

_UNSWEPT = ("broker", "EndTxn")
"""In the names of faults by which a sweep may have missed something."""


class RunWatch:
    """One process's part of the watch: reported what its core is reported, and of what that orders."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._world = process.world
        # Of failed lives: transactions that they had open and had not acknowledged, by region.
        self._left_open: dict[str, set[TransactionIdentity]] = {}
        self._to_sweep: dict[int, dict[str, frozenset[TransactionIdentity]]] = {}
        self._regions = process.regions
        self._counted: set[int] = set()
        self._in_a_row: Counter[str] = Counter()
        self._restarted: tuple[str, ...] = ()
        self._discovered: set[SplitKey] = set()
        self._decided: set[int] = set()
        self._acknowledged: set[StateEntry] = set()

    def told(self, event: CoreEvent) -> None:
        """The core is about to be reported."""
        if isinstance(event, Acknowledged):
            self._acknowledged |= set(event.ack.region.committables)
            self._world.watch.acknowledged(event.ack)
        elif isinstance(event, RestartCommanded):
            suspended = filter(self._process.core.is_suspended, self._regions)
            self._restarted = event.regions or tuple(suspended)

    def took(self, event: CoreEvent) -> None:
        """The core was reported, and did not refuse."""
        if isinstance(event, SplitsDiscovered):
            self._discovered |= {split.key for split in event.splits}
        elif isinstance(event, RestartCommanded):
            for name in self._restarted:
                del self._in_a_row[name]  # as if it had never failed

    def fails(self, region: str, attempt_id: int) -> None:
        """An attempt of a region is given up; the core is about to be reported."""
        known = set(identities_of(self._acknowledged))
        mark = f"/{region}.{attempt_id}/"
        self._left_open.setdefault(region, set()).update(
            identity
            for identity in self._world.broker.ongoing()
            if mark in identity.transactional_id and identity not in known
        )

    def ordered(self, action: Action) -> None:
        """The core wants this to be done."""
        if isinstance(action, SweepOrphans):
            # What fails from here on is a late region's, if it is skipped: the next sweep has it.
            self._to_sweep[action.checkpoint_id] = self._left_so_far()
        if isinstance(action, Progress) and action.state is State.DECIDED:
            self._check_carried(action)
        if not isinstance(action, Publish) or action.verdict is not Verdict.DECIDED:
            return
        if action.checkpoint_id not in self._decided:  # a repetition is of what was then
            self._decided.add(action.checkpoint_id)
            self._check_swept(action)
            self._check_discovered(action)

    def _check_discovered(self, action: Publish) -> None:
        known = {split.key for region in action.regions for split in region.splits}
        self._world.require(self._discovered <= known, "a split that was found is not on record")

    def _check_carried(self, progress: Progress) -> None:
        """Section 5: regions are skipped within the limits that the job has; suspended ones count
        in none of them."""
        if progress.checkpoint_id in self._counted:
            return  # decided once more, as it is called after a repair
        self._counted.add(progress.checkpoint_id)
        suspended = [n for n, why in progress.skipped.items() if why is FailureReason.SUSPENDED]
        skipped = progress.skipped.keys() - set(suspended)
        self._in_a_row = Counter({name: self._in_a_row[name] + 1 for name in skipped})
        if not skipped:
            return
        require, handler = self._world.require, self._world.settings.handler
        require(isinstance(handler, RegionalCheckpointHandler), "skipped by a global handler")
        assert isinstance(handler, RegionalCheckpointHandler)
        is_ordinary = progress.kind is CheckpointKind.CHECKPOINT
        require(is_ordinary, "a region is skipped in a checkpoint that is for all")
        most = handler.max_failed_ratio * (len(self._regions) - len(suspended))
        require(len(skipped) <= most, "more regions are skipped than the limit")
        in_a_row = max(self._in_a_row.values())
        require(in_a_row <= handler.max_skipped_in_a_row, "a region is skipped too often")

    def _left_so_far(self) -> dict[str, frozenset[TransactionIdentity]]:
        return {region: frozenset(left) for region, left in self._left_open.items()}

    def _check_swept(self, action: Publish) -> None:
        """Rule `abort-before-skip`: what a skipped region has left open is aborted before the
        decision without it, for it may hold back the readers of what others write."""
        if any(word in fault for fault in self._world.faults for word in _UNSWEPT):
            return
        skipped = [r.region for r in action.regions if r.status is RegionStatus.SKIPPED]
        ongoing = set(self._world.broker.ongoing())
        left = self._to_sweep.pop(action.checkpoint_id, None)
        if left is None:
            left = self._left_so_far()
        for region in skipped:
            held = ongoing & left.get(region, frozenset())
            self._world.require(not held, "a skipped region's open transaction is left")
