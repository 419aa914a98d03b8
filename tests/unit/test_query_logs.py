"""Spark's own logs, as the drop-in reads them."""

import json
from dataclasses import replace

from runtime import offsets
from runtime.checkpoint.regions import key_of
from runtime.model import Barrier, SplitRange
from runtime.spark.query_logs import ranges_read
from tests.fake_file_system import Disk, FakeFileSystem

FOREIGN = 'rate:{"seconds": 7}'


def split(start: int, end: int, *, partition: int = 0) -> SplitRange:
    return SplitRange(
        source_id="s",
        topic="orders",
        topic_id="id",
        partition=partition,
        start_offset=start,
        end_offset=end,
    )


def logged(*batches: tuple[SplitRange, ...]) -> FakeFileSystem:
    """An offset log with these batches, beside a source that is not ours."""
    disk = Disk()
    for number, splits in enumerate(batches):
        barrier = Barrier(checkpoint_id=number, region="query", generation=0, splits=splits)
        lines = ["v2", "{}", f"ours:{json.dumps(offsets.encode(barrier))}", FOREIGN]
        disk.files[f"offsets/{number}"] = "\n".join(lines).encode()
    return FakeFileSystem(disk)


def test_a_batch_reads_what_its_offset_says() -> None:
    fs = logged((split(0, 5),), (split(5, 9), split(0, 4, partition=1)))
    assert ranges_read(fs, 0) == (split(0, 5),)
    assert ranges_read(fs, 1) == (split(5, 9), split(0, 4, partition=1))


def test_a_batch_without_records_repeats_the_offset_and_reads_nothing() -> None:
    """Rule 8: a watermark query runs such a batch to emit what it closes; reading the range into
    its record again would look like records that are written twice."""
    read = (split(5, 9), split(0, 4, partition=1))
    fs = logged((split(0, 5),), read, read, (split(9, 12), split(4, 4, partition=1)))
    assert ranges_read(fs, 2) == (split(9, 9), split(4, 4, partition=1))
    assert ranges_read(fs, 3) == (split(9, 12), split(4, 4, partition=1))


def test_two_sources_of_one_topic_are_kept_apart() -> None:
    """Each reads at its own pace: where one has got to says nothing about the other."""
    disk = Disk()
    for number, splits in enumerate([(split(0, 9), split(0, 5)), (split(9, 9), split(5, 9))]):
        lines = [
            json.dumps(
                offsets.encode(
                    Barrier(checkpoint_id=number, region="query", generation=0, splits=(one,))
                )
            )
            for one in splits
        ]
        disk.files[f"offsets/{number}"] = "\n".join(["v1", "{}", *lines]).encode()
    fs = FakeFileSystem(disk)
    assert ranges_read(fs, 1) == (split(9, 9), replace(split(5, 9), source_id="s-2"))
    assert len({key_of(s) for s in ranges_read(fs, 1)}) == 2


def test_a_batch_that_is_not_logged_has_no_ranges() -> None:
    assert ranges_read(logged(), 3) == ()
