"""``sluice job``: a job as its checkpoint directory tells it, running or gone.

Only reads. Works from the directory alone; for hdfs it starts a JVM from PySpark's jars.
"""

from typing import Annotated

import typer

from runtime.checkpoint.inspection import look_at
from runtime.checkpoint.opening import command_store, split_place
from runtime.failover import view_of_record

__all__ = ["app"]

app = typer.Typer(help="Look at a job.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Look at a job."""


@app.command()
def graph(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Checkpoint directory: a path, file: or hdfs:. "
            "Also the checkpointLocation of a drop-in query.",
        ),
    ],
    checkpoint_id: Annotated[
        int | None,
        typer.Option("--id", min=0, help="Which one; default: PATH's, else the newest decision."),
    ] = None,
    *,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print a Mermaid flowchart, for documents.")
    ] = False,
) -> None:
    """Sources, functions, sinks and edges, and the regions that restart alone."""
    uri, named = split_place(path)
    with command_store(uri) as store:
        place = look_at(store, checkpoint_id if checkpoint_id is not None else named)
    assert place.record is not None  # `look_at` raises where it cannot be read
    view = view_of_record(place.record)
    if mermaid:
        typer.echo(view.mermaid())
        return
    typer.echo(f"{place.record.job_name}, checkpoint {place.checkpoint_id} ({place.standing})\n")
    typer.echo(view.text())
