"""One test for each request that is sent by kafka-python's undocumented classes
(`wait-for-all-brokers`).

They fail when another version of kafka-python answers differently; the rest of the project may
then not be trusted with transactions.
"""

import dataclasses
import socket
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_requests import EndOutcome, TransactionState
from sluice.connectors.kafka.sink.committer.wire_answers import STATE_TOPIC, partition_of
from sluice.runtime.embedded.ports import HOST, free_ports
from sluice.runtime.errors import UnreachableError
from tests.kit.kafka.kafka_fixture import BrokerByLevel
from tests.kit.kafka.kafka_records import create_topic, delete_topic, end_offsets, unique
from tests.kit.kafka.transaction_harness import RealHarness
from tests.kit.waiting import join

pytestmark = pytest.mark.integration


@pytest.fixture
def real(kafka_by_level: BrokerByLevel) -> Iterator[RealHarness]:
    harness = RealHarness(kafka_by_level(2), 2)
    yield harness
    harness.close()


def test_kafka_python_is_the_version_that_these_tests_were_written_for() -> None:
    """Undocumented classes: another version needs these tests, and a look at its changes."""
    assert version("kafka-python") == "3.0.12"


@pytest.mark.parametrize("level", [0, 1, 2])
def test_endtxn_version_the_finalised_level_is_read_from_the_cluster(
    kafka_by_level: BrokerByLevel, level: int
) -> None:
    """ApiVersions, Metadata, DescribeConfigs: level, cluster id and rule `transaction-timeout`'s
    maximum."""
    wire = TransactionWire(KafkaConnection(bootstrap_servers=kafka_by_level(level).bootstrap))
    cluster = wire.cluster(timeout_s=300)
    wire.close()

    assert cluster.transaction_version == level
    assert cluster.missing_requests == ()
    assert cluster.max_transaction_timeout_s == 900
    assert len(cluster.cluster_id) == 22


def test_describe_tells_state_producer_timeout_and_partitions(real: RealHarness) -> None:
    """FindCoordinator and DescribeTransactions, of a known id and an unknown one."""
    attempt = real.open(timeout_s=300)
    attempt.produce(1)
    unknown = real.name()

    found = real.wire.describe([attempt.identity.transactional_id, unknown], timeout_s=300)

    described = found[attempt.identity.transactional_id]
    # rule `handle-from-producer`: equal to the producer's statistics
    assert described.identity == attempt.identity
    assert described.state is TransactionState.ONGOING
    assert described.timeout_s == 300
    assert described.partitions == ((real.topic, 0),)
    assert found[unknown] is None


@pytest.mark.parametrize("commit", [True, False])
def test_end_is_accepted_and_its_refusals_are_named(real: RealHarness, commit: bool) -> None:
    """EndTxn: done, repeated, with a stale epoch, of an unknown id."""
    attempt = real.open()
    attempt.produce(1)
    ours = attempt.identity
    done = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT

    (report,) = real.wire.end([ours], commit=commit, timeout_s=300)
    assert (report.outcome, report.error) == (EndOutcome.DONE, "")
    real.await_state(ours, done)

    stranger = dataclasses.replace(ours, transactional_id=real.name())
    later = dataclasses.replace(ours, producer_epoch=ours.producer_epoch + 9)
    reports = real.wire.end([ours, stranger], commit=not commit, timeout_s=300)
    reports += real.wire.end([later], commit=commit, timeout_s=300)
    assert [report.outcome for report in reports] == [EndOutcome.REFUSED] * 3
    assert [report.error for report in reports] == [
        "InvalidTxnStateError",
        "InvalidProducerIdMappingError",
        "ProducerFencedError",
    ]


def test_many_transactions_are_ended_in_one_call(real: RealHarness) -> None:
    """Requests are pipelined on each coordinator's connection; order is kept."""
    attempts = [real.open() for _ in range(12)]
    for attempt in attempts:
        attempt.produce(1)

    reports = real.wire.end([a.identity for a in attempts], commit=True, timeout_s=60)

    assert {report.outcome for report in reports} == {EndOutcome.DONE}
    assert real.visible() == 12


