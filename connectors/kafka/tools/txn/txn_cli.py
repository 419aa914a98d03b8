"""``sluice txn``: shows and ends a job's transactions, from its checkpoint directory alone.

It serves when the job cannot start and open transactions block readers. The commands use the
committer and the proofs of the job's own recovery, so they may run before, after or during a
restart. One difference: the commands cannot keep a job that is only paused from deciding later.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from sluice.connectors.kafka.tools.connection_options import (
    BOOTSTRAP_NAMES,
    Config,
    ConfigFile,
    read_options,
)
from sluice.connectors.kafka.tools.txn.job_transactions import TransactionLine
from sluice.connectors.kafka.tools.txn.txn_session import (
    TransactionSession,
    abort_transactions,
    commit_transactions,
    open_session,
)
from sluice.runtime.cli_output import (
    AsJson,
    CheckpointPath,
    print_facts,
    print_json,
    print_table,
)
from sluice.runtime.contracts import CommitOutcome, CommitReport

__all__ = ["app"]

app = typer.Typer(
    help="List, commit and abort a job's Kafka transactions without the job.", no_args_is_help=True
)

_Ids = Annotated[list[str] | None, typer.Argument(metavar="TRANSACTIONAL_ID", help="Default: all.")]
_Bootstrap = Annotated[
    str | None,
    typer.Option(*BOOTSTRAP_NAMES, help="Kafka servers; default: those in the checkpoint."),
]
_Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the cluster.")
]
_Force = Annotated[
    bool, typer.Option("--force", help="Do it although it may lose or double records.")
]


@app.command("list")
def list_transactions(
    path: CheckpointPath,
    *,
    bootstrap: _Bootstrap = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout_s: _Timeout = 15.0,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Include committed transactions and idle ids."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List decided transactions to commit, and open ones that no decision names."""
    with _open(path, bootstrap, config, config_file, timeout_s) as job:
        shown = [line for line in job.lines if everything or _matters(line)]
        if as_json:
            print_json({"transactions": list(map(_as_json, shown)), "missing": job.missing})
            return
        if shown:
            _print_lines(shown)
        elif not (everything or job.missing):
            typer.echo("no transaction is open or waits for its commit; --all shows more")
        for broker in job.missing:
            typer.echo(f"not listed: transactions of {broker}, which did not answer", err=True)


@app.command()
def describe(
    path: CheckpointPath,
    transactional_id: Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID")],
    *,
    bootstrap: _Bootstrap = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout_s: _Timeout = 15.0,
    as_json: AsJson = False,
) -> None:
    """Show one transaction: its states, its records and its source ranges."""
    with _open(path, bootstrap, config, config_file, timeout_s) as job:
        (line,) = job.chosen([transactional_id])
        facts = _as_json(line)
    if as_json:
        print_json(facts)
        return
    print_facts(facts)


@app.command()
def commit(
    path: CheckpointPath,
    ids: _Ids = None,
    *,
    bootstrap: _Bootstrap = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout_s: _Timeout = 30.0,
    force: _Force = False,
    as_json: AsJson = False,
) -> None:
    """Commit decided transactions: the given ids, or all that are not committed yet.

    The command changes nothing in the checkpoint directory; the next start finds them committed.
    """
    with _open(path, bootstrap, config, config_file, timeout_s) as job:
        reports = commit_transactions(job, ids or (), force=force, timeout_s=timeout_s)
    _print_reports(reports, as_json=as_json)
    _exit_unless(reports, CommitOutcome.COMMITTED)


@app.command()
def abort(
    path: CheckpointPath,
    ids: _Ids = None,
    *,
    bootstrap: _Bootstrap = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout_s: _Timeout = 30.0,
    force: _Force = False,
    as_json: AsJson = False,
) -> None:
    """Abort transactions that no decision names: the given ids, or all open ones. Unblocks readers.

    End a paused job first: the command considers it ended, but it may decide after it resumes.
    """
    with _open(path, bootstrap, config, config_file, timeout_s) as job:
        reports = abort_transactions(job, ids or (), force=force, timeout_s=timeout_s)
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


def _print_lines(lines: Sequence[TransactionLine]) -> None:
    columns = ("transactional id", "checkpoint", "standing", "records", "at Kafka", "verdict")
    rows = []
    for line in lines:
        named = line.named
        rows.append(
            (
                line.transactional_id,
                named.checkpoint_id if named else None,
                named.standing if named else None,
                named.handle.record_count if named else None,
                line.described.state.value if line.described else "unknown id",
                line.verdict,
            )
        )
    print_table(columns, rows)


def _print_reports(
    reports: Sequence[tuple[TransactionLine, CommitReport]], *, as_json: bool
) -> None:
    rows = [
        (line.transactional_id, report.outcome.value, report.detail) for line, report in reports
    ]
    if as_json:
        names = ("transactional_id", "outcome", "detail")
        print_json({"transactions": [dict(zip(names, row, strict=True)) for row in rows]})
    elif rows:
        print_table(("transactional id", "outcome", "detail"), rows)
    else:
        typer.echo("nothing to do")


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
