"""One decision of a table and other sinks, killed at random and around each commit.

Another writer appends to the table all along, and the answers of some commits to the catalog are
lost. At the end a reader finds each record once in every sink, and all sinks agree.
"""

import json
import random
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.connectors.kafka.records.columns import columns_with, schema_of
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checker import Record
from tests.chaos.programs import (
    Subject,
    TableVerdict,
    Topics,
    judge_table,
    judge_table_and_topic,
)
from tests.chaos.scenario import START_S, Kill, Scenario, Setting
from tests.chaos.table_copy import CATALOG
from tests.integration.test_iceberg_kills import OtherWriter
from tests.kit.iceberg.iceberg_bed import IcebergBed
from tests.kit.iceberg.rest_catalog import RestCatalog
from tests.kit.objects.s3_fixture import ProxiedBucket
from tests.kit.objects.s3_proxy import FaultKind, S3Proxy, random_faults
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(3600)]

_SCHEMA = schema_of(columns_with(headers=True))
_OTHERS = -1  # partition of the other writer's rows
_LOST = [FaultKind.DROPPED_BEFORE, FaultKind.DROPPED_AFTER, FaultKind.REPEATED]
_RANDOM = "at random"

_CONTINUOUS = (
    *("before-append", _RANDOM, "after-append", "before-native-commit", _RANDOM),
    *("after-native-commit", "mid-commit", "after-decision"),
    *("after-tasks-answered", "before-decision", "before-mark", "after-data-files", _RANDOM),
)
"""Steps around the decision, the transaction and the snapshot, in turn."""

_IN_BATCHES = (
    *("before-append", _RANDOM, "mid-commit", "after-rename", "after-append"),
    *("before-rename", "before-decision", _RANDOM, "before-mark"),
)
_IN_BUCKET = ("before-append", "after-put", _RANDOM, "after-append", "after-data-file", _RANDOM)
_OF_DROP_IN = (
    *("before-append", _RANDOM, "after-append", "after-data-files", "after-decision", _RANDOM),
    *("before-committed-mark", "before-decision", "after-commit"),
)


def _rows_of_other(number: int) -> pa.RecordBatch:
    row = {"partition": _OTHERS, "offset": number, "value": b"other"}
    return pa.RecordBatch.from_pylist([row], schema=_SCHEMA)


@dataclass(frozen=True, kw_only=True)
class _Table:
    """The table, and what its programs use.

    Attributes:
        bed: reaches it directly.
        catalog: of the programs.
        proxy: between the programs and the catalog, or the table's store.
        commit: chooses requests of a commit at the proxy.
        least_pause_s: of the other writer, which has no proxy: a commit through it must fit.
    """

    bed: IcebergBed
    catalog: Mapping[str, object]
    proxy: S3Proxy
    commit: Mapping[str, object]
    least_pause_s: float = 0.05

    def rows(self, topic: str) -> list[Record]:
        """Those of the job, each as the record of ``topic`` that it is, by partition and offset."""
        rows = [row for row in self._rows() if row["partition"] != _OTHERS]
        rows.sort(key=lambda row: (row["partition"], row["offset"]))
        return [
            Record(topic, row["partition"], row["offset"], row["key"], row["value"]) for row in rows
        ]

    def others(self) -> Counter[int]:
        """How often the table has each row of the other writer."""
        return Counter(row["offset"] for row in self._rows() if row["partition"] == _OTHERS)

    def checkpoint_id(self) -> int:
        """The newest that the table has, as its snapshots say."""
        snapshots = self.bed.table().snapshots()
        found = [one.summary["sluice.checkpoint-id"] for one in snapshots if one.summary]
        return max((int(number) for number in found if number), default=0)

    def lose_an_answer(self, chosen: random.Random) -> None:
        """Of the next commit, or lose the commit itself, or repeat it."""
        self.proxy.add(chosen.choice(_LOST), **self.commit)

    def subject(
        self, script: str, judge: Callable[[Topics], TableVerdict], *, engine: str = ""
    ) -> Subject:
        """A program that writes the table; in micro-batches a copy writes files, too."""
        return Subject(
            name=script,
            script=Path(__file__).with_name(script),
            judge=judge,
            writes_files=engine == "micro-batch",
            environment={CATALOG: json.dumps(self.catalog), "ENGINE": engine},
        )

    def _rows(self) -> list[Mapping[str, Any]]:
        columns = ("key", "value", "partition", "offset")
        found: list[Mapping[str, Any]] = (
            self.bed.table().scan().to_arrow().select(columns).to_pylist()
        )
        return found


def _created(bed: IcebergBed) -> IcebergBed:
    # Two writers overtake each other all the time, and pyiceberg gives up after 4 retries.
    bed.create(_SCHEMA, properties={"commit.retry.num-retries": "1000"})
    return bed


@pytest.fixture
def table(tmp_path: Path, rest_catalog: RestCatalog) -> _Table:
    """On this machine, in a REST catalog."""
    direct = rest_catalog.properties(rest_catalog.direct)
    return _Table(
        bed=_created(IcebergBed(directory=tmp_path, extra=direct)),
        catalog=rest_catalog.properties(),
        proxy=rest_catalog.proxy,
        commit={"method": "POST", "key": "tables/events$"},
    )


