"""One librdkafka producer with one transaction; it is closed afterwards.

Its producer id and epoch come from its own statistics (`handle-from-producer`): they identify
*this* attempt of the transaction, which DescribeTransactions cannot. After the flush the client
itself reports that it is still in that transaction (docs/adr/0015-the-client-reports-its-state.md).
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sluice.connectors.kafka.client.confluent import (
    KafkaError,
    KafkaException,
    error_codes,
    translate,
)
from sluice.connectors.kafka.client.login_refusals import LASTING_S
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.connectors.kafka.sink.producers.producer_client import (
    Client,
    ClientFactory,
    partition_count,
    serve,
)
from sluice.connectors.kafka.sink.producers.producer_errors import (
    LateRequestError,
    UnansweredError,
    is_answer,
    weight,
)
from sluice.connectors.kafka.sink.producers.transaction_status import (
    Additions,
    TransactionStatus,
    may_arrive_late,
    read_status,
)
from sluice.runtime.contracts import Clock
from sluice.runtime.errors import (
    AuthenticationError,
    DeliveryError,
    StreamError,
    TransactionAbortedError,
    UnreachableError,
)
from sluice.runtime.process.host_clock import age_clock

__all__ = ["TransactionalProducer"]

log = logging.getLogger(__name__)

STATISTICS_INTERVAL_MS = 20
"""Default (`preparation`). Unpolled events accumulate, 7 kB and more each, and the client walks
past all of them to add the next: see `TransactionalProducer.keep_alive`.
"""

_INIT_STEP_S = 1.0
_LONGEST_MARGIN_S = 60.0
_REACH_S = 1.0
_RELEASE_S = 1.0
_STATISTICS_S = 1.0  # several times their longest interval
_REPORT_STEP_S = 0.02
_ANY_TOPIC = "__transaction_state"  # that exists with transactions; any name would do
_WRONG_STATE = error_codes("_STATE")
_STATE_NAME = re.compile(r" in state (\w+)$")


class TransactionalProducer:
    """Executor. A background thread prepares it, then the thread of one writer uses it.

    Callbacks run in the thread that polls: the writer's, or while the writer is busy elsewhere
    (`in_use`) the thread that keeps it alive, never both.

    Args:
        note_open_s: gets the time from the start of the transaction to its native commit.
    """

    def __init__(
        self,
        make_client: ClientFactory,
        config: Mapping[str, Any],
        transactional_id: str,
        *,
        statistics_interval_ms: int = STATISTICS_INTERVAL_MS,
        note_open_s: Callable[[float], None] = lambda _: None,
        clock: Clock = time.monotonic,
        ages: Clock = age_clock,
    ) -> None:
        self._note_open_s = note_open_s
        self._clock = clock
        self._ages = ages
        self._statistics = ""
        self._seen = self._seen_at_confirm = 0
        self._before: str | None = None  # statistics of when nothing was under way
        self._additions: Additions | None = None  # of the transaction, once it is begun
        self._identity: TransactionIdentity | None = None
        self._on_client_error: Callable[[KafkaError], None] | None = None
        self.last_error: KafkaError | None = None
        self.partition_count: int | None = None
        self.transactional_id = transactional_id
        timeout_ms = config.get("transaction.timeout.ms")
        self._timeout_s = None if timeout_ms is None else int(timeout_ms) / 1000
        self._started_at_s = ages()
        self._used = threading.Lock()
        self._client: Client | None = make_client(
            {
                **config,
                "transactional.id": transactional_id,
                "statistics.interval.ms": statistics_interval_ms,
                "stats_cb": self._on_statistics,
                "error_cb": self._on_error,
            }
        )

    @property
    def client(self) -> Client:
        """For the records; do not keep it longer than the lease."""
        if self._client is None:
            raise DeliveryError(
                "a producer was used after its release",
                {"transactional_id": self.transactional_id},
                "Restart the job, and report this bug in the writer.",
            )
        return self._client

    @property
    def identity(self) -> TransactionIdentity:
        """Identity of its one transaction; known after `prepare`."""
        if self._identity is None:
            raise DeliveryError(
                "a producer was used before it was ready",
                {"transactional_id": self.transactional_id},
                "Restart the job, and report this bug in the producer pool.",
            )
        return self._identity

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Held while the writer's thread uses the client. Not reentrant."""
        with self._used:
            yield

    def prepare(self, *, topic: str | None, timeout_s: float) -> None:
        """`init_transactions`, then read the identity: several round trips.

        Args:
            topic: of all records; None: each record names its topic. Its metadata are fetched now,
                so that the first record does not wait for them.
        Raises:
            AuthenticationError, FencedError, ConfigError, …: by the broker's answer.
            UnreachableError: there was no answer, or an incomplete one, or an earlier request may
                yet arrive. Do not use the id again; an `UnansweredError` has the reason.
            LateRequestError: only the last case; another id may succeed at once.
        """
        deadline = self._clock() + timeout_s
        partitions = self._reach_a_broker(topic or _ANY_TOPIC)
        self._init_transactions(deadline)
        status = self._next_status(deadline, is_wanted=lambda s: s.state == "Ready")
        assert status.producer_id is not None  # `_next_status` waits for one
        if may_arrive_late(self._statistics):
            raise LateRequestError(_sent_again(self.transactional_id))
        self._identity = TransactionIdentity(
            transactional_id=self.transactional_id,
            producer_id=status.producer_id,
            producer_epoch=status.producer_epoch,
        )
        if topic is not None:
            self.partition_count = partitions or partition_count(self.client, topic)

    def _reach_a_broker(self, topic: str) -> int | None:
        """Number of the topic's partitions, from a broker that is now connected.

        librdkafka asks at once for the id's coordinator. If no broker is connected at that moment,
        it asks again after half a second. This happens in every second start: it closes the
        connection to a bootstrap server when the metadata have come, and opens the one to the
        broker itself later. The first answer may come from the bootstrap server, the second one
        only from the broker.
        """
        partition_count(self.client, topic, timeout_s=_REACH_S)
        return partition_count(self.client, topic, timeout_s=_REACH_S)

    def _init_transactions(self, deadline: float) -> None:
        refused_after = self._clock() + LASTING_S
        # A request of an earlier call may arrive after the answer to a later one.
        is_left = False
        while True:
            try:
                self.client.init_transactions(_INIT_STEP_S)
            except KafkaException as err:
                self._serve(0)  # the error callback knows the reason better
                is_left = is_left or not is_answer(err.args[0])
                reason = self._reason(err)
                refused = isinstance(reason, AuthenticationError) and self._clock() > refused_after
                if err.args[0].retriable() and self._clock() < deadline and not refused:
                    continue  # continues the same request
                reason.__cause__ = err
                is_over = not is_left and self._is_request_over()
                raise (reason if is_over else UnansweredError(reason)) from err
            return

    def _is_request_over(self) -> bool:
        """By statistics that are newer than this call; without any it is unknown."""
        seen, deadline = self._seen, self._clock() + _STATISTICS_S
        while self._seen == seen:
            if self._clock() > deadline:
                return False
            self._serve(0.1)
        return not may_arrive_late(self._statistics, self._before)

    def _reason(self, err: KafkaException) -> StreamError:
        where = {"transactional_id": self.transactional_id}
        if self.last_error is not None and self.last_error.fatal():
            return translate(self.last_error, where)
        error = translate(err, where)
        if isinstance(error, UnreachableError) and self.last_error is not None:
            # Refused credentials appear here only as a timeout.
            reason = translate(self.last_error, where)
            if isinstance(reason, AuthenticationError) and not self._is_refusal_over():
                return reason
        return error

    def _is_refusal_over(self) -> bool:
        """Whether a broker accepts the credentials that one has refused: then the timeout is due to
        a slow coordinator, and another try may succeed."""
        try:
            self.client.list_topics(_ANY_TOPIC, _REACH_S)
        except KafkaException:
            return False
        log.warning(
            "a broker refused the credentials, others accept them: transactional_id=%s error=%s",
            self.transactional_id,
            None if self.last_error is None else self.last_error.name(),
        )
        self.last_error = None
        return True

    def begin(self, on_client_error: Callable[[KafkaError], None]) -> None:
        """Start the transaction, locally; the broker learns of it with the first record."""
        with self._used:
            self._serve_all()
        self._before = self._statistics  # requests that were lost before now have started nothing
        self._additions = Additions.since(self._statistics)
        self._on_client_error = on_client_error
        if self.last_error is not None and self.last_error.fatal():
            on_client_error(self.last_error)
        self._started_at_s = self._ages()
        try:
            with self._used:
                self.client.begin_transaction()
        except KafkaException as err:
            raise translate(err, {"transactional_id": self.transactional_id}) from err

    def confirm(self) -> None:
        """After a flush: still in the same transaction, under the same identity
        (`handle-from-producer`).

        The newest statistics must show the identity. They may be older than the flush. But the
        client takes another id or epoch only after it has left the transaction, and its state now
        shows that it has not.

        Raises:
            TransactionAbortedError: the producer's id or epoch is no longer the registered one, or
                the transaction is no longer open. Or the broker may have aborted it by age, or it
                may be started again after its commit.
            FencedError, UnreachableError, …: the reason why the client has given it up.
        """
        self._serve_all()
        state, status, identity = self._state(), read_status(self._statistics), self.identity
        assert status is not None  # `prepare` has read one
        same = (status.producer_id, status.producer_epoch) == (
            identity.producer_id,
            identity.producer_epoch,
        )
        if not same or state != "InTransaction":
            raise TransactionAbortedError(
                "the transaction is not the one that was started",
                {
                    "transactional_id": self.transactional_id,
                    "registered": f"{identity.producer_id}/{identity.producer_epoch}",
                    "now": f"{status.producer_id}/{status.producer_epoch}",
                    "state": state,
                },
                "Wait: the epoch is written again, and nothing of this one becomes visible.",
            )
        self._refuse_repeated()
        self._refuse_timed_out()
        self._seen_at_confirm = self._seen

    def abort_reason(self) -> KafkaError | None:
        """Why the client has given up the open transaction; None: it has not."""
        refusal = self._begin_refused()
        return None if refusal is None or refusal.code() in _WRONG_STATE else refusal

    def _state(self) -> str:
        """librdkafka's ``txn_state`` now; raises the error in which the transaction has ended."""
        refusal = self._begin_refused()
        if refusal is None:
            return "Ready"
        if refusal.code() not in _WRONG_STATE:
            raise translate(refusal, {"transactional_id": self.transactional_id})
        named = _STATE_NAME.search(refusal.str())
        return named[1] if named else refusal.str()

    def _begin_refused(self) -> KafkaError | None:
        """The client's answer to a start of a transaction, which is legal only in ``Ready``.

        No call returns its state, and statistics come only at intervals. But each call names the
        state in which it is not legal, or the error in which the transaction has ended.
        """
        try:
            self.client.begin_transaction()
        except KafkaException as err:
            error: KafkaError = err.args[0]
            return error
        return None

    @property
    def kept_s(self) -> float | None:
        """The time from its start for which the broker certainly keeps a transaction, with time for
        its commit; None: it is unknown."""
        if self._timeout_s is None:
            return None
        return self._timeout_s - min(_LONGEST_MARGIN_S, self._timeout_s / 4)

    def _may_begin_late(self) -> bool:
        return self._additions is None or self._additions.may_come_late

    def _refuse_repeated(self) -> None:
        # A copy may arrive after a commit that does not change the epoch (a native one, or one by
        # the coordinator at transaction.version 0). It starts that epoch again, without a record.
        # After its timeout the broker reports an abort, and visible records would be written again.
        if self._may_begin_late():
            raise TransactionAbortedError(
                "a request to add partitions to the transaction may still arrive",
                {"transactional_id": self.transactional_id},
                "Wait: the epoch is written again, and nothing of this one becomes visible. Check "
                "the connection to the brokers if this occurs often.",
            )

    def _refuse_timed_out(self) -> None:
        # The client learns of the broker's abort only by its next request. After a long pause with
        # all records acknowledged there is none: a decision would name a lost transaction. By the
        # boot-time clock, which counts while this host is suspended, as the broker's does.
        age_s = self._ages() - self._started_at_s
        if self._timeout_s is not None and age_s >= self._timeout_s:
            raise TransactionAbortedError(
                "the transaction may have timed out before its pre-commit",
                {
                    "transactional_id": self.transactional_id,
                    "age_s": round(age_s, 1),
                    "transaction_timeout_s": self._timeout_s,
                },
                "Make epochs smaller, or raise transactionTimeout; nothing of this one is visible.",
            )

    def _next_status(
        self, deadline: float, *, is_wanted: Callable[[TransactionStatus], bool]
    ) -> TransactionStatus:
        seen = self._seen
        while True:
            self._serve(0.1)
            if self._seen != seen:
                status = read_status(self._statistics)
                seen = self._seen
                if status is not None and status.producer_id is not None and is_wanted(status):
                    return status
            if self._clock() > deadline:
                raise UnreachableError(
                    "the producer's statistics do not show its transaction",
                    {"transactional_id": self.transactional_id},
                    "Check that the brokers run and are reachable from here.",
                )

    def keep_alive(self) -> bool:
        """Serve callbacks while it, or its writer, waits: otherwise statistics accumulate and
        tokens expire.

        Does nothing while it is in use. False if the client has given up for good.
        """
        if self._used.acquire(blocking=False):
            try:
                client = self._client
                if client is not None:
                    serve(client, 0, self._on_error)
            finally:
                self._used.release()
        return self.last_error is None or not self.last_error.fatal()

    def _serve(self, timeout_s: float) -> int:
        return serve(self.client, timeout_s, self._on_error)

    def _serve_all(self) -> None:
        while self._serve(0):
            pass

    def commit(self, *, timeout_s: float) -> bool:
        """Commit natively; True if the broker acknowledged it. Never raises.

        After any other answer it may or may not be committed, now or later: only the broker's
        description shows it (`outcome-from-broker`). It has no further transaction in either case.
        """
        deadline = self._clock() + timeout_s
        self._note_open_s(self._ages() - self._started_at_s)
        try:
            # Seen after the pre-commit, if the client was about to add another partition when it
            # lost its connection, and did not wait: the coordinator's EndTxn raises the epoch.
            if not self._has_reported(deadline) or self._may_begin_late():
                log.info(
                    "driver will commit the transaction: transactional_id=%s", self.transactional_id
                )
                return False
            self.client.commit_transaction(max(0.0, deadline - self._clock()))
        except (KafkaException, StreamError) as err:
            log.info(
                "commit was not acknowledged: transactional_id=%s error=%s",
                self.transactional_id,
                err,
            )
            return False
        return True

    def _has_reported(self, deadline: float) -> bool:
        """Whether statistics show the result of the requests that start the transaction.

        In an epoch that is shorter than their interval only the next ones may show it.
        """
        self._serve_all()
        while self._seen == self._seen_at_confirm and not self._is_settled:
            if self._clock() > deadline:
                return False
            self._serve(_REPORT_STEP_S)
        return True

    @property
    def _is_settled(self) -> bool:
        return self._additions is not None and self._additions.is_settled

    def abort(self, *, timeout_s: float) -> bool:
        """Abort natively; True if the broker acknowledged it, and no request of it may yet arrive.

        Never raises. Without an acknowledgement the coordinator's sweep aborts it. A client that
        had to give up the transaction takes a new epoch after the abort, by the request that
        `prepare` sends. After a repeated request the id is not free either.
        """
        try:
            with self._used:
                self.client.abort_transaction(timeout_s)
                return self._is_request_over()
        except (KafkaException, StreamError):
            return False

    def release(self) -> None:
        """Drop connections and unsent records; a transaction stays open at the broker.

        Never by the client's own ``close``: since 2.16 that aborts the transaction first. The
        client ends with the last reference to it, so the writer must release it, too.
        """
        client, self._client = self._client, None
        # A writer that hangs in the client must not keep it for ever.
        is_mine = self._used.acquire(timeout=_RELEASE_S)
        try:
            if client is not None and len(client):
                client.purge()
                while serve(client, 0, self._on_error):
                    pass  # each record's report frees its own data
        finally:
            if is_mine:
                self._used.release()

    def _on_statistics(self, statistics: str) -> None:
        self._statistics = statistics
        self._seen += 1
        before = self._additions
        if before is not None:
            self._additions = before.then(statistics)
            if self._additions.is_unknown and not before.is_unknown:
                log.warning(
                    "statistics do not show the coordinator: transactional_id=%s",
                    self.transactional_id,
                )

    def _on_error(self, error: KafkaError) -> None:
        if self.last_error is None or weight(error) >= weight(self.last_error):
            self.last_error = error
        if error.fatal() and self._on_client_error is not None:
            self._on_client_error(error)


def _sent_again(transactional_id: str) -> UnreachableError:
    return UnreachableError(
        "an earlier request to initialise this transactional id may still arrive",
        {"transactional_id": transactional_id},
        "Check the connection to the brokers if this occurs often; another id is used.",
    )
