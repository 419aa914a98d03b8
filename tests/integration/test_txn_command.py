"""``sluice txn`` on a real broker, from a checkpoint directory alone, with the job gone."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_sink_coordinator import KafkaSinkCoordinator
from sluice.connectors.kafka.sink.committer.transaction_lease import KafkaLeaseStore
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.sink.handles import encode_handle
from sluice.connectors.kafka.tools.txn.txn_cli import app
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore, open_store
from sluice.runtime.contracts import SinkContext
from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    FencedError,
    StreamError,
    UnreachableError,
)
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    OperatorNode,
    RegionRecord,
    StateEntry,
    Verdict,
)
from sluice.runtime.ownership.lease import LeaseRecord
from tests.kit.kafka.kafka_fixture import BrokerByLevel, SecureKafka
from tests.kit.kafka.transaction_harness import JOB_UID, Attempt, RealHarness, handle_of
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

SINK = OperatorNode(operator_id="sink-1", name="out", kind="sink", upstream=())


@pytest.fixture
def real(kafka_by_level: BrokerByLevel) -> Iterator[RealHarness]:
    harness = RealHarness(kafka_by_level(2), 2)
    yield harness
    harness.close()


def _entry(attempt: Attempt, *, checkpoint_id: int, records: int = 2) -> StateEntry:
    handle = handle_of(attempt.identity, records=records, checkpoint_id=checkpoint_id)
    return encode_handle(handle, operator_id=SINK.operator_id)


def _record(
    harness: RealHarness,
    checkpoint_id: int,
    *entries: StateEntry,
    verdict: Verdict = Verdict.DECIDED,
    settings: dict[str, str] | None = None,
) -> CheckpointRecord:
    return CheckpointRecord(
        job_uid=JOB_UID,
        job_name="job",
        checkpoint_id=checkpoint_id,
        kind=CheckpointKind.CHECKPOINT,
        verdict=verdict,
        leader_session_id="session-1",
        run_attempt=1,
        settings={
            "out.guarantee": "exactly-once",
            "out.transactional_id_prefix": harness.prefix,
            "out.kafka.bootstrap.servers": harness.connection.bootstrap_servers,
            **(settings or {}),
        },
        graph=(SINK,),
        regions=(
            RegionRecord(region="main", attempt_id=1, batch_id=checkpoint_id, committables=entries),
        ),
    )


def _opened(harness: RealHarness, records: int = 2) -> Attempt:
    attempt = harness.open()
    attempt.produce(records)
    return attempt


@pytest.fixture
def store(tmp_path: Path, real: RealHarness) -> CheckpointStore:
    made = open_store(str(tmp_path))
    made.publish(_record(real, 0), timeout_s=30)
    made.mark_committed(0)
    return made


def _run(*arguments: str, exit_code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def _refused(kind: type[StreamError], *arguments: str) -> str:
    with pytest.raises(kind) as caught:
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    return str(caught.value)


def _verdicts(found: Any) -> dict[str, str]:
    return {each["transactional_id"]: each["verdict"] for each in found["transactions"]}


def test_a_decided_checkpoint_is_committed_and_an_orphan_aborted(
    tmp_path: Path, real: RealHarness, store: CheckpointStore
) -> None:
    """The hour for which the command exists: the job died after its decision."""
    decided, orphan = _opened(real), _opened(real)
    store.publish(_record(real, 1, _entry(decided, checkpoint_id=1)), timeout_s=30)
    name, other = decided.identity.transactional_id, orphan.identity.transactional_id
    path = str(tmp_path)

    assert _verdicts(_run("list", path)) == {name: "open", other: "open, no decision names it"}

    committed = _run("commit", path)["transactions"]
    assert [(each["transactional_id"], each["outcome"]) for each in committed] == [
        (name, "committed")
    ]
    aborted = _run("abort", path)["transactions"]
    assert [(each["transactional_id"], each["outcome"]) for each in aborted] == [(other, "aborted")]
    assert real.visible() == 2
    real.await_state(decided.identity, TransactionState.COMPLETE_COMMIT)

    for _ in range(2):  # again, as a restarted job or a second person would
        assert _run("commit", path)["transactions"][0]["outcome"] == "committed"
        assert _run("abort", path)["transactions"] == []
    assert _verdicts(_run("list", path)) == {name: "committed"}
    assert store.is_committed(1) is False, "the directory is the job's; its next start marks it"

    store.mark_committed(1)
    assert _run("list", path)["transactions"] == []
    assert set(_verdicts(_run("list", path, "--all"))) == {name, other}


@pytest.mark.extended
def test_a_directory_on_hdfs_needs_no_spark_session(
    real: RealHarness, hdfs: EmbeddedHdfs, hadoop_client: Any
) -> None:
    uri = f"{hdfs.uri}/{real.prefix}"
    store = open_store(uri, hadoop_client)
    decided, orphan = _opened(real), _opened(real)
    store.publish(_record(real, 0), timeout_s=120)
    store.mark_committed(0)
    store.publish(_record(real, 1, _entry(decided, checkpoint_id=1)), timeout_s=120)

    assert _verdicts(_program("list", uri)) == {
        decided.identity.transactional_id: "open",
        orphan.identity.transactional_id: "open, no decision names it",
    }
    assert [each["outcome"] for each in _program("commit", uri)["transactions"]] == ["committed"]
    assert [each["outcome"] for each in _program("abort", uri)["transactions"]] == ["aborted"]
    assert real.visible() == 2


def _program(command: str, uri: str) -> Any:
    code = (
        "import sys; from pyspark.sql import SparkSession; from sluice.runtime.cli import main\n"
        "try: main()\n"
        "finally: assert SparkSession.getActiveSession() is None"
    )
    arguments = [sys.executable, "-c", code, "txn", command, uri, "--json"]
    ended = subprocess.run(
        arguments, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_an_orphan_under_an_id_that_a_retained_checkpoint_names_is_found_and_aborted(
    tmp_path: Path, real: RealHarness, store: CheckpointStore
) -> None:
    """The usual case: a sink's two ids take turns, and the last 3 checkpoints name them both."""
    committed = _opened(real)
    name = committed.identity.transactional_id
    store.publish(_record(real, 1, _entry(committed, checkpoint_id=1)), timeout_s=30)
    path = str(tmp_path)
    _run("commit", path)
    store.mark_committed(1)
    real.await_state(committed.identity, TransactionState.COMPLETE_COMMIT)
    again = real.open(name)
    again.produce(1)

    assert _verdicts(_run("list", path)) == {name: "open, no decision names it"}
    aborted = _run("abort", path)["transactions"]
    assert [(each["transactional_id"], each["outcome"]) for each in aborted] == [(name, "aborted")]
    assert real.visible() == 2


