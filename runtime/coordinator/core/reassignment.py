"""Which splits a decision reassigns to other regions. Pure.

A reassignment is part of one decision: the record of checkpoint c has the positions of both regions
and the new owner of the split. So at no moment two regions own a split, or none
(`restore-by-attempt`). Regions take part if they completed c and have begun nothing since, if their
records are a function of the ranges read and of keyed state, which moves with its split, and if
their sinks keep no state of a split.
"""

from collections.abc import Mapping, Sequence

from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint
from sluice.runtime.coordinator.policy.assignment import Move
from sluice.runtime.coordinator.policy.balance import Balancer, RegionLoad
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.errors import IllegalTransitionError
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.model.splits import SplitKey

__all__ = ["choose_moves", "may_move"]


def choose_moves(
    state: CoordinatorState, checkpoint: PendingCheckpoint, balancer: Balancer
) -> tuple[Move, ...]:
    """The reassignments of a decision that is about to be published.

    Raises:
        IllegalTransitionError: the balancer chose a region or split that it was not offered.
    """
    if checkpoint.kind is not CheckpointKind.CHECKPOINT:
        return ()
    chosen: list[Move] = []
    overloaded: dict[str, int] = {}
    for names in _of_one_kind(state, checkpoint):
        loads = {name: _load(state.regions[name], state.assignment.regions[name]) for name in names}
        choice = balancer.choose(loads, state.overloaded)
        _require_offered(choice.moves, loads)
        chosen += choice.moves
        overloaded |= choice.overloaded
    state.overloaded = overloaded
    return tuple(chosen)


def _require_offered(moves: Sequence[Move], loads: Mapping[str, RegionLoad]) -> None:
    for move in moves:
        offered = move.source_region in loads and move.split in loads[move.source_region].records
        if not offered or move.target_region not in loads:
            raise IllegalTransitionError(
                "the balancer may not reassign this split between these regions",
                {
                    "source_region": move.source_region,
                    "target_region": move.target_region,
                    "offered": ",".join(loads),
                },
                "Let the balancer choose among the offered regions and splits, each once.",
            )


def _of_one_kind(state: CoordinatorState, checkpoint: PendingCheckpoint) -> list[list[str]]:
    """Regions that may exchange splits: they read one source and write the same sinks."""
    found: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for name, region in state.regions.items():
        if may_move(region, checkpoint):
            found.setdefault((region.plan.source_ids, region.plan.sink_ids), []).append(name)
    return [names for names in found.values() if len(names) > 1]


def may_move(region: RegionState, checkpoint: PendingCheckpoint) -> bool:
    """Whether this decision may reassign splits from or to a region."""
    plan = region.plan
    # Keyed state goes along, and tables of broadcast streams are everywhere.
    is_by_split = plan.chained or (bool(plan.keyed or plan.reads) and not plan.list_ids)
    keeps_nothing = is_by_split and not plan.stateful and plan.stateful_sink_ids == ()
    has_completed = plan.name not in checkpoint.skipped
    has_begun_more = region.pending_ack is not None or any(
        checkpoint_id > checkpoint.checkpoint_id for checkpoint_id in region.open_ranges
    )
    return (
        keeps_nothing
        and not plan.keeps_logs
        and not region.keeps_operator_state
        and region.is_open
        and has_completed
        and not has_begun_more
    )


def _load(region: RegionState, splits: frozenset[SplitKey]) -> RegionLoad:
    return RegionLoad(
        records={key: region.work.get(key, 0) for key in splits},
        records_per_s=region.pace.records_per_s,
    )
