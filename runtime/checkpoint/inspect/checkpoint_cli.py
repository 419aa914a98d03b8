"""``sluice checkpoint``: shows the content of a checkpoint directory, with or without its job.

Only `accept-loss` writes. The commands need nothing but the directory; for hdfs they start a JVM
from PySpark's jars.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from sluice.runtime.checkpoint.acceptance import accepted_as, in_effect
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.format.committable_kinds import installed_kinds
from sluice.runtime.checkpoint.inspect.checkpoint_opening import command_store, split_slot
from sluice.runtime.checkpoint.inspect.inspection import (
    Slot,
    as_json,
    created_at,
    find_slot,
    survey,
)
from sluice.runtime.checkpoint.run_record import RunRecordStore
from sluice.runtime.contracts import AcceptedAs, CommitOutcome, UnsettledWork
from sluice.runtime.errors import ConfigError, UnsupportedFormatError
from sluice.runtime.model.model import RegionStatus

__all__ = ["app"]

_PIPE_COLUMNS = 160

app = typer.Typer(help="Inspect a checkpoint directory.", no_args_is_help=True)

_Path = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="Checkpoint directory: a path, file: or hdfs:. "
        "Also the checkpointLocation of a drop-in query.",
    ),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@app.command("list")
def list_checkpoints(path: _Path, *, as_json_text: _AsJson = False) -> None:
    """List every checkpoint: its verdict, whether it is committed, and its size."""
    uri, _ = split_slot(path)
    with command_store(uri) as store:
        slots = survey(store)
        header = _header(store, slots)
    if as_json_text:
        kinds = installed_kinds()
        _print_json({**header, "checkpoints": [as_json(slot, kinds) for slot in slots]})
        return
    console = _console()
    _print_facts(console, header)
    console.print(_list_table(slots))
    for slot in slots:
        if slot.error:
            console.print(f"{slot.checkpoint_id}: {slot.error}", markup=False)


@app.command("inspect")
def inspect_checkpoint(
    path: _Path,
    checkpoint_id: Annotated[
        int | None,
        typer.Option("--id", min=0, help="Checkpoint id; default: of PATH, else the newest."),
    ] = None,
    *,
    as_json_text: _AsJson = False,
) -> None:
    """Show one checkpoint in full: graph, offsets of each split, committables, state."""
    uri, named = split_slot(path)
    with command_store(uri) as store:
        slot = find_slot(store, checkpoint_id if checkpoint_id is not None else named)
    found = as_json(slot, installed_kinds())
    if as_json_text:
        _print_json(found)
    else:
        _print_checkpoint(_console(), found)


@app.command("accept-loss")
def accept_loss(
    path: _Path,
    checkpoint_id: Annotated[
        int, typer.Option("--id", min=0, help="Checkpoint id of the error that stopped the job.")
    ],
    *,
    unknown_as: Annotated[
        AcceptedAs | None,
        typer.Option("--unknown-as", help="Outcome of the work that is unknown to Kafka."),
    ] = None,
) -> None:
    """Let the next start continue after a decision that cannot be committed as a whole.

    The command accepts the work that the last error has named, and prints it. A start that finds
    more work lost stops again. The start commits the rest. It does not write accepted work again,
    so use this only if on_lost="repair" cannot write it. To keep the order of records, write them
    yourself before you start the job.

    If a transactional id has expired, or was used again, Kafka no longer knows whether readers see
    the transaction. Then search the output for its records, and pass --unknown-as.
    """
    uri, _ = split_slot(path)
    with command_store(uri) as store:
        slot = find_slot(store, checkpoint_id)
        works = _named_works(store, slot)
        _require_outcome(store, slot, works, unknown_as)
        accepted = [(work, each) for work in works if (each := accepted_as(work, unknown_as))]
        store.accept(checkpoint_id, [each for _, each in accepted])
    console = _console()
    columns = ("region", "outcome", "accepted as", "source ranges", "detail")
    rows = [
        (work.region, work.outcome.value, each.accepted_as.value, list(work.ranges), work.detail)
        for work, each in accepted
    ]
    console.print(_table(f"Accepted of checkpoint {checkpoint_id}", columns, rows))
    console.print(
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
            "some of the work may or may not be visible: its outcome is needed",
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
        "job_name": record.job_name if record else None,
        "job_uid": record.job_uid if record else None,
        "last_leader": leader.leader_session_id if leader else None,
        "next_checkpoint_id": slots[-1].checkpoint_id + 1,
    }


# --- printing -------------------------------------------------------------------------------------


def _console() -> Console:
    """As wide as the terminal; a pipe gets lines that fit a whole row."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_COLUMNS)


def _print_json(value: Mapping[str, object]) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _print_facts(console: Console, facts: Mapping[str, object]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value not in (None, "", [], {}):
            table.add_row(name, _plain(value))
    console.print(table)


def _table(title: str, columns: Iterable[str], rows: Iterable[Sequence[object]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(_plain, row))
    return table


def _plain(value: object) -> str:
    """Text for a cell; brackets in names are no markup."""
    return _text(value).replace("[", r"\[")


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_text(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return str(value)


def _list_table(slots: Sequence[Slot]) -> Table:
    columns = ("id", "standing", "kind", "requested by", "created", "regions", "commit", "bytes")
    return _table("Checkpoints", columns, map(_list_row, slots))


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


def _print_checkpoint(console: Console, found: Mapping[str, Any]) -> None:
    nested = ("graph", "regions", "unsettled", "accepted")
    _print_facts(console, {name: value for name, value in found.items() if name not in nested})
    console.print(
        _table(
            "Operators",
            ("name", "kind", "upstream", "parallelism", "operator id"),
            (
                (
                    n["name"],
                    n["kind"],
                    n["upstream"],
                    n["parallelism"] or "by Spark",
                    n["operator_id"],
                )
                for n in found["graph"]
            ),
        )
    )
    for name in ("unsettled", "accepted"):
        if found[name]:
            columns = tuple(found[name][0])
            rows = [tuple(work.values()) for work in found[name]]
            console.print(_table(name.capitalize(), columns, rows))
    for region in found["regions"]:
        _print_region(console, region)


def _print_region(console: Console, region: Mapping[str, Any]) -> None:
    nested = ("splits", "state", "committables", "operator_states")
    _print_facts(console, {name: value for name, value in region.items() if name not in nested})
    console.print(
        _table(
            "Offsets",
            ("source", "topic", "partition", "start", "end", "topic id"),
            (
                [s[key] for key in ("source", "topic", "partition", "start_offset", "end_offset")]
                + [s["topic_id"]]
                for s in region["splits"]
            ),
        )
    )
    if region["state"]:
        _print_facts(console, {"state": None, **region["state"]})
    for title in ("committables", "operator_states"):
        if region[title]:
            console.print(
                _table(title.replace("_", " ").capitalize(), _COLUMNS, _rows(region[title]))
            )


_COLUMNS = ("operator", "state", "kind", "bytes", "content")


def _rows(entries: Iterable[Mapping[str, Any]]) -> Iterable[Sequence[object]]:
    for entry in entries:
        kind = f"{entry['kind']} v{entry['version']}"
        content = entry["content"] if entry["content"] is not None else "(kind not known here)"
        yield entry["operator"], entry["state_name"], kind, entry["payload_bytes"], content