def test_list_gives_the_prefix_only_and_the_open_ones_on_request(real: RealHarness) -> None:
    """ListTransactions of every broker; complete as far as one broker can be."""
    open_one, ended = real.open(), real.open()
    for attempt in (open_one, ended):
        attempt.produce(1)
    ended.end_natively(commit=True)
    other = RealHarness.open(real, f"{unique('stranger')}/x")
    other.produce(1)

    everything = real.wire.list_transactions(real.prefix, timeout_s=300)
    only_open = real.wire.list_transactions(
        real.prefix, timeout_s=300, states=(TransactionState.ONGOING,)
    )

    ids = {row.transactional_id for row in everything.transactions}
    assert ids == {open_one.identity.transactional_id, ended.identity.transactional_id}
    assert everything.missing == ()
    (row,) = only_open.transactions
    assert row.transactional_id == open_one.identity.transactional_id
    assert row.producer_id == open_one.identity.producer_id
    assert row.state is TransactionState.ONGOING


def test_wait_for_all_brokers_an_id_lives_in_the_partition_that_we_count(real: RealHarness) -> None:
    """The broker writes the state of a new id to that partition of its log."""
    bootstrap = real.connection.bootstrap_servers
    real.open()  # the log exists from now on
    before = end_offsets(bootstrap, STATE_TOPIC, committed=False)
    ids = [real.open().transactional_id for _ in range(5)]
    after = end_offsets(bootstrap, STATE_TOPIC, committed=False)

    grown = {partition for partition, offset in after.items() if offset > before[partition]}
    assert grown >= {partition_of(one, len(after)) for one in ids}


def test_missing_topics_are_found_and_not_created(real: RealHarness) -> None:
    """Metadata without auto-creation, so a start check changes nothing."""
    absent = unique("absent")

    for _ in range(2):
        assert real.wire.missing_topics([real.topic, absent], timeout_s=300) == (absent,)


def test_topic_ids_differ_after_a_topic_was_recreated(real: RealHarness) -> None:
    name = create_topic(real.connection.bootstrap_servers, partitions=1)
    (before,) = real.wire.topic_ids([name, unique("absent")], timeout_s=300).items()
    delete_topic(real.connection.bootstrap_servers, name)
    create_topic(real.connection.bootstrap_servers, name, partitions=1)
    (after,) = real.wire.topic_ids([name], timeout_s=300).items()
    assert before[0] == after[0] == name
    assert None not in (before[1], after[1])
    assert before[1] != after[1]


def test_calls_from_several_threads_do_not_mix_up(real: RealHarness) -> None:
    """One client, many callers: each gets its own answers."""
    attempts = [real.open() for _ in range(4)]
    for attempt in attempts:
        attempt.produce(1)
    identities = [attempt.identity for attempt in attempts]
    wrong: list[str] = []

    def ask(number: int) -> None:
        name = identities[number].transactional_id
        for _ in range(20):
            described = real.wire.describe([name], timeout_s=300).get(name)
            if described is None or described.identity != identities[number]:
                wrong.append(name)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    join(*threads)

    assert wrong == []


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An address that accepts connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def closed_port() -> str:
    """An address that refuses connections; no client is given its port."""
    return f"{HOST}:{free_ports(1)[0]}"


@pytest.mark.parametrize("place", ["black_hole", "closed_port"])
def test_every_call_is_bounded_when_nothing_answers(
    request: pytest.FixtureRequest, place: str
) -> None:
    """Unreachable is a typed error, or an open answer, in the time that was given."""
    wire = TransactionWire(KafkaConnection(bootstrap_servers=request.getfixturevalue(place)))
    started = time.monotonic()

    with pytest.raises(UnreachableError):
        wire.cluster(timeout_s=1)
    assert wire.describe(["id"], timeout_s=1) == {}
    assert wire.list_transactions("p", timeout_s=1).missing == ("the cluster",)
    wire.close()

    assert time.monotonic() - started < 300


def test_a_closed_wire_says_so(real: RealHarness) -> None:
    wire = TransactionWire(real.connection)
    wire.close()
    wire.close()

    with pytest.raises(UnreachableError):
        wire.cluster(timeout_s=1)
