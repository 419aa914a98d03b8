"""Jobs on a YARN in a Kerberos realm, with its HDFS: they outlive tickets and tokens, and kills."""

import io
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.ivy import pyspark_jars
from sluice.runtime.embedded.program import ProgramSpec
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.deploy_page import ROOT, Copied, commands, run_commands
from tests.kit.kafka.kafka_records import unique
from tests.kit.kerberos.kdc import require_kerberos
from tests.kit.kerberos.realm import TOKEN_LIFE_S, Realm
from tests.kit.kerberos.secure_hdfs import BRIEF, USER
from tests.kit.kerberos.secure_yarn import SecureYarn
from tests.kit.mortal_program import MortalProgram
from tests.kit.waiting import PATIENCE_S, wait_for
from tests.kit.yarn_applications import NODES, Application, newest_application

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(2400)]

_BIN = Path(sys.executable).parent
_PAGES = """deploy/orders.py KAFKA_SERVERS=kafka-1:9092 INPUT=orders OUTPUT=orders-copy \\
  CHECKPOINT=hdfs:///checkpoints/orders"""
_JARS = f"--conf spark.yarn.jars=local:{pyspark_jars()}/* "


@pytest.fixture(scope="module")
def secure_yarn(realm: Realm) -> Iterator[SecureYarn]:
    with SecureYarn(realm, nodes=NODES) as servers:
        yield servers


@pytest.fixture
def client(realm: Realm) -> Iterator[Any]:
    with realm.hadoop_client() as jvm:
        yield jvm


class CopiedIntoFiles(Copied):
    """As `Copied`; the output is a directory of files.

    Args:
        kafka: has the input.
        realm: its HDFS has the files.
        kind: format of the files.
    """

    def __init__(self, kafka: EmbeddedKafka, realm: Realm, client: Any, kind: str) -> None:
        super().__init__(kafka.bootstrap)
        self.root = f"{realm.hdfs.uri}/{unique('yarn')}"
        self.realm = realm
        self.kind = kind
        self._fs = open_file_system(self.root, client)

    def require_once(self) -> None:
        """Wait until the files have each record once."""
        wanted = {b"order %d!" % number for number in range(self._sent)}
        wait_for(lambda: wanted <= set(self._values()), poll_s=2.0, what="each record")
        assert sorted(self._values()) == sorted(wanted)

    def _values(self) -> Iterator[bytes]:
        for path in (f"files/{entry.name}" for entry in self._fs.entries("files")):
            if path.startswith("files/part-"):
                data = io.BytesIO(self._fs.read(path) or b"")
                if self.kind == "avro":
                    yield from (row["value"] for row in fastavro.reader(data))
                else:
                    yield from pq.read_table(data).column("value").to_pylist()

    @property
    def program(self) -> str:
        """Its command line."""
        return " ".join(
            (
                f"{ROOT}/examples/kafka_to_hdfs.py --master yarn --format {self.kind}",
                f"--bootstrap {self.bootstrap} --input {self.input}",
                f"--path {self.root}/files --checkpoint {self.root}/checkpoint",
            )
        )


def _spark(realm: Realm) -> str:
    """Hosts of a realm have its ``krb5.conf`` in ``/etc``, where JVMs find it; here they are
    told."""
    java = f"JAVA_TOOL_OPTIONS={realm.kdc.java_option}"
    return f"{_JARS} --conf spark.yarn.appMasterEnv.{java} --conf spark.executorEnv.{java}"


def _submit(
    place: Path, yarn: SecureYarn, copied: CopiedIntoFiles, environment: Mapping[str, str]
) -> Application:
    """As on the page, in cluster mode."""
    said = run_commands(
        "Submit to YARN",
        {
            "HADOOP_CONF_DIR=/etc/hadoop/conf": f"HADOOP_CONF_DIR={yarn.conf_dir}",
            "/opt/orders/bin": str(_BIN),
            "--name orders": f"--name orders {_spark(copied.realm)}",
            "--executor-memory 1g --driver-memory 1g": "--executor-memory 512m --driver-memory 512m",
            _PAGES: copied.program,
        },
        directory=place,
        environment={**environment, "PYTHONPATH": "", "PYSPARK_PYTHON": ""},
    )
    (application_id,) = set(re.findall(r"application_\d+_\d+", said))
    return Application(yarn, application_id)


