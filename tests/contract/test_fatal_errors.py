"""A producer that is fenced says so by its error, whichever client has its records.

By librdkafka's own mock cluster, which answers the first records as a broker does that knows a
newer epoch.
"""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from sluice.connectors.kafka.client.client_tuning import HotPath
from sluice.connectors.kafka.client.confluent import make_producer
from sluice.connectors.kafka.native.library import library_for
from sluice.connectors.kafka.records.rows import RecordColumns
from sluice.connectors.kafka.sink.producers.delivery import DeliveryLog
from sluice.connectors.kafka.sink.producers.native_producer import NativeProducer
from sluice.connectors.kafka.sink.writer.native_producing import NativeProducing
from sluice.connectors.kafka.sink.writer.produce import PlainProducing
from sluice.connectors.kafka.sink.writer.sender import flush
from sluice.runtime.errors import FencedError
from tests.kit.kafka.mock_cluster import MockCluster
from tests.kit.task_scopes import SCOPE
from tests.kit.waiting import PATIENCE_S

_PRODUCE = 0
_INVALID_PRODUCER_EPOCH = 47


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster.running() as made:
        made.make_topic("t")
        yield made


def test_handle_from_producer_a_flush_reports_that_the_producer_was_fenced(
    cluster: MockCluster, hot_path: str
) -> None:
    """Also where reports and statistics are reported after it, while it is about to be raised."""
    statistics = list[Any]()
    config = {
        "bootstrap.servers": cluster.bootstrap,
        "transactional.id": "p/j/r.0/owner/0",
        "statistics.interval.ms": 1,
        "stats_cb": lambda text: statistics.append(json.loads(text)),
        "linger.ms": 0,
        "log_level": 0,
        "delivery.report.only.error": True,
    }
    library = library_for(config, HotPath(hot_path))
    client: Any = make_producer(config) if library is None else NativeProducer(library, config)
    producing = PlainProducing(client) if library is None else NativeProducing(client)
    client.init_transactions(PATIENCE_S)
    client.begin_transaction()
    cluster.answer(_PRODUCE, _INVALID_PRODUCER_EPOCH)
    delivery = DeliveryLog(SCOPE)
    rows = pa.record_batch({"value": [b"x"] * 20})
    columns = RecordColumns.of(rows.schema, "t")
    assert producing.prepare(rows, columns, None, delivery).produce(0) == (20, None)
    with pytest.raises(FencedError):
        flush(client, delivery, timeout_s=PATIENCE_S)
