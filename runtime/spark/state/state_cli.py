"""``sluice state``: rewrites the state of a savepoint."""

import contextlib
import tempfile
import uuid
from pathlib import Path
from typing import Annotated

import typer

from sluice.runtime.cli_output import AsJson, ProgressLine, print_facts, print_json
from sluice.runtime.savepoint.savepoint import open_savepoint
from sluice.runtime.storage.divided_directory import DividedDirectory
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import (
    absolute_uri,
    hadoop_uri,
    needs_jvm,
    open_file_system,
)
from sluice.runtime.storage.local_fs import LocalFileSystem

__all__ = ["app"]

app = typer.Typer(help="Rewrite the state of a savepoint.", no_args_is_help=True)


@app.command()
def repartition(
    savepoint: Annotated[
        str,
        typer.Argument(
            metavar="SAVEPOINT", help="A savepoint, a full checkpoint or a committed DIR/chk-…."
        ),
    ],
    *,
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, help="New number of state partitions.")
    ],
    to: Annotated[str, typer.Option("--to", help="Directory for the new savepoint.")],
    region: Annotated[
        list[str] | None,
        typer.Option(
            "--region", help="Only this region. May be repeated. Default: all with state."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a savepoint whose Spark state has other partitions; the last line is its path.

    The source is only read. A Spark on this machine repartitions a copy and compares all keys and
    values. A job that is restored from the new savepoint resumes at the same positions.
    """
    # pyspark takes a second, and the command line loads this module for every command.
    from sluice.runtime.spark.session.spark_session import spark_hindrance
    from sluice.runtime.spark.state.command_session import command_spark
    from sluice.runtime.spark.state.repartitioning import Repartition

    with command_spark() as spark, tempfile.TemporaryDirectory(prefix="sluice-spark-") as scratch:
        jvm = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no public way
        source = open_savepoint(savepoint, jvm=jvm)
        name = f"{source.record.job_uid[:8]}-{source.record.checkpoint_id}-{uuid.uuid4().hex[:6]}"
        uri = f"{absolute_uri(to)}/savepoint-{name}"
        fs: FileSystem = open_file_system(uri, jvm)
        if spark_hindrance(spark, hadoop_uri(uri)) is not None:
            fs = DividedDirectory(fs, lambda: LocalFileSystem(Path(scratch)))
        record = Repartition(
            savepoint=source,
            partitions=partitions,
            regions=region or (),
            fs=fs,
            spark=spark,
        ).run()
    states = {each.region: each.state for each in record.regions if each.state is not None}
    found = {
        "source": source.uri,
        "state_partitions": {name: state.state_partitions for name, state in states.items()},
        "length_bytes": sum(f.length_bytes for state in states.values() for f in state.files),
    }
    if as_json:
        print_json({**found, "uri": uri})
    else:
        print_facts(found)
        typer.echo(uri)


@app.command()
def recompute(
    savepoint: Annotated[
        str,
        typer.Argument(
            metavar="SAVEPOINT", help="A savepoint, a full checkpoint or a committed DIR/chk-…."
        ),
    ],
    *,
    max_parallelism: Annotated[
        int, typer.Option("--max-parallelism", min=1, help="New number of key groups.")
    ],
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", min=1, help="Partitions of the repartition topics; default: as before."
        ),
    ] = None,
    to: Annotated[str, typer.Option("--to", help="Directory for the new savepoint.")],
    as_json: AsJson = False,
) -> None:
    """Make a savepoint with other key groups; the last line is its path.

    It rewrites keyed state of key_by() with a repartition topic: each entry goes to the partition
    of its key's new group, and all entries are compared afterwards. The source is only read. Keep
    the repartition topic of the old job until the new one runs: rows in flight are copied from it.
    """
    # Arrow takes a while, and the command line loads this module for every command.
    from sluice.runtime.savepoint.keyed_recompute import Recompute
    from sluice.runtime.savepoint.savepoint_writer import savepoint_name

    with contextlib.ExitStack() as stack:
        jvm = None
        if needs_jvm(savepoint) or needs_jvm(to):
            from sluice.runtime.storage.hadoop_jvm import hadoop_jvm

            jvm = stack.enter_context(hadoop_jvm())
        line = stack.enter_context(contextlib.closing(ProgressLine()))
        source = open_savepoint(savepoint, jvm=jvm)
        written = Recompute(
            savepoint=source,
            max_parallelism=max_parallelism,
            partitions=partitions,
            parent=open_file_system(absolute_uri(to), jvm),
            name=savepoint_name(source.record, uuid.uuid4().hex[:6]),
            progress=lambda done, of: line.show(f"read {done:,} of {of:,} bytes of keyed state"),
        ).run()
    found = {"source": source.uri, "files": written.files, "length_bytes": written.bytes}
    if as_json:
        print_json({**found, "uri": written.uri})
    else:
        print_facts(found)
        typer.echo(written.uri)
