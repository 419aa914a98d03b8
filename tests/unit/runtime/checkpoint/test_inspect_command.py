"""`sluice checkpoint inspect` of savepoints, and of one operator."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice.runtime.checkpoint.format.metadata import encode
from sluice.runtime.errors import ConfigError, DamagedCheckpointError
from sluice.runtime.job.job_cli import checkpoint_app
from sluice.runtime.model.checkpoint_record import (
    OperatorNode,
    RegionRecord,
    StateSnapshot,
)
from tests.kit.coordinator.checkpoint_records import committable, full_record, record

_SCHEMA = [
    {
        "operator": 0,
        "store": "default",
        "schemas": [
            {"type": "struct", "fields": [{"name": n, "type": "long", "nullable": True}]}
            for n in ("key", "count")
        ],
    }
]


def _node(name: str, kind: str, *upstream: str, uid: str = "") -> OperatorNode:
    return OperatorNode(
        operator_id=name * 8, name=name, kind=kind, upstream=tuple(u * 8 for u in upstream), uid=uid
    )


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    """Two pipelines, one with a transform."""
    split = full_record().regions[0].splits[0]
    state = StateSnapshot(
        provider="rocksdb",
        checkpoint_format_version=2,
        state_version=3,
        state_partitions=4,
        operators=((0, "stateStoreSave"),),
        state_schema=json.dumps(_SCHEMA),
    )
    entries = [replace(committable(), operator_id=name * 8, kind="other") for name in "ce"]
    made = record(
        7,
        graph=(
            _node("a", "source", uid="first"),
            _node("b", "transform", "a"),
            _node("c", "sink", "b"),
            _node("d", "source"),
            _node("e", "sink", "d"),
        ),
        regions=(
            RegionRecord(
                region="r0",
                attempt_id=0,
                batch_id=2,
                splits=(replace(split, source_id="a" * 8),),
                state=state,
                operator_states=(entries[0],),
            ),
            RegionRecord(
                region="r1",
                attempt_id=0,
                batch_id=2,
                splits=(replace(split, source_id="d" * 8),),
                operator_states=(entries[1],),
            ),
        ),
    )
    (tmp_path / "_metadata").write_bytes(encode(made))
    return tmp_path


def _inspect(*arguments: str) -> dict[str, Any]:
    shown = CliRunner().invoke(
        checkpoint_app, ["inspect", *arguments, "--json"], catch_exceptions=False
    )
    found: dict[str, Any] = json.loads(shown.output)
    return found


@pytest.mark.parametrize("suffix", ["", "/", "/_metadata"])
def test_a_savepoint_is_shown_with_its_schemas(savepoint: Path, suffix: str) -> None:
    found = _inspect(f"{savepoint}{suffix}")
    assert found["checkpoint_id"] == 7
    schema = {"operator": 0, "store": "default", "key": "key BIGINT", "value": "count BIGINT"}
    assert found["regions"][0]["state"]["schemas"] == [schema]
    text = CliRunner().invoke(checkpoint_app, ["inspect", str(savepoint)]).output
    assert "key BIGINT" in text
    assert "count BIGINT" in text


@pytest.mark.parametrize(
    ("wanted", "name", "splits", "has_state", "states"),
    [
        ("first", "a", [1, 0], False, [0, 0]),
        ("a", "a", [1, 0], False, [0, 0]),
        ("b" * 8, "b", [0, 0], True, [0, 0]),
        ("c", "c", [0, 0], False, [1, 0]),
        ("e", "e", [0, 0], False, [0, 1]),
    ],
)
def test_one_operator_is_shown_alone(
    savepoint: Path, wanted: str, name: str, splits: list[int], has_state: bool, states: list[int]
) -> None:
    """By uid, id or name; Spark's state belongs to the transform."""
    found = _inspect(str(savepoint), "--operator", wanted)
    assert [node["name"] for node in found["graph"]] == [name]
    assert [len(region["splits"]) for region in found["regions"]] == splits
    assert [len(region["operator_states"]) for region in found["regions"]] == states
    assert (found["regions"][0]["state"] is not None) is has_state


def test_an_unknown_operator_and_a_damaged_savepoint_are_errors(savepoint: Path) -> None:
    with pytest.raises(ConfigError, match="no such operator"):
        _inspect(str(savepoint), "--operator", "x")
    assert _inspect(str(savepoint), "--id", "7")["checkpoint_id"] == 7
    with pytest.raises(ConfigError, match="a savepoint has one checkpoint, and not this one"):
        _inspect(str(savepoint), "--id", "8")
    (savepoint / "_metadata").write_bytes(b"damaged")
    with pytest.raises(DamagedCheckpointError):
        _inspect(str(savepoint))
