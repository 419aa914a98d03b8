"""A record after aborted ones whose fetch takes longer than a reader waits for progress."""

import os
import pickle
import subprocess
import time
from collections.abc import Callable

import pytest

from sluice import KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka, kafka_jars
from sluice.runtime.model.splits import SplitRange
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import produce_transaction
from tests.kit.source.kafka_source_reading import cut, rows, source, start, values
from tests.kit.waiting import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.extended]

_BYTES_PER_S = 2_000_000
_RECORD_BYTES = 900_000
_RECORDS = 28
_TIMEOUT_S = 5.0


def _limit(kafka: EmbeddedKafka, client_id: str) -> None:
    """Let this client fetch so slowly that the stretch takes more than twice its timeout."""
    subprocess.run(
        [
            *("java", "-cp", f"{kafka_jars()}/*", "kafka.admin.ConfigCommand"),
            *("--bootstrap-server", kafka.bootstrap, "--alter"),
            *("--add-config", f"consumer_byte_rate={_BYTES_PER_S}"),
            *("--entity-type", "clients", "--entity-name", client_id),
        ],
        check=True,
        timeout=PATIENCE_S,
    )


def _range(made: KafkaSource, splits: tuple[SplitRange, ...]) -> list[bytes | None]:
    return values(rows(made, splits))


def _stream(made: KafkaSource, splits: tuple[SplitRange, ...]) -> list[bytes | None]:
    """As a continuous task judges it: the split is active at least once in each timeout."""
    follower = pickle.loads(pickle.dumps(made.streaming_reader())).follow(splits, None)
    try:
        moved_s = time.monotonic()
        while time.monotonic() - moved_s < _TIMEOUT_S:
            batch = follower.poll()
            if batch is not None:
                found: list[bytes | None] = batch.column("value").to_pylist()
                return found
            if follower.active():
                moved_s = time.monotonic()
            time.sleep(0.05)  # a reader gives no event to wait for
        return []
    finally:
        follower.close()


@pytest.mark.parametrize("read", [_range, _stream])
def test_a_reader_passes_aborted_records_however_long_that_takes(
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    hot_path: str,
    read: Callable[[KafkaSource, tuple[SplitRange, ...]], list[bytes | None]],
) -> None:
    name = topic()
    body = os.urandom(_RECORD_BYTES)
    produce_transaction(kafka.bootstrap, name, [body] * _RECORDS, commit=False)
    produce_transaction(kafka.bootstrap, name, [b"last"])
    _limit(kafka, name)
    options = {
        "kafka.client.id": name,
        "kafka.fetch.max.bytes": "1000000",
        "kafkaConsumer.pollTimeoutMs": str(round(_TIMEOUT_S * 1000)),
    }
    made = source(kafka, name, hot_path=hot_path, options=options)
    enumerator, positions = start(made)
    began_s = time.monotonic()
    assert read(made, cut(enumerator, positions)) == [b"last"]
    assert time.monotonic() - began_s > 2 * _TIMEOUT_S
    enumerator.close()
