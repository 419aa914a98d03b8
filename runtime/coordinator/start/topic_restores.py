"""Repartition topics in a restore: rows in flight, and the new names of the topics. Pure.

A new job has topics of its own. Rows that the old job had written, and not yet read, are copied
into them before any region runs. Checkpoint 0 says which.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sluice.runtime.contracts import TopicCopy
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan
from sluice.runtime.coordinator.start.recovery import lineage_until
from sluice.runtime.coordinator.start.translation import RestoreRules
from sluice.runtime.model.checkpoint_record import CheckpointRecord, OperatorNode
from sluice.runtime.model.state.batch_lineage import BatchLineage
from sluice.runtime.savepoint.keyed_recompute import IN_FLIGHT

__all__ = ["copies_of", "copy_settings", "with_job_topics"]

_SETTING = ".repartition_topic"
"""Ends the name of the setting of a source with the name of its topic."""
_COPIES = "repartition_copies"


def with_job_topics(record: CheckpointRecord, plan: JobPlan, rules: RestoreRules) -> RestoreRules:
    """The rules, with new names also for repartition topics."""
    own = {before[1]: now[1] for before, now in _pairs(record, plan)}
    return replace(rules, topic_map={**rules.topic_map, **own}) if own else rules


def copy_settings(record: CheckpointRecord, plan: JobPlan) -> dict[str, str]:
    """The setting of checkpoint 0 from which `copies_of` makes the copies."""
    lineage = lineage_until(record).to_json()
    # A job at checkpoint 0 has read nothing, and its own copy may not be done.
    open_copies = {} if record.checkpoint_id else _recorded(record)
    copies = {
        now_id: open_copies.get(before_id)
        or {"topic": topic, **_positions(record, before_id, topic), "lineage": lineage}
        for (before_id, topic), (now_id, _) in _pairs(record, plan)
    }
    return {_COPIES: json.dumps(copies)} if copies else {}


def copies_of(record: CheckpointRecord) -> dict[str, TopicCopy]:
    """The copies that a job needs before it starts from this record, by operator id of the source;
    once it has decided a later one, they are done."""
    if record.checkpoint_id:
        return {}
    return {
        source_id: TopicCopy(
            topic=each["topic"],
            topic_id=each["topic_id"],
            offsets={int(partition): offset for partition, offset in each["offsets"].items()},
            lineage=BatchLineage.from_json(each["lineage"]),
        )
        for source_id, each in _recorded(record).items()
    }


def _recorded(record: CheckpointRecord) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record.settings.get(_COPIES, "{}"))
    return found


def _positions(record: CheckpointRecord, source_id: str, topic: str) -> dict[str, object]:
    """The positions of the old job in its topic; a recomputed savepoint has them apart from the
    splits of the new topic."""
    recomputed: dict[str, dict[str, object]] = json.loads(record.settings.get(IN_FLIGHT, "{}"))
    if source_id in recomputed:
        return recomputed[source_id]
    splits = [
        split
        for region in record.regions
        for split in region.splits
        if split.source_id == source_id and split.topic == topic
    ]
    return {
        "topic_id": next((split.topic_id for split in splits if split.topic_id), ""),
        "offsets": {split.partition: split.end_offset for split in splits},
    }


def _pairs(
    record: CheckpointRecord, plan: JobPlan
) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Operator id and topic of each source of a repartition topic, before and now."""
    old = _topics(record.graph, record.settings)
    new = _topics(plan.graph, plan.settings)
    by_name = {node.name: node.operator_id for node in record.graph}
    names = {node.operator_id: node.name for node in plan.graph}
    for source_id, topic in new.items():
        before = source_id if source_id in old else by_name.get(names[source_id], "")
        if before in old:
            yield (before, old[before]), (source_id, topic)


def _topics(graph: tuple[OperatorNode, ...], settings: Mapping[str, str]) -> dict[str, str]:
    return {
        node.operator_id: settings[f"{node.name}{_SETTING}"]
        for node in graph
        if node.kind == "source" and f"{node.name}{_SETTING}" in settings
    }
