"""``sluice savepoint``: takes savepoints of a running job; shows, checks and deletes them.

All but `create` need only the savepoint's directory; for HDFS they start a JVM from PySpark's jars.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from sluice.runtime.checkpoint.inspect.inspection import created_at
from sluice.runtime.cli_output import AsJson, ProgressLine, print_facts, print_json, print_table
from sluice.runtime.job.running_job import await_request, running_job, written_as
from sluice.runtime.model.checkpoint_record import (
    CheckpointRecord,
    OperatorNode,
    RegionRecord,
    RegionStatus,
)
from sluice.runtime.savepoint.savepoint import Savepoint, open_savepoint, references_of
from sluice.runtime.savepoint.savepoint_directory import (
    FoundSavepoint,
    dispose,
    find_savepoints,
    verify,
)
from sluice.runtime.storage.file_copies import Progress
from sluice.runtime.storage.file_system_opening import absolute_uri, needs_jvm

__all__ = ["app"]

app = typer.Typer(help="Take, show, verify and delete savepoints.", no_args_is_help=True)

_COMMAND_S = 60.0

_Directory = Annotated[
    str,
    typer.Argument(
        metavar="URI",
        help="Directory of a savepoint, a full checkpoint (…/full/chk-…) or a checkpoint.",
    ),
]


@app.callback()
def _group() -> None:
    """Take, show, verify and delete savepoints."""


@app.command()
def create(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Checkpoint directory of a running job.")
    ],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Directory that gets the savepoint's directory. Default: savepoints in PATH.",
        ),
    ] = None,
    *,
    as_json_text: AsJson = False,
) -> None:
    """Take a savepoint of a running job; its last line is the savepoint's path."""
    with running_job(path) as client:
        request = client.savepoint(None if to is None else absolute_uri(to), timeout_s=_COMMAND_S)
        with _shown_progress("copied") as progress:
            found = await_request(
                client,
                request["request_id"],
                watch=lambda seen: progress(seen["files"], 0, seen["bytes"]),
            )
    if as_json_text:
        print_json(found)
        return
    typer.echo(
        f"savepoint of checkpoint {found['checkpoint_id']}: {found['files']:,} files, "
        f"{found['bytes']:,} bytes, {found['elapsed_s']:.1f} s"
    )
    if found["suspended"]:
        typer.echo(f"suspended regions, with their last snapshot: {', '.join(found['suspended'])}")
    typer.echo(written_as(to or path, found["uri"]))


@app.command("list")
def list_savepoints(
    uri: Annotated[
        str,
        typer.Argument(metavar="URI", help="Directory of savepoints, or a checkpoint directory."),
    ],
    *,
    as_json_text: AsJson = False,
) -> None:
    """List savepoints, and the full checkpoints of a checkpoint directory."""
    with _jvm_for(uri) as jvm:
        found = find_savepoints(uri, jvm=jvm)
    if as_json_text:
        print_json({"savepoints": [_as_json(each) for each in found]})
        return
    columns = ("uri", "kind", "job", "checkpoint", "created", "files", "bytes", "problem")
    keys = ("uri", "kind", "job_name", "checkpoint_id", "created_at", "files", "bytes", "problem")
    rows = [[_as_json(each).get(key) for key in keys] for each in found]
    print_table(columns, rows, title=f"Savepoints in {uri}")


@app.command("inspect")
def inspect_savepoint(uri: _Directory, *, as_json_text: AsJson = False) -> None:
    """Show a savepoint: job, regions with offsets, operators, state."""
    with _opened(uri) as savepoint:
        found = _facts(savepoint.uri, savepoint.record)
        found |= {
            "operators": [_operator(each) for each in savepoint.record.graph],
            "regions": [_region(each) for each in savepoint.record.regions],
        }
    if as_json_text:
        print_json(found)
    else:
        _print_savepoint(found)


@app.command("verify")
def verify_savepoint(uri: _Directory, *, as_json_text: AsJson = False) -> None:
    """Read every file of a savepoint; compare length and SHA-256."""
    with _opened(uri) as savepoint, _shown_progress("verified") as progress:
        verify(savepoint, progress=progress)
    facts = _facts(savepoint.uri, savepoint.record)
    if as_json_text:
        print_json({**facts, "is_whole": True})
        return
    typer.echo(f"whole: {facts['files']:,} files, {facts['bytes']:,} bytes")


