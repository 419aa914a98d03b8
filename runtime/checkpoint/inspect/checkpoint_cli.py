"""``sluice checkpoint``: what a checkpoint directory holds, with the job running or gone.

Only reads, but for `accept-loss`. Works from the directory alone; for hdfs it starts a JVM from
PySpark's jars.
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
from sluice.runtime.checkpoint.inspect.checkpoint_opening import command_store, split_place
from sluice.runtime.checkpoint.inspect.inspection import Place, as_json, created_at, look_at, survey
from sluice.runtime.checkpoint.run_record import RunRecordStore
from sluice.runtime.contracts import AcceptedAs, CommitOutcome, UnsettledWork
from sluice.runtime.errors import ConfigError, UnsupportedFormatError
from sluice.runtime.model.model import RegionStatus

__all__ = ["app"]

_PIPE_COLUMNS = 160

app = typer.Typer(help="Look into a checkpoint directory.", no_args_is_help=True)

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
    """Every checkpoint: what was decided, whether it is committed, how large it is."""
    uri, _ = split_place(path)
    with command_store(uri) as store:
        places = survey(store)
        header = _header(store, places)
    if as_json_text:
        kinds = installed_kinds()
        _print_json({**header, "checkpoints": [as_json(place, kinds) for place in places]})
        return
    console = _console()
    _print_facts(console, header)
    console.print(_list_table(places))
    for place in places:
        if place.error:
            console.print(f"{place.checkpoint_id}: {place.error}", markup=False)


@app.command("inspect")
def inspect_checkpoint(
    path: _Path,
    checkpoint_id: Annotated[
        int | None,
        typer.Option("--id", min=0, help="Which one; default: PATH's, else the newest decision."),
    ] = None,
    *,
    as_json_text: _AsJson = False,
) -> None:
    """One checkpoint in full: graph, offsets per split, committables, state."""
    uri, named = split_place(path)
    with command_store(uri) as store:
        place = look_at(store, checkpoint_id if checkpoint_id is not None else named)
    found = as_json(place, installed_kinds())
    if as_json_text:
        _print_json(found)
    else:
        _print_checkpoint(_console(), found)


@app.command("accept-loss")
def accept_loss(
    path: _Path,
    checkpoint_id: Annotated[
        int, typer.Option("--id", min=0, help="As the error names it that stopped the job.")
    ],
    *,
    unknown_as: Annotated[
        AcceptedAs | None,
        typer.Option("--unknown-as", help="What became of that of which nobody can tell."),
    ] = None,
) -> None:
    """Let the next start go on behind a decision that cannot be committed as a whole.

    Accepted is what the last error has named, and this command names once more; a start that finds
    more of it lost stops again. The rest is committed. What is lost is not written again: only for
    what on_lost="repair" cannot write; do that by hand before the job starts, for order.

    Of a transaction whose id has expired, or was used again, Kafka cannot tell whether readers see
    it. Then look for its records, and say it.
    """
    uri, _ = split_place(path)
    with command_store(uri) as store:
        place = look_at(store, checkpoint_id)
        works = _named_works(store, place)
        _require_told(store, place, works, unknown_as)
        words = [(work, said) for work in works if (said := accepted_as(work, unknown_as))]
        store.accept(checkpoint_id, [said for _, said in words])
    console = _console()
    columns = ("region", "outcome", "taken as", "source ranges", "detail")
    rows = [
        (work.region, work.outcome.value, said.accepted_as.value, list(work.ranges), work.detail)
        for work, said in words
    ]
    console.print(_table(f"Accepted of checkpoint {checkpoint_id}", columns, rows))
    console.print(
        "This, and nothing else, no longer holds up a start: the next one commits the rest, logs "
        "these ranges, and goes on. Write what is needed of what is lost by hand before it."
    )


def _require_told(
    store: CheckpointStore,
    place: Place,
    works: Iterable[UnsettledWork],
    unknown_as: AcceptedAs | None,
) -> None:
    """A person's word is needed for what nobody can tell, and for nothing else.

    Raises:
        ConfigError: it is missing, or too much.
    """
    where: dict[str, object] = {"uri": store.uri, "checkpoint_id": place.checkpoint_id}
    unknown = [work for work in works if work.outcome is CommitOutcome.UNKNOWN]
    if unknown and unknown_as is None:
        told = {
            "ranges": " ".join(sorted({each for work in unknown for each in work.ranges})),
            "details": "; ".join(sorted({work.detail for work in unknown if work.detail})),
        }
        raise ConfigError(
            "of some of it nobody can tell whether readers see it, so somebody has to look",
            {**where, **told},
            "Look for the records of these ranges in the output, for example by 'sluice verify "
            "--findings FILE', which lists those that are missing as lost. Then say --unknown-as "
            "committed, or --unknown-as lost if none of them is there.",
        )
    if unknown_as is not None and not unknown:
        raise ConfigError(
            "all that was named of this checkpoint is certainly lost: there is nothing to tell",
            where,
            "Leave --unknown-as out.",
        )


def _named_works(store: CheckpointStore, place: Place) -> tuple[UnsettledWork, ...]:
    """What the last error has named of a decision, as far as it has not been repaired since.

    Raises:
        ConfigError: it is settled, or nothing is on record.
        DamagedCheckpointError, UnsupportedFormatError: what is on record cannot be read.
    """
    where = {"uri": store.uri, "checkpoint_id": place.checkpoint_id, "standing": place.standing}
    if place.standing != "unfinished" or place.record is None:
        raise ConfigError(
            "there is no loss to accept: this checkpoint is not a decision with open work",
            where,
            "Give the id that TransactionLostError or TransactionUnknownError names.",
        )
    standing = store.effective_committables(place.record)
    works = in_effect(store.unsettled(place.checkpoint_id), standing)
    if not works:
        raise ConfigError(
            "there is no loss to accept: no error has named any of this checkpoint yet",
            where,
            "Start the job: it commits what it can, and puts what is lost on record.",
        )
    return works


def _header(store: CheckpointStore, places: Sequence[Place]) -> dict[str, object]:
    record = next((place.record for place in reversed(places) if place.record), None)
    try:
        leader = RunRecordStore(store.fs).current()
    except UnsupportedFormatError:  # a later Sluice runs the job; its checkpoints may be readable
        leader = None
    return {
        "uri": store.uri,
        "job_name": record.job_name if record else None,
        "job_uid": record.job_uid if record else None,
        "last_leader": leader.leader_session_id if leader else None,
        "next_checkpoint_id": places[-1].checkpoint_id + 1,
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


def _list_table(places: Sequence[Place]) -> Table:
    columns = ("id", "standing", "kind", "asked by", "created", "regions", "commit", "bytes")
    return _table("Checkpoints", columns, map(_list_row, places))


def _list_row(place: Place) -> Sequence[object]:
    record = place.record
    standing = place.standing
    if place.superseded_by is not None:
        standing += f" by {place.superseded_by}"
    if place.repairs:
        standing += f", {place.repairs} repair(s)"
    if place.accepted:
        standing += ", accepted"
    elif place.unsettled:
        standing += ", lost or unknown"
    if record is None:
        return (place.checkpoint_id, standing, None, None, None, None, None, place.metadata_bytes)
    skipped = sum(region.status is RegionStatus.SKIPPED for region in record.regions)
    regions = f"{len(record.regions)}" + (f" ({skipped} carried)" if skipped else "")
    return (
        place.checkpoint_id,
        standing,
        record.kind.value,
        record.requested_by,
        created_at(record),
        regions,
        len(record.committables),
        place.metadata_bytes,
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
