"""Requests that a client has given up, as its statistics tell: whether one may begin a transaction.

What counts is what was given up since the transaction was begun (`outcome-from-broker`).
"""

import json

import pytest

from sluice.connectors.kafka.sink.producers.transaction_status import Additions, may_arrive_late
from sluice.runtime.errors import TransactionAbortedError
from tests.unit.connectors.kafka.sink.writer.test_kafka_writer import Rig, records


@pytest.fixture
def rig() -> Rig:
    """Each test has its own cluster."""
    return Rig()


def told(
    *,
    added: int = 0,
    asked: int = 1,
    lost: int = 0,
    under_way: int = 0,
    late: int = 0,
    waiting: int = 0,
) -> str:
    """Statistics of a client that has asked its coordinator for its id, and to add partitions.

    Args:
        lost: requests of any kind that it does not wait for any more.
        late: of these, how many were answered after all.
    """
    sent = added + asked + 10
    coordinator = {
        "req": {"InitProducerId": asked, "AddPartitionsToTxn": added},
        "tx": sent,
        "rx": sent - lost - under_way + late,
        "waitresp_cnt": under_way,
        "outbuf_cnt": waiting,
        "rxcorriderrs": late,
    }
    return json.dumps({"brokers": {"TxnCoordinator": coordinator}, "topics": {}, "eos": {}})


def may_begin(before: str, *statistics: str) -> bool:
    """Whether a transaction that was begun behind the first may be begun once more."""
    found = Additions.since(before)
    for each in statistics:
        found = found.then(each)
    return found.may_come_late


def test_what_was_given_up_before_its_begin_does_not_begin_a_transaction() -> None:
    """A connection that broke on the way to the id would cost the epoch, and the next one's."""
    assert not may_begin(told(lost=1), told(added=1, lost=1))
    assert may_begin(told(lost=1), told(added=2, lost=2))


def test_what_was_under_way_at_the_begin_and_given_up_later_counts() -> None:
    """Nobody knows which of them was given up."""
    assert may_begin(told(under_way=1), told(added=1, lost=1))
    assert not may_begin(told(), told(added=1, under_way=1))


def test_outcome_from_broker_a_late_answer_does_not_make_up_for_a_later_loss() -> None:
    """It answers a question from before the begin; the request to add a partition is still lost."""
    assert may_begin(told(lost=1), told(added=2, lost=2, late=1))
    assert may_begin(told(), told(added=2, lost=1, late=1))
    assert not may_begin(told(lost=1), told(added=1, lost=1, late=1))


def test_ids_never_reused_a_late_answer_does_not_make_up_for_a_lost_request_of_an_id() -> None:
    """The client asks for another epoch behind an abort."""
    assert may_arrive_late(told(asked=3, lost=2, late=1), told(lost=1))
    assert not may_arrive_late(told(asked=3, lost=1, late=1), told(lost=1))


def test_what_was_given_up_when_no_addition_was_under_way_was_none() -> None:
    """A coordinator that goes and comes back loses a question for its version each time: an outage
    would cost every epoch that is open."""
    answered = told(added=1)
    assert not may_begin(told(), answered, answered, told(added=1, lost=2))
    assert not may_begin(
        told(), answered, answered, told(added=1, under_way=1), told(added=1, lost=1)
    )


def test_outcome_from_broker_an_addition_that_is_under_way_for_long_and_given_up_then_is_told() -> (
    None
):
    """In a paused broker's socket, or before it was sent at all."""
    for waits in (told(added=1, under_way=1), told(added=1, waiting=1)):
        assert may_begin(told(), waits, waits, waits, told(added=1, lost=1))


def test_outcome_from_broker_what_is_counted_in_two_steps_is_one_addition() -> None:
    """The client counts while it tells: the kind in one report, and that it is sent in the next."""
    assert may_begin(told(), told(added=1), told(added=1, lost=1), told(added=2, lost=1))


def test_outcome_from_broker_what_looks_given_up_in_one_report_takes_nothing_back_in_the_next() -> (
    None
):
    """A question that is counted as sent, and not yet as waited for; or so before the begin."""
    lost = told(added=1, under_way=1), told(added=1, lost=1)
    assert may_begin(told(), *lost, told(added=1, lost=2), told(added=2, lost=1))
    assert may_begin(told(lost=1), *lost, told(added=2, lost=1))


