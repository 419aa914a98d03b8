"""What librdkafka's statistics say of a client that returns no record."""

import json
from collections.abc import Mapping

import pytest

from sluice.connectors.kafka.source.reader.fetch_positions import FetchPositions

_KEY = ("orders", 0)


def _report(next_offset: int, throttle: Mapping[str, int] | None = None) -> str:
    partitions = {
        "0": {"next_offset": next_offset, "broker": 1},
        "-1": {"next_offset": -1001, "broker": -1},
    }
    return json.dumps(
        {
            "brokers": {
                "a:1/1": {"nodeid": 1, "throttle": throttle or {"max": 0}},
                "a:1/bootstrap": {"nodeid": -1},
            },
            "topics": {"orders": {"partitions": partitions}},
        }
    )


def test_a_partition_has_moved_as_often_as_it_is_fetched_further() -> None:
    fetched = FetchPositions()
    assert fetched.moved({_KEY: 5}) == set()
    moves = []
    for offset in (-1001, 5, 6, 6, 4, 7):
        fetched.report(_report(offset))
        moves.append(fetched.moved({_KEY: 5}) == {_KEY})
    assert moves == [False, False, True, False, False, True]
    assert fetched.moved({_KEY: 5}) == set(), "a report counts once"


def test_what_was_fetched_and_read_is_no_move() -> None:
    """Only the position beyond it counts: a client may stand there."""
    fetched = FetchPositions()
    fetched.report(_report(9))
    assert fetched.moved({_KEY: 9}) == set()


@pytest.mark.parametrize(("broker_ms", "is_active"), [(0, False), (998, True)])
def test_a_client_that_a_quota_delays_is_not_silent(broker_ms: int, is_active: bool) -> None:
    """The broker answers without records until the quota allows some again."""
    fetched = FetchPositions()
    fetched.report(_report(5, {"max": broker_ms}))
    assert bool(fetched.moved({_KEY: 5})) is is_active
    assert fetched.moved({("returns", 0): 0}) == set()
