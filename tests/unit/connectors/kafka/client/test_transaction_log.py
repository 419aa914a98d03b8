"""Which partition keeps an id, and a listing that knows what its brokers have not loaded."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.connectors.kafka.client.wire_client import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    MetadataRequest,
    Net,
)
from sluice.connectors.kafka.sink.committer.transaction_listing import list_transactions
from sluice.connectors.kafka.sink.committer.wire_answers import id_for_each_partition, partition_of

_NOT_COORDINATOR, _NOT_FOUND = 16, 105
_PARTITIONS = 50


@pytest.mark.parametrize(
    ("text", "java_hash"),
    [
        ("", 0),
        ("hello", 99162322),
        ("transaction", 2141246174),
        ("polygenelubricants", 0),  # Java's smallest number, for which brokers take 0
    ],
)
def test_partitions_are_counted_from_javas_hash(text: str, java_hash: int) -> None:
    """Values of ``String.hashCode``."""
    assert partition_of(text, _PARTITIONS) == java_hash % _PARTITIONS


def test_each_partition_has_an_id_of_the_prefix() -> None:
    """In the order of the partitions."""
    ids = id_for_each_partition("prefix/job/", _PARTITIONS)

    assert all(one.startswith("prefix/job/") for one in ids)
    assert [partition_of(one, _PARTITIONS) for one in ids] == list(range(_PARTITIONS))


class _Broker:
    """One broker that leads the whole log; ``loaded`` says what it knows, a call at a time."""

    def __init__(self, *loaded: bool) -> None:
        self._loaded: Iterator[bool] = iter(loaded)

    async def send(self, request: object, _node_id: int | None = None) -> SimpleNamespace:
        match request:
            case MetadataRequest():
                rows = [
                    SimpleNamespace(partition_index=index, leader_id=1)
                    for index in range(_PARTITIONS)
                ]
                return SimpleNamespace(
                    error_code=0,
                    brokers=[SimpleNamespace(node_id=1)],
                    topics=[SimpleNamespace(error_code=0, partitions=rows)],
                )
            case DescribeTransactionsRequest():
                answer = _NOT_FOUND if next(self._loaded) else _NOT_COORDINATOR
                asked: list[str] = cast(Any, request).transactional_ids
                states = [
                    SimpleNamespace(
                        transactional_id=one, error_code=_NOT_FOUND if number else answer
                    )
                    for number, one in enumerate(asked)
                ]
                return SimpleNamespace(transaction_states=states)
            case ListTransactionsRequest():
                return SimpleNamespace(error_code=0, transaction_states=[])
        raise AssertionError(request)


@pytest.mark.parametrize(
    ("loaded", "missing"),
    [
        ((True, True), ()),
        ((False, True), ("broker 1",)),
        ((True, False), ("broker 1",)),
        ((False, False), ("broker 1",)),
    ],
)
def test_wait_for_all_brokers_a_listing_is_not_complete_while_its_broker_has_not_loaded_all(
    loaded: tuple[bool, bool], missing: tuple[str, ...]
) -> None:
    """One partition is enough, before or after: the broker itself answers without an error."""
    listing = asyncio.run(list_transactions(cast(Net, _Broker(*loaded)), "prefix/", []))

    assert listing.transactions == ()
    assert listing.missing == missing
