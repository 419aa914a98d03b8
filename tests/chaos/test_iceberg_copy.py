"""A copy of a topic into an Iceberg table, killed again and again, beside another writer."""

import base64
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.kafka.tools.verify.topic_history import read_records
from sluice.runtime.checker import Payload
from sluice.runtime.embedded.program import ProgramSpec, command_of
from sluice.runtime.failpoints import VARIABLE
from tests.chaos.feeder import Feeder
from tests.chaos.spark_start import spark_environment
from tests.integration.test_iceberg_kills import FAILPOINTS, OtherWriter
from tests.kit.iceberg.iceberg_bed import TABLE, IcebergBed
from tests.kit.iceberg.rest_catalog import RestCatalog
from tests.kit.iceberg.spark_reader import read_by_spark
from tests.kit.kafka.kafka_records import create_topic, unique
from tests.kit.mortal_program import MortalProgram
from tests.kit.objects.s3_proxy import FaultKind
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(3600)]

_EXAMPLE = Path(__file__).parents[2] / "examples" / "kafka_to_iceberg.py"
_SCHEMA = pa.schema(
    {"key": pa.binary(), "value": pa.binary(), "partition": pa.int32(), "offset": pa.int64()}
)
_PARTITIONS = 2
_OTHERS = -1  # partition of the other writer's rows
_LOST = [FaultKind.DROPPED_BEFORE, FaultKind.DROPPED_AFTER, FaultKind.REPEATED]
# The others are steps of a look-up, which only some starts make.
_ALWAYS_REACHED = {"before-data-file", "after-data-files", "after-decision", "before-append"}
_ENOUGH = 12  # epochs of a start that does not reach its failpoint

_Row = tuple[int, int, bytes | None]


def _rows_of_other(number: int) -> pa.RecordBatch:
    partition, offset, value = _row_of_other(number)
    rows = [{"key": None, "partition": partition, "offset": offset, "value": value}]
    return pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)


def _row_of_other(number: int) -> _Row:
    return _OTHERS, number, b"other"


@dataclass
class _Copy:
    """The example over all its starts."""

    bed: IcebergBed
    catalog: RestCatalog
    bootstrap: str
    topic: str
    directory: Path
    programs: list[MortalProgram] = field(default_factory=list)

    def start(self, failpoints: str = "", *flags: str) -> MortalProgram:
        """Over the same checkpoint directory."""
        words = {
            "--bootstrap": self.bootstrap,
            "--input": self.topic,
            "--catalog": self.catalog.proxy.endpoint,
            "--warehouse": "any",
            "--table": TABLE,
            "--checkpoint": str(self.directory / "checkpoint"),
            "--interval": "0.3",
            "--regions": "2",
        }
        arguments = [word for pair in words.items() for word in pair]
        program = MortalProgram(
            ProgramSpec(
                command=command_of(sys.executable, _EXAMPLE, [*arguments, *flags]),
                log_path=self.directory / f"copy-{len(self.programs)}.log",
                environment={**spark_environment(), VARIABLE: failpoints},
            )
        )
        self.programs.append(program)
        return program

    def kill_at(self, failpoint: str, hit: int) -> bool:
        """Start, and kill all processes at the failpoint, or else after some epochs; whether it was
        reached."""
        before = self.checkpoint_id()
        program = self.start(f"{failpoint}=kill-session@{hit}")
        wait_for(
            lambda: program.exit_code is not None or self.checkpoint_id() >= before + _ENOUGH,
            timeout_s=PATIENCE_S,
            what=f"{failpoint}, or {_ENOUGH} epochs",
        )
        is_reached = program.exit_code is not None
        program.kill()
        assert program.exit_code == -signal.SIGKILL, program.log_tail()
        return is_reached

    def checkpoint_id(self) -> int:
        """The newest that the table has, as its snapshots say."""
        snapshots = self.bed.table().snapshots()
        found = [one.summary["sluice.checkpoint-id"] for one in snapshots if one.summary]
        return max((int(number) for number in found if number), default=0)


@pytest.fixture
def copy(kafka: EmbeddedKafka, tmp_path: Path, rest_catalog: RestCatalog) -> Iterator[_Copy]:
    """A topic that the test fills is copied into a table in a REST catalog."""
    direct = rest_catalog.properties(rest_catalog.direct)
    bed = IcebergBed(directory=tmp_path, extra=direct)
    # Two writers overtake each other all the time, and pyiceberg gives up after 4 retries.
    bed.create(_SCHEMA, properties={"commit.retry.num-retries": "1000"})
    topic = create_topic(kafka.bootstrap, unique("iceberg"), partitions=_PARTITIONS)
    made = _Copy(bed, rest_catalog, kafka.bootstrap, topic, tmp_path)
    yield made
    for program in made.programs:
        program.kill()


@pytest.mark.parametrize("kills", [len(FAILPOINTS), pytest.param(100, marks=pytest.mark.long)])
def test_readers_see_each_record_once_after_kills(copy: _Copy, kills: int) -> None:
    """Two regions, another writer, commits whose answers are lost. Steps of the driver and of tasks
    are killed in turn; pyiceberg, DuckDB and Spark read the table."""
    chosen, reached = random.Random(0), set()
    payload = Payload(topic=copy.topic, run="iceberg", partitions=_PARTITIONS)
    with (
        OtherWriter(copy.bed, _rows_of_other) as other,
        Feeder(copy.bootstrap, payload) as feeder,
    ):
        for number in range(kills):
            failpoint = FAILPOINTS[number % len(FAILPOINTS)]
            copy.catalog.proxy.add(chosen.choice(_LOST), method="POST", key="tables/events$")
            if copy.kill_at(failpoint, chosen.choice([1, 2, 5])):
                reached.add(failpoint)
        feeder.close()
        copy.catalog.proxy.clear()
        program = copy.start("", "--until-end")
        assert program.await_exit(timeout_s=PATIENCE_S) == 0, program.log_tail()
    assert reached >= _ALWAYS_REACHED
    wanted = Counter(_rows_of_topic(copy))
    assert wanted.total() == feeder.sent > 0
    wanted += Counter(map(_row_of_other, other.written))
    scan = copy.bed.table().scan()
    rows = scan.to_arrow().select(["partition", "offset", "value"]).to_pylist()
    assert Counter((row["partition"], row["offset"], row["value"]) for row in rows) == wanted
    paths = [task.file.file_path.removeprefix("file://") for task in scan.plan_files()]
    assert len(paths) == len(set(paths))
    query = f'SELECT partition, "offset", value FROM read_parquet({paths!r})'
    assert Counter(duckdb.sql(query).fetchall()) == wanted
    found = read_by_spark(copy.catalog.direct, TABLE)
    assert Counter(map(_row_of_spark, found)) == wanted


def _row_of_spark(row: dict[str, Any]) -> _Row:
    value = base64.b64decode(row["value"]) if "value" in row else None
    return row["partition"], row["offset"], value


def _rows_of_topic(copy: _Copy) -> Iterator[_Row]:
    """The feeder sends without transactions, so offsets have no gaps."""
    offsets = Counter[int]()
    for record in read_records(KafkaConnection(bootstrap_servers=copy.bootstrap), copy.topic):
        value = None if record.value is None else record.value + b"!"
        yield record.partition, offsets[record.partition], value
        offsets[record.partition] += 1
