"""Whether the keyed functions of a program can take the keyed state of a record. Pure.

A table of the record and a declared one are the same if operator and name are. The operators of
another job are matched before (`sluice.runtime.graph.operator_matching`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan
from sluice.runtime.errors import ConfigError, WrongJobError
from sluice.runtime.model.checkpoint_record import CheckpointRecord
from sluice.runtime.model.state.keyed_state import KeyedState, StateTableInfo
from sluice.runtime.state.codec.schema_text import require_readable, schema_from_json, shown_schema

__all__ = ["TakenTables", "tables_of", "verify_keyed_state", "verify_partitioning"]

_MOST_SHOWN = 10


def tables_of(record: CheckpointRecord) -> list[StateTableInfo]:
    """Every table of keyed state that has an operator, each once."""
    states = (region.keyed_state for region in record.regions)
    tables = (table for state in states if state is not None for table in state.tables)
    return list(
        {(table.operator_id, table.name): table for table in tables if table.operator_id}.values()
    )


def verify_keyed_state(record: CheckpointRecord, plan: JobPlan) -> None:
    """Check that the job's functions read the keyed state of a record.

    Raises:
        WrongJobError: a function with state is gone, or its state is of another kind or key.
        ConfigError: the value of a state has another schema, and it is not the old one with
            nullable columns at the end. Or a new state has the number of another one.
    """
    declared, recorded = _declared(plan), tables_of(record)
    names = {node.operator_id: node.name for node in (*record.graph, *plan.graph)}
    _require_free_numbers(record, declared, names)
    lost = []
    for table in recorded:
        now = declared.get((table.operator_id, table.name))
        if now is None:
            lost.append(f"{names.get(table.operator_id, table.operator_id)}.{table.name}")
        else:
            _require_same(table, now, names)
    if lost:
        raise WrongJobError(
            "the job lacks functions whose keyed state the checkpoint has",
            {
                "job": plan.name,
                "checkpoint_id": record.checkpoint_id,
                "states": ",".join(sorted(lost)[:_MOST_SHOWN]),
                "count": len(lost),
            },
            "Declare them again, with the uid or the name that they had. To drop them, restore a "
            "savepoint into an empty directory with allow_non_restored_state=True.",
        )


def verify_partitioning(record: CheckpointRecord, plan: JobPlan) -> None:
    """Check that each function finds its keys where its state is: in the partitions of the input,
    or in those of a repartition topic.

    The operator is known by its kind and name: with a topic before it, it has another id.

    Raises:
        WrongJobError: ``partitioned`` was changed, and the function has state.
    """
    before = {node.operator_id: (node.kind, node.name) for node in record.graph}
    after = {node.operator_id: (node.kind, node.name) for node in plan.graph}
    has_topic = {
        after.get(table.operator_id): bool(region.upstream)
        for region in plan.regions
        for table in region.tables
    }
    for region in record.regions:
        state = region.keyed_state
        if state is None or not state.files:
            continue
        had_topic = bool(state.max_parallelism)
        for table in state.tables:
            operator = before.get(table.operator_id)
            if operator is not None and has_topic.get(operator, had_topic) != had_topic:
                raise WrongJobError(
                    "the state of a keyed function has other partitions than its rows",
                    {
                        "function": operator[1],
                        "checkpoint": _partitioning(has_topic=had_topic),
                        "program": _partitioning(has_topic=not had_topic),
                    },
                    "Use the old value of partitioned in key_by. To change it, start a job with an "
                    "empty checkpoint directory, which reads its input from the beginning.",
                )


def _partitioning(*, has_topic: bool) -> str:
    return "a repartition topic" if has_topic else "partitioned=True"


def _require_free_numbers(
    record: CheckpointRecord,
    declared: Mapping[tuple[str, str], StateTableInfo],
    names: Mapping[str, str],
) -> None:
    """Refuse a new state with the number of another one on record: it would find its entries."""
    states = (region.keyed_state for region in record.regions)
    every = [table for state in states if state is not None for table in state.tables]
    known = {(table.operator_id, table.name) for table in every}
    taken = {table.number: table for table in every}
    for key, now in declared.items():
        if key not in known and (before := taken.get(now.number)) is not None:
            raise ConfigError(
                "a new state has the number of another state in the checkpoint",
                {
                    "operator": names.get(now.operator_id, now.operator_id),
                    "state": now.name,
                    "checkpoint_has": before.name,
                    "number": now.number,
                },
                "Rename the new state. A restore that dropped a state leaves its number taken.",
            )


def _declared(plan: JobPlan) -> dict[tuple[str, str], StateTableInfo]:
    tables = (table for region in plan.regions for table in region.tables)
    return {(table.operator_id, table.name): table for table in tables}


def _require_same(before: StateTableInfo, now: StateTableInfo, names: Mapping[str, str]) -> None:
    where = {
        "operator": names.get(now.operator_id, now.operator_id),
        "operator_id": now.operator_id,
        "state": now.name,
    }
    if before.kind != now.kind:
        raise WrongJobError(
            "a state of a keyed function has another kind than in the checkpoint",
            {**where, "checkpoint": before.kind, "program": now.kind},
            "Use the old kind of state, or give the new state another name.",
        )
    if before.key_schema and now.key_schema and _types(before) != _types(now):
        raise WrongJobError(
            "a keyed function has another key than in the checkpoint",
            {
                **where,
                "checkpoint": shown_schema(before.key_schema),
                "program": shown_schema(now.key_schema),
            },
            "Use the old key. A new key needs new state: give the function another uid or name.",
        )
    if before.value_schema and now.value_schema:
        require_readable(before.value_schema, now.value_schema, where=where)


def _types(table: StateTableInfo) -> list[object]:
    """A column of the key may be renamed: encoded keys have no names."""
    return [field.type for field in schema_from_json(table.key_schema)]


@dataclass(frozen=True, slots=True)
class TakenTables:
    """Gives keyed state the operators, sources and topics of another job.

    Attributes:
        ids: operator ids of the new job by their old ones.
        plan: of the new job.
        topics: new names of topics.
        names: of the old operators, for people.
    """

    ids: Mapping[str, str]
    plan: JobPlan
    topics: Mapping[str, str]
    names: Mapping[str, str]

    def of(self, state: KeyedState | None) -> tuple[KeyedState | None, tuple[str, ...]]:
        """The state that the new job takes over, and what no function takes, for people.

        A table that is dropped keeps its number and has no operator: its entries are in the files,
        and no new table may get them.
        """
        if state is None:
            return None, ()
        declared = _declared(self.plan)
        tables, dropped = [], []
        for table in state.tables:
            operator_id = self.ids.get(table.operator_id, "")
            is_taken = (operator_id, table.name) in declared
            tables.append(replace(table, operator_id=operator_id if is_taken else ""))
            if table.operator_id and not is_taken:
                owner = self.names.get(table.operator_id, table.operator_id)
                dropped.append(f"keyed state {table.name!r} of {owner}")
        if not any(table.operator_id for table in tables):
            return None, tuple(dropped)
        kept = state.of({split.key for split in state.splits if split.source_id in self.ids})
        splits = tuple(
            replace(
                split,
                source_id=self.ids[split.source_id],
                topic=self.topics.get(split.topic, split.topic),
            )
            for split in kept.splits
        )
        return replace(kept, tables=tuple(tables), splits=splits), tuple(dropped)
