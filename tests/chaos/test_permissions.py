"""What a principal needs where brokers have ACLs: what the documents say, and no more."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.chaos.beds import kills
from tests.chaos.programs import SECURE_COPY
from tests.chaos.scenario import START_S, Scenario, Setting
from tests.kit.kafka.secure_broker import BrokerSecurity, SecureBroker
from tests.kit.waiting import PATIENCE_S

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(1200)]

USER, PASSWORD = "alice", "wonder-land-7741"
ANYBODY = "User:ANONYMOUS"  # of the open listener: the broker itself, and the tests' bookkeeping

Permission = tuple[ResourceType, str, bool, AclOperation]
"""Of what, its name, whether that is a prefix, to do what."""

TOPIC, GROUP, TRANSACTIONS = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE


@pytest.fixture(scope="module")
def guarded() -> Iterator[SecureBroker]:
    security = BrokerSecurity(has_tls=False, users={USER: PASSWORD})
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ANYBODY,
    }
    with SecureBroker(security, properties=properties) as broker:
        yield broker


def of_a_source(topic: str) -> list[Permission]:
    """docs/guide/kafka-source.md. Not of the group that readers call themselves."""
    return [
        (TOPIC, topic, False, READ),
        (TOPIC, topic, False, DESCRIBE),
        (GROUP, f"sluice-kafka-{topic}", False, READ),
    ]


def of_a_sink(topic: str, prefix: str) -> list[Permission]:
    return [
        (TOPIC, topic, False, WRITE),
        (TOPIC, topic, False, DESCRIBE),
        (TRANSACTIONS, f"{prefix}/", True, WRITE),
        (TRANSACTIONS, f"{prefix}/", True, DESCRIBE),
        (TOPIC, "__transaction_state", False, DESCRIBE),
        (GROUP, f"sluice-lease.{prefix}", False, READ),
        (TOPIC, "__consumer_offsets", False, READ),
    ]


def grant(broker: SecureBroker, permissions: list[Permission]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    everything = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    for gone in admin.delete_acls([everything]).values():
        gone.result(timeout=PATIENCE_S)
    bindings = [
        AclBinding(
            kind,
            name,
            ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for kind, name, is_prefix, operation in permissions
    ]
    for done in admin.create_acls(bindings).values():
        done.result(timeout=PATIENCE_S)


def setting(broker: SecureBroker) -> Setting:
    login = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{USER}" password="{PASSWORD}";'
    )
    options = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": login,
        "kafka.batch.size": "100000",  # nobody may ask for the topic's max.message.bytes
    }
    settings = {"bootstrap": broker.secure_bootstrap, "options": options}
    return Setting(environment={"SECURE_COPY": json.dumps(settings)})


def needed(scenario: Scenario) -> list[Permission]:
    prefix = f"secure-copy-{scenario.topics.output}"
    return of_a_source(scenario.topics.source) + of_a_sink(scenario.topics.output, prefix)


def test_what_the_documents_ask_for_is_enough_to_recover(
    guarded: SecureBroker, tmp_path: Path
) -> None:
    with Scenario(SECURE_COPY, guarded.bootstrap, tmp_path, setting(guarded)) as scenario:
        grant(guarded, needed(scenario))
        for kill in kills(("after-flush", "after-decision")):
            scenario.kill_at(kill)
        scenario.finish()


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        pytest.param(
            TOPIC, "__transaction_state", "describe topic __transaction_state", id="their log"
        ),
        pytest.param(TRANSACTIONS, "secure-copy-", "secure-copy-", id="transactional ids"),
        pytest.param(GROUP, "sluice-", "may READ this group", id="lease"),
    ],
)
def test_what_is_missing_is_reported_by_name(
    guarded: SecureBroker, tmp_path: Path, kind: ResourceType, name: str, said: str
) -> None:
    """And not found out by readers that wait, or by a sweep that sees nothing."""
    with Scenario(SECURE_COPY, guarded.bootstrap, tmp_path, setting(guarded)) as scenario:
        given = needed(scenario)
        grant(guarded, [p for p in given if p[0] != kind or not p[1].startswith(name)])
        program = scenario.start(until_end=True)
        assert program.await_exit(timeout_s=START_S) not in (0, None)
        assert said in program.log(), program.log_tail()
