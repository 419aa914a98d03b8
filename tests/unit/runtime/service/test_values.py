"""Model values as JSON: what a region's host and its coordinator tell each other."""

import json

import pytest

from sluice.runtime.contracts import OpenWork, RegionAttempt, RegionRegistration
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import (
    FileReference,
    RegionRecord,
    RegionStatus,
    StateSnapshot,
)
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.model.splits import BatchKey
from tests.kit.coordinator.core_driver import committable, split

STATE = StateSnapshot(
    provider="rocksdb",
    checkpoint_format_version=2,
    state_version=4,
    state_partitions=3,
    operators=((0, "dedup"), (1, "windows")),
    location="spark/main/state",
    files=(FileReference(path="a/b", length_bytes=3, sha256="0" * 64),),
)
RECORD = RegionRecord(
    region="main",
    attempt_id=3,
    status=RegionStatus.SKIPPED,
    snapshot_id=2,
    batch_id=None,
    splits=(split(0, 3, 5), split(1, 0, 0)),
    state=STATE,
    operator_states=(committable("\u00ff held"),),
)
LIFE = RegionAttempt(attempt_id=7, restored=RECORD, after=4)
REGISTRATION = RegionRegistration(
    region="main",
    attempt_id=7,
    acknowledged=None,
    address="http://driver:4711",
    open=(
        OpenWork(
            batch=BatchKey(region="main", attempt_id=7, batch_id=1),
            committables=(committable("one"), committable("two")),
        ),
    ),
)


@pytest.mark.parametrize("value", [LIFE, REGISTRATION, RECORD], ids=lambda v: type(v).__name__)
def test_a_value_arrives_as_it_was_sent(value: object) -> None:
    """Nested values, bytes, enumerations and what is not there."""
    assert from_json(type(value), json.loads(json.dumps(to_json(value)))) == value


@pytest.mark.parametrize(
    ("field", "wrong", "error"),
    [
        ("attempt_id", "7", TypeError),
        ("attempt_id", -1, ConfigError),
        ("unknown", 1, LookupError),
        ("restored", None, TypeError),
    ],
)
def test_what_is_not_such_a_value_is_refused(
    field: str, wrong: object, error: type[Exception]
) -> None:
    """By its types, and by the value's own checks."""
    with pytest.raises(error):
        from_json(RegionAttempt, to_json(LIFE) | {field: wrong})
