"""Metrics of drop-in queries, from Spark's events and the sinks' own coordinators."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3
from pyspark.sql import SparkSession

import sluice
from sluice.connectors.installation import Installation
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import MissingRequirementError
from tests.integration.test_drop_in_close import QUERY_S, copy, read
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import produce
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.integration


@pytest.fixture
def installed(spark: SparkSession) -> Iterator[Installation]:
    installation = sluice.install(spark, metrics_port=0)
    yield installation
    installation.close()


def shown(installed: Installation) -> dict[str, float]:
    text = urllib3.request("GET", f"{installed.metrics.address}/metrics").data.decode()
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("sluice_"))
    return {name: float(value) for name, value in rows}


def test_a_query_reports_its_batches_its_lag_and_its_end(
    spark: SparkSession,
    installed: Installation,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    source, sink = topic(), topic()
    produce(kafka.bootstrap, source, [b"1", b"2", b"3"])
    frame = read(spark, kafka, source, maxOffsetsPerTrigger="1")
    query = copy(frame, kafka, sink, tmp_path, processingTime="0 seconds")
    name = f'query="{query.id}"'

    def has(metric: str, *values: float, labels: str = "") -> None:
        series = f"sluice_query_{metric}{{{name}{labels}}}"
        wait_for(lambda: shown(installed).get(series) in values, what=series, poll_s=0.2)

    has("input_rows_total", 3)
    has("lag_records", 0, labels=',source="0"')
    has("active", 1)
    has("last_committed_checkpoint_id", 3, 4)
    assert shown(installed)[f'sluice_query_batch_seconds_count{{phase="addBatch",{name}}}'] >= 3
    address = installed.metrics.address
    assert b"<title>Sluice</title>" in urllib3.request("GET", f"{address}/").data
    (job,) = urllib3.request("GET", f"{address}/v1/jobs").json()["jobs"]
    assert (job["name"], job["state"]) == (f"query-{query.id}", "running")
    details = urllib3.request("GET", f"{address}/v1/jobs/{job['job_uid']}").json()
    assert [each["kind"] for each in details["graph"]["operators"]] == ["sink"]
    query.stop()
    has("active", 0)
    has("failed", 0)


@pytest.mark.extended
def test_a_query_that_fails_is_shown_until_it_starts_again(
    spark: SparkSession,
    installed: Installation,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    source = topic()
    produce(kafka.bootstrap, source, [b"1"])

    def start(*, fails: bool) -> None:
        frame = read(spark, kafka, source).selectExpr(
            "raise_error('no') as value" if fails else "value"
        )
        writer = frame.writeStream.format("noop").queryName("fragile")
        writer = writer.option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        if fails:
            with pytest.raises(Exception, match="no"):
                query.awaitTermination(QUERY_S)
        else:
            assert query.awaitTermination(QUERY_S)

    failed = 'sluice_query_failed{query="fragile"}'
    start(fails=True)
    wait_for(lambda: shown(installed).get(failed) == 1, poll_s=0.2)
    start(fails=False)
    wait_for(lambda: shown(installed).get(failed) == 0, poll_s=0.2)


def test_the_port_is_free_again_after_close_and_refused_while_in_use(
    spark: SparkSession, installed: Installation
) -> None:
    assert installed.metrics.address is not None
    port = int(installed.metrics.address.rpartition(":")[2])
    assert sluice.install(spark, metrics_port=0) is installed  # the same port
    assert installed.metrics.address.endswith(f":{port}")
    installed.close()
    again = sluice.install(spark, metrics_port=port)
    try:
        assert "sluice_query_" in str(
            urllib3.request("GET", f"{again.metrics.address}/metrics").data
        )
    finally:
        again.close()
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(MissingRequirementError, match="metrics_port"),
    ):
        sluice.install(spark, metrics_port=port)
