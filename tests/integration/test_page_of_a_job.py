"""The page of a real job: on its read-only port while a region is killed, and in `sluice serve`."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from sluice.runtime.savepoint.savepoint import open_savepoint
from tests.kit.browser import chromium as chromium
from tests.kit.browser import looking
from tests.kit.browser import pictures as pictures
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique
from tests.kit.served_jobs_bed import TOKEN, service_of
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


def sick_while(there: Path) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Fails one partition as long as a file is there."""

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        if pc.any(pc.equal(batch.column("partition"), KILLED)).as_py() and there.exists():
            raise ValueError("this partition is sick")
        return batch

    return run


class Copy:
    """A job that copies a topic in two regions, and what it was given."""

    def __init__(
        self, spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, directory: Path
    ) -> None:
        self.spark, self.bootstrap, self.directory = spark, kafka.bootstrap, directory
        self.source, self.sink = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
        self.there = directory / "there"
        self.regions = [f"kafka-{self.source}-{at}" for at in range(PARTITIONS)]
        self.given = 0
        self.give()

    def give(self) -> None:
        numbers = range(self.given, self.given + 10)
        records = [Record(value=b"%06d" % n, partition=n % PARTITIONS) for n in numbers]
        produce(self.bootstrap, self.source, records)
        self.given += len(records)

    def job(
        self, name: str, function: Callable[[pa.RecordBatch], pa.RecordBatch], **options: Any
    ) -> Job:
        job = Job(
            name,
            self.spark,
            checkpoint_dir=self.directory / "checkpoint",
            interval_s=0.2,
            regions=PARTITIONS,
            **options,
        )
        job.source(KafkaSource(bootstrap_servers=self.bootstrap, topics=[self.source])).map_batches(
            function
        ).sink(
            KafkaSink(
                bootstrap_servers=self.bootstrap,
                topic=self.sink,
                transactional_id_prefix=unique("watched"),
            )
        )
        return job

    def written(self) -> list[int]:
        return sorted(int(record.value or b"") for record in read(self.bootstrap, self.sink))

    def has_all(self) -> bool:
        return self.written() == list(range(self.given))


@pytest.fixture
def copy(spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path) -> Copy:
    return Copy(spark, kafka, topic, tmp_path)


@pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
def test_a_killed_region_is_seen_to_fail_and_to_return(
    chromium: Browser, copy: Copy, pictures: Path, engine: str
) -> None:
    (port,) = free_ports(1)
    job = copy.job(
        "watched <b>job</b>",
        killed_while(copy.there),
        engine=engine,
        restart_strategy=FixedDelayRestart(attempts=1000, delay_s=2.0),
        metrics_port=port,
    )
    other, sick = copy.regions
    address = f"http://127.0.0.1:{port}"
    with job.start(), looking(chromium, address) as look:
        expect(look.page.locator("h1")).to_contain_text("watched <b>job</b>", timeout=LONG_MS)
        row = look.page.locator(f'tr[data-key="{sick}"]')
        expect(row).to_contain_text("Running", timeout=LONG_MS)
        expect(look.page.locator(".bar .stages").first).to_be_visible(timeout=LONG_MS)
        copy.there.touch()
        copy.give()
        expect(row).to_contain_text("Restarting", timeout=LONG_MS)
        look.shoot(pictures, f"killed-{engine}")
        expect(look.page.locator(f'tr[data-key="{other}"]')).to_be_visible()
        copy.there.unlink()
        expect(row).to_contain_text("Running", timeout=LONG_MS)
        ended = look.page.locator("section", has_text="Ended attempts").locator("tbody")
        expect(ended).to_contain_text(sick)
        copy.give()
        wait_for(copy.has_all)
        expect(look.page.locator(".readout").first).to_contain_text("/s", timeout=LONG_MS)
        look.shoot(pictures, f"returned-{engine}")
        found = urllib3.request("GET", f"{address}/v1/jobs").json()["jobs"][0]
        assert (found["state"], found["suspended"]) == ("running", 0)
    assert copy.has_all()


def test_a_job_is_commanded_on_the_page_of_the_service(
    chromium: Browser, copy: Copy, pictures: Path, tmp_path: Path
) -> None:
    """A suspended region is restarted, a savepoint is taken, the job is stopped and then past."""
    copy.there.touch()
    job = copy.job(
        "commanded",
        sick_while(copy.there),
        restart_strategy=FixedDelayRestart(attempts=0),
        on_region_failure="suspend",
        registry=tmp_path / "registry",
    )
    sick = copy.regions[KILLED]
    savepoints = tmp_path / "savepoints"
    with (
        job.start() as handle,
        service_of(f"file://{tmp_path / 'registry'}", tmp_path) as service,
        looking(chromium, service.server.address) as look,
    ):
        page = look.page
        look.may_lose = True  # the console names the answer 401 before the login
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_label("Token").press("Enter")
        page.get_by_role("link", name="commanded").click(timeout=LONG_MS)
        row = page.locator(f'tr[data-key="{sick}"]')
        expect(row).to_contain_text("Suspended", timeout=LONG_MS)
        expect(row).to_contain_text("RegionGivenUpError")
        copy.there.unlink()
        row.get_by_role("button", name="Restart …").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Restart").click()
        expect(row).to_contain_text("Running", timeout=LONG_MS)
        wait_for(copy.has_all)
        page.get_by_role("button", name="Savepoint …").click()
        dialog.get_by_label("Directory of savepoints").fill(f"file://{savepoints}")
        dialog.get_by_role("button", name="Take the savepoint").click()
        listed = page.locator("section", has_text="Savepoints").locator("tbody")
        expect(listed).to_contain_text("completed", timeout=LONG_MS)
        look.shoot(pictures, "service")
        page.get_by_role("button", name="Stop …").click()
        dialog.get_by_role("button", name="Stop the job").click()
        expect(page.locator("h1")).to_contain_text("Stopped", timeout=LONG_MS)
        expect(page.get_by_role("button", name="Stop …")).to_have_count(0)
        look.shoot(pictures, "service-past")
        assert handle.wait(PATIENCE_S)
    assert copy.has_all()
    (savepoint,) = savepoints.iterdir()
    assert open_savepoint(f"file://{savepoint}").record.kind.value == "savepoint"
