"""Bad input: one typed error in time, and nothing on disk or in Kafka has changed."""

import dataclasses
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.format.container import ContainerWriter
from sluice.runtime.embedded.ports import HOST, free_ports
from sluice.runtime.errors import (
    AuthenticationError,
    DamagedCheckpointError,
    SourceChangedError,
    StreamError,
    UnreachableError,
    UnsupportedFormatError,
    WrongJobError,
)
from sluice.runtime.job.job import Job
from tests.kit.kafka.kafka_fixture import SecureKafka
from tests.kit.kafka.kafka_records import admin, create_topic, end_offsets, produce, unique

pytestmark = pytest.mark.integration

BOUND_S = 300.0  # 30 s on a quiet machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job over real topics that has run once and left checkpoints."""

    spark: SparkSession
    kafka: EmbeddedKafka
    source: str
    output: str
    directory: Path

    def job(self, **changes: str) -> Job:
        """The same job again, with one thing changed."""
        given = {
            "name": "good",
            "source": self.source,
            "bootstrap": self.kafka.bootstrap,
            "prefix": f"bad-input-{self.output}",
            **changes,
        }
        job = Job(given["name"], self.spark, checkpoint_dir=str(self.directory), interval_s=0.2)
        options = {k: v for k, v in given.items() if k.startswith("kafka.")}
        job.source(
            KafkaSource(
                bootstrap_servers=given["bootstrap"],
                topics=[given["source"]],
                bounded=True,
                options=options,
            )
        ).map_batches(lambda batch: batch).sink(
            KafkaSink(
                bootstrap_servers=given["bootstrap"],
                topic=self.output,
                transactional_id_prefix=given["prefix"],
                options=options,
            )
        )
        return job

    def files(self) -> dict[str, bytes]:
        found = (path for path in self.directory.rglob("*") if path.is_file())
        return {str(path.relative_to(self.directory)): path.read_bytes() for path in found}

    def remote(self) -> tuple[object, ...]:
        """Everything in Kafka that the job could have changed."""
        client = admin(self.kafka.bootstrap)
        topics = sorted(t for t in client.list_topics(timeout=120).topics if not t.startswith("__"))
        groups = sorted(g.group_id for g in client.list_consumer_groups().result(120).valid)
        ends = end_offsets(self.kafka.bootstrap, self.output, committed=False)
        return topics, groups, sorted(ends.items())


@pytest.fixture(scope="module")
def ran(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory
) -> Case:
    """It has run; what it left is for reading only."""
    source = create_topic(kafka.bootstrap, unique("bad-in"), partitions=2)
    output = create_topic(kafka.bootstrap, unique("bad-out"), partitions=2)
    produce(kafka.bootstrap, source, [str(n).encode() for n in range(20)])
    directory = tmp_path_factory.mktemp("ran")
    made = Case(spark=spark, kafka=kafka, source=source, output=output, directory=directory)
    made.job().run()
    return made


@pytest.fixture
def case(ran: Case, tmp_path: Path) -> Case:
    """The same with a directory of the test's own, which it may spoil."""
    shutil.copytree(ran.directory, tmp_path, dirs_exist_ok=True)
    return dataclasses.replace(ran, directory=tmp_path)


def refused(case: Case, job: Job, error: type[StreamError]) -> StreamError:
    """The error; it came in time and changed nothing."""
    files, remote = case.files(), case.remote()
    started = time.monotonic()
    with pytest.raises(error) as raised:
        job.run()
    assert time.monotonic() - started < BOUND_S
    what, where, remedy = raised.value.args
    assert what
    assert where
    assert remedy
    assert case.files() == files
    assert case.remote() == remote
    return raised.value


def newest(case: Case) -> Path:
    return max(case.directory.glob("chk-*/_metadata"))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def truncate_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [truncate, truncate_to_nothing, flip_a_bit])
def test_a_damaged_record_is_named(case: Case, damage: Callable[[Path], None]) -> None:
    """The newest record may be the only decision about what readers see: never skipped."""
    path = newest(case)
    path.chmod(0o644)
    damage(path)
    error = refused(case, case.job(), DamagedCheckpointError)
    assert path.parent.name in str(error)


def test_a_missing_topic_is_named_and_not_created(case: Case) -> None:
    missing = unique("missing")
    error = refused(case, case.job(source=missing), SourceChangedError)
    assert missing in str(error)


@pytest.mark.extended
def test_an_unreachable_broker_is_named(case: Case) -> None:
    (port,) = free_ports(1)
    error = refused(case, case.job(bootstrap=f"{HOST}:{port}"), UnreachableError)
    assert str(port) in str(error)


def test_the_directory_of_another_job_is_refused(case: Case) -> None:
    error = refused(case, case.job(name="other"), WrongJobError)
    assert "good" in str(error)
    assert "other" in str(error)


@pytest.mark.extended
def test_a_wrong_password_is_refused_and_not_shown(
    case: Case, secure_kafka: SecureKafka, caplog: pytest.LogCaptureFixture
) -> None:
    canary = "canary-77aa-wrong"
    login = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{secure_kafka.username}" password="{canary}";'
    )
    job = case.job(
        **{
            "bootstrap": secure_kafka.bootstrap,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": login,
            "kafka.ssl.ca.location": str(secure_kafka.ca_file),
        }
    )
    error = refused(case, job, AuthenticationError)
    assert canary not in repr(error)
    assert canary not in caplog.text


def test_a_record_of_a_later_version_is_named(case: Case) -> None:
    """An older Sluice must not guess what a newer one decided."""
    path = newest(case)
    path.chmod(0o644)
    schema = {"type": "record", "name": "later", "fields": [{"name": "news", "type": "string"}]}
    path.write_bytes(ContainerWriter(schema, format_version=99).write({"news": "unheard of"}))
    error = refused(case, case.job(), UnsupportedFormatError)
    assert path.parent.name in str(error)
