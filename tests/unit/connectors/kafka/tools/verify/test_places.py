"""The sides of a comparison: the records of a topic that read_committed readers do not see."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.kafka.tools.verify.places import Files, hidden_in, opened_place
from sluice.runtime.checker import Record
from sluice.runtime.errors import ConfigError

OFFSETS = st.sets(st.integers(0, 12))


def records(offsets: Sequence[int]) -> Iterator[Record]:
    return (Record("in", 0, offset, None, b"") for offset in sorted(offsets))


@given(every=OFFSETS, visible=OFFSETS)
def test_the_hidden_records_are_those_of_one_reader_alone(
    every: set[int], visible: set[int]
) -> None:
    """Retention may remove a record that the other reader has just read."""
    found = [one.offset for one in hidden_in(records([*every]), records([*visible]))]
    assert found == sorted(every - visible)


def test_the_end_of_all_records_is_fixed_before_that_of_the_visible_ones() -> None:
    """Otherwise records that are committed in between would count as aborted."""
    begun: list[str] = []

    def reader(name: str) -> Iterator[Record]:
        begun.append(name)
        yield from records([0])

    assert list(hidden_in(reader("every"), reader("visible"))) == []
    assert begun == ["every", "visible"]


def test_a_name_with_a_slash_is_a_path() -> None:
    with opened_place("./orders", None) as found:
        assert found == Files("./orders")
    with pytest.raises(ConfigError, match="no Kafka servers"), opened_place("orders", None):
        pass
