"""When splits may change their region, and which do: a part of the coordinator's core. Pure.

A move is part of a decision and of nothing else: the record of checkpoint c says where both regions
are and who goes on, so there is no moment in which two regions have a split, or none
(`restore-by-attempt`). It is for regions that completed c and have begun nothing since, whose
records are a function of the ranges read, and whose sinks keep nothing that belongs to a split.
"""

from collections.abc import Mapping, Sequence

from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint
from sluice.runtime.coordinator.policy.assignment import Move
from sluice.runtime.coordinator.policy.balance import RegionLoad
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.errors import IllegalTransitionError
from sluice.runtime.model.model import CheckpointKind, SplitKey

__all__ = ["choose_moves", "may_move"]


def choose_moves(book: CoordinatorState, checkpoint: PendingCheckpoint) -> tuple[Move, ...]:
    """The moves of a decision about to be published.

    Raises:
        IllegalTransitionError: the balancer wants what it was not offered.
    """
    balancer = book.settings.balancer
    if balancer is None or checkpoint.kind is not CheckpointKind.CHECKPOINT:
        return ()
    chosen: list[Move] = []
    overloaded: dict[str, int] = {}
    for names in _of_one_kind(book, checkpoint):
        loads = {name: _load(book.regions[name], book.assignment.regions[name]) for name in names}
        choice = balancer.choose(loads, book.overloaded)
        _require_offered(choice.moves, loads)
        chosen += choice.moves
        overloaded |= choice.overloaded
    book.overloaded = overloaded
    return tuple(chosen)


def _require_offered(moves: Sequence[Move], loads: Mapping[str, RegionLoad]) -> None:
    for move in moves:
        offered = move.source_region in loads and move.split in loads[move.source_region].records
        if not offered or move.target_region not in loads:
            raise IllegalTransitionError(
                "a balancer moves a split from or to a region that may not take part",
                {
                    "giver": move.source_region,
                    "taker": move.target_region,
                    "offered": ",".join(loads),
                },
                "Choose among the regions and splits that it is given, each once.",
            )


def _of_one_kind(book: CoordinatorState, checkpoint: PendingCheckpoint) -> list[list[str]]:
    """Regions that may exchange splits: they read one source, and write the same sinks."""
    found: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for name, region in book.regions.items():
        if may_move(region, checkpoint):
            found.setdefault((region.plan.source_ids, region.plan.sink_ids), []).append(name)
    return [names for names in found.values() if len(names) > 1]


def may_move(region: RegionState, checkpoint: PendingCheckpoint) -> bool:
    """Whether a region may give and take splits with this decision."""
    plan = region.plan
    keeps_nothing = plan.chained and not plan.stateful and plan.stateful_sink_ids == ()
    has_completed = plan.name not in checkpoint.skipped
    has_begun_more = region.held is not None or any(
        checkpoint_id > checkpoint.checkpoint_id for checkpoint_id in region.cuts
    )
    return (
        keeps_nothing
        and not plan.keeps_logs
        and not region.record.operator_states
        and region.is_open
        and has_completed
        and not has_begun_more
    )


def _load(region: RegionState, splits: frozenset[SplitKey]) -> RegionLoad:
    return RegionLoad(
        records={key: region.work.get(key, 0) for key in splits},
        records_per_s=region.pace.records_per_s,
    )
