"""What librdkafka's statistics say of a producer's transaction, and of the way to it. Pure."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

__all__ = ["Additions", "TransactionStatus", "may_arrive_late", "read_status"]

_DECODER = json.JSONDecoder()
_INIT_PRODUCER_ID = "InitProducerId"
_ADD_PARTITIONS_TO_TXN = "AddPartitionsToTxn"
_BROKERS = '"brokers":'
_TOPICS = '"topics":'  # behind the brokers; their names are anybody's
_COORDINATOR = "TxnCoordinator"  # of whatever broker that is


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


@dataclass(frozen=True, slots=True)
class _Coordinator:
    """What is told of the transaction's coordinator."""

    added: int
    sent: int
    given_up: int
    under_way: int


@dataclass(frozen=True, slots=True)
class Additions:
    """Requests to add partitions to a transaction, and so to begin it, by statistics as they come.

    Of a client that carries one transaction. The client tells how many requests it has sent of each
    kind, and how many it has given up of all kinds together. What it gives up while none of these
    can be under way, a question which version the broker speaks for one, begins nothing: of a
    coordinator that goes and comes back there is one nearly each time.

    Unlike that for an id a request has certainly been sent again, perhaps behind the newest
    statistics: the client does so 500 ms after it has lost a connection, or has given up waiting,
    and may do so as soon as its coordinator is back (14 of 40 losses on a busy machine).

    Attributes:
        is_unknown: the statistics do not tell, or nobody can read them.
    """

    _seen: _Coordinator | None
    is_unknown: bool = False
    _added: int = 0
    _given_up: int = 0
    _was_added: bool = False  # just now: what is counted of one request may be torn in two
    _is_under_way: bool = False
    _is_excused: bool = False  # what was given up last: a step back takes back that, and no more

    @classmethod
    def since(cls, statistics: str) -> Self:
        """Of a transaction that is begun behind these."""
        return cls(_coordinator(statistics))

    def then(self, statistics: str) -> Self:
        """With the next statistics; each must be told, in their order."""
        before, now = self._seen, _coordinator(statistics)
        if before is None or now is None or now.sent < before.sent:
            return replace(self, is_unknown=True)
        added = now.added - before.added
        may_be_one = added > 0 or self._was_added or self._is_under_way
        # The client counts while it tells: a request may look given up until the next report.
        step = now.given_up - before.given_up
        is_excused = not may_be_one if step > 0 else self._is_excused
        return replace(
            self,
            _seen=now,
            _added=self._added + added,
            _given_up=max(0, self._given_up + (0 if is_excused else step)),
            _was_added=added > 0,
            _is_under_way=may_be_one and now.under_way > 0,
            _is_excused=is_excused,
        )

    @property
    def is_settled(self) -> bool:
        """Whether the newest report tells of additions, all answered before it, and of no new one.

        What is added and lost behind it, and sent again before the next one, no report tells yet.
        """
        return self._added > 0 and not self._was_added and not self._is_under_way

    @property
    def may_come_late(self) -> bool:
        """Whether such a request may still arrive behind what has been answered."""
        return self.is_unknown or (self._added > 0 and self._given_up > 0)


def _coordinator(statistics: str) -> _Coordinator | None:
    """None where the client tells nothing of it that can be read. Parsed alone: it leads no
    partitions."""
    begin = max(0, statistics.find(_BROKERS))
    # A topic may be called so as well, and is named where its leader is told of; it is no object.
    start = statistics.find(f'"{_COORDINATOR}": {{', begin, statistics.find(_TOPICS, begin))
    if start < 0:
        return None
    try:  # in the client's callback, which may not raise
        told, _ = _DECODER.raw_decode(statistics, statistics.index("{", start))
        return _Coordinator(
            added=told["req"].get(_ADD_PARTITIONS_TO_TXN, 0),
            sent=told["tx"],
            given_up=_unanswered(told),
            under_way=told["waitresp_cnt"] + told["outbuf_cnt"],
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


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
    return sum(_unanswered(brokers[name]) for name in asked if name in brokers)


def _unanswered(broker: Mapping[str, Any]) -> int:
    """How many requests the client has stopped to wait for, whether an answer came later or not.

    An answer behind that counts as received, and as one to no request. Without the latter it would
    make up for another request that is given up later.
    """
    answered = broker["rx"] - broker["rxcorriderrs"]
    return int(broker["tx"] - answered - broker["waitresp_cnt"])


def _brokers(statistics: str) -> Mapping[str, Any] | None:
    """What is told of each broker, by the client's name of it."""
    # Before the topics, whose names are anybody's; a client's own name has no colon behind it.
    start = statistics.find(_BROKERS)
    if start < 0:
        return None
    brokers: Mapping[str, Any]
    brokers, _ = _DECODER.raw_decode(statistics, statistics.index("{", start))
    return brokers
