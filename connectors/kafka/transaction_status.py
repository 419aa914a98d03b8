"""What librdkafka's statistics say of a producer's transaction, and of the way to it. Pure."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["TransactionStatus", "may_arrive_late", "may_begin_late", "read_status"]

_DECODER = json.JSONDecoder()
_INIT_PRODUCER_ID = "InitProducerId"
_ADD_PARTITIONS_TO_TXN = "AddPartitionsToTxn"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionStatus:
    """The transaction as the producer itself sees it.

    Attributes:
        producer_id: None before the broker has given one.
        producer_epoch: belongs to it.
        state: librdkafka's ``txn_state``: ``Ready``, ``InTransaction``, …
    """

    producer_id: int | None
    producer_epoch: int
    state: str


def read_status(statistics: str) -> TransactionStatus | None:
    """The transaction's part of librdkafka's statistics; None where there is none.

    Only that part is parsed: with 1,000 partitions the whole takes 17 ms.
    """
    # A topic may be called "eos" too; topics come before.
    start = statistics.rfind('"eos"')
    if start < 0:
        return None
    eos, _ = _DECODER.raw_decode(statistics, statistics.index("{", start))
    producer_id = int(eos["producer_id"])
    return TransactionStatus(
        producer_id=producer_id if producer_id >= 0 else None,
        producer_epoch=int(eos["producer_epoch"]),
        state=str(eos["txn_state"]),
    )


def may_arrive_late(statistics: str, before: str | None = None) -> bool:
    """Whether the client has asked for its id again without an answer to the request before.

    It does so by itself, within one call that succeeds: a connection is lost, or time runs out, and
    what was sent may lie in a paused broker's socket until then. A request that the broker has
    answered with "try again" is over: as many answers have come then as requests were sent.

    Args:
        before: statistics from when no such request was under way; None: since the client was made.
    """
    sent, given_up = _requests(_INIT_PRODUCER_ID, statistics, before)
    return sent > 1 and given_up > 0


def may_begin_late(statistics: str, before: str | None = None) -> bool:
    """Whether a request to add partitions to the transaction, and so to begin it, may still arrive.

    Of a client that carries one transaction. Unlike that for an id the request has certainly been
    sent again, perhaps behind these statistics: the client does so 500 ms after it has lost a
    connection, or has given up waiting.

    Args:
        before: statistics from before the transaction was begun: what the client gave up then, on
            its way to an id, was no such request. None: since the client was made.
    """
    sent, given_up = _requests(_ADD_PARTITIONS_TO_TXN, statistics, before)
    return sent > 0 and given_up > 0


def _requests(request: str, statistics: str, before: str | None) -> tuple[int, int]:
    """How many were sent, and how many to those brokers were given up; as many as can be, where
    nothing is told."""
    now, then = _brokers(statistics), {} if before is None else _brokers(before)
    if now is None or then is None or _is_one_forgotten(request, now, then):
        return sys.maxsize, sys.maxsize
    asked = [name for name, broker in now.items() if broker["req"].get(request)]
    sent = _sent(request, now, asked) - _sent(request, then, asked)
    return sent, _given_up(now, asked) - _given_up(then, asked)


def _is_one_forgotten(request: str, now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """Whether the client has let go of a broker meanwhile, and with it of what it gave up there."""
    gone, known = then.keys() - now.keys(), then.keys() & now.keys()
    return any(then[name]["req"].get(request) for name in gone) or any(
        now[name]["tx"] < then[name]["tx"] for name in known
    )


def _sent(request: str, brokers: Mapping[str, Any], asked: list[str]) -> int:
    return sum(brokers[name]["req"].get(request, 0) for name in asked if name in brokers)


def _given_up(brokers: Mapping[str, Any], asked: list[str]) -> int:
    """How many requests the client has stopped to wait for, whether an answer came later or not.

    An answer behind that counts as received, and as one to no request. Without the latter it would
    make up for another request that is given up later.
    """
    told = [brokers[name] for name in asked if name in brokers]
    return sum(
        broker["tx"] - broker["rx"] - broker["waitresp_cnt"] + broker["rxcorriderrs"]
        for broker in told
    )


def _brokers(statistics: str) -> Mapping[str, Any] | None:
    """What is told of each broker, by the client's name of it."""
    # Before the topics, whose names are anybody's; a client's own name has no colon behind it.
    start = statistics.find('"brokers":')
    if start < 0:
        return None
    brokers: Mapping[str, Any]
    brokers, _ = _DECODER.raw_decode(statistics, statistics.index("{", start))
    return brokers