def test_describe_shows_both_sides_and_the_source_ranges(
    tmp_path: Path, real: RealHarness, store: CheckpointStore
) -> None:
    attempt = _opened(real)
    store.publish(_record(real, 1, _entry(attempt, checkpoint_id=1)), timeout_s=30)

    found = _run("describe", str(tmp_path), attempt.identity.transactional_id)

    assert found["verdict"] == "open"
    assert found["standing"] == "unfinished"
    assert found["state"] == "Ongoing"
    assert found["producer_id"] == found["state_producer_id"] == attempt.identity.producer_id
    assert found["sources"] == ["in-0: 10 to 13"]
    assert found["partitions"] == [f"{real.topic}-0"]
    text = CliRunner().invoke(app, ["describe", str(tmp_path), attempt.identity.transactional_id])
    assert "Ongoing" in text.output


def test_what_no_decision_names_is_not_committed(
    tmp_path: Path, real: RealHarness, store: CheckpointStore
) -> None:
    """The job writes such records again, so a commit would double them; --force is a human's."""
    thrown_away, orphan = _opened(real), _opened(real)
    store.publish(
        _record(real, 1, _entry(thrown_away, checkpoint_id=1), verdict=Verdict.ABORTED),
        timeout_s=30,
    )
    path = str(tmp_path)

    for attempt in (thrown_away, orphan):
        said = _refused(ConfigError, "commit", path, attempt.identity.transactional_id)
        assert "double" in said
    assert _run("commit", path)["transactions"] == []

    _run("commit", path, orphan.identity.transactional_id, "--force")
    real.await_state(orphan.identity, TransactionState.COMPLETE_COMMIT)
    _run("abort", path, thrown_away.identity.transactional_id)
    assert real.visible() == 2


def test_a_superseded_decision_is_not_committed_without_force(
    tmp_path: Path, real: RealHarness, store: CheckpointStore
) -> None:
    """A start from an older checkpoint left it after; its records were written again."""
    attempt = _opened(real)
    store.publish(_record(real, 1, _entry(attempt, checkpoint_id=1)), timeout_s=30)
    store.mark_superseded(1, by=2)

    said = _refused(ConfigError, "commit", str(tmp_path), attempt.identity.transactional_id)

    assert "standing=superseded" in said


def test_what_a_decision_names_is_not_aborted(
    tmp_path: Path, real: RealHarness, store: CheckpointStore
) -> None:
    attempt = _opened(real)
    store.publish(_record(real, 1, _entry(attempt, checkpoint_id=1)), timeout_s=30)
    name = attempt.identity.transactional_id

    assert "lose" in _refused(ConfigError, "abort", str(tmp_path), name)
    assert _run("abort", str(tmp_path))["transactions"] == []

    _run("abort", str(tmp_path), name, "--force")
    assert _run("commit", str(tmp_path), exit_code=1)["transactions"][0]["outcome"] == "aborted"
    assert real.visible() == 0


