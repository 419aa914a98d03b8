"""``sluice verify`` on a real broker: what it reads, waits for, and calls torn."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sluice.connectors.kafka.sink.handles import (
    OutputCount,
    SourceRange,
    TransactionalId,
    TransactionHandle,
    encode_handle,
)
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.kafka.tools.verify.verify_cli import verify_command
from sluice.runtime.checker import Payload
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    OperatorNode,
    RegionRecord,
    StateEntry,
    Verdict,
)
from tests.integration.test_kafka_source_changes import delete_records
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import (
    Record,
    abandon_transaction,
    await_stable,
    produce,
    produce_transaction,
)
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration

PARTITIONS = 2
RECORDS = 40
SINK = OperatorNode(operator_id="sink-1", name="out", kind="sink", upstream=())

app = typer.Typer()
app.command()(verify_command)


def load(topic: str) -> list[Record]:
    payload = Payload(topic=topic, run="r", partitions=PARTITIONS)
    return [
        Record(key=r.key, value=r.value, headers=r.headers, partition=r.partition)
        for r in payload.records(RECORDS)
    ]


def verified(
    kafka: EmbeddedKafka, source: str, output: str, *options: str, exit_code: int
) -> dict[str, Any]:
    places = ["--input", source, "--output", output, "--bootstrap-servers", kafka.bootstrap]
    result = CliRunner().invoke(app, [*places, "--json", *options], catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def entry(output: str, source: str, offsets: range, *, epoch: int) -> StateEntry:
    name = TransactionalId(
        prefix="p", job_uid="job-uid", region="main", attempt_id=1, owner="o", slot=epoch
    )
    handle = TransactionHandle(
        transactional_id=str(name),
        producer_id=7,
        producer_epoch=epoch,
        checkpoint_id=1,
        record_count=PARTITIONS * len(offsets),
        sources=tuple(
            SourceRange(
                topic=source,
                partition=partition,
                start_offset=offsets.start,
                end_offset=offsets.stop,
            )
            for partition in range(PARTITIONS)
        ),
        outputs=(OutputCount(topic=output, records=PARTITIONS * len(offsets)),),
    )
    return encode_handle(handle, operator_id=SINK.operator_id)


def decided(directory: Path, *entries: StateEntry) -> None:
    """A checkpoint directory whose checkpoint 1 names these transactions."""
    store = open_store(str(directory))
    for checkpoint_id, committables in ((0, ()), (1, entries)):
        store.publish(
            CheckpointRecord(
                job_uid="job-uid",
                job_name="job",
                checkpoint_id=checkpoint_id,
                kind=CheckpointKind.CHECKPOINT,
                verdict=Verdict.DECIDED,
                leader_session_id="session-1",
                run_attempt=1,
                settings={},
                graph=(SINK,),
                regions=(
                    RegionRecord(
                        region="main",
                        attempt_id=1,
                        batch_id=checkpoint_id,
                        committables=committables,
                    ),
                ),
            ),
            timeout_s=30,
        )
        store.mark_committed(checkpoint_id)


def test_what_is_committed_counts_and_what_is_aborted_does_not(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    source, output = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
    produce(kafka.bootstrap, source, load(source))
    produce_transaction(kafka.bootstrap, output, load(output), commit=False)
    produce_transaction(kafka.bootstrap, output, load(output))
    await_stable(kafka.bootstrap, output)
    verdict = verified(kafka, source, output, exit_code=0)
    assert (verdict["expected"], verdict["found"]) == (RECORDS, RECORDS)


def test_what_retention_took_from_the_input_is_not_judged_and_said(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    source, output = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
    produce(kafka.bootstrap, source, load(source))
    produce(kafka.bootstrap, output, [r for r in load(output) if r.partition == 1])
    delete_records(kafka, source, RECORDS // PARTITIONS)
    verdict = verified(kafka, source, output, exit_code=0)
    assert verdict["expected"] == RECORDS // PARTITIONS
    assert verdict["input_starts"] == {f"{source}-0": RECORDS // PARTITIONS}


def test_what_retention_took_from_the_output_is_lost_and_the_reason_is_said(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    source, output = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
    produce(kafka.bootstrap, source, load(source))
    produce(kafka.bootstrap, output, load(output))
    delete_records(kafka, output, RECORDS // PARTITIONS)
    verdict = verified(kafka, source, output, exit_code=3)
    assert verdict["lost"] == RECORDS // PARTITIONS
    assert verdict["output_starts"] == {f"{output}-0": RECORDS // PARTITIONS}


def test_part_of_a_transaction_is_torn(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, output = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
    produce(kafka.bootstrap, source, load(source))
    half = RECORDS // PARTITIONS // 2
    first = load(output)[: PARTITIONS * half]
    second = [one for one in load(output)[PARTITIONS * half :] if one.partition == 0]
    produce(kafka.bootstrap, output, [*first, *second])
    entries = (
        entry(output, source, range(half), epoch=1),
        entry(output, source, range(half, 2 * half), epoch=2),
    )
    decided(tmp_path, *entries)
    findings = tmp_path / "findings"
    options = ("--checkpoint", str(tmp_path), "--findings", str(findings))
    verdict = verified(kafka, source, output, *options, exit_code=3)
    assert (verdict["torn"], verdict["lost"]) == (1, half)
    assert verdict["examples"]["torn"] == [f"{source}-0@{half}"]
    lines = [json.loads(line) for line in findings.read_text("utf-8").splitlines()]
    (torn,) = [line for line in lines if line["kind"] == "torn"]
    assert torn["detail"].endswith(f"of checkpoint 1: {half} of {2 * half} records")
    assert len(lines) == half + 1


def test_an_open_transaction_is_waited_for_and_then_named(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    source, output = topic(), topic()
    produce(kafka.bootstrap, source, [Record(value=b"a")])
    producer = abandon_transaction(kafka.bootstrap, output, [b"a"])
    with pytest.raises(UnreachableError, match="sluice txn list"):
        verified(kafka, source, output, "--timeout", "0.2", exit_code=0)
    producer.commit_transaction(PATIENCE_S)
    assert verified(kafka, source, output, exit_code=0)["exactly_once"]


def test_what_an_open_transaction_hides_of_the_input_is_not_judged_and_said(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """A job that reads committed records only has not seen what lies after it either."""
    source, output = topic(), topic()
    for name in (source, output):
        produce(kafka.bootstrap, name, [Record(value=b"a")])
    producer = abandon_transaction(kafka.bootstrap, source, [b"b"])
    produce(kafka.bootstrap, source, [Record(value=b"c")])
    verdict = verified(kafka, source, output, exit_code=0)
    assert (verdict["expected"], verdict["input_held_back"]) == (1, {f"{source}-0": 1})
    places = ["--input", source, "--output", output, "--bootstrap-servers", kafka.bootstrap]
    told = CliRunner().invoke(app, places, env={"COLUMNS": "500"}).stdout
    assert f"from {source}-0@1" in told
    produce(kafka.bootstrap, output, [Record(value=b"b")])
    shown = verified(kafka, source, output, exit_code=3)
    assert (shown["aborted"], shown["unexpected"]) == (1, 0)
    assert shown["examples"]["aborted"] == [f"{output}-0@1"]
    producer.abort_transaction(PATIENCE_S)
    assert verified(kafka, source, output, exit_code=3)["input_held_back"] == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_leaves_nothing_after(tmp_path: Path, number: signal.Signals) -> None:
    scratch, data, copy = (tmp_path / name for name in ("scratch", "in.json", "out.json"))
    scratch.mkdir()
    for file in (data, copy):
        file.write_text('{"value": "a"}\n' * 2_000_000, "utf-8")  # more than it reads meanwhile
    program = "from sluice.runtime.cli import main; main()"
    words = ["--input", str(data), "--output", str(copy), "--scratch", str(scratch)]
    with subprocess.Popen(
        [sys.executable, "-c", program, "verify", *words], stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for(lambda: any(scratch.iterdir()))
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    assert not any(scratch.iterdir())
