"""Reads a producer's transaction, and its coordinator, from librdkafka's statistics. Pure."""

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
_TOPICS = '"topics":'  # after the brokers; topics may have any name
_COORDINATOR = "TxnCoordinator"  # any broker may be it


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionStatus:
    """The transaction as the producer itself sees it.

    Attributes:
        producer_id: None before the broker has assigned one.
        producer_epoch: belongs to it.
        state: librdkafka's ``txn_state``: ``Ready``, ``InTransaction``, …
    """

    producer_id: int | None
    producer_epoch: int
    state: str


def read_status(statistics: str) -> TransactionStatus | None:
    """The transaction's part of librdkafka's statistics; None if there is none.

    Only that part is parsed: with 1,000 partitions the whole takes 17 ms.
    """
    # A topic may be called "eos", too; topics come before.
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
    """Whether the client has requested its id again without an answer to the request before.

    It does so by itself, within one call that succeeds, after a lost connection or a timeout. The
    old request may lie in a paused broker's socket. A request that the broker has answered with
    "try again" is over: then there are as many answers as requests.

    Args:
        before: statistics from a time without such a request; None: since the client was made.
    """
    sent, given_up = _requests(_INIT_PRODUCER_ID, statistics, before)
    return sent > 1 and given_up > 0


@dataclass(frozen=True, slots=True)
class _Coordinator:
    """The statistics of the transaction's coordinator."""

    added: int
    sent: int
    given_up: int
    pending: int


@dataclass(frozen=True, slots=True)
class Additions:
    """Counts requests to add partitions to a transaction, and so to start it, over successive
    statistics.

    For a client with one transaction. The client counts the requests of each kind that it sent, and
    all requests together that it gave up. A request that it gives up while none of these can be
    pending starts nothing. An example is the question for the broker's versions, which occurs at
    nearly every return of a coordinator.

    Unlike the request for an id, such a request has certainly been repeated, perhaps after the
    newest statistics. The client repeats it 500 ms after it has lost a connection or stopped
    waiting, or as soon as its coordinator is back (14 of 40 losses on a busy machine).

    Attributes:
        is_unknown: the statistics do not show it, or are not readable.
    """

    _seen: _Coordinator | None
    is_unknown: bool = False
    _added: int = 0
    _given_up: int = 0
    _was_added: bool = False  # the counts of a recent request may be inconsistent
    _is_pending: bool = False
    _is_excused: bool = False  # number given up last: a decrease takes back only that many

    @classmethod
    def since(cls, statistics: str) -> Self:
        """For a transaction that starts after these statistics."""
        return cls(_coordinator(statistics))

    def then(self, statistics: str) -> Self:
        """Add the next statistics; call it for each, in order."""
        before, now = self._seen, _coordinator(statistics)
        if before is None or now is None or now.sent < before.sent:
            return replace(self, is_unknown=True)
        added = now.added - before.added
        may_be_one = added > 0 or self._was_added or self._is_pending
        # The client counts while it reports: a request may look given up until the next report.
        step = now.given_up - before.given_up
        is_excused = not may_be_one if step > 0 else self._is_excused
        return replace(
            self,
            _seen=now,
            _added=self._added + added,
            _given_up=max(0, self._given_up + (0 if is_excused else step)),
            _was_added=added > 0,
            _is_pending=may_be_one and now.pending > 0,
            _is_excused=is_excused,
        )

    @property
    def is_settled(self) -> bool:
        """Whether the newest report shows additions, all answered before it, and no new one.

        No report shows yet a request that is added, lost and repeated between it and the next one.
        """
        return self._added > 0 and not self._was_added and not self._is_pending

    @property
    def may_come_late(self) -> bool:
        """Whether such a request may still arrive after the answered ones."""
        return self.is_unknown or (self._added > 0 and self._given_up > 0)


def _coordinator(statistics: str) -> _Coordinator | None:
    """None if the client reports nothing readable about it. Parsed separately: it leads no
    partitions."""
    begin = max(0, statistics.find(_BROKERS))
    # A topic may have this name, too, and occurs next to its leader; it is no object.
    start = statistics.find(f'"{_COORDINATOR}": {{', begin, statistics.find(_TOPICS, begin))
    if start < 0:
        return None
    try:  # in the client's callback, which must not raise
        broker, _ = _DECODER.raw_decode(statistics, statistics.index("{", start))
        return _Coordinator(
            added=broker["req"].get(_ADD_PARTITIONS_TO_TXN, 0),
            sent=broker["tx"],
            given_up=_unanswered(broker),
            pending=broker["waitresp_cnt"] + broker["outbuf_cnt"],
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _requests(request: str, statistics: str, before: str | None) -> tuple[int, int]:
    """Number of requests sent, and of those given up by these brokers; the largest possible number
    if there are no statistics."""
    now, then = _brokers(statistics), {} if before is None else _brokers(before)
    if now is None or then is None or _is_one_forgotten(request, now, then):
        return sys.maxsize, sys.maxsize
    with_request = [name for name, broker in now.items() if broker["req"].get(request)]
    sent = _sent(request, now, with_request) - _sent(request, then, with_request)
    return sent, _given_up(now, with_request) - _given_up(then, with_request)


def _is_one_forgotten(request: str, now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """Whether the client has removed a broker meanwhile, and with it the count of requests given up
    there."""
    removed, known = then.keys() - now.keys(), then.keys() & now.keys()
    return any(then[name]["req"].get(request) for name in removed) or any(
        now[name]["tx"] < then[name]["tx"] for name in known
    )


def _sent(request: str, brokers: Mapping[str, Any], with_request: list[str]) -> int:
    return sum(brokers[name]["req"].get(request, 0) for name in with_request if name in brokers)


def _given_up(brokers: Mapping[str, Any], with_request: list[str]) -> int:
    return sum(_unanswered(brokers[name]) for name in with_request if name in brokers)


def _unanswered(broker: Mapping[str, Any]) -> int:
    """Number of requests for which the client has stopped waiting, with or without a later answer.

    A later answer counts as received, and as an answer to no request. Without the second count it
    would hide another request that is given up later.
    """
    answered = broker["rx"] - broker["rxcorriderrs"]
    return int(broker["tx"] - answered - broker["waitresp_cnt"])


def _brokers(statistics: str) -> Mapping[str, Any] | None:
    """The statistics of each broker, by the client's name of it."""
    # Before the topics, which may have any name; a client's own name is not followed by a colon.
    start = statistics.find(_BROKERS)
    if start < 0:
        return None
    brokers: Mapping[str, Any]
    brokers, _ = _DECODER.raw_decode(statistics, statistics.index("{", start))
    return brokers
