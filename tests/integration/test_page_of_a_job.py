"""The page of a real job, on its read-only port: a region is killed, and the page shows it."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import urllib3
from playwright.sync_api import Browser, expect
from pyspark.sql import SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.ports import free_ports
from sluice.runtime.failover.restart_strategies import FixedDelayRestart
from sluice.runtime.job.job import Job
from tests.kit.browser import chromium as chromium
from tests.kit.browser import looking
from tests.kit.browser import pictures as pictures
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended]

PARTITIONS = 2
KILLED = 1
LONG_MS = PATIENCE_S * 1000


def killed_while(there: Path) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Kills the process of one partition's task as long as a file is there."""

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        if pc.any(pc.equal(batch.column("partition"), KILLED)).as_py() and there.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    return run


@pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
def test_a_killed_region_is_seen_to_fail_and_to_return(
    chromium: Browser,
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    pictures: Path,
    engine: str,
) -> None:
    source, sink = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
    given = 0

    def give() -> None:
        nonlocal given
        numbers = range(given, given + 10)
        records = [Record(value=b"%06d" % n, partition=n % PARTITIONS) for n in numbers]
        produce(kafka.bootstrap, source, records)
        given += len(records)

    give()
    (port,) = free_ports(1)
    there = tmp_path / "there"
    job = Job(
        "watched <b>job</b>",
        spark,
        engine=engine,
        checkpoint_dir=tmp_path / "checkpoint",
        interval_s=0.2,
        regions=PARTITIONS,
        restart_strategy=FixedDelayRestart(attempts=1000, delay_s=2.0),
        metrics_port=port,
    )
    job.source(KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source])).map_batches(
        killed_while(there)
    ).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap,
            topic=sink,
            transactional_id_prefix=unique("watched"),
        )
    )
    sick = f"kafka-{source}-{KILLED}"
    address = f"http://127.0.0.1:{port}"
    with job.start(), looking(chromium, address) as look:
        expect(look.page.locator("h1")).to_contain_text("watched <b>job</b>", timeout=LONG_MS)
        row = look.page.locator(f'tr[data-key="{sick}"]')
        expect(row).to_contain_text("Running", timeout=LONG_MS)
        expect(look.page.locator(".bar .stages").first).to_be_visible(timeout=LONG_MS)
        there.touch()
        give()
        expect(row).to_contain_text("Restarting", timeout=LONG_MS)
        look.shoot(pictures, f"killed-{engine}")
        other = look.page.locator(f'tr[data-key="kafka-{source}-0"]')
        expect(other).to_contain_text("Running")
        there.unlink()
        expect(row).to_contain_text("Running", timeout=LONG_MS)
        cause = look.page.locator("section", has_text="Ended attempts").locator("tbody tr")
        expect(cause.first).to_contain_text(sick)
        give()
        wait_for(lambda: len(read(kafka.bootstrap, sink)) == given)
        expect(look.page.locator(".readout").first).to_contain_text("/s", timeout=LONG_MS)
        look.shoot(pictures, f"returned-{engine}")
        found = urllib3.request("GET", f"{address}/v1/jobs").json()["jobs"][0]
        assert (found["state"], found["suspended"]) == ("running", 0)
    values = sorted(int(record.value or b"") for record in read(kafka.bootstrap, sink))
    assert values == list(range(given))
