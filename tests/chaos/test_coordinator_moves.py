"""Three brokers, and the one that coordinates a transaction dies while EndTxn is on its way.

Plain JVM processes, each after a proxy (`tests.kit.kafka.proxied_kafka`), at each feature level, and of an
older release.
"""

import contextlib
import time
from collections.abc import Iterator

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.runtime.contracts import CommitOutcome
from tests.kit.kafka.kafka_proxy import END_TXN
from tests.kit.kafka.kafka_releases import OLDER_VERSION, older_kafka_jars
from tests.kit.kafka.proxied_kafka import ProxiedKafka
from tests.kit.kafka.transaction_harness import RealAttempt, committable
from tests.kit.late_requests import FENCED, NOT_COORDINATOR, LateBed
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(2400)]


OLDER = f"kafka {OLDER_VERSION}"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(2, id="transaction.version=2"),
        pytest.param(1, id="transaction.version=1", marks=pytest.mark.long),
        pytest.param(0, id="transaction.version=0", marks=pytest.mark.long),
        pytest.param(OLDER, id=OLDER, marks=pytest.mark.long),
    ],
)
def cluster(request: pytest.FixtureRequest) -> Iterator[ProxiedKafka]:
    """Three brokers of a feature level, or of an older release."""
    is_older = request.param == OLDER
    level = 0 if is_older else request.param
    jars = older_kafka_jars() if is_older else None
    with ProxiedKafka(transaction_version=level, nodes=3, jars=jars) as made:
        yield made


@pytest.fixture
def bed(cluster: ProxiedKafka) -> Iterator[LateBed]:
    made = LateBed(cluster)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("who", "arrives"),
    [
        pytest.param("hand", False, id="by hand, before it arrives"),
        pytest.param("native", True, id="natively, before it is answered"),
        pytest.param("hand", True, id="by hand, before it is answered", marks=pytest.mark.long),
        pytest.param("native", False, id="natively, before it arrives", marks=pytest.mark.long),
    ],
)
def test_outcome_from_broker_a_coordinator_that_moves_during_endtxn(
    cluster: ProxiedKafka, bed: LateBed, who: str, arrives: bool
) -> None:
    """When the id has gone on, that EndTxn comes to every broker again, the one that is back
    included."""
    bed.harness.open()  # the log of transactions exists from now on
    name = cluster.coordinated_elsewhere(bed.harness.name)
    writer = bed.far_writer(name) if who == "native" else bed.harness.open(name)
    writer.produce(3)
    victim = cluster.coordinator(name)
    proxy = cluster.proxies[victim]
    caught = proxy.lose_answer(END_TXN) if arrives else proxy.hold(END_TXN)

    outcomes: list[CommitOutcome] = []
    bed.at_once(lambda: outcomes.append(_commit(bed, who, writer)))
    request = caught.wait()
    if arrives:
        assert caught.errors() == (0,)
    cluster.brokers[victim].kill()
    bed.join()
    assert outcomes == [CommitOutcome.COMMITTED]
    wait_for(lambda: cluster.coordinator(name) != victim, what="another coordinator")
    bed.finish(writer.identity)
    assert bed.harness.visible() == 3

    cluster.brokers[victim].start()
    cluster.await_brokers(3)
    later = bed.harness.open(name)
    later.produce(5)
    for each in cluster.proxies.values():
        assert set(each.send(request)) <= FENCED | {NOT_COORDINATOR}
    bed.expect_untouched(later, records=5, before=3)


def _commit(bed: LateBed, who: str, writer: RealAttempt) -> CommitOutcome:
    """As a task does, whose answer may be lost with the broker, or as a coordinator does."""
    if who == "native":
        bed.commit_natively(writer)
        bed.finish(writer.identity)
        return CommitOutcome.COMMITTED
    entry = committable(writer.identity)
    (report,) = bed.far_committer.commit([entry], timeout_s=PATIENCE_S, after_crash=True)
    return report.outcome


def test_wait_for_all_brokers_a_broker_that_was_away_is_asked_again_when_it_is_back(
    cluster: ProxiedKafka, bed: LateBed
) -> None:
    """Not minutes later, when the client next looks for brokers by itself: a sweep would be
    incomplete for so long, and what its orphans wrote to hold up every reader."""
    bed.harness.open()
    with contextlib.closing(
        TransactionWire(KafkaConnection(bootstrap_servers=cluster.bootstrap))
    ) as wire:

        def missing() -> tuple[str, ...]:
            return wire.list_transactions("", timeout_s=5).missing

        wait_for(lambda: not missing(), what="a whole listing")
        cluster.brokers[3].kill()
        cluster.await_brokers(2)
        wire._connected(time.monotonic() + 60).manager.cluster.request_update()  # noqa: SLF001 - as after a failed connection
        time.sleep(1)  # for that look, which nobody can wait for
        cluster.brokers[3].start()
        cluster.await_brokers(3)
        # By itself a client looks again after 300 s.
        wait_for(lambda: not missing(), what="a whole listing", timeout_s=200)
