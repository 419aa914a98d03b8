"""The check of the order in published files, on directories that are out of order on purpose."""

import pytest

from tests.chaos.published_files import Rows, out_of_order

A = "files/part-000000000003-in-0-00000-aa-c000.snappy.parquet"
B = "files/part-000000000003-in-1-00001-ab-c000.snappy.parquet"
C = "files/day=1/part-000000000004-in-0-00000-ac-c000.snappy.parquet"


def rows(partition: int, *offsets: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in offsets]


def test_order_is_kept_within_a_file_and_over_checkpoints() -> None:
    """Partitions may be mixed, offsets may be left out, and files come in any order."""
    mixed = [(0, 0), (1, 7), (0, 1), (1, 9)]
    assert out_of_order({C: rows(0, 5, 6), A: mixed, B: rows(2, 0, 1)}) == []


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({A: rows(0, 1, 0)}, f"{A}: partition 0: 0 behind 1"),
        ({A: rows(0, 1, 1)}, f"{A}: partition 0: 1 behind 1"),
        ({A: rows(0, 5), C: rows(0, 4)}, f"{C}: partition 0: 4 behind 5 in {A}"),
        ({A: rows(0, 1, 3), B: rows(0, 2, 4)}, f"{B}: partition 0: 2 behind 3 in {A}"),
    ],
    ids=["within a file", "twice", "over checkpoints", "two files of one checkpoint"],
)
def test_rows_out_of_order_are_found(files: dict[str, Rows], fault: str) -> None:
    assert out_of_order(files) == [fault]
