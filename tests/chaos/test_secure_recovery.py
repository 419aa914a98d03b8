"""The whole recovery over SASL_SSL, and a password that is found nowhere afterwards."""

import json
from pathlib import Path

import pytest

from tests.chaos.beds import kills
from tests.chaos.programs import SECURE_COPY, SECURE_DROP_IN, Subject
from tests.chaos.scenario import START_S, Kill, Scenario, Setting
from tests.kit.kafka.kafka_fixture import SecureKafka

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(2400)]


def setting(kafka: SecureKafka, password: str) -> Setting:
    login = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{kafka.username}" password="{password}";'
    )
    options = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": login,
        "kafka.ssl.ca.location": str(kafka.ca_file),
    }
    settings = {"bootstrap": kafka.bootstrap, "options": options}
    return Setting(environment={"SECURE_COPY": json.dumps(settings)})


def leaks(directory: Path, secret: str) -> list[Path]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [path for path in files if secret.encode() in path.read_bytes()]


def test_recovery_over_sasl_ssl_is_exact_and_leaks_nothing(
    secure_kafka: SecureKafka, tmp_path: Path
) -> None:
    """Transactions of the dead are ended by the second client, which must log in as well; log,
    checkpoints and Spark's own files never hold the password."""
    good = setting(secure_kafka, secure_kafka.password)
    bootstrap = secure_kafka.plain_bootstrap
    with Scenario(SECURE_COPY, bootstrap, tmp_path, good) as scenario:
        for kill in kills(("after-flush", "after-decision")):
            scenario.kill_at(kill)
        scenario.finish()
    assert not leaks(tmp_path, secure_kafka.password)


@pytest.mark.long
def test_the_drop_in_over_sasl_ssl_is_exact_and_leaks_nothing(
    secure_kafka: SecureKafka, tmp_path: Path
) -> None:
    """Its password is an option of ``readStream`` and ``writeStream``, so it passes through Spark:
    plan, progress, logs and offsets are looked through as well."""
    good = setting(secure_kafka, secure_kafka.password)
    bootstrap = secure_kafka.plain_bootstrap
    with Scenario(SECURE_DROP_IN, bootstrap, tmp_path, good) as scenario:
        scenario.kill_at(Kill(failpoint="after-decision", hit=2))
        scenario.finish()
        assert "== Physical Plan ==" in program_log(tmp_path)
    assert not leaks(tmp_path, secure_kafka.password)


def program_log(directory: Path) -> str:
    paths = directory.glob("pipeline-*.log")
    return "".join(path.read_text("utf-8", errors="replace") for path in paths)


@pytest.mark.parametrize(
    "subject",
    [pytest.param(SECURE_COPY, marks=pytest.mark.long), SECURE_DROP_IN],  # a Job: test_bad_input
    ids=lambda one: one.name,
)
def test_a_wrong_password_is_one_typed_error_and_leaks_nothing(
    secure_kafka: SecureKafka, tmp_path: Path, subject: Subject
) -> None:
    canary = "canary-2c9f1e-wrong"
    bad = setting(secure_kafka, canary)
    with Scenario(subject, secure_kafka.plain_bootstrap, tmp_path, bad) as scenario:
        program = scenario.start(until_end=True)
        assert program.await_exit(timeout_s=START_S) not in (0, None)
        assert "AuthenticationError" in program.log(), program.log_tail()
        assert not scenario.checkpoint.exists() or not list(scenario.checkpoint.glob("chk-*"))
    assert not leaks(tmp_path, canary)
