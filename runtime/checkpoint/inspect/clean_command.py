"""``sluice checkpoint clean``: deletes what no record of a checkpoint directory names."""

import re
import time
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

import typer

from sluice.runtime.checkpoint.checkpoint_slots import METADATA, SAVEPOINT_NAME
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.cleaning.clean_plan import (
    KnownRecords,
    Leftover,
    half_written_savepoints,
    leftovers,
)
from sluice.runtime.checkpoint.cleaning.directory_cleaning import (
    deletion_steps,
    survey_directory,
    survey_savepoints,
)
from sluice.runtime.checkpoint.inspect.checkpoint_opening import (
    command_file_systems,
    split_slot,
    store_at,
)
from sluice.runtime.checkpoint.spark_place import with_spark_files
from sluice.runtime.cli_output import AsJson, CheckpointPath, print_json, print_table
from sluice.runtime.errors import ConfigError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.storage.divided_directory import holder_of
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem

__all__ = ["clean_directory"]

_Row = tuple[str, str, int, int]
_Found = list[tuple[FileSystem, Sequence[Leftover]]]

_SAVEPOINTS = "savepoints"
_AGE = re.compile(r"(\d+)([smhdw])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def clean_directory(
    path: CheckpointPath,
    *,
    savepoint: Annotated[
        list[str] | None,
        typer.Option(
            "--savepoint",
            help="A savepoint outside PATH, or a directory of savepoints: half-written ones of "
            "this job are deleted there, too. May be repeated.",
        ),
    ] = None,
    older_than: Annotated[
        str,
        typer.Option("--older-than", help="Age limit: 30m, 12h, 7d or 2w without any change."),
    ] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete what no checkpoint and no savepoint names, also while the job runs.

    These are Spark files and keyed state of earlier attempts, unused copies of a restore,
    half-written savepoints and full checkpoints, files of deleted full checkpoints, and temporary
    files. Everything that a damaged record could name stays. A record of a later Sluice ends the
    command.
    """
    age_ms = _milliseconds(older_than)
    uri, _ = split_slot(path)
    with command_file_systems() as open_at:
        found, records, damaged = _found_in(uri, savepoint or (), open_at, age_ms=age_ms)
        for fs, each in found if not dry_run else ():
            for step in deletion_steps(fs, each, records):
                failpoint(step)
        rows = [
            (
                leftover.kind.value,
                f"{holder_of(fs, leftover.path).uri}/{leftover.path}",
                leftover.files,
                leftover.length_bytes,
            )
            for fs, each in found
            for leftover in each
        ]
    _report(sorted(rows), damaged, path=path, dry_run=dry_run, as_json=as_json)


def _found_in(
    uri: str, savepoints: Sequence[str], open_at: OpenFileSystem, *, age_ms: int
) -> tuple[_Found, KnownRecords, list[str]]:
    """All leftovers by the root of each, the records, and why some are damaged."""
    store = CheckpointStore(with_spark_files(store_at(uri, open_at).fs, open_at))
    now_ms = _now_ms()
    surveyed = survey_directory(store)
    damaged = [*surveyed.damaged]
    found: _Found = []
    given = [*map(_parent_of, savepoints)]
    for parent in dict.fromkeys((f"{store.uri}/{_SAVEPOINTS}", *given)):
        fs = open_at(parent)
        if parent in given and not fs.exists(""):
            raise ConfigError(
                "there is no such directory of savepoints", {"uri": fs.uri}, "Correct --savepoint."
            )
        saved = survey_savepoints(fs)
        damaged += saved.damaged
        abandoned = half_written_savepoints(
            saved.listing,
            saved.closed,
            job_uid=surveyed.records.job_uid,
            now_ms=now_ms,
            older_than_ms=age_ms,
        )
        found.append((fs, abandoned))
    own = leftovers(surveyed.listing, surveyed.records, now_ms=now_ms, older_than_ms=age_ms)
    return [(store.fs, own), *found], surveyed.records, damaged


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _parent_of(savepoint: str) -> str:
    """The directory of savepoints that ``--savepoint`` means."""
    path = savepoint.rstrip("/").removesuffix(f"/{METADATA}")
    parent, _, name = path.rpartition("/")
    return (parent or ".") if SAVEPOINT_NAME.fullmatch(name) else path


def _milliseconds(age: str) -> int:
    match = _AGE.fullmatch(age)
    if match is None:
        raise ConfigError(
            "the age limit is not a number with a unit",
            {"older_than": age, "units": "s, m, h, d, w"},
            "Write for example --older-than 7d.",
        )
    return int(match[1]) * _UNIT_S[match[2]] * 1000


def _report(
    rows: Sequence[_Row],
    damaged: Sequence[str],
    *,
    path: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    columns = ("kind", "uri", "files", "length_bytes")
    sums = _sums(rows)
    staging = f"sluice files clean {path}"
    if as_json:
        print_json(
            {
                "deleted": not dry_run,
                "length_bytes": sum(row[3] for row in rows),
                "kinds": [dict(zip(("kind", "paths", *columns[2:]), s, strict=True)) for s in sums],
                "paths": [dict(zip(columns, row, strict=True)) for row in rows],
                "damaged": list(damaged),
                "staging": staging,
            }
        )
        return
    title = "would be deleted" if dry_run else "deleted"
    if rows:
        print_table(("kind", "uri", "files", "bytes"), rows, title=title.capitalize())
        print_table(("kind", "paths", "files", "bytes"), sums, title="By kind")
    else:
        typer.echo(f"{title}: none")
    for each in damaged:
        typer.echo(f"Everything that this record could name stays: {each}")
    typer.echo(f"Staging of file sinks: {staging}")


def _sums(rows: Sequence[_Row]) -> list[tuple[str, int, int, int]]:
    """Kind, paths, files and bytes."""
    grouped = {kind: list(group) for kind, group in groupby(rows, key=lambda row: row[0])}
    return [
        (kind, len(group), sum(row[2] for row in group), sum(row[3] for row in group))
        for kind, group in grouped.items()
    ]
