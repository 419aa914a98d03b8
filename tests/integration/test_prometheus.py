"""A real Prometheus scrapes a real job and a query: each query of the dashboard and of the alerts
returns data, or an empty result that is allowed."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from socket import create_server
from typing import Any

import pyarrow as pa
import pytest
import urllib3
from pyspark.sql import SparkSession

import sluice
from sluice import EventTime, FunctionContext, KafkaSink, KafkaSource
from sluice.connectors.installation import Installation
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.job.job import Job
from tests.integration.test_drop_in_close import copy, read
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce
from tests.kit.prometheus import program, queries_of
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended]

ROOT = Path(__file__).parents[2]
ALLOWED_EMPTY = (
    "sluice_region_rate_limit",
    "sluice_query_state_rows",
    "sluice_waiting_for_resources_tasks",
    "sluice_leader_term",
    "sluice_standbys",
)
"""Series that this job and this query do not have: no rate limit, no state, no lack of cores, no
election."""


class Prometheus:
    """A server of its own, with the rules of `deploy/`."""

    def __init__(self, directory: Path, targets: list[str]) -> None:
        with closing(create_server(("127.0.0.1", 0))) as free:
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [{"job_name": "sluice", "static_configs": [{"targets": targets}]}],
            "rule_files": [str(ROOT / "deploy" / "alerts.yaml")],
        }
        (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self._log = directory / "log"
        output = self._log.open("w")
        self._process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={self._address}",
            ],
            stderr=output,
        )
        output.close()
        wait_for(self._is_ready, what="Prometheus")

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            return urllib3.request("GET", f"http://{self._address}/-/ready").status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def get(self, path: str, **fields: str) -> Mapping[str, Any]:
        answer = urllib3.request("GET", f"http://{self._address}/api/v1/{path}", fields=fields)
        found = answer.json()
        assert found["status"] == "success", (path, fields, found)
        return dict(found["data"])

    def rows(self, query: str) -> list[Any]:
        return list(self.get("query", query=query)["result"])

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)


@pytest.fixture
def start() -> Iterator[Callable[[list[str]], Prometheus]]:
    made: list[Prometheus] = []
    with tempfile.TemporaryDirectory(prefix="prometheus-") as directory:

        def begin(targets: list[str]) -> Prometheus:
            made.append(Prometheus(Path(directory), targets))
            return made[0]

        yield begin
        for each in made:
            each.stop()


@pytest.fixture
def installed(spark: SparkSession) -> Iterator[Installation]:
    installation = sluice.install(spark, metrics_port=0)
    yield installation
    installation.close()


def counted(batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
    ctx.counter("seen").inc(batch.num_rows)
    return batch


def test_each_query_of_dashboard_and_alerts_finds_data(
    spark: SparkSession,
    installed: Installation,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    start: Callable[[list[str]], Prometheus],
) -> None:
    source, sink = topic(partitions=2), topic(partitions=2)
    job = Job(
        "measured",
        spark,
        checkpoint_dir=tmp_path / "job",
        interval_s=0.2,
        regions=2,
        engine="micro-batch",
        metrics_port=0,
        pressure_alarm_s=None,  # a busy machine has pressure
    )
    orders = KafkaSource(
        bootstrap_servers=kafka.bootstrap, topics=[source], time=EventTime("kafka")
    )
    job.source(orders).map_batches(counted, on_error="skip", name="counted").sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=f"m-{sink}"
        )
    )

    def feed() -> None:
        records = [Record(value=b"x", partition=number % 2) for number in range(20)]
        produce(kafka.bootstrap, source, records)

    feed()
    frame = read(spark, kafka, source)
    query = copy(frame, kafka, topic(), tmp_path / "query", processingTime="0 seconds")
    with job.start() as handle:
        address = wait_for(lambda: handle.metrics_address)
        assert installed.metrics.address is not None
        targets = [address, installed.metrics.address]
        prometheus = start([each.removeprefix("http://") for each in targets])
        wait_for(lambda: handle.status().state == "running")
        handle.savepoint(timeout=PATIENCE_S)
        dashboard = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text("utf-8"))
        empty = queries_of(dashboard)

        def all_have_data() -> bool:
            feed()
            empty[:] = [each for each in empty if not prometheus.rows(each)]
            return all(any(name in each for name in ALLOWED_EMPTY) for each in empty)

        wait_for(all_have_data, what="all queries have data", poll_s=0.5)
        assert len(empty) == len(ALLOWED_EMPTY)
        rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in rules} == {"ok"}
        assert [rule["name"] for rule in rules if rule["state"] != "inactive"] == []
        assert len(prometheus.rows('up{job="sluice"} == 1')) == 2
        query.stop()
        handle.stop()
    wait_for(lambda: prometheus.rows(f'up{{instance="{targets[0][7:]}"}} == 0'), poll_s=0.5)