def test_an_addition_that_looks_given_up_in_one_report_costs_no_epoch() -> None:
    """The next report takes that back, and nothing else has been given up."""
    assert not may_begin(told(), told(added=1, lost=1), told(added=1, under_way=1), told(added=1))


@pytest.mark.parametrize("now", [told(added=1), json.dumps({"brokers": {}, "topics": {}})])
def test_a_broker_that_the_client_has_forgotten_hides_what_was_given_up(now: str) -> None:
    """Its numbers begin at nothing again, or are gone."""
    assert may_begin(told(added=30, lost=1), now)


def test_outcome_from_broker_a_topic_may_be_called_like_the_coordinator() -> None:
    """Where its leader is told of, ahead of the coordinator, as librdkafka writes it."""
    leader = (
        '"brokers":{"b:9092/1": { "name":"b:9092/1", "toppars":{ "TxnCoordinator-0": '
        '{ "topic":"TxnCoordinator", "partition":0} , "TxnCoordinator-1": '
        '{ "topic":"TxnCoordinator", "partition":1} } } , '
    )

    def led(statistics: str) -> str:
        return statistics.replace('"brokers": {', leader)

    assert not may_begin(led(told()), led(told(added=1)))
    assert may_begin(led(told()), led(told(added=2, lost=1)))


def test_outcome_from_broker_statistics_that_nobody_can_read_end_no_thread_and_confirm_nothing(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """They come in the client's callback: what that raises breaks out of whatever polls."""
    rig.writer.write(records(b"a"))
    told_by = rig.client.statistics
    rig.client.statistics = lambda: told_by().replace('"tx"', '"sent"')  # type: ignore[method-assign]
    with pytest.raises(TransactionAbortedError, match="may still arrive"):
        rig.writer.pre_commit()
    assert caplog.text.count("do not show the coordinator") == 1


def test_a_connection_lost_before_its_begin_costs_no_epoch(rig: Rig) -> None:
    rig.cluster.lost_questions = 1
    rig.renew()
    rig.writer.write(records(b"a"))
    assert len(rig.writer.pre_commit()) == 1


def test_outcome_from_broker_a_late_answer_hides_no_request_that_may_begin_a_transaction(
    rig: Rig,
) -> None:
    """Of a client that keeps connections which were slow (``socket.max.fails``)."""
    rig.cluster.lost_questions = 1
    rig.renew()
    rig.writer.write(records(b"a"))
    rig.cluster.lost_additions = rig.cluster.late_answers = 1
    with pytest.raises(TransactionAbortedError, match="may still arrive"):
        rig.writer.pre_commit()


def test_outcome_from_broker_an_addition_that_is_under_way_for_long_is_not_settled() -> None:
    """It may be lost, and sent again, behind the newest report: a commit waits for the next."""
    begun = Additions.since(told()).then(told(added=1, under_way=1))
    assert not begun.is_settled, "just added"
    waits = begun.then(told(added=1, under_way=1))
    assert not waits.is_settled, "not answered yet"
    assert waits.then(told(added=1)).is_settled


def test_outcome_from_broker_statistics_that_tell_of_no_coordinator_settle_nothing() -> None:
    """Neither those of before the begin nor any later ones, whatever is told behind them."""
    for before, now in (("{}", told(added=1)), (told(), "{}")):
        found = Additions.since(before).then(now).then(told(added=1)).then(told(added=1))
        assert found.may_come_late
        assert found.is_unknown


def test_ids_never_reused_a_broker_that_the_client_has_forgotten_hides_a_request_for_an_id() -> (
    None
):
    """Its requests may arrive late, and nothing tells of them any more."""
    before = told(asked=1)
    gone = json.dumps({"brokers": {}, "topics": {}})
    assert may_arrive_late(gone, before)
    assert not may_arrive_late(before, before)
    assert may_arrive_late("{}", before)
    assert may_arrive_late(before, "{}")
