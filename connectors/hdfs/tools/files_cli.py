"""``sluice files``: lists published, staged and orphaned files of a job, which need not run."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from sluice.connectors.hdfs.tools.files_survey import FileLine, Orphan, file_lines, orphans_of
from sluice.runtime.checkpoint.inspect.checkpoint_opening import command_store, split_place
from sluice.runtime.checkpoint.inspect.inspection import Place, survey
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem
from sluice.runtime.storage.file_system_opening import needs_jvm, open_file_system

__all__ = ["app"]

_PIPE_COLUMNS = 200

app = typer.Typer(help="List a job's files, and delete orphans.", no_args_is_help=True)

_Path = Annotated[
    str, typer.Argument(metavar="PATH", help="Checkpoint directory: a path, file: or hdfs:.")
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@app.command("list")
def list_files(path: _Path, *, as_json: _AsJson = False) -> None:
    """List each file that a checkpoint names: published, staged, pending or missing."""
    with _opened(path) as (_, places, file_system):
        lines = list(file_lines(places, file_system))
    if as_json:
        _print_json({"files": [_of_line(line) for line in lines]})
        return
    _print_table("files that checkpoints name", [_of_line(line) for line in lines])


@app.command()
def orphans(path: _Path, *, as_json: _AsJson = False) -> None:
    """List staging directories of earlier runs that no checkpoint names."""
    with _opened(path) as (uri, places, file_system):
        found = list(orphans_of(places, file_system, checkpoint_uri=uri))
    if as_json:
        _print_json({"orphans": [_of_orphan(one) for one in found]})
        return
    _print_table("orphans", [_of_orphan(one) for one in found])


@app.command()
def clean(
    path: _Path,
    *,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete them; without it only list them.")
    ] = False,
    as_json: _AsJson = False,
) -> None:
    """Delete the orphans with --delete; keep named and published files."""
    with _opened(path) as (uri, places, file_system):
        found = list(orphans_of(places, file_system, checkpoint_uri=uri))
        if delete:
            for one in found:
                file_system(one.parent).delete(one.path)
    if as_json:
        _print_json({"deleted": delete, "orphans": [_of_orphan(one) for one in found]})
        return
    _print_table("deleted" if delete else "would be deleted", [_of_orphan(one) for one in found])
    if found and not delete:
        typer.echo("nothing was changed: add --delete to delete them", err=True)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[str, Sequence[Place], OpenFileSystem]]:
    """The checkpoint directory's URI, its slots, and a function that opens the files' file
    systems with at most one JVM."""
    uri, _ = split_place(path)
    with command_store(uri) as store, contextlib.ExitStack() as stack:
        jvm: list[Any] = []
        opened: dict[str, FileSystem] = {}

        def file_system(parent: str) -> FileSystem:
            if needs_jvm(parent) and not jvm:
                from sluice.runtime.storage.hadoop_jvm import hadoop_jvm

                jvm.append(stack.enter_context(hadoop_jvm()))
            if parent not in opened:
                opened[parent] = open_file_system(parent, jvm[0] if jvm else None)
            return opened[parent]

        yield store.uri, survey(store), file_system


def _of_line(line: FileLine) -> dict[str, object]:
    return {
        "checkpoint_id": line.checkpoint_id,
        "checkpoint": line.checkpoint,
        "sink": line.sink,
        "standing": line.standing.value,
        "rows": line.rows,
        "length_bytes": line.length_bytes,
        "uri": line.uri,
    }


def _of_orphan(one: Orphan) -> dict[str, object]:
    return {
        "sink": one.sink,
        "files": one.files,
        "length_bytes": one.length_bytes,
        "uri": f"{one.parent}/{one.path}",
    }


def _print_json(value: Mapping[str, object]) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _print_table(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    if not rows:
        typer.echo(f"{title}: none")
        return
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    console = Console(highlight=False)
    wide = console if console.is_terminal else Console(highlight=False, width=_PIPE_COLUMNS)
    wide.print(table)