@pytest.fixture
def table_in_bucket(tmp_path: Path, s3_proxied: ProxiedBucket) -> _Table:
    """In an SQL catalog."""
    bed = IcebergBed(
        directory=tmp_path,
        extra={"warehouse": f"{s3_proxied.uri}/warehouse"},
        storage_options=s3_proxied.direct.storage_options,
    )
    return _Table(
        bed=_created(bed),
        catalog=bed.properties,
        proxy=s3_proxied.proxy,
        commit={"method": "PUT", "key": r"\.metadata\.json$"},
        least_pause_s=2.0,
    )


def _kill_driver(scenario: Scenario, progress: Callable[[], int], more: int) -> None:
    """Kill the driver alone once there is so much more progress; its tasks may outlive it."""
    wanted = progress() + more
    program = scenario.start()
    wait_for(
        lambda: program.exit_code is not None or progress() >= wanted,
        timeout_s=START_S,
        what="progress",
    )
    program.kill_driver()
    assert program.await_exit(timeout_s=PATIENCE_S) == -signal.SIGKILL, program.log_tail()


def _survive(
    scenario: Scenario,
    table: _Table,
    steps: tuple[str, ...],
    kills: int,
    progress: Callable[[], int],
    most: int,
) -> None:
    """Kill at the steps in turn, finish, and judge; ``most``: progress until a random kill."""
    chosen = random.Random(0)
    other_writer = OtherWriter(table.bed, _rows_of_other, least_pause_s=table.least_pause_s)
    with other_writer as other, scenario:
        for number in range(kills):
            table.lose_an_answer(chosen)
            step = steps[number % len(steps)]
            if step == _RANDOM:
                _kill_driver(scenario, progress, chosen.randint(1, most))
            else:
                hit = chosen.choice([1, 2, 3])
                scenario.kill_at(Kill(failpoint=step, hit=hit, action="kill-session"))
        table.proxy.clear()
        scenario.finish()
    assert scenario.feeder.sent > scenario.setting.preload
    wanted = Counter(1_000_000 + number for number in range(len(other.written)))
    assert table.others() == wanted


@pytest.mark.parametrize("kills", [8, pytest.param(40, marks=pytest.mark.long)])
def test_a_topic_and_a_table_agree_after_kills_of_a_continuous_job(
    kafka: EmbeddedKafka, tmp_path: Path, table: _Table, kills: int
) -> None:
    """One region writes both; the step between the two commits is one of the kills."""
    subject = table.subject(
        "table_copy.py",
        lambda topics: judge_table_and_topic(topics, table.rows(topics.output)),
        engine="continuous",
    )
    scenario = Scenario(subject, kafka.bootstrap, tmp_path, Setting())
    _survive(scenario, table, _CONTINUOUS, kills, lambda: scenario.observer.total, most=500)


@pytest.mark.parametrize("kills", [6, pytest.param(40, marks=pytest.mark.long)])
def test_a_topic_a_table_and_files_agree_after_kills_in_micro_batches(
    kafka: EmbeddedKafka, tmp_path: Path, table: _Table, kills: int
) -> None:
    """The continuous engine writes no files."""
    subject = table.subject(
        "table_copy.py",
        lambda topics: judge_table_and_topic(topics, table.rows(topics.output), files=True),
        engine="micro-batch",
    )
    scenario = Scenario(subject, kafka.bootstrap, tmp_path, Setting())
    _survive(scenario, table, _IN_BATCHES, kills, lambda: scenario.observer.total, most=500)


@pytest.mark.parametrize("kills", [6, pytest.param(40, marks=pytest.mark.long)])
def test_a_drop_in_query_appends_each_record_once_after_kills(
    kafka: EmbeddedKafka, tmp_path: Path, table: _Table, kills: int
) -> None:
    """Spark's own trigger is the barrier; the table is the only output."""
    subject = table.subject(
        "table_drop_in.py", lambda topics: judge_table(topics, table.rows(topics.output))
    )
    scenario = Scenario(subject, kafka.bootstrap, tmp_path, Setting())
    _survive(scenario, table, _OF_DROP_IN, kills, table.checkpoint_id, most=4)


@pytest.mark.parametrize("kills", [5, pytest.param(40, marks=pytest.mark.long)])
def test_a_topic_and_a_table_in_a_bucket_agree_after_kills(
    kafka: EmbeddedKafka,
    tmp_path: Path,
    table_in_bucket: _Table,
    s3_proxied: ProxiedBucket,
    kills: int,
) -> None:
    """Table and checkpoints are objects, and one request of fifty to their store fails."""
    subject = table_in_bucket.subject(
        "table_copy.py",
        lambda topics: judge_table_and_topic(topics, table_in_bucket.rows(topics.output)),
        engine="continuous",
    )
    setting = Setting(environment=s3_proxied.environment)
    scenario = Scenario(
        subject,
        kafka.bootstrap,
        tmp_path,
        setting,
        checkpoint_uri=f"{s3_proxied.uri}/check points",
    )
    s3_proxied.proxy.choose = random_faults(seed=7, probability=0.02)
    _survive(
        scenario, table_in_bucket, _IN_BUCKET, kills, lambda: scenario.observer.total, most=500
    )
