"""``sluice spark``: what makes Spark start faster on this machine."""

import typer

from sluice.runtime.spark.fast_start.class_archive import prepare_archive

__all__ = ["app"]

app = typer.Typer(help="Make Spark start faster on this machine.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Make Spark start faster on this machine."""


@app.command()
def prepare() -> None:
    """Archive Spark's loaded classes once, for sessions with `fast_start`."""
    prepared = prepare_archive()
    size_mb = prepared.path.stat().st_size / 1e6
    did = "was there" if prepared.elapsed_s is None else f"made in {prepared.elapsed_s:.0f} s"
    typer.echo(f"class archive {did}: {prepared.path} ({size_mb:.0f} MB)")
