"""``_metadata`` for any record."""

from hypothesis import given

from sluice.runtime.checkpoint.format.metadata import decode, encode
from sluice.runtime.model.checkpoint_record import CheckpointRecord
from tests.kit.coordinator.checkpoint_records import records


@given(records)
def test_any_record_comes_back_as_it_was_written(record: CheckpointRecord) -> None:
    """decode(encode(r)) == r, and the same bytes again."""
    data = encode(record)
    found = decode(data)
    assert found == record
    assert encode(found) == data
