"""``sluice checkpoint``: what a checkpoint directory holds, with the job running or gone.

Only reads, but for `accept-loss` and `clean`. Works from the directory alone; for hdfs it starts a
JVM from PySpark's jars.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from sluice.runtime.checkpoint.acceptance import accepted_as, in_effect
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.format.committable_kinds import installed_kinds
from sluice.runtime.checkpoint.inspect.checkpoint_opening import command_store, split_slot
from sluice.runtime.checkpoint.inspect.clean_command import clean_directory
from sluice.runtime.checkpoint.inspect.inspection import (
    Slot,
    as_json,
    created_at,
    find_slot,
    survey,
)
from sluice.runtime.checkpoint.run_record import RunRecordStore
from sluice.runtime.checkpoint.spark_place import spark_directory_of
from sluice.runtime.cli_output import (
    AsJson,
    CheckpointPath,
    print_facts,
    print_json,
    print_table,
)
from sluice.runtime.contracts import AcceptedAs, CommitOutcome, UnsettledWork
from sluice.runtime.errors import ConfigError, UnsupportedFormatError
from sluice.runtime.model.checkpoint_record import RegionStatus

__all__ = ["app", "print_checkpoint"]

_KEYED_COLUMNS: Mapping[str, Sequence[str]] = {
    "tables": ("number", "operator", "name", "kind", "key", "value"),
    "splits": ("source", "topic", "partition", "parts", "has_base", "length_bytes"),
    "files": ("path", "length_bytes", "sha256"),
}

app = typer.Typer(help="Show a checkpoint directory, and clean it.", no_args_is_help=True)
app.command("clean")(clean_directory)


@app.command("list")
def list_checkpoints(path: CheckpointPath, *, as_json_text: AsJson = False) -> None:
    """List all checkpoints: state, committed or not, size."""
    uri, _ = split_slot(path)
    with command_store(uri) as store:
        slots = survey(store)
        header = _header(store, slots)
    if as_json_text:
        kinds = installed_kinds()
        print_json({**header, "checkpoints": [as_json(slot, kinds) for slot in slots]})
        return
    print_facts(header)
    _print_slots(slots)
    for slot in slots:
        if slot.error:
            typer.echo(f"{slot.checkpoint_id}: {slot.error}")


@app.command("accept-loss")
def accept_loss(
    path: CheckpointPath,
    checkpoint_id: Annotated[
        int, typer.Option("--id", min=0, help="Checkpoint id in the error that stopped the job.")
    ],
    *,
    unknown_as: Annotated[
        AcceptedAs | None,
        typer.Option("--unknown-as", help="How to treat transactions that Kafka no longer knows."),
    ] = None,
) -> None:
    """Let the next start continue after a decision with lost transactions.

    The command prints what the last error named, and accepts only this. A start that finds another
    loss stops again. The next start commits the rest of the checkpoint and does not write lost
    records again. Write the needed ones yourself before you start the job.

    After a transaction's id has expired, Kafka no longer knows whether the transaction committed.
    Look for its records in the output, then use --unknown-as.
    """
    uri, _ = split_slot(path)
    with command_store(uri) as store:
        slot = find_slot(store, checkpoint_id)
        works = _named_works(store, slot)
        _require_outcome(store, slot, works, unknown_as)
        accepted = [(work, each) for work in works if (each := accepted_as(work, unknown_as))]
        store.accept(checkpoint_id, [each for _, each in accepted])
    columns = ("region", "outcome", "accepted as", "source ranges", "detail")
    rows = [
        (work.region, work.outcome.value, each.accepted_as.value, list(work.ranges), work.detail)
        for work, each in accepted
    ]
    print_table(columns, rows, title=f"Accepted of checkpoint {checkpoint_id}")
    typer.echo(
        "Only this work no longer stops a start. The next start commits the rest, logs these "
        "ranges, and continues. If you need lost records, write them before you start the job."
    )


def _require_outcome(
    store: CheckpointStore,
    slot: Slot,
    works: Iterable[UnsettledWork],
    unknown_as: AcceptedAs | None,
) -> None:
    """Require ``unknown_as`` exactly if the outcome of some work is unknown.

    Raises:
        ConfigError: it is missing, or not needed.
    """
    where: dict[str, object] = {"uri": store.uri, "checkpoint_id": slot.checkpoint_id}
    unknown = [work for work in works if work.outcome is CommitOutcome.UNKNOWN]
    if unknown and unknown_as is None:
        facts = {
            "ranges": " ".join(sorted({each for work in unknown for each in work.ranges})),
            "details": "; ".join(sorted({work.detail for work in unknown if work.detail})),
        }
        raise ConfigError(
            "acceptance needs the outcome of work that may be visible",
            {**where, **facts},
            "Search the output for the records of these ranges, for example with 'sluice verify "
            "--findings FILE', which lists missing records as lost. Then pass --unknown-as "
            "committed, or --unknown-as lost if none of them is there.",
        )
    if unknown_as is not None and not unknown:
        raise ConfigError(
            "all work of this checkpoint is certainly lost: no outcome is unknown",
            where,
            "Omit --unknown-as.",
        )


def _named_works(store: CheckpointStore, slot: Slot) -> tuple[UnsettledWork, ...]:
    """The work of a decision that the last error has named and no repair has replaced since.

    Raises:
        ConfigError: the decision is settled, or no error has named its work.
        DamagedCheckpointError, UnsupportedFormatError: the list cannot be read.
    """
    where = {"uri": store.uri, "checkpoint_id": slot.checkpoint_id, "standing": slot.standing}
    if slot.standing != "unfinished" or slot.record is None:
        raise ConfigError(
            "there is no loss to accept: the checkpoint has no open work",
            where,
            "Give the id that TransactionLostError or TransactionUnknownError names.",
        )
    standing = store.effective_committables(slot.record)
    works = in_effect(store.unsettled(slot.checkpoint_id), standing)
    if not works:
        raise ConfigError(
            "there is no loss to accept: no error has named this checkpoint",
            where,
            "Start the job: it commits all it can, and records the lost work.",
        )
    return works


def _header(store: CheckpointStore, slots: Sequence[Slot]) -> dict[str, object]:
    record = next((slot.record for slot in reversed(slots) if slot.record), None)
    try:
        leader = RunRecordStore(store.fs).current()
    except UnsupportedFormatError:  # a later Sluice runs the job; its checkpoints may be readable
        leader = None
    return {
        "uri": store.uri,
        **({"spark_checkpoint_dir": spark} if (spark := spark_directory_of(store.fs)) else {}),
        "job_name": record.job_name if record else None,
        "job_uid": record.job_uid if record else None,
        "last_leader": leader.leader_session_id if leader else None,
        "next_checkpoint_id": slots[-1].checkpoint_id + 1,
    }


def _print_slots(slots: Sequence[Slot]) -> None:
    columns = ("id", "standing", "kind", "requested by", "created", "regions", "commit", "bytes")
    print_table(columns, map(_list_row, slots), title="Checkpoints")


def _list_row(slot: Slot) -> Sequence[object]:
    record = slot.record
    standing = slot.standing
    if slot.superseded_by is not None:
        standing += f" by {slot.superseded_by}"
    if slot.repairs:
        standing += f", {slot.repairs} repair(s)"
    if slot.accepted:
        standing += ", accepted"
    elif slot.unsettled:
        standing += ", lost or unknown"
    if record is None:
        return (slot.checkpoint_id, standing, None, None, None, None, None, slot.metadata_bytes)
    skipped = sum(region.status is RegionStatus.SKIPPED for region in record.regions)
    regions = f"{len(record.regions)}" + (f" ({skipped} skipped)" if skipped else "")
    return (
        slot.checkpoint_id,
        standing,
        record.kind.value,
        record.requested_by,
        created_at(record),
        regions,
        len(record.committables),
        slot.metadata_bytes,
    )


def print_checkpoint(found: Mapping[str, Any]) -> None:
    """Print a slot, as `as_json` describes it."""
    nested = ("graph", "regions", "unsettled", "accepted", "restored_operators")
    print_facts({name: value for name, value in found.items() if name not in nested})
    columns = ("name", "kind", "upstream", "parallelism", "operator_id")
    nodes = [{**node, "parallelism": node["parallelism"] or "by Spark"} for node in found["graph"]]
    _print_dicts(nodes, columns, title="Operators")
    for name in ("restored_operators", "unsettled", "accepted"):
        if found[name]:
            title = name.replace("_", " ").capitalize()
            _print_dicts(found[name], tuple(found[name][0]), title=title)
    for region in found["regions"]:
        _print_region(region)


def _print_region(region: Mapping[str, Any]) -> None:
    nested = ("splits", "state", "keyed_state", "committables", "operator_states")
    print_facts({name: value for name, value in region.items() if name not in nested})
    splits = (
        "source",
        "topic",
        "partition",
        "start_offset",
        "end_offset",
        "topic_id",
    )
    _print_dicts(region["splits"], splits, title="Offsets")
    if region["state"]:
        _print_state(region["state"])
    if region["keyed_state"]:
        _print_keyed_state(region["keyed_state"])
    for name in ("committables", "operator_states"):
        if region[name]:
            columns = ("operator", "state", "kind", "bytes", "content")
            print_table(columns, _rows(region[name]), title=name.replace("_", " ").capitalize())


def _print_state(state: Mapping[str, Any]) -> None:
    nested = ("schemas", "tables", "files")
    files = len(state["files"])
    facts = {name: value for name, value in state.items() if name not in nested}
    print_facts({"state": None, **facts, "files": files})
    _print_dicts(state["schemas"], ("operator", "store", "key", "value"), title="State schemas")
    for table in state.get("tables", ()):
        title = f"State of {table['operator']}-{table['operator_name']} {table['name']}"
        _print_rows(table["rows"], title=title.rstrip())


def _print_keyed_state(state: Mapping[str, Any]) -> None:
    nested = ("tables", "splits", "files")
    facts = {name: value for name, value in state.items() if name not in nested}
    print_facts({"keyed state": None, **facts, "files": len(state["files"])})
    for name, columns in _KEYED_COLUMNS.items():
        _print_dicts(state[name], columns, title=f"{name.capitalize()} of keyed state")
    for table in state["tables"]:
        if "rows" in table:
            _print_rows(table["rows"], title=f"State {table['name']} of {table['operator']}")


def _print_rows(rows: Sequence[Mapping[str, Any]], *, title: str) -> None:
    columns = list(rows[0]) if rows else ["no rows"]
    print_table(columns, [[json.dumps(v) for v in row.values()] for row in rows], title=title)


def _print_dicts(
    rows: Iterable[Mapping[str, object]], columns: Sequence[str], *, title: str
) -> None:
    heads = [column.replace("_", " ") for column in columns]
    print_table(heads, [[row[column] for column in columns] for row in rows], title=title)


def _rows(entries: Iterable[Mapping[str, Any]]) -> Iterable[Sequence[object]]:
    for entry in entries:
        kind = f"{entry['kind']} v{entry['version']}"
        content = entry["content"] if entry["content"] is not None else "(unknown kind)"
        yield entry["operator"], entry["state_name"], kind, entry["payload_bytes"], content
