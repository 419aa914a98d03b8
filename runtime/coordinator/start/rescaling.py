"""Redistributes splits and states if a job starts with other regions. Pure.

The new regions are a function of the restored record and of the job's plan. The run's first
decision records them. A crash before that keeps the old regions and the old assignment; a crash
after it keeps the new ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, NoReturn

from sluice.runtime.coordinator.policy.assignment import (
    hand_over,
    keyed_state_of,
    recorded,
    to_least_loaded,
    with_tables,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.errors import WrongJobError
from sluice.runtime.functions.at_most_once import DROPS_KIND
from sluice.runtime.functions.operator_state import (
    OPERATOR_LIST_KIND,
    dealt,
    decoded,
    encoded,
    state_entry,
)
from sluice.runtime.functions.record_counts import COUNTS_KIND
from sluice.runtime.model.checkpoint_record import (
    Assignment,
    CheckpointRecord,
    OperatorNode,
    Redistribution,
    RegionRecord,
    StateEntry,
)
from sluice.runtime.model.event_time import least_of
from sluice.runtime.model.splits import SplitKey, SplitRange

__all__ = ["redistributed", "verify_rescalable"]

_AS_A_LIST = frozenset({Redistribution.SPLIT, Redistribution.UNION})
_SUMS = frozenset({COUNTS_KIND, DROPS_KIND})
"""An operator adds up several of them, so any region that reads the source can take them."""
_MOST_NAMES = 20


class _Bound(NamedTuple):
    """Why a region cannot be replaced, and the remedy."""

    why: str
    remedy: str


_STATE = (
    "Start with the old regions= and the old pipelines: a region with state keeps its splits and "
    "its name."
)
_SOURCE = (
    "Start with the old sources: a new source has no positions in this checkpoint. To change "
    "topics or name of a source, keep its uid. Or run the new source as a job of its own."
)
_DIRECTORY = "Give the query its old checkpointLocation."


def verify_rescalable(record: CheckpointRecord, plan: JobPlan) -> None:
    """Check that the job can resume from the record with its own regions.

    Raises:
        WrongJobError: a region with state would appear or vanish, a source is new, or a remaining
            region would read another source. Or no region can take the sink state of a region that
            vanishes.
    """
    planned = {region.name: region for region in plan.regions}
    known = {region.region: region for region in record.regions}
    bound = _with_other_sources(record, planned)
    if planned.keys() == known.keys() and not bound:
        return
    bound |= _with_state_or_logs(known, planned)
    if bound:
        _refuse_exchange(record, plan, bound)
    vanished = [region for name, region in known.items() if name not in planned]
    for region in vanished:
        for entry in region.operator_states:
            if entry.kind != OPERATOR_LIST_KIND and not _heirs(entry, region, record, plan):
                _refuse_state(entry, region, record, plan)


def _with_state_or_logs(
    known: Mapping[str, RegionRecord], planned: Mapping[str, RegionPlan]
) -> dict[str, _Bound]:
    bound: dict[str, _Bound] = {}
    for name, region in known.items():
        if name not in planned and region.state is not None:
            bound[name] = _Bound(f"{name} keeps state, but the job has no such region now", _STATE)
    for name, new in planned.items():
        if name not in known and new.stateful:
            bound[name] = _Bound(f"{name} keeps state, but the checkpoint has none for it", _STATE)
        if new.keeps_logs:
            bound[name] = _Bound(f"{name} is a drop-in query, whose log is Spark's", _DIRECTORY)
    return bound


def _refuse_exchange(
    record: CheckpointRecord, plan: JobPlan, bound: Mapping[str, _Bound]
) -> NoReturn:
    before = sorted(region.region for region in record.regions)
    now = sorted(region.name for region in plan.regions)
    remedies = dict.fromkeys(found.remedy for found in bound.values())
    raise WrongJobError(
        "the job's regions cannot replace some regions of the checkpoint",
        {
            "job": plan.name,
            "checkpoint_id": record.checkpoint_id,
            "before": _counted(before),
            "now": _counted(now),
            "only_in_checkpoint": ",".join(sorted(set(before) - set(now))),
            "only_in_job": ",".join(sorted(set(now) - set(before))),
            "regions": ",".join(sorted(bound)),
            "why": "; ".join(bound[name].why for name in sorted(bound)),
        },
        f"{' '.join(remedies)} Or use another checkpoint directory. Nothing was changed.",
    )


def _counted(names: Sequence[str]) -> str:
    shown = ",".join(names[:_MOST_NAMES])
    return f"{len(names)} ({shown}{',…' if len(names) > _MOST_NAMES else ''})"


def _with_other_sources(
    record: CheckpointRecord, planned: Mapping[str, RegionPlan]
) -> dict[str, _Bound]:
    """Regions of a source without positions in the record, and regions whose source has changed.

    A region's name is made from topics, so a source with another ``uid`` may have the same name.
    """
    names = {node.operator_id: node.name for node in record.graph}
    sources = _sources(record)

    def named(ids: Iterable[str]) -> str:
        return ",".join(f"{names[i]} ({i})" if i in names else i for i in sorted(ids))

    found: dict[str, _Bound] = {}
    for name, plan in planned.items():
        new = set(plan.source_ids) - sources
        if new:
            why = f"{name} reads {named(new)}, of which the checkpoint has no positions"
            found[name] = _Bound(why, _SOURCE)
    for region in record.regions:
        plan_now = planned.get(region.region)
        if plan_now is None or plan_now.keeps_logs or region.region in found:
            continue
        other = {split.source_id for split in region.splits} - set(plan_now.source_ids)
        if other:
            why = f"{region.region} read {named(other)}, and now {named(plan_now.source_ids)}"
            found[region.region] = _Bound(why, _SOURCE)
    return found


def redistributed(
    record: CheckpointRecord, plan: JobPlan, *, attempt_id: int
) -> tuple[tuple[RegionRecord, ...], Assignment]:
    """The regions of a run that resumes from a record, with their splits, and the assignment.

    If a source's regions have changed, its splits are assigned evenly to the present regions. They
    keep the recorded ends and their keyed state; those of a skipped region come from its last
    completed snapshot. All other splits stay, and unchanged regions give the recorded assignment.

    Args:
        attempt_id: of the run, for regions that the record does not have.
    Raises:
        DamagedCheckpointError: positions and assignment of the record do not fit.
    """
    before = recorded(record)
    found = {region.region: region for region in hand_over(record.regions, before)}
    names = [region.name for region in plan.regions]
    keyed = [region.name for region in plan.regions if region.keyed]
    if found.keys() == set(names):
        return with_tables((found[name] for name in names), keyed, record.regions), before
    splits = _assigned({name: found[name].splits for name in sorted(found)}, plan)
    regions = tuple(
        _with_splits(
            found.get(name) or RegionRecord(region=name, attempt_id=attempt_id),
            mine,
            record.regions,
        )
        for name, mine in splits.items()
    )
    assignment = Assignment(
        version=before.version + 1,
        regions={region.region: frozenset(s.key for s in region.splits) for region in regions},
    )
    regions = with_tables(_with_states(regions, record, plan), keyed, record.regions)
    return regions, assignment


def _assigned(
    standing: Mapping[str, Sequence[SplitRange]], plan: JobPlan
) -> dict[str, tuple[SplitRange, ...]]:
    """Splits of each planned region: first those of unchanged sources, since they stay."""
    splits: dict[str, list[SplitRange]] = {region.name: [] for region in plan.regions}
    touched: dict[str, list[SplitRange]] = {}
    readers: dict[str, list[str]] = {}
    for region in plan.regions:
        for source_id in region.source_ids:
            readers.setdefault(source_id, []).append(region.name)
    for name, mine in standing.items():
        for split in mine:
            names = readers.get(split.source_id, [])
            if name in names and all(each in standing for each in names):
                splits[name].append(split)
            else:
                touched.setdefault(split.source_id, []).append(split)
    for source_id in sorted(touched):
        # A remaining region returns all splits of a source that another region no longer reads.
        for name in readers.get(source_id, ()):
            touched[source_id] += [s for s in splits[name] if s.source_id == source_id]
            splits[name] = [s for s in splits[name] if s.source_id != source_id]
        loads = {name: len(splits[name]) for name in readers.get(source_id, ())}
        for name, mine in to_least_loaded(sorted(touched[source_id], key=_key), loads).items():
            splits[name].extend(mine)
    return {name: tuple(mine) for name, mine in splits.items()}


def _key(split: SplitRange) -> SplitKey:
    return split.key


def _with_splits(
    region: RegionRecord, splits: tuple[SplitRange, ...], before: Sequence[RegionRecord]
) -> RegionRecord:
    mine = {split.key: split for split in region.splits}
    if mine.keys() == {split.key for split in splits}:
        return region
    own = tuple(mine.get(split.key, split.at_end()) for split in splits)
    # The region's watermark must not be later than that of any of its splits.
    least_ms = least_of(split.watermark_ms for split in own)
    return replace(
        region,
        splits=own,
        least_watermark_ms=least_ms,
        keyed_state=keyed_state_of(before, {split.key for split in own}),
    )


# --- operator states of regions that vanish -------------------------------------------------------


def _with_states(
    regions: Iterable[RegionRecord], record: CheckpointRecord, plan: JobPlan
) -> tuple[RegionRecord, ...]:
    """Move each state of a region that vanishes to a remaining region, beside its own states. If
    there were none, `verify_rescalable` would have refused the start."""
    found = {region.region: region for region in regions}
    vanished = [region for region in record.regions if region.region not in found]
    for number, region in enumerate(vanished):
        for entry in region.operator_states:
            if entry.kind == OPERATOR_LIST_KIND:
                continue
            heirs = _heirs(entry, region, record, plan)
            heir = found[heirs[number % len(heirs)]]
            states = (*heir.operator_states, entry)
            found[heir.region] = replace(heir, operator_states=states)
    for operator_id in sorted({i for region in plan.regions for i in region.list_ids}):
        found |= _with_lists(operator_id, found, record, plan)
    return tuple(found.values())


def _with_lists(
    operator_id: str, regions: Mapping[str, RegionRecord], record: CheckpointRecord, plan: JobPlan
) -> dict[str, RegionRecord]:
    """The regions of a function with their lists of its operator state, if these regions are others
    than before. Regions with one record keep their lists: a failed start deals nothing twice."""
    names = [planned.name for planned in plan.regions if operator_id in planned.list_ids]
    sources = _sources_above(operator_id, record.graph)

    def is_list(entry: StateEntry) -> bool:
        return (entry.kind, entry.operator_id) == (OPERATOR_LIST_KIND, operator_id)

    lists = {r.region: e for r in record.regions for e in r.operator_states if is_list(e)}
    vanished = [
        region.region
        for region in record.regions
        if region.region not in names
        and (region.region in lists or any(s.source_id in sources for s in region.splits))
    ]
    known = {region.region for region in record.regions}
    if not lists or not (vanished or set(names) - known):
        return {}
    mode = next(iter(lists.values())).redistribution
    parts = dealt([decoded(entry) for entry in lists.values()], mode, len(names))
    found = {}
    for name, part in zip(names, parts, strict=True):
        others = [entry for entry in regions[name].operator_states if not is_list(entry)]
        mine = [state_entry(encoded(part), operator_id=operator_id, redistribution=mode)]
        states = (*others, *(mine if part.num_rows else ()))
        found[name] = replace(regions[name], operator_states=states)
    return found


def _heirs(
    entry: StateEntry, region: RegionRecord, record: CheckpointRecord, plan: JobPlan
) -> list[str]:
    """Planned regions that can take an operator's state from a vanished region, in order."""
    if entry.redistribution not in _AS_A_LIST:
        return []
    sources = _sources_above(entry.operator_id, record.graph)
    sources |= {split.source_id for split in region.splits} if not sources else set()
    return [
        planned.name
        for planned in plan.regions
        if sources.intersection(planned.source_ids)
        and (entry.kind in _SUMS or entry.operator_id in planned.state_sink_ids)
    ]


def _refuse_state(
    entry: StateEntry, region: RegionRecord, record: CheckpointRecord, plan: JobPlan
) -> NoReturn:
    names = {node.operator_id: node.name for node in record.graph}
    raise WrongJobError(
        "no region can take over the state of a removed region's sink",
        {
            "region": region.region,
            "sink": names.get(entry.operator_id, entry.operator_id),
            "kind": entry.kind,
            "before": _counted(sorted(found.region for found in record.regions)),
            "now": _counted(sorted(found.name for found in plan.regions)),
        },
        "Start with the old `regions=` and the sink in its old pipeline.",
    )


def _sources(record: CheckpointRecord) -> set[str]:
    read = {split.source_id for region in record.regions for split in region.splits}
    return read | {node.operator_id for node in record.graph if node.kind == "source"}


def _sources_above(operator_id: str, graph: Iterable[OperatorNode]) -> set[str]:
    """Sources whose records reach an operator."""
    nodes = {node.operator_id: node for node in graph}
    found: set[str] = set()
    above = [operator_id]
    while above:
        node = nodes.get(above.pop())
        if node is not None and node.kind == "source":
            found.add(node.operator_id)
        elif node is not None:
            above.extend(node.upstream)
    return found
