"""Coordinators of their own processes lead a copy into a table and a bucket, and are killed."""

import json
import os
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.embedded.program import Program, ProgramSpec
from sluice.runtime.model.checkpoint_record import Verdict
from tests.chaos.table_copy import CATALOG
from tests.kit.iceberg.iceberg_bed import IcebergBed
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce
from tests.kit.objects.published_objects import PublishedObjects
from tests.kit.objects.s3_fixture import S3Bucket
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(1200)]

_ROOT = Path(__file__).parents[2]
_RECORDS = 1_000  # for each leader
_KILLS = 3


def test_each_record_is_once_in_a_table_and_a_bucket_after_kills_of_coordinators(
    kafka: EmbeddedKafka, topic: TopicFactory, s3: S3Bucket, tmp_path: Path
) -> None:
    source = topic(partitions=2)
    bed = IcebergBed(directory=tmp_path)
    bed.create(pa.schema({"value": pa.binary()}))
    checkpoint = str(tmp_path / "checkpoint")
    environment = {**s3.environment, CATALOG: json.dumps(bed.properties)}
    arguments = ("--bootstrap", kafka.bootstrap, "--input", source, "--output", "none")
    arguments += ("--checkpoint", checkpoint, "--path", f"{s3.uri}/out")
    arguments += ("--interval", "0.5", "--master", "local[4]")
    lead = ("sluice", "coordinator", "start", "--checkpoint", checkpoint, "--ha", "lease")
    stop = ("sluice", "job", "stop", checkpoint, "--drain", "--timeout", str(PATIENCE_S))
    with ExitStack() as running:

        def start(name: str, *command: str) -> Program:
            spec = ProgramSpec(
                command=(sys.executable, "-m", *command),
                log_path=tmp_path / f"{name}.log",
                environment={**os.environ, "PYTHONPATH": str(_ROOT), **environment},
                working_dir=_ROOT,
            )
            return running.enter_context(Program(spec))

        job = start("job", "tests.chaos.led_table", *arguments)
        coordinators = [start(f"coordinator-{number}", *lead) for number in range(2)]
        for turn in range(_KILLS + 1):
            decided = _newest_decision(checkpoint)
            numbers = range(turn * _RECORDS, (turn + 1) * _RECORDS)
            produce(
                kafka.bootstrap, source, [Record(value=b"%d" % n, partition=n % 2) for n in numbers]
            )
            leader = _leader_after(coordinators, decided, job, checkpoint)
            if turn < _KILLS:
                leader.kill()
                coordinators.remove(leader)
                coordinators.append(start(f"coordinator-{turn + 2}", *lead))
        stopping = start("stop", *stop)
        assert stopping.await_exit(timeout_s=PATIENCE_S) == 0, stopping.log_tail()
        assert job.await_exit(timeout_s=PATIENCE_S) == 0, job.log_tail()
    expected = Counter(b"%d" % n for n in range((_KILLS + 1) * _RECORDS))
    assert Counter(bed.table().scan().to_arrow()["value"].to_pylist()) == expected
    assert PublishedObjects(s3).counted("out/") == expected


def _newest_decision(checkpoint: str) -> int:
    """Its id; -1: there is none."""
    if not Path(checkpoint).exists():
        return -1
    store = open_store(checkpoint)
    found = (store.read(slot) for slot in store.slots()[-3:])
    return max((r.checkpoint_id for r in found if r and r.verdict is Verdict.DECIDED), default=-1)


def _leader_after(
    coordinators: list[Program], decided: int, job: Program, checkpoint: str
) -> Program:
    """The coordinator that leads, once it has decided an epoch more."""

    def leading() -> Program | None:
        assert job.exit_code is None, job.log_tail()
        if _newest_decision(checkpoint) <= decided:
            return None
        return next((each for each in coordinators if "leader started" in each.log()), None)

    found = wait_for(leading, what="a decision of a leader")
    assert found is not None
    return found
