"""Checkpoints as plain values for people and scripts: what the command line prints."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sluice.runtime.checkpoint.acceptance import accepted_json
from sluice.runtime.checkpoint.checkpoint_slots import read_slots, slot_name
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.format.committable_kinds import KindRegistry
from sluice.runtime.checkpoint.format.metadata import Repair, by_topic
from sluice.runtime.checkpoint.inspect.schema_text import schemas_of
from sluice.runtime.checkpoint.retention import SlotFacts, facts_of, unfinished
from sluice.runtime.contracts import AcceptedWork, UnsettledWork
from sluice.runtime.errors import (
    DamagedCheckpointError,
    StorageError,
    StreamError,
    UnsupportedFormatError,
)
from sluice.runtime.model.checkpoint_record import (
    RESTORED_OPERATORS,
    Assignment,
    CheckpointRecord,
    RegionRecord,
    RegionStatus,
    StateEntry,
    StateSnapshot,
    Verdict,
)
from sluice.runtime.model.json_values import to_json
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.state.codec.schema_text import shown_schema

__all__ = ["Json", "Slot", "as_json", "created_at", "find_slot", "survey"]

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One line of ``checkpoint list``.

    Attributes:
        checkpoint_id: the slot.
        standing: ``committed``, ``unfinished``, ``decided`` (nothing to commit), ``aborted``,
            ``fencing``, ``superseded``, or ``unreadable``.
        record: of the slot; None if unreadable.
        error: why the record, or a file beside it, is unreadable.
        metadata_bytes: size of ``_metadata``.
        superseded_by: see `CheckpointStore.superseded_by`.
        repairs: number of repairs; a claim on accepted work does not count.
        unsettled, accepted: see `CheckpointStore`.
    """

    checkpoint_id: int
    standing: str
    record: CheckpointRecord | None
    error: str = ""
    metadata_bytes: int = 0
    superseded_by: int | None = None
    repairs: int = 0
    unsettled: tuple[UnsettledWork, ...] = ()
    accepted: tuple[AcceptedWork, ...] = ()


def survey(store: CheckpointStore) -> list[Slot]:
    """Every slot at one moment, ascending; damaged ones included."""
    seen = read_slots(store)
    facts = [
        facts_of(
            record,
            is_committed=store.is_committed(record.checkpoint_id),
            is_superseded=store.is_superseded(record.checkpoint_id),
        )
        for record in seen.values()
        if isinstance(record, CheckpointRecord)
    ]
    standing = _standings(facts)
    return [
        _slot(store, checkpoint_id, standing.get(checkpoint_id, "unreadable"), found)
        for checkpoint_id, found in seen.items()
    ]


def _slot(
    store: CheckpointStore,
    checkpoint_id: int,
    standing: str,
    found: CheckpointRecord | StreamError,
) -> Slot:
    record = found if isinstance(found, CheckpointRecord) else None
    error = "" if isinstance(found, CheckpointRecord) else str(found)
    unsettled: tuple[UnsettledWork, ...] = ()
    accepted: tuple[AcceptedWork, ...] = ()
    repairs = 0
    try:
        unsettled = store.unsettled(checkpoint_id)
        accepted = tuple(store.accepted(checkpoint_id).values())
        repairs = sum(map(_writes_again, store.repairs(checkpoint_id)))
    except (DamagedCheckpointError, UnsupportedFormatError) as damage:
        error = error or str(damage)
    return Slot(
        checkpoint_id=checkpoint_id,
        standing=standing,
        record=record,
        error=error,
        superseded_by=store.superseded_by(checkpoint_id),
        unsettled=unsettled,
        accepted=accepted,
        repairs=repairs,
        metadata_bytes=_metadata_bytes(store, checkpoint_id),
    )


def _metadata_bytes(store: CheckpointStore, checkpoint_id: int) -> int:
    lengths = {e.name: e.length_bytes for e in store.fs.entries(slot_name(checkpoint_id))}
    return lengths.get("_metadata", 0)


def _writes_again(repair: Repair) -> bool:
    return any(entry.payload != lost for lost, entry in repair.replaced)


def _standings(facts: Sequence[SlotFacts]) -> dict[int, str]:
    still_open = unfinished(facts)

    def standing(slot: SlotFacts) -> str:
        if slot.is_superseded:
            return "superseded"
        if slot.verdict is Verdict.ABORTED:
            return "fencing" if slot.is_fencing_record else "aborted"
        if slot.is_committed:
            return "committed"
        has_work = slot.checkpoint_id in still_open and slot.has_committables
        return "unfinished" if has_work else "decided"

    return {slot.checkpoint_id: standing(slot) for slot in facts}


def find_slot(store: CheckpointStore, checkpoint_id: int | None) -> Slot:
    """One slot; without an id the newest decision.

    Raises:
        StorageError: there is no such slot.
        DamagedCheckpointError, UnsupportedFormatError: it cannot be read.
    """
    slots = survey(store)
    decided = [p for p in slots if p.record and p.record.verdict is Verdict.DECIDED]
    wanted = checkpoint_id if checkpoint_id is not None else _newest(decided or slots)
    for slot in slots:
        if slot.checkpoint_id == wanted:
            if slot.record is None:
                store.read(wanted)  # raises the error that `survey` has caught
            return slot
    raise StorageError(
        f"there is no checkpoint {wanted}",
        {"uri": store.uri, "checkpoint_ids": [slot.checkpoint_id for slot in slots]},
        "Choose one of these; other ids were retired or never used.",
    )


