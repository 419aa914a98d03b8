"""``sluice txn``: a job's transactions, seen and ended from its checkpoint directory alone.

For the hour in which the job is gone and readers are held back. Ending goes by the same committer
and the same verdicts as the job's own recovery, so doing it by hand before, after or beside a
restart changes nothing that the restart would not do. One thing it cannot do as a restart does: a
job that is suspended, and not gone, is not kept from deciding later.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from sluice.connectors.kafka.tools.connection_options import (
    BOOTSTRAP_NAMES,
    Config,
    ConfigFile,
    read_options,
)
from sluice.connectors.kafka.tools.txn.txn_session import (
    TransactionSession,
    abort_by_hand,
    commit_by_hand,
    open_session,
)
from sluice.connectors.kafka.tools.txn.txn_survey import TransactionLine
from sluice.runtime.contracts import CommitOutcome, CommitReport

__all__ = ["app"]

app = typer.Typer(
    help="List, commit and abort a job's Kafka transactions without the job.", no_args_is_help=True
)

_Path = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="Checkpoint directory: a path, file: or hdfs:. "
        "Also the checkpointLocation of a drop-in query.",
    ),
]
_Ids = Annotated[
    list[str] | None, typer.Argument(metavar="TRANSACTIONAL_ID", help="Left out: all.")
]
_Bootstrap = Annotated[
    str | None, typer.Option(*BOOTSTRAP_NAMES, help="Kafka servers; default: those on record.")
]
_Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds for the cluster.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
_Force = Annotated[
    bool, typer.Option("--force", help="Do it although it may lose or double records.")
]


@app.command("list")
def list_transactions(
    path: _Path,
    *,
    bootstrap: _Bootstrap = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout_s: _Timeout = 15.0,
    everything: Annotated[
        bool, typer.Option("--all", help="Include committed transactions and idle ids.")
    ] = False,
    as_json: _AsJson = False,
) -> None:
    """List decided transactions to commit, and open ones that no decision names."""
    with _open(path, bootstrap, config, config_file, timeout_s) as job:
        shown = [line for line in job.lines if everything or _matters(line)]
        if as_json:
            _print_json(
                {"transactions": [_as_json(line) for line in shown], "missing": job.missing}
            )
            return
        if shown:
            _print_lines(shown)
        elif not (everything or job.missing):
            typer.echo("no transaction waits for its end; --all shows the others")
        for place in job.missing:
            typer.echo(f"not seen: {place} did not answer", err=True)


@app.command()
def describe(
    path: _Path,
    transactional_id: Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID")],
    *,
    bootstrap: _Bootstrap = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout_s: _Timeout = 15.0,
    as_json: _AsJson = False,
) -> None:
    """Show one transaction: its states, its records and its source ranges."""
    with _open(path, bootstrap, config, config_file, timeout_s) as job:
        (line,) = job.chosen([transactional_id])
        facts = _as_json(line)
    if as_json:
        _print_json(facts)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value not in (None, [], ""):
            table.add_row(name, _cell(value))
    _console().print(table)


@app.command()
def commit(
    path: _Path,
    ids: _Ids = None,
    *,
    bootstrap: _Bootstrap = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout_s: _Timeout = 30.0,
    force: _Force = False,
    as_json: _AsJson = False,
) -> None:
    """Commit decided transactions: the given ids, or all that are not committed yet.

    The checkpoint directory is left as it is; the job's next start finds them committed.
    """
    with _open(path, bootstrap, config, config_file, timeout_s) as job:
        reports = commit_by_hand(job, ids or (), force=force, timeout_s=timeout_s)
    _print_reports(reports, as_json=as_json)
    _exit_unless(reports, CommitOutcome.COMMITTED)


@app.command()
def abort(
    path: _Path,
    ids: _Ids = None,
    *,
    bootstrap: _Bootstrap = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout_s: _Timeout = 30.0,
    force: _Force = False,
    as_json: _AsJson = False,
) -> None:
    """Abort transactions that no decision names: the given ids, or all open ones. Unblocks readers.

    End a job that is suspended first: it would count as gone, and on waking might still decide.
    """
    with _open(path, bootstrap, config, config_file, timeout_s) as job:
        reports = abort_by_hand(job, ids or (), force=force, timeout_s=timeout_s)
    _print_reports(reports, as_json=as_json)
    _exit_unless(reports, CommitOutcome.ABORTED)


def _open(
    path: str,
    bootstrap: str | None,
    config: Sequence[str] | None,
    config_file: Path | None,
    timeout_s: float,
) -> AbstractContextManager[TransactionSession]:
    return open_session(
        path, bootstrap=bootstrap, options=read_options(config, config_file), timeout_s=timeout_s
    )


def _matters(line: TransactionLine) -> bool:
    return line.is_open or line.is_unfinished


def _exit_unless(
    reports: Sequence[tuple[TransactionLine, CommitReport]], wanted: CommitOutcome
) -> None:
    if any(report.outcome is not wanted for _, report in reports):
        raise typer.Exit(1)


# --- printing -------------------------------------------------------------------------------------


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=200)


def _print_json(value: Mapping[str, object]) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print_lines(lines: Sequence[TransactionLine]) -> None:
    table = _table("transactional id", "checkpoint", "standing", "records", "at Kafka", "verdict")
    for line in lines:
        named = line.named
        table.add_row(
            _cell(line.transactional_id),
            _cell(named.checkpoint_id if named else None),
            _cell(named.standing if named else None),
            _cell(named.handle.record_count if named else None),
            _cell(line.described.state.value if line.described else "unknown id"),
            line.verdict,
        )
    _console().print(table)


def _print_reports(
    reports: Sequence[tuple[TransactionLine, CommitReport]], *, as_json: bool
) -> None:
    if as_json:
        rows = [
            {
                "transactional_id": line.transactional_id,
                "outcome": report.outcome.value,
                "detail": report.detail,
            }
            for line, report in reports
        ]
        _print_json({"transactions": rows})
        return
    if not reports:
        _console().print("nothing to do")
        return
    table = _table("transactional id", "outcome", "detail")
    for line, report in reports:
        table.add_row(_cell(line.transactional_id), report.outcome.value, _cell(report.detail))
    _console().print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return str(value).replace("[", r"\[")


def _as_json(line: TransactionLine) -> dict[str, object]:
    facts: dict[str, object] = {
        "transactional_id": line.transactional_id,
        "sink": line.sink,
        "verdict": line.verdict,
        "open": line.is_open,
    }
    if line.named is not None:
        handle = line.named.handle
        facts |= {
            "checkpoint_id": line.named.checkpoint_id,
            "standing": line.named.standing,
            "producer_id": handle.producer_id,
            "producer_epoch": handle.producer_epoch,
            "record_count": handle.record_count,
            "outputs": [f"{o.topic}: {o.records}" for o in handle.outputs],
            "sources": [
                f"{s.topic}-{s.partition}: {s.start_offset} to {s.end_offset}"
                for s in handle.sources
            ],
        }
    if line.described is not None:
        described = line.described
        facts |= {
            "state": described.state.value,
            "state_producer_id": described.producer_id,
            "state_producer_epoch": described.producer_epoch,
            "timeout_s": described.timeout_s,
            "started_at": _time(described.started_at_ms),
            "partitions": [f"{topic}-{number}" for topic, number in described.partitions],
        }
    return facts


def _time(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
