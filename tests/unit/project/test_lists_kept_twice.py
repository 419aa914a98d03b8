"""Names that stand in two places of the code, and must be the same in both."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice import KafkaSink
from sluice.connectors.hdfs.file_drop_in import FileDropIn
from sluice.connectors.kafka.sink.writer.kafka_writer import Guarantee
from sluice.connectors.kafka.source.enumerator.topic_compression import CODECS, prevailing
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.runtime.checkpoint.checkpoint_store import STORE_FAILPOINTS
from tests.kit.coordinator.coordinator_failpoints import FAILPOINTS

ROOT = Path(__file__).parents[3]
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