def _newest(slots: Sequence[Slot]) -> int | None:
    return max((slot.checkpoint_id for slot in slots), default=None)


# --- as JSON --------------------------------------------------------------------------------------


def as_json(slot: Slot, kinds: KindRegistry) -> Json:
    """All that is known of a slot, as values that `json.dumps` takes."""
    found: Json = {
        "checkpoint_id": slot.checkpoint_id,
        "standing": slot.standing,
        "error": slot.error or None,
        "superseded_by": slot.superseded_by,
        "repairs": slot.repairs,
        "unsettled": to_json(slot.unsettled),
        "accepted": list(map(accepted_json, slot.accepted)),
        "metadata_bytes": slot.metadata_bytes,
    }
    return found if slot.record is None else {**found, **_record(slot.record, kinds)}


def created_at(record: CheckpointRecord) -> str | None:
    """When the record was made, in UTC; None when it does not say."""
    if not record.created_at_ms:
        return None
    moment = datetime.fromtimestamp(record.created_at_ms / 1000, tz=UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%SZ")


def _record(record: CheckpointRecord, kinds: KindRegistry) -> Json:
    names = {node.operator_id: node.name for node in record.graph}
    found: Json = to_json(replace(record, graph=(), regions=(), assignment=None))
    del found["created_at_ms"]
    matches = record.settings.get(RESTORED_OPERATORS, "[]")
    found["settings"] = {k: v for k, v in record.settings.items() if k != RESTORED_OPERATORS}
    return {
        **found,
        "restored_operators": json.loads(matches),
        "created_at": created_at(record),
        "graph": [
            {**to_json(node), "upstream": [names.get(each, each) for each in node.upstream]}
            for node in record.graph
        ],
        "regions": [_region(region, names, kinds) for region in record.regions],
        "assignment": None if record.assignment is None else _assignment(record.assignment, names),
    }


def _assignment(assignment: Assignment, names: Mapping[str, str]) -> Json:
    return {
        "version": assignment.version,
        "regions": {
            region: [
                {
                    "source": names.get(source_id, source_id),
                    "source_id": source_id,
                    "topic": topic,
                    "partitions": partitions,
                }
                for (source_id, topic), partitions in by_topic(keys).items()
            ]
            for region, keys in assignment.regions.items()
        },
    }


def _region(region: RegionRecord, names: Mapping[str, str], kinds: KindRegistry) -> Json:
    skipped = region.status is RegionStatus.SKIPPED
    plain = replace(
        region, splits=(), state=None, committables=(), operator_states=(), keyed_state=None
    )
    keyed = region.keyed_state
    return {
        **to_json(plain),
        "snapshot_id": region.snapshot_id if skipped else None,
        "splits": [
            {"source": names.get(split.source_id, split.source_id), **to_json(split)}
            for split in region.splits
        ],
        "state": None if region.state is None else _state(region.state),
        "keyed_state": None if keyed is None else _keyed_state(keyed, names),
        "committables": [_entry(each, names, kinds) for each in region.committables],
        "operator_states": [_entry(each, names, kinds) for each in region.operator_states],
    }


def _keyed_state(state: KeyedState, names: Mapping[str, str]) -> Json:
    return {
        "max_parallelism": state.max_parallelism,
        "partitions": state.partitions,
        "length_bytes": sum(file.length_bytes for file in state.files),
        "tables": [
            {
                "number": table.number,
                "operator": names.get(table.operator_id, table.operator_id) or "(dropped)",
                "operator_id": table.operator_id,
                "name": table.name,
                "kind": table.kind,
                "key": _schema(table.key_schema),
                "value": _schema(table.value_schema),
            }
            for table in state.tables
        ],
        "files": to_json(state.files),
        "splits": [
            {
                "source": names.get(split.source_id, split.source_id),
                "source_id": split.source_id,
                "topic": split.topic,
                "partition": split.partition,
                "parts": len(split.parts),
                "has_base": any(part.is_base for part in split.parts),
                "length_bytes": sum(part.length for part in split.parts),
            }
            for split in state.splits
        ],
    }


def _schema(text: str) -> str | None:
    try:
        return shown_schema(text) if text else None
    except DamagedCheckpointError:  # the rest of the record is readable
        return text


def _state(state: StateSnapshot) -> Json:
    found: Json = to_json(replace(state, state_schema="", key_schema=""))
    del found["state_schema"], found["key_schema"]
    operators = [{"number": number, "name": name} for number, name in state.operators]
    return {**found, "operators": operators, "schemas": _schemas(state)}


def _schemas(state: StateSnapshot) -> list[dict[str, object]]:
    try:
        return schemas_of(state.state_schema)
    except (ValueError, LookupError, TypeError):  # not Spark's form
        return [{"operator": None, "store": None, "key": None, "value": state.state_schema}]


def _entry(entry: StateEntry, names: Mapping[str, str], kinds: KindRegistry) -> Json:
    content = kinds.describe(entry)
    found: Json = to_json(replace(entry, payload=b""))
    del found["payload"]
    return {
        "operator": names.get(entry.operator_id, entry.operator_id),
        **found,
        "payload_bytes": len(entry.payload),
        "content": None if content is None else dict(content),
    }
