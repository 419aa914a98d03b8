"""An `init_transactions` or an abort that fails: whether its id may be used again, and what a task
is told."""

from collections.abc import Mapping
from typing import Any

import pytest

from sluice.connectors.kafka.client.confluent import KafkaException
from sluice.connectors.kafka.client.login_refusals import LASTING_S
from sluice.connectors.kafka.sink.producers.producer_errors import UnansweredError, UnsentError
from sluice.connectors.kafka.sink.producers.producer_pool import ProducerPool
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.runtime.errors import AuthenticationError, DeliveryError, StreamError, UnreachableError
from tests.kit.fakes import ManualClock
from tests.kit.kafka.fake_producer import FakeClient, FakeCluster, kafka_error
from tests.kit.kafka.producer_pools import Preparations, Threads, pool_of, scope


@pytest.mark.parametrize("earlier", [False, True])
def test_ids_never_reused_an_id_is_free_after_a_refusal_only_if_no_request_is_left(
    earlier: bool,
) -> None:
    """The broker's own answer ends the request, but not one that was sent before and given up."""
    refused = kafka_error("TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    unanswered = [kafka_error("_TIMED_OUT", retriable=True)] if earlier else []
    preparations = Preparations(FakeCluster(init_answers=[*unanswered, refused]), timeout_s=600)
    preparations.fail(AuthenticationError)
    assert (preparations.take() == preparations.asked[0]) is not earlier


def test_ids_never_reused_an_id_is_not_used_again_after_an_error_that_nobody_expected() -> None:
    """It may have come up behind the request as well as before it."""
    cluster, threads, asked = FakeCluster(), Threads(), []

    def prepare(transactional_id: str) -> TransactionalProducer:
        asked.append(transactional_id)
        producer = TransactionalProducer(cluster.client, {}, transactional_id)
        producer.prepare(topic=None, timeout_s=1)
        if len(asked) == 1:
            raise RuntimeError(transactional_id)
        return producer

    pool = ProducerPool(
        prefix="p", scope=scope(), prepare=prepare, background=threads, keep_alive_s=None
    )
    with pytest.raises(DeliveryError, match="could not be created"):
        pool.take(scope(), timeout_s=10)
    assert pool.take(scope(), timeout_s=10).producer.transactional_id != asked[0]
    threads.join()


def test_a_slow_coordinator_is_no_refusal_where_brokers_take_the_credentials(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One broker has refused them, which had just started and did not know its users yet; that
    the id's coordinator is slow has nothing to do with it, and must not end the job."""
    cluster = FakeCluster(init_error=kafka_error("_AUTHENTICATION"), partitions=1)
    preparations = Preparations(cluster)
    preparations.fail(UnreachableError)
    assert "others accept them" in caplog.text


def test_a_client_that_gives_up_is_heard_behind_refused_credentials() -> None:
    """The refusal is remembered as the better reason of a time-out; a fatal error is the end."""
    clients: list[FakeClient] = []

    def client(config: Mapping[str, Any]) -> FakeClient:
        clients.append(FakeClient(FakeCluster(), config))
        return clients[-1]

    producer = TransactionalProducer(client, {}, "id")
    producer.prepare(topic=None, timeout_s=1)
    clients[0].fail(kafka_error("_AUTHENTICATION"))
    assert producer.keep_alive()
    clients[0].fail(kafka_error("_FENCED", fatal=True))
    assert not producer.keep_alive()
    clients[0].fail(kafka_error("_TRANSPORT"))
    assert not producer.keep_alive()


class Interrupted(FakeCluster):
    """The first producers lose a connection on the way."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    def client(self, config: Mapping[str, Any]) -> FakeClient:
        self.lost_connections = int(self._times > 0)
        self._times -= 1
        return super().client(config)


def test_ids_never_reused_an_id_is_not_used_when_the_client_had_to_ask_for_it_twice() -> None:
    """A lost connection shows in no call, which succeeds: what was sent on it may lie in a paused
    broker's socket, and would abort what the producer has begun, decided or not. Another id is
    as good, and the task is not told."""
    preparations = Preparations(Interrupted(2))
    taken = preparations.take()
    assert preparations.asked.index(taken) == 2
    assert len(set(preparations.asked)) == len(preparations.asked)


def test_a_connection_that_breaks_each_time_is_told() -> None:
    """Else a task would wait for its time-out without a reason, and ids be used up in silence."""
    preparations = Preparations(Interrupted(1_000))
    preparations.fail(UnreachableError)
    assert len(set(preparations.asked)) == len(preparations.asked) == 6


def test_ids_never_reused_an_id_is_not_free_behind_a_refusal_of_a_request_that_was_sent_again() -> (
    None
):
    """The second request was refused; the first may have been taken."""
    refused = kafka_error("TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    preparations = Preparations(FakeCluster(init_answers=[refused], lost_connections=1))
    preparations.fail(AuthenticationError)
    preparations.cluster.lost_connections = 0
    assert preparations.take() != preparations.asked[0]


@pytest.mark.parametrize(("asked_again", "is_lost"), [(0, True), (1, True), (2, False), (2, True)])
def test_ids_never_reused_an_id_is_not_free_behind_an_abort_that_asked_for_it_twice(
    asked_again: int, is_lost: bool
) -> None:
    """A client that gave its transaction up takes a new epoch behind the abort, by the same
    request; that connections were lost before it says nothing."""
    cluster, clients = FakeCluster(), []

    def client(config: Mapping[str, Any]) -> FakeClient:
        clients.append(FakeClient(cluster, config))
        return clients[-1]

    producer = TransactionalProducer(client, {}, "id")
    producer.prepare(topic=None, timeout_s=1)
    producer.begin(lambda _: None)
    clients[0].initialisations += asked_again
    cluster.lost_connections = int(is_lost)
    assert producer.abort(timeout_s=1) is not (asked_again == 2 and is_lost)


@pytest.mark.parametrize("refused_s", [11, 17])
def test_credentials_that_are_refused_for_a_moment_are_waited_for(refused_s: int) -> None:
    """A client asks for a token that it was not given once more, after 10 s; each epoch has a
    client of its own, so one such answer must not end the job."""
    cluster, clock = FakeCluster(), ManualClock()
    until_s = clock() + refused_s

    class Waiting(FakeClient):
        def init_transactions(self, timeout: float) -> None:
            clock.advance(timeout)
            if clock() <= until_s:
                self._on_error(kafka_error("_AUTHENTICATION"))
                raise KafkaException(kafka_error("_TIMED_OUT", retriable=True))
            super().init_transactions(timeout)

    producer = TransactionalProducer(lambda config: Waiting(cluster, config), {}, "id", clock=clock)
    if refused_s > LASTING_S:
        with pytest.raises(UnansweredError) as caught:
            producer.prepare(topic=None, timeout_s=18)
        assert isinstance(caught.value.reason, AuthenticationError)
    else:
        producer.prepare(topic=None, timeout_s=18)


def test_a_failed_initialisation_reaches_the_task_with_its_type() -> None:
    """Bad credentials are an error of their own, not a time-out."""
    cluster, threads = FakeCluster(init_error=kafka_error("_AUTHENTICATION")), Threads()
    pool = pool_of(cluster, scope(), threads)
    with pytest.raises(AuthenticationError):
        pool.take(scope(), timeout_s=10)


@pytest.mark.parametrize("met", ["_AUTHENTICATION", "_TRANSPORT"])
def test_a_failure_that_nobody_waited_for_is_told_to_the_next_task(met: str) -> None:
    """A second try would take as long once more, and say the same."""
    preparations = Preparations(FakeCluster(init_error=kafka_error(met)))
    preparations.pool.enter(scope())
    preparations.threads.join()
    preparations.fail(StreamError)
    assert len(preparations.asked) == 1
    preparations.cluster.init_error = None
    assert preparations.take() != preparations.asked[0], "it is told once"


@pytest.mark.parametrize("met", ["_TRANSPORT", "_AUTHENTICATION"])
def test_what_a_task_before_did_not_hear_is_of_the_past_if_it_is_mended(met: str) -> None:
    """A task without records asks for no producer. An hour later its failure would end the job,
    though the next task has begun a try, which says what holds now."""
    preparations = Preparations(FakeCluster(init_error=kafka_error(met)))
    for batch_id in range(2):
        preparations.pool.enter(scope(batch_id=batch_id))
        preparations.threads.join()
    preparations.cluster.init_error = None
    preparations.pool.enter(scope(batch_id=2))
    preparations.take()


def test_a_log_in_that_is_still_refused_is_told() -> None:
    """By the try that the task itself has begun."""
    preparations = Preparations(FakeCluster(init_error=kafka_error("_AUTHENTICATION")))
    for batch_id in range(2):
        preparations.pool.enter(scope(batch_id=batch_id))
        preparations.threads.join()
    preparations.fail(AuthenticationError)
    assert len(preparations.asked) == 2


@pytest.mark.parametrize(("error", "ids"), [(UnsentError, 1), (UnreachableError, 3)])
def test_an_id_for_which_nothing_was_sent_is_used_again(
    error: type[UnreachableError], ids: int
) -> None:
    """While brokers are away each try would make a new one. What was sent may yet happen."""
    tried, threads = [], Threads()

    def prepare(transactional_id: str) -> TransactionalProducer:
        tried.append(transactional_id)
        raise error("no broker answers", {}, "Start them.")

    pool = ProducerPool(prefix="p", scope=scope(), prepare=prepare, background=threads)
    for _ in range(3):
        with pytest.raises(UnreachableError):
            pool.take(scope(), timeout_s=10)
        threads.join()
    assert len(set(tried)) == ids


@pytest.mark.parametrize(
    ("met", "told"), [("_TRANSPORT", UnreachableError), ("_AUTHENTICATION", AuthenticationError)]
)
def test_ids_never_reused_an_id_whose_initialisation_was_not_answered_is_never_used_again(
    met: str, told: type[StreamError]
) -> None:
    """The request may still arrive, from the socket of a broker that was paused, and would abort
    what a second producer of the same id has begun, or even pre-committed. What people are told
    as its reason changes nothing about that: another broker may have refused this client."""
    preparations = Preparations(FakeCluster(init_error=kafka_error(met)))
    preparations.fail(told)
    preparations.cluster.init_error = None
    assert preparations.take() != preparations.asked[0]
    assert len(set(preparations.asked)) == len(preparations.asked)


def test_ids_never_reused_an_id_whose_abort_was_not_answered_is_never_used_again() -> None:
    """Behind an abort the client may have to initialise the id anew; that request may arrive when
    its next transaction is decided."""
    cluster = FakeCluster(abort_is_acknowledged=False)
    pool = pool_of(cluster, scope(), lambda function: function())
    used = []
    for batch in range(4):
        task = scope(batch_id=batch, checkpoint_id=batch + 1, committed_through=batch)
        pool.enter(task)
        lease = pool.take(task, timeout_s=1)
        lease.producer.begin(lambda _: None)
        used.append(lease.producer.transactional_id)
        pool.abort(lease, timeout_s=1)
    assert len(set(used)) == len(used)


def test_a_producer_that_cannot_be_made_at_all_is_an_error_of_the_task() -> None:
    """Whatever goes wrong in a background thread, the task does not wait for its time-out."""

    def prepare(transactional_id: str) -> TransactionalProducer:
        raise RuntimeError(transactional_id)

    pool = ProducerPool(prefix="p", scope=scope(), prepare=prepare, background=Threads())
    with pytest.raises(DeliveryError, match="could not be created"):
        pool.take(scope(), timeout_s=10)
