"""A Job with its files and checkpoints in Azure's store, killed; ``make test-azure`` runs it."""

import io
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.failpoints import VARIABLE
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce
from tests.kit.objects.azurite import AzureContainer
from tests.kit.objects.s3_proxy import random_faults
from tests.kit.waiting import PATIENCE_S

pytestmark = [pytest.mark.azure, pytest.mark.timeout(1200)]

_ROOT = Path(__file__).parents[2]
_RECORDS = 2_000
_KILLS = ("after-part", "before-complete", "after-complete", "after-put")


def _run(kafka: EmbeddedKafka, source: str, azure: AzureContainer, failpoints: str) -> int:
    flags = {
        "--bootstrap": kafka.bootstrap,
        "--input": source,
        "--path": f"{azure.uri}/lake/orders",
        "--checkpoint": f"{azure.uri}/jobs/orders",
        "--interval": "0.2",
    }
    words = [word for pair in flags.items() for word in pair]
    program = subprocess.Popen(
        [sys.executable, _ROOT / "examples" / "kafka_to_hdfs.py", *words, "--until-end"],
        env={
            **os.environ,
            **azure.environment,
            VARIABLE: failpoints,
            "PYTHONPATH": str(_ROOT),
        },
        start_new_session=True,
    )
    try:
        return program.wait(PATIENCE_S)
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)


def _rows(azure: AzureContainer) -> Counter[bytes]:
    with azure.client() as client:
        keys = [each.name for each in client.list_blobs("lake/orders/")]
    data = [azure.read(key) for key in keys if key.endswith(".parquet")]
    files = [pq.read_table(io.BytesIO(each or b"")) for each in data]
    return Counter(value for file in files for value in file["value"].to_pylist())


def test_upload_settled_each_record_is_seen_once_after_kills(
    kafka: EmbeddedKafka, topic: TopicFactory, azure: AzureContainer
) -> None:
    """The proxy drops, repeats and refuses one request of twenty all along."""
    source = topic(partitions=2)
    sent = [Record(value=b"%d" % n, partition=n % 2) for n in range(_RECORDS)]
    produce(kafka.bootstrap, source, sent)
    azure.proxy.choose = random_faults(seed=11, probability=0.05)
    for failpoint in _KILLS:
        assert _run(kafka, source, azure, f"{failpoint}=kill-session") == -signal.SIGKILL
    assert _run(kafka, source, azure, "") == 0
    azure.proxy.clear()
    assert _rows(azure) == Counter(b"%d!" % n for n in range(_RECORDS))
