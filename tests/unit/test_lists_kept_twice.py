"""Names that stand in two places, in the code or in the documents, and must be the same in both."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from sluice import KafkaSink
from sluice.connectors.hdfs.file_drop_in import FileDropIn
from sluice.connectors.kafka.sink.writer.kafka_writer import Guarantee
from sluice.connectors.kafka.source.enumerator.topic_compression import CODECS, prevailing
from sluice.connectors.kafka.source.source_options import SOURCE_OPTIONS, SourceOptions
from sluice.runtime.checkpoint.checkpoint_store import STORE_FAILPOINTS
from sluice.runtime.coordinator.policy.commit_failpoints import FAILPOINTS
from sluice.runtime.job.job import Job
from sluice.runtime.service.metrics import CheckpointMetrics, RegionMetrics

ROOT = Path(__file__).parents[2]
PAGES = "\n".join(page.read_text("utf-8") for page in sorted((ROOT / "docs").glob("*.md")))
_KAFKA = {"kafka.bootstrap.servers": "h:1", "subscribe": "orders"}


def _modules(*trees: str) -> Iterator[ast.Module]:
    for tree in trees:
        for path in (ROOT / tree).rglob("*.py"):
            yield ast.parse(path.read_text("utf-8"))


def _texts(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _failpoints(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "failpoint":
            yield from (each.value for each in node.args[:1] if isinstance(each, ast.Constant))


def test_every_failpoint_is_armed_by_a_test() -> None:
    """Of the coordinator's, those that are made of a step's name are armed by it."""
    reached = {name for module in _modules("runtime", "connectors") for name in _failpoints(module)}
    armed = {
        text for module in _modules("tests/chaos", "tests/integration") for text in _texts(module)
    }
    assert len(reached) > 40
    assert reached - armed - set(FAILPOINTS) - set(STORE_FAILPOINTS) == set()
    assert set(STORE_FAILPOINTS) <= reached


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_of_a_source_may_be_the_prevailing_one(codec: str) -> None:
    assert prevailing([codec]) == codec


@pytest.mark.parametrize("guarantee", Guarantee)
def test_a_source_knows_every_guarantee_of_a_sink(guarantee: Guarantee) -> None:
    SourceOptions.of({**_KAFKA, "guarantee": guarantee.value}, bounded=False, stream=True)


@pytest.mark.parametrize("name", ["checkpointLocation", "outputMode", "queryName"])
def test_what_spark_hands_to_every_sink_is_taken_by_both(name: str) -> None:
    kafka = {"kafka.bootstrap.servers": "h:1", "topic": "t", "transactionalIdPrefix": "p"}
    KafkaSink.from_options({**kafka, name: "x"})
    FileDropIn.from_options({"path": "/data/rows", name: "x"}, session_zone="UTC")


@pytest.mark.parametrize("option", SOURCE_OPTIONS)
def test_every_option_of_the_source_is_described(option: str) -> None:
    assert f"`{option}`" in PAGES


def test_every_metric_is_described() -> None:
    registry = CollectorRegistry()
    CheckpointMetrics(registry)
    registry.register(RegionMetrics(cast(Any, SimpleNamespace(started=None))))
    names = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in (*registry.collect(), *RegionMetrics(cast(Any, None)).describe())
    }
    assert len(names) > 12
    assert {name for name in names if name not in PAGES} == set()


def _rows_of(page: str) -> dict[str, str]:
    """Arguments, and what the table says is their default."""
    rows = [
        row.split(" | ") for row in page.splitlines() if re.match(r"\| `\w+`(, `\w+`)* \| ", row)
    ]
    return {name: row[1] for row in rows for name in re.findall(r"`(\w+)`", row[0])}


def test_every_argument_of_a_job_is_described_with_its_default() -> None:
    given = inspect.signature(Job).parameters
    expected = {
        name: "required" if each.default in (inspect.Parameter.empty, "") else repr(each.default)
        for name, each in given.items()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    }
    page = (ROOT / "docs" / "job.md").read_text("utf-8").partition("## How long")[0]
    told = {name: text.strip("`").replace('"', "'") for name, text in _rows_of(page).items()}
    assert told == expected
