"""Which unread records an output would delete as soon as they are copied."""

from collections.abc import Mapping

import pytest

from sluice.connectors.kafka.source.enumerator.outlived_records import (
    find_outlived,
    retention_ms_of,
)
from tests.kit.source.fake_source_cluster import FakeLog, FakeSourceCluster
from tests.kit.source.source_setup import TIMEOUT_S, Bench


@pytest.mark.parametrize(
    ("settings", "retention_ms"),
    [
        ({"retention.ms": "604800000", "cleanup.policy": "delete"}, 604_800_000),
        ({"retention.ms": "5", "cleanup.policy": "compact,delete"}, 5),
        ({"retention.ms": "5", "cleanup.policy": "compact"}, None),
        ({"retention.ms": "-1", "cleanup.policy": "delete"}, None),
        ({"retention.ms": "5", "message.timestamp.type": "LogAppendTime"}, None),
        ({}, None),
    ],
)
def test_only_a_topic_that_deletes_by_its_records_own_timestamps_counts(
    settings: Mapping[str, str | None], retention_ms: int | None
) -> None:
    assert retention_ms_of(settings) == retention_ms


@pytest.mark.parametrize(
    ("before_ms", "read", "found"),
    [
        (500, 0, ["orders-0[2,5)"]),
        (500, 4, ["orders-0[4,5)"]),
        (500, 5, []),
        (100, 0, []),
        (9_999, 0, ["orders-0[2,10)"]),
        (9_999, 10, []),
    ],
)
def test_unread_records_from_the_position_to_the_first_recent_one_are_old(
    before_ms: int, read: int, found: list[str]
) -> None:
    cluster = FakeSourceCluster()
    times_ms = {n: n * 100 for n in range(2, 10)}
    cluster.create("orders", FakeLog(earliest=2, latest=10, times_ms=times_ms))
    bench = Bench(cluster, startingOffsets=f'{{"orders":{{"0":{read}}}}}')
    ranges = find_outlived(cluster, bench.start(), before_ms=before_ms, timeout_s=TIMEOUT_S)
    assert list(map(str, ranges)) == found
