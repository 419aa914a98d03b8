"""``sluice files``: lists published, staged and orphaned files of a job, which need not run."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from sluice.connectors.hdfs.tools.files_survey import (
    FileLine,
    Orphan,
    file_lines,
    orphans_of,
    upload_lines,
)
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.inspect.checkpoint_opening import (
    command_file_systems,
    split_slot,
    store_at,
)
from sluice.runtime.checkpoint.inspect.inspection import survey
from sluice.runtime.checkpoint.resumable_attempts import ResumableAttempts
from sluice.runtime.cli_output import AsJson, CheckpointPath, print_json, print_table
from sluice.runtime.storage.file_system import OpenFileSystem
from sluice.runtime.storage.objects.multipart_uploads import MultipartUploads
from sluice.runtime.storage.objects.object_location import object_location
from sluice.runtime.storage.objects.object_uploads import uploads_at

__all__ = ["app"]

app = typer.Typer(help="List a job's files, and delete orphans.", no_args_is_help=True)


@app.command("list")
def list_files(path: CheckpointPath, *, as_json: AsJson = False) -> None:
    """List each file that a checkpoint names: published, staged, pending or missing."""
    with _opened(path) as (store, file_system):
        places = survey(store)
        lines = [*file_lines(places, file_system), *upload_lines(places, _open_uploads)]
    lines.sort(key=lambda line: line.checkpoint_id)
    if as_json:
        print_json({"files": [_of_line(line) for line in lines]})
        return
    _print_rows("files that checkpoints name", [_of_line(line) for line in lines])


@app.command()
def orphans(path: CheckpointPath, *, as_json: AsJson = False) -> None:
    """List staging directories and open uploads of earlier runs that no checkpoint names."""
    with _opened(path) as (store, file_system):
        found = _orphans(store, file_system)
    if as_json:
        print_json({"orphans": [_of_orphan(one) for one in found]})
        return
    _print_rows("orphans", [_of_orphan(one) for one in found])


@app.command()
def clean(
    path: CheckpointPath,
    *,
    delete: Annotated[
        bool,
        typer.Option("--delete", help="Delete them; without it only list them."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the orphans with --delete; keep named and published files."""
    with _opened(path) as (store, file_system):
        found = _orphans(store, file_system)
        if delete:
            for one in found:
                _delete(one, file_system)
    if as_json:
        print_json({"deleted": delete, "orphans": [_of_orphan(one) for one in found]})
        return
    _print_rows("deleted" if delete else "would be deleted", [_of_orphan(one) for one in found])
    if found and not delete:
        typer.echo("nothing deleted: add --delete to delete them", err=True)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[CheckpointStore, OpenFileSystem]]:
    """The checkpoint directory, and a function that opens the files' file systems with at most one
    JVM."""
    uri, _ = split_slot(path)
    with command_file_systems() as open_at:
        yield store_at(uri, open_at), open_at


def _orphans(store: CheckpointStore, file_system: OpenFileSystem) -> list[Orphan]:
    places = survey(store)
    return list(
        orphans_of(
            places,
            file_system,
            _open_uploads,
            checkpoint_uri=store.uri,
            resumable=ResumableAttempts(store.fs).running(),
        )
    )


def _open_uploads(uri: str) -> MultipartUploads:
    """The uploads below a URI, by the environment's credentials."""
    return uploads_at(object_location(uri))


def _delete(one: Orphan, file_system: OpenFileSystem) -> None:
    if one.upload_id is None:
        file_system(one.parent).delete(one.path)
    else:
        _open_uploads(one.parent).abort(one.path, one.upload_id)


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
        "upload_id": one.upload_id,
    }


def _print_rows(title: str, rows: Sequence[dict[str, object]]) -> None:
    if not rows:
        typer.echo(f"{title}: none")
        return
    print_table(list(rows[0]), [list(row.values()) for row in rows], title=title)
