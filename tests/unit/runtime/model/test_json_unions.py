"""A field of several types is read as the one whose fields it has."""

from dataclasses import dataclass

import pytest

from sluice.runtime.model.json_values import FieldError, from_json, to_json


@dataclass(frozen=True)
class _Web:
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class _Bucket:
    name: str


@dataclass(frozen=True)
class _Place:
    at: _Web | _Bucket | None = None


@pytest.mark.parametrize("at", [_Web(("h",)), _Bucket("b"), None])
def test_each_type_of_a_field_is_read_back(at: _Web | _Bucket | None) -> None:
    """The address of a checkpoint directory is of one of two kinds."""
    assert from_json(_Place, to_json(_Place(at))) == _Place(at)


def test_a_value_of_neither_type_is_refused() -> None:
    """The error names the field of the last type."""
    with pytest.raises(FieldError, match="_Bucket"):
        from_json(_Place, {"at": {"other": 1}})