def test_a_repaired_transaction_stands_in_place_of_the_lost_one(
    tmp_path: Path, real: RealHarness, store: CheckpointStore
) -> None:
    """Rule `two-phase-repair`: the replacement is committed, the lost one is not asked about any
    more."""
    lost, replacement = _opened(real), _opened(real)
    lost_entry = _entry(lost, checkpoint_id=1)
    lost.end_natively(commit=False)
    store.publish(_record(real, 1, lost_entry), timeout_s=30)
    store.publish_repair(
        1, {lost_entry.payload: _entry(replacement, checkpoint_id=1)}, session="session-2"
    )

    (committed,) = _run("commit", str(tmp_path))["transactions"]

    assert committed["transactional_id"] == replacement.identity.transactional_id
    assert real.visible() == 2


def test_a_living_jobs_transactions_are_not_aborted_under_it(
    tmp_path: Path, real: RealHarness, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule `lease-guards-outputs`: the lease changes, so the job lives; a dead job's record
    does not."""
    attempt = _opened(real)
    coordinator = KafkaSinkCoordinator(
        real.connection, transactional_id_prefix=real.prefix, transaction_timeout_s=None, topics=()
    )
    coordinator.claim(
        SinkContext(
            job_uid=JOB_UID,
            job_name="job",
            operator_id=SINK.operator_id,
            checkpoint_uri=store.uri,
            leader_session_id="session-1",
        ),
        timeout_s=120,
    )
    read = KafkaLeaseStore.read

    def read_after_renewal(self: KafkaLeaseStore) -> LeaseRecord | None:
        found = read(self)
        if found is not None:
            self.write(dataclasses.replace(found, renewals=found.renewals + 1))
        return found

    with monkeypatch.context() as alive:
        alive.setattr(KafkaLeaseStore, "read", read_after_renewal)
        assert "the job runs" in _refused(FencedError, "abort", str(tmp_path))

    monkeypatch.setattr("sluice.connectors.kafka.tools.txn.txn_session.WATCHED_INTERVALS", 0.2)
    (aborted,) = _run("abort", str(tmp_path))["transactions"]
    assert aborted["transactional_id"] == attempt.identity.transactional_id
    coordinator.close()


def test_errors_say_what_to_do(tmp_path: Path, real: RealHarness, store: CheckpointStore) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "checkpoint directory" in _refused(ConfigError, "list", str(empty))
    other = open_store(str(tmp_path / "other"))
    record = dataclasses.replace(_record(real, 0), settings={})
    other.publish(record, timeout_s=30)
    assert "exactly-once Kafka sink" in _refused(ConfigError, "list", str(tmp_path / "other"))

    path = str(tmp_path)
    assert "txn list --all" in _refused(ConfigError, "describe", path, "no-such-id")
    assert "KEY=VALUE" in _refused(ConfigError, "list", path, "--config", "nonsense")
    assert "Did you mean" in _refused(ConfigError, "list", path, "--config", "kafka.clientid=x")
    down = ("--bootstrap", "127.0.0.1:1", "--timeout", "1")
    assert "brokers run" in _refused(UnreachableError, "list", path, *down)


def test_secrets_are_asked_for_again_and_never_shown(
    tmp_path: Path, secure_kafka: SecureKafka
) -> None:
    """Checkpoints hold no password; the command takes it from a file."""
    options = {
        "kafka.bootstrap.servers": secure_kafka.bootstrap,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": secure_kafka.username,
        "kafka.sasl.password": secure_kafka.password,
        "kafka.ssl.ca.location": str(secure_kafka.ca_file),
    }
    connection = KafkaConnection.of(options)
    real = RealHarness(
        secure_kafka.broker, 2, connection=connection, options=secure_kafka.librdkafka()
    )
    attempt = _opened(real)
    made = open_store(str(tmp_path))
    redacted = {f"out.{name}": value for name, value in connection.redacted().items()}
    made.publish(_record(real, 0, settings=redacted), timeout_s=30)
    made.publish(
        _record(real, 1, _entry(attempt, checkpoint_id=1), settings=redacted), timeout_s=30
    )
    path = str(tmp_path)

    said = _refused(ConfigError, "commit", path)
    assert "option=kafka.sasl.password" in said
    wrong = _refused(AuthenticationError, "commit", path, "--config", "kafka.sasl.password=wr0ng")
    assert "wr0ng" not in wrong

    secrets = tmp_path / "secrets.properties"
    secrets.write_text(f"# for the command line\nkafka.sasl.password={secure_kafka.password}\n")
    (committed,) = _run("commit", path, "--config-file", str(secrets))["transactions"]
    assert committed["outcome"] == "committed"
    written = [file for file in tmp_path.rglob("*") if file.is_file() and file != secrets]
    assert [f for f in written if secure_kafka.password.encode() in f.read_bytes()] == []
    assert real.visible() == 2
    real.close()
