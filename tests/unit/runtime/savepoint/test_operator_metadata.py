"""Paths of schema files in Spark's description of an operator."""

import json

import pytest

from sluice.runtime.savepoint.operator_metadata import is_operator_metadata, with_location


def _described(*paths: str) -> bytes:
    store = {"storeName": "default", "numPartitions": 3, "stateSchemaFilePaths": paths}
    return (
        f"v2\n{json.dumps({'operatorInfo': {'operatorId': 0}, 'stateStoreInfo': [store]})}".encode()
    )


def test_schema_files_are_named_in_the_new_location() -> None:
    """Whatever the old one was, and however often it was moved."""
    names = ("state/0/_stateSchema/default/0_a", "state/0/_stateSchema/default/7_b")
    moved = _described(*(f"hdfs://h:1/b c/{name}" for name in names))
    for before in ("file:/old/state/0/x", "file:/gone"):
        described = _described(*(f"{before}/{name}" for name in names))
        assert with_location(described, "hdfs://h:1/b c") == moved
    assert with_location(moved, "hdfs://h:1/b c") is moved


def test_a_description_that_is_in_place_keeps_its_bytes() -> None:
    """Hadoop writes a local path with one slash."""
    described = _described("file:/a/state/0/_stateSchema/default/0_a").replace(b", ", b",")
    assert with_location(described, "file:///a") is described


@pytest.mark.parametrize("content", [b"", b"v2\n[]", b"v2\n{}", _described("file:/a/0_b")])
def test_other_content_is_an_error(content: bytes) -> None:
    with pytest.raises((ValueError, LookupError, TypeError)):
        with_location(content, "file:///a")


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("spark/r/state-0/state/0/_metadata/v2/12", True),
        ("state/3/_metadata/v2/0", True),
        ("state/3/_metadata/metadata", False),
        ("state/3/0/_metadata/schema", False),
        ("offsets/0", False),
    ],
)
def test_only_versioned_descriptions_name_schema_files(path: str, is_one: bool) -> None:
    assert is_operator_metadata(path) is is_one
