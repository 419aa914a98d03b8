"""An unclean leader election on real brokers, while a job runs that has read what it takes away.

The single broker whose disk forgets: `tests/integration/test_cut_off_logs.py`.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.job.job import Job
from tests.integration.test_source_chaos import Copy, Running, Way, said
from tests.kit.kafka.broker_cluster import BrokerCluster
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import create_topic, produce, unique, values
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(2400)]

_FIRST, _LOST, _NEW = list(range(7)), list(range(100, 103)), list(range(200, 209))
_LEADER, _FOLLOWER = 1, 2


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """Three real brokers; each test leaves all of them running."""
    with BrokerCluster(tmp_path_factory.mktemp("unclean")) as made:
        yield made


@pytest.fixture
def copy(
    spark: SparkSession,
    brokers: BrokerCluster,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
) -> Copy:
    """From a topic of two replicas, of which any may lead, to a broker that loses nothing."""
    source = create_topic(
        brokers.bootstrap,
        unique("unclean"),
        replicas=[(_LEADER, _FOLLOWER)],
        config={"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
    )
    return Copy(
        session=spark, kafka=kafka, directory=tmp_path / "checkpoint", source=source, output=topic()
    )


def from_brokers(brokers: BrokerCluster, engine: str, *, fail_on_data_loss: bool = True) -> Way:
    def run(copy: Copy, *, bounded: bool) -> None:
        job = Job(
            "unclean",
            copy.session,
            engine=engine,
            checkpoint_dir=str(copy.directory),
            interval_s=0.2,
        )
        job.source(
            KafkaSource(
                bootstrap_servers=brokers.bootstrap,
                topics=[copy.source],
                bounded=bounded,
                options={"failOnDataLoss": str(fail_on_data_loss).lower()},
            )
        ).map_batches(lambda batch: batch).sink(
            KafkaSink(
                bootstrap_servers=copy.kafka.bootstrap,
                topic=copy.output,
                transactional_id_prefix=copy.prefix,
            )
        )
        job.run()

    return run


def write(brokers: BrokerCluster, topic: str, numbers: Sequence[int]) -> None:
    """Acknowledged by all replicas that are in sync."""
    produce(brokers.bootstrap, topic, [b"%d" % number for number in numbers])


def elect_uncleanly(brokers: BrokerCluster, topic: str, running: Running) -> None:
    """Three records reach the leader alone, and readers of the output; then it dies, and its
    follower, which has not got them, leads and takes others."""
    wait_for(lambda: brokers.in_sync(topic) == 2, what="a follower in sync")
    brokers.kill(_FOLLOWER)
    wait_for(lambda: brokers.in_sync(topic) == 1, what="a follower out of sync")
    write(brokers, topic, _LOST)
    running.await_output(_FIRST + _LOST)
    brokers.kill(_LEADER)
    brokers.start(_FOLLOWER)
    wait_for(lambda: brokers.leader(topic) == _FOLLOWER, what="an unclean leader")
    write(brokers, topic, _NEW)


@pytest.mark.parametrize(
    "engine", ["continuous", pytest.param("micro-batch", marks=pytest.mark.long)]
)
def test_batch_identity_a_job_after_an_unclean_election_ends_with_what_is_gone(
    brokers: BrokerCluster, copy: Copy, engine: str
) -> None:
    """Never silently: with the range that it had read, in whose place others are."""
    write(brokers, copy.source, _FIRST)
    running = Running(from_brokers(brokers, engine), copy)
    running.await_output(_FIRST)
    elect_uncleanly(brokers, copy.source, running)

    failure = running.failure()
    assert "DataLostError" in failure
    assert f"{copy.source}-0[7,10)" in failure
    assert copy.settled() == _FIRST + _LOST

    brokers.start(_LEADER)  # which cuts off its own log now
    for fails in (True, False):
        run = from_brokers(brokers, engine, fail_on_data_loss=fails)
        assert f"{copy.source}-0[7,10)" in said(partial(run, copy, bounded=True))
        assert copy.settled() == _FIRST + _LOST
    in_order = [int(value or b"") for value in values(copy.kafka.bootstrap, copy.output)]
    assert in_order == _FIRST + _LOST
