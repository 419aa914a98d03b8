"""``sluice job``: a job's graph, from its checkpoint directory alone."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.runtime.checkpoint.checkpoint_store import open_store, slot_name
from sluice.runtime.errors import ConfigError, StorageError, StreamError
from sluice.runtime.graph.graph_view import view_of_record
from sluice.runtime.graph.job_graph import regions_of
from sluice.runtime.graph.pipeline import Pipeline
from sluice.runtime.job.job_cli import app
from sluice.runtime.model.checkpoint_record import CheckpointRecord, RegionRecord
from tests.kit.coordinator.checkpoint_records import record
from tests.unit.runtime.job.test_job_pieces import StubSink, StubSource


def run_of(parts: int, checkpoint_id: int) -> CheckpointRecord:
    pipeline = Pipeline(StubSource(), [], [StubSink()])
    graph, regions = regions_of([pipeline], [False], parts=parts)
    records = (RegionRecord(region=each.name, attempt_id=1) for each in regions)
    return replace(record(checkpoint_id), graph=graph, regions=tuple(records))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A job of one part in checkpoint 0, of three in checkpoint 1."""
    store = open_store(str(tmp_path))
    for each in (run_of(1, 0), run_of(3, 1)):
        store.publish(each, timeout_s=60)
    return tmp_path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_graph_shows_the_newest_decision(directory: Path) -> None:
    """Which job and checkpoint, then operators, edges and regions with their standing."""
    heading, text = run("graph", str(directory)).split("\n\n", 1)
    assert record(1).job_name in heading
    assert "checkpoint 1" in heading
    assert text == view_of_record(run_of(3, 1)).text() + "\n"
    assert "orders-2  completed  orders[2] out[2]" in text


def test_graph_as_mermaid_is_a_diagram_and_nothing_else(directory: Path) -> None:
    """So that it may be written to a file."""
    shown = run("graph", str(directory), "--mermaid")
    assert shown == view_of_record(run_of(3, 1)).mermaid() + "\n"
    assert shown.startswith("flowchart LR\n")


def test_graph_of_an_older_checkpoint(directory: Path) -> None:
    older = run("graph", str(directory), "--id", "0")
    assert older == run("graph", f"{directory}/{slot_name(0)}")
    assert "checkpoint 0" in older
    assert "orders-2" not in older


def test_graph_of_a_drop_in_query_is_found_below(tmp_path: Path) -> None:
    """Its checkpointLocation holds the store in ``sluice``."""
    open_store(str(tmp_path / "sluice")).publish(run_of(1, 0), timeout_s=60)
    assert "orders[0] out[0]" in run("graph", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(("graph", "{}/none"), ConfigError), (("graph", "{}", "--id", "7"), StorageError)],
)
def test_what_cannot_be_shown_is_a_typed_error(
    directory: Path, arguments: tuple[str, ...], error: type[StreamError]
) -> None:
    """The frame of the command line prints it, exit code 1."""
    with pytest.raises(error):
        run(*(each.format(directory) for each in arguments))
