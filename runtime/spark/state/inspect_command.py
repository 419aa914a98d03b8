"""``sluice checkpoint inspect``: one checkpoint or savepoint, and the rows of its state."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from sluice.runtime.checkpoint.checkpoint_slots import METADATA, slot_name
from sluice.runtime.checkpoint.format.committable_kinds import installed_kinds
from sluice.runtime.checkpoint.format.metadata import decode
from sluice.runtime.checkpoint.inspect.checkpoint_cli import print_checkpoint
from sluice.runtime.checkpoint.inspect.checkpoint_opening import (
    command_file_systems,
    split_slot,
    store_at,
)
from sluice.runtime.checkpoint.inspect.inspection import Json, Slot, as_json, find_slot
from sluice.runtime.cli_output import AsJson, print_json
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import CheckpointRecord, OperatorNode
from sluice.runtime.storage.file_system import OpenFileSystem

__all__ = ["inspect_checkpoint"]

_TRANSFORM = "transform"


def inspect_checkpoint(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Checkpoint directory, DIR/chk-…, a savepoint, or DIR/full/chk-…. Also the "
            "checkpointLocation of a drop-in query.",
        ),
    ],
    checkpoint_id: Annotated[
        int | None,
        typer.Option(
            "--id", min=0, help="Checkpoint id; default: that of PATH, else the newest decision."
        ),
    ] = None,
    *,
    operator: Annotated[
        str | None,
        typer.Option("--operator", help="Only this operator: its uid, its id or its name."),
    ] = None,
    state: Annotated[
        bool,
        typer.Option(
            "--state",
            help="Also rows of state. For Spark's state it starts a Spark on this machine.",
        ),
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Rows of each table of state.")] = 20,
    as_json_text: AsJson = False,
) -> None:
    """Show one checkpoint or savepoint: graph, offsets of splits, committables, state."""
    with command_file_systems() as open_at:
        uri, slot = _slot_at(path, checkpoint_id, open_at)
        found = as_json(slot, installed_kinds())
        record = slot.record
        if record is not None:
            chosen = None if operator is None else _operator_of(record, operator)
            _restrict(found, record, chosen)
            if state:
                _add_keyed_rows(found, record, uri, open_at, limit=limit)
    if record is not None and state:
        _add_rows(found, record, uri, limit=limit)
    if as_json_text:
        print_json(found)
    else:
        print_checkpoint(found)


def _slot_at(path: str, checkpoint_id: int | None, open_at: OpenFileSystem) -> tuple[str, Slot]:
    """The URI of a savepoint or checkpoint, and its record."""
    uri, named = split_slot(path)
    root = uri.rstrip("/").removesuffix(f"/{METADATA}")
    data = open_at(root).read(METADATA) if named is None else None
    if data is None:
        store = store_at(uri, open_at)
        slot = find_slot(store, checkpoint_id if checkpoint_id is not None else named)
        return f"{store.uri}/{slot_name(slot.checkpoint_id)}", slot
    where = {"uri": open_at(root).uri, "path": METADATA}
    record = decode(data, where=where)
    if checkpoint_id not in (None, record.checkpoint_id):
        raise ConfigError(
            "a savepoint has one checkpoint, and not this one",
            {**where, "id": checkpoint_id, "checkpoint_id": record.checkpoint_id},
            "Leave out --id.",
        )
    slot = Slot(
        checkpoint_id=record.checkpoint_id,
        standing=record.kind.value,
        record=record,
        metadata_bytes=len(data),
    )
    return root, slot


def _operator_of(record: CheckpointRecord, wanted: str) -> OperatorNode:
    """By uid, else by id, else by name.

    Raises:
        ConfigError: there is none, or several have the name.
    """
    for key in ("uid", "operator_id", "name"):
        found = [node for node in record.graph if getattr(node, key) == wanted]
        if len(found) == 1:
            return found[0]
    raise ConfigError(
        "the checkpoint has no such operator, or several of this name",
        {
            "operator": wanted,
            "checkpoint_id": record.checkpoint_id,
            "operators": ", ".join(f"{node.name} ({node.operator_id})" for node in record.graph),
        },
        "Choose one of these by its id.",
    )


def _restrict(found: Json, record: CheckpointRecord, chosen: OperatorNode | None) -> None:
    """Remove from ``found`` what belongs to other operators."""
    if chosen is None:
        return
    graph: Any = found["graph"]
    found["graph"] = [node for node in graph if node["operator_id"] == chosen.operator_id]
    regions: Any = found["regions"]
    sources = _sources_of(record, chosen)
    for region in regions:
        is_upstream = any(split["source_id"] in sources for split in region["splits"])
        if chosen.kind != _TRANSFORM or not is_upstream:
            region["state"] = None
        for name, key in (
            ("splits", "source_id"),
            ("committables", "operator_id"),
            ("operator_states", "operator_id"),
        ):
            region[name] = [each for each in region[name] if each[key] == chosen.operator_id]
        if (keyed := region["keyed_state"]) is not None:
            keyed["tables"] = [t for t in keyed["tables"] if t["operator_id"] == chosen.operator_id]
            if not keyed["tables"]:
                region["keyed_state"] = None


def _sources_of(record: CheckpointRecord, node: OperatorNode) -> set[str]:
    """The operator and all above it."""
    upstream: Mapping[str, Sequence[str]] = {
        each.operator_id: each.upstream for each in record.graph
    }
    found: set[str] = set()
    ahead = [node.operator_id]
    while ahead:
        each = ahead.pop()
        if each not in found:
            found.add(each)
            ahead.extend(upstream.get(each, ()))
    return found


def _add_keyed_rows(
    found: Json, record: CheckpointRecord, uri: str, open_at: OpenFileSystem, *, limit: int
) -> None:
    """Add ``rows`` to each table of keyed state."""
    # Arrow and the operators take a while to load, and only this option needs them.
    from sluice.runtime.savepoint.keyed_rows import first_rows, local_state
    from sluice.runtime.savepoint.savepoint import Savepoint

    parent, _ = split_slot(uri)
    savepoint = Savepoint(uri=uri, fs=open_at(parent), record=record)
    regions: Any = found["regions"]
    for shown, region in zip(regions, record.regions, strict=True):
        state = region.keyed_state
        if shown["keyed_state"] is None or state is None:
            continue
        wanted = {table["number"] for table in shown["keyed_state"]["tables"]}
        tables = [table for table in state.tables if table.number in wanted]
        with local_state(savepoint, state.files) as store:
            rows = first_rows(store, state, tables, limit=limit)
        for table in shown["keyed_state"]["tables"]:
            table["rows"] = rows[table["number"]]


def _add_rows(found: Json, record: CheckpointRecord, uri: str, *, limit: int) -> None:
    """Add ``tables`` to Spark's state of each region."""
    regions: Any = found["regions"]
    if not any(shown["state"] for shown in regions):
        return
    # pyspark takes a second, and only this option needs it.
    from sluice.runtime.savepoint.savepoint import open_savepoint
    from sluice.runtime.spark.state.command_session import command_spark, state_session
    from sluice.runtime.spark.state.readable_state import readable_location
    from sluice.runtime.spark.state.stored_state import StoredState

    with command_spark() as spark:
        savepoint = open_savepoint(uri, jvm=spark.sparkContext._jvm)  # noqa: SLF001 - not public
        for shown, region in zip(regions, record.regions, strict=True):
            if shown["state"] is None or region.state is None or region.batch_id is None:
                continue
            with (
                readable_location(savepoint, region.region, region.state) as location,
                state_session(spark, region.state) as session,
            ):
                stored = StoredState(session, location, region.batch_id)
                shown["state"]["tables"] = [
                    {
                        "operator": table.operator,
                        "operator_name": table.operator_name,
                        "name": table.name,
                        "rows": stored.rows(table, limit=limit),
                    }
                    for table in stored.tables()
                ]