def _outlive_the_token() -> None:
    """Until each ticket and token of now has expired."""
    end_s = time.monotonic() + TOKEN_LIFE_S + 10
    wait_for(lambda: time.monotonic() > end_s, what="the end of all tokens of now")


@pytest.mark.parametrize("kind", ["parquet", "avro"])
def test_a_job_outlives_its_tokens_an_executor_and_its_master(
    place: Path,
    kafka: EmbeddedKafka,
    realm: Realm,
    secure_yarn: SecureYarn,
    client: Any,
    kind: str,
) -> None:
    """In cluster mode, with a keytab: Spark writes Parquet by its own tokens, Python tasks write
    Avro by those of Sluice."""
    copied = CopiedIntoFiles(kafka, realm, client, kind)
    copied.send()
    application = _submit(place, secure_yarn, copied, realm.environment(BRIEF))
    copied.require_once()
    _outlive_the_token()
    copied.send()
    copied.require_once()
    application.busy_executor().kill()
    copied.send()
    copied.require_once()
    before = application.attempts()
    application.master().kill()
    copied.send()
    copied.require_once()
    assert application.attempts() > before


def test_a_driver_on_the_gateway_outlives_its_tokens_and_an_executor(
    place: Path, kafka: EmbeddedKafka, realm: Realm, secure_yarn: SecureYarn, client: Any
) -> None:
    """In client mode, with a keytab."""
    copied = CopiedIntoFiles(kafka, realm, client, "avro")
    copied.send()
    script = commands()["Start the driver beside YARN"]
    for text, other in {
        "/etc/hadoop/conf": str(secure_yarn.conf_dir),
        "--num-executors 2 ": f"--num-executors 2 --executor-memory 512m {_spark(realm)} ",
        "/opt/orders/bin/": f"{place}/driver/bin/",
        "/opt/orders/orders.py": copied.program,
    }.items():
        assert text in script
        script = script.replace(text, other)
    spec = ProgramSpec(
        command=("bash", "-euc", script),
        log_path=place / f"{copied.output}.log",
        environment={**realm.environment(BRIEF), "PYTHONPATH": ""},
        working_dir=place,
    )
    with MortalProgram(spec) as driver:
        copied.require_once()
        application = newest_application(secure_yarn)
        _outlive_the_token()
        copied.send()
        copied.require_once()
        application.busy_executor().kill()
        copied.send()
        copied.require_once()
        os.kill(driver.pid, signal.SIGTERM)
        assert driver.await_exit(timeout_s=PATIENCE_S) == 128 + signal.SIGTERM, driver.log_tail()
    application.await_end()


def test_a_job_without_a_keytab_runs_by_sparks_tokens(
    place: Path, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """In cluster mode: the ticket of ``kinit`` is where the job is submitted, and stopped. The job
    lives no longer than its tokens, so these have a longer life than the others here."""
    require_kerberos()
    with Realm(tmp_path, token_life_s=3600) as realm, SecureYarn(realm, nodes=NODES) as servers:
        environment = {
            **realm.environment(None),
            "KRB5CCNAME": str(realm.kdc.ticket_cache(USER, realm.keytab())),
            "HADOOP_CONF_DIR": str(servers.conf_dir),
        }
        with realm.hadoop_client() as client:
            copied = CopiedIntoFiles(kafka, realm, client, "avro")
            copied.send()
            application = _submit(place, servers, copied, environment)
            copied.require_once()
            run_commands(
                "Stop the application in order",
                {
                    "sluice ": f"{sys.executable} -m sluice ",
                    "hdfs:///checkpoints/orders": f"{copied.root}/checkpoint",
                },
                directory=place,
                environment={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            assert application.await_end() == "SUCCEEDED"
            copied.require_once()
