"""Looks at a topic that is deleted, by a real client: a process of its own, for it once crashed."""

import subprocess
import sys

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.kit.kafka.kafka_fixture import TopicFactory

pytestmark = pytest.mark.integration

# Before offsets were asked of known leaders alone, such processes ended by SIGSEGV, within 2,600
# looks (see `sluice.connectors.kafka.source.enumerator.topics`).
_PROGRAM = """
import sys
from sluice.connectors.kafka.source.enumerator.discovery import KafkaCluster
from sluice.connectors.kafka.client.connection import KafkaConnection

cluster = KafkaCluster(KafkaConnection(bootstrap_servers=sys.argv[1]))
there = (sys.argv[2], 0)
for number in range(2_500):
    look = cluster.fetch_view([(f"gone-{number}", 0), there], timeout_s=300)
    assert look.latest.keys() == look.earliest.keys() == {there}
"""


def test_a_process_that_looks_at_deleted_topics_attempts(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", _PROGRAM, kafka.bootstrap, topic()],
        capture_output=True,
        text=True,
        timeout=1_200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