@app.command("dispose")
def dispose_savepoint(
    uri: Annotated[str, typer.Argument(metavar="URI", help="Directory of a savepoint.")],
    *,
    incomplete: Annotated[
        bool,
        typer.Option(
            "--incomplete",
            help="Delete what a killed job or command has left. No job may be writing it.",
        ),
    ] = False,
    as_json_text: AsJson = False,
) -> None:
    """Delete a savepoint."""
    with _jvm_for(uri) as jvm:
        freed = dispose(uri, incomplete=incomplete, jvm=jvm)
    if as_json_text:
        print_json({"uri": uri, "bytes": freed})
    else:
        typer.echo(f"deleted: {uri}, {freed:,} bytes")


@contextlib.contextmanager
def _jvm_for(uri: str) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        jvm = None
        if needs_jvm(uri):
            from sluice.runtime.storage.hadoop_jvm import hadoop_jvm

            jvm = stack.enter_context(hadoop_jvm())
        yield jvm


@contextlib.contextmanager
def _opened(uri: str) -> Iterator[Savepoint]:
    with _jvm_for(uri) as jvm:
        yield open_savepoint(uri, jvm=jvm)


@contextlib.contextmanager
def _shown_progress(verb: str) -> Iterator[Progress]:
    """Show files and bytes on standard error, if it is a terminal."""
    with contextlib.closing(ProgressLine()) as line:
        yield lambda files, of, length_bytes: line.show(
            f"{verb} {files:,}{f' of {of:,}' if of else ''} files, {length_bytes:,} bytes"
        )


def _as_json(found: FoundSavepoint) -> dict[str, Any]:
    facts = {} if found.record is None else _facts(found.uri, found.record)
    return {"uri": found.uri, **facts, "problem": found.problem or None}


def _facts(uri: str, record: CheckpointRecord) -> dict[str, Any]:
    files = references_of(record)
    suspended = [r.region for r in record.regions if r.status is RegionStatus.SKIPPED]
    return {
        "uri": uri,
        "kind": record.kind.value,
        "checkpoint_id": record.checkpoint_id,
        "job_uid": record.job_uid,
        "job_name": record.job_name,
        "created_at": created_at(record),
        "sluice_version": record.sluice_version,
        "spark_version": record.spark_version,
        "cluster_ids": list(record.cluster_ids),
        "files": len(files),
        "bytes": sum(each.length_bytes for each in files),
        "suspended": suspended,
    }


def _operator(node: OperatorNode) -> dict[str, Any]:
    return {
        "name": node.name,
        "uid": node.uid or None,
        "operator_id": node.operator_id,
        "kind": node.kind,
    }


def _region(region: RegionRecord) -> dict[str, Any]:
    state, keyed = region.state, region.keyed_state
    return {
        "region": region.region,
        "status": region.status.value,
        "snapshot_id": region.snapshot_id,
        "batch_id": region.batch_id,
        "offsets": [
            {"topic": each.topic, "partition": each.partition, "offset": each.end_offset}
            for each in region.splits
        ],
        "state": None
        if state is None
        else {
            "operators": [{"number": number, "name": name} for number, name in state.operators],
            "partitions": state.state_partitions,
            "files": len(state.files),
            "bytes": sum(each.length_bytes for each in state.files),
        },
        "keyed_state": None
        if keyed is None
        else {
            "tables": [table.name for table in keyed.tables if table.operator_id],
            "splits": len(keyed.splits),
            "files": len(keyed.files),
            "bytes": sum(each.length_bytes for each in keyed.files),
        },
    }


def _print_savepoint(found: Mapping[str, Any]) -> None:
    nested = ("operators", "regions")
    print_facts({name: value for name, value in found.items() if name not in nested})
    keys = ("name", "uid", "kind", "operator_id")
    rows = [[each[key] for key in keys] for each in found["operators"]]
    print_table(("name", "uid", "kind", "operator id"), rows, title="Operators")
    columns = ("region", "status", "batch", "offsets", "state", "partitions", "bytes")
    print_table(columns, map(_region_row, found["regions"]), title="Regions")


def _region_row(region: Mapping[str, Any]) -> list[object]:
    status = region["status"]
    if region["status"] == RegionStatus.SKIPPED.value:
        status = f"suspended, from checkpoint {region['snapshot_id']}"
    offsets = [
        f"{each['topic']}-{each['partition']}@{each['offset']}" for each in region["offsets"]
    ]
    state = region["state"] or {"operators": [], "partitions": None, "bytes": 0}
    keyed = region["keyed_state"] or {"tables": [], "bytes": 0}
    names = [f"{each['number']} {each['name']}" for each in state["operators"]]
    row = [region["region"], status, region["batch_id"], offsets, [*names, *keyed["tables"]]]
    return [*row, state["partitions"], state["bytes"] + keyed["bytes"] or None]
