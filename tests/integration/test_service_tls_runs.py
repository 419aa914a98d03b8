"""Jobs and queries whose driver serves TLS on a fixed port: both engines, the drop-in, commands."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sluice
from sluice import Job, KafkaSink, KafkaSource, ServiceTls
from sluice.connectors.installation import Installation
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.run_record import LEADER_FILE, RunRecordStore
from sluice.runtime.embedded.ports import free_ports
from sluice.runtime.errors import MissingRequirementError
from sluice.runtime.job.running_job import running_job
from sluice.runtime.service.listening.listener import Listener
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import await_stable, produce, unique, values
from tests.kit.service_certificates import Authority
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration


def copying(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    names: tuple[str, str],
    directory: Path,
    *,
    engine: str,
    tls: bool | ServiceTls,
    port: int,
    bounded: bool = False,
) -> Job:
    job = Job(
        "secured",
        spark,
        checkpoint_dir=str(directory),
        interval_s=0.2,
        engine=engine,
        host="localhost",
        bind_address="127.0.0.1",
        service_port=port,
        service_tls=tls,
    )
    source, sink = names
    job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=bounded)
    ).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=unique(sink)
        )
    )
    return job


@pytest.mark.parametrize(
    "engine", ["continuous", pytest.param("micro-batch", marks=pytest.mark.extended)]
)
@pytest.mark.parametrize("own", [True, pytest.param(False, marks=pytest.mark.extended)])
def test_tasks_and_commands_reach_a_job_over_tls(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    engine: str,
    own: bool,
) -> None:
    names = (topic(), topic())
    produce(kafka.bootstrap, names[0], [b"1", b"2"])
    (port,) = free_ports(1)
    tls = Authority().issue(tmp_path / "tls", "localhost") if own else True
    made = copying(spark, kafka, names, tmp_path / "checkpoint", engine=engine, tls=tls, port=port)
    handle = made.start()
    try:
        wait_for(lambda: values(kafka.bootstrap, names[1]) == [b"1", b"2"], poll_s=0.5)
        with running_job(str(tmp_path / "checkpoint")) as client:
            assert client.status()["job"]["state"] == "running"
        leader = RunRecordStore(LocalFileSystem(tmp_path / "checkpoint")).current()
        assert leader is not None
        assert leader.address == f"https://localhost:{port}"
        assert "BEGIN" not in (tmp_path / "checkpoint" / LEADER_FILE).read_text()
    finally:
        handle.stop(PATIENCE_S)
    assert values(kafka.bootstrap, names[1]) == [b"1", b"2"]


def test_a_taken_port_refuses_a_start_before_it_fences_the_earlier_run(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    names = (topic(), topic())
    with Listener.open("127.0.0.1", range(1)) as taken:
        port = int(taken.address.rpartition(":")[2])
        made = copying(
            spark, kafka, names, tmp_path, engine="continuous", tls=False, port=port, bounded=True
        )
        with pytest.raises(MissingRequirementError, match=f"port={port} "):
            made.run()
    assert not list(tmp_path.glob("chk-*"))


@pytest.fixture
def installed(spark: SparkSession) -> Iterator[Installation]:
    sluice.install(spark).close()
    spark.conf.set("spark.sluice.service.tls", "true")
    try:
        made = sluice.install(spark, service_port=free_ports(1)[0])
    finally:
        spark.conf.unset("spark.sluice.service.tls")
    yield made
    made.close()


def test_two_queries_share_one_port_with_tls(
    spark: SparkSession,
    installed: Installation,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    """By a setting of Spark; the certificate is made, and known to the tasks of both queries."""
    assert installed.service.address.startswith("https://127.0.0.1:")
    copies = [(topic(), topic()) for _ in range(2)]
    queries = []
    for number, (source, sink) in enumerate(copies):
        produce(kafka.bootstrap, source, [b"1", b"2"])
        frame = (
            spark.readStream.format("sluice-kafka")
            .option("kafka.bootstrap.servers", kafka.bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
        )
        queries.append(
            frame.select("value")
            .writeStream.format("sluice-kafka")
            .option("kafka.bootstrap.servers", kafka.bootstrap)
            .option("topic", sink)
            .option("transactionalIdPrefix", unique(sink))
            .option("checkpointLocation", str(tmp_path / str(number)))
            .trigger(availableNow=True)
            .start()
        )
    for query, (_, sink) in zip(queries, copies, strict=True):
        assert query.awaitTermination(int(PATIENCE_S))
        await_stable(kafka.bootstrap, sink)
        assert sorted(v or b"" for v in values(kafka.bootstrap, sink)) == [b"1", b"2"]
    for number in range(2):
        record = RunRecordStore(LocalFileSystem(tmp_path / str(number) / "sluice")).current()
        assert record is not None
        assert record.address.startswith(f"{installed.service.address}/runs/")
