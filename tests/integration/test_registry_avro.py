"""Avro with a real registry, and with confluent-kafka's own serializers on the other side."""

import base64
import json
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

from sluice import DeadLetters, FixedDelayRestart, Job, KafkaSink, KafkaSource
from sluice.connectors.kafka.records.registry.schema_registry import close_clients
from sluice.connectors.kafka.records.serde.schema_ids import id_bytes
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.registry import (
    AvroRegistryDeserializer,
    AvroRegistrySerializer,
    RegisteredSchema,
    SchemaReference,
    SchemaRegistry,
    UnknownSchemaError,
)
from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.errors import AuthenticationError, ConfigError, UnreachableError
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique
from tests.kit.kafka.registry_server import EmbeddedRegistry
from tests.kit.waiting import PATIENCE_S
from tests.unit.connectors.kafka.records.registry.test_avro_serializer import EVERY_TYPE, everything

pytestmark = [pytest.mark.integration, pytest.mark.extended]

FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
SECOND = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "-"}],
}


@pytest.fixture
def registry(registry_server: EmbeddedRegistry) -> Iterator[SchemaRegistry]:
    """Its clients are new in each test."""
    yield SchemaRegistry(url=registry_server.url, timeout_s=PATIENCE_S)
    close_clients()
    registry_server.resume()
    registry_server.start()


@pytest.fixture
def client(registry_server: EmbeddedRegistry) -> Iterator[SchemaRegistryClient]:
    """Confluent's own."""
    with SchemaRegistryClient({"url": registry_server.url}) as made:
        yield made


def hasty(registry: SchemaRegistry, **more: Any) -> SchemaRegistry:
    """The same, which does not wait for long."""
    return SchemaRegistry(**{"url": registry.url, "timeout_s": 2, "request_timeout_s": 0.5, **more})


def reader(registry: SchemaRegistry, schema: Any = SECOND) -> AvroRegistryDeserializer:
    return AvroRegistryDeserializer(registry=registry, reader_schema=schema)


def record(schema_id: int, payload: bytes) -> bytes:
    return id_bytes(schema_id) + payload


def test_confluent_and_sluice_read_each_other(
    registry: SchemaRegistry, client: SchemaRegistryClient
) -> None:
    """Every type, in both directions."""
    topic = unique("every")
    rows = [everything(number) for number in range(50)]
    back = reader(registry, EVERY_TYPE)
    values = pa.array(rows, back.type)
    ours = AvroRegistrySerializer(registry=registry, topic=topic, schema=EVERY_TYPE)
    out = ours(pa.record_batch({"value": values})).column("value")
    context = SerializationContext(topic, MessageField.VALUE)
    plain = [{**row, "counts": dict(row["counts"])} for row in rows]
    assert [AvroDeserializer(client)(each, context) for each in out.to_pylist()] == plain
    theirs = AvroSerializer(client, json.dumps(EVERY_TYPE))
    assert back.deserialize(pa.array([theirs(row, context) for row in plain])).equals(values)


def test_a_schema_may_refer_to_another_subject(registry: SchemaRegistry) -> None:
    """It is registered, looked up, and read with it."""
    subject, topic = unique("party"), unique("deals")
    party = {"type": "record", "name": "Party", "namespace": "s", "fields": []}
    fields = [{"name": "name", "type": "string"}]
    registry.client().registered(
        subject, RegisteredSchema(text=json.dumps({**party, "fields": fields})), register=True
    )
    schema = RegisteredSchema(
        text='{"type":"record","name":"Deal","fields":[{"name":"by","type":"s.Party"}]}',
        references=(SchemaReference(name="s.Party", subject=subject, version=1),),
    )
    made = AvroRegistrySerializer(registry=registry, topic=topic, schema=schema)
    out = made(pa.record_batch({"value": [{"by": {"name": "ann"}}]}))
    close_clients()
    latest = registry.latest(f"{topic}-value")
    found = reader(registry, latest).deserialize(out.column("value"))
    assert found.to_pylist() == [{"by": {"name": "ann"}}]


def test_ids_that_the_registry_does_not_have(
    registry: SchemaRegistry, client: SchemaRegistryClient
) -> None:
    """Never registered, of a deleted subject, or GUIDs, which this registry has not: bad records. A
    subject that is only marked as deleted is still read."""
    subject = unique("deleted")
    number = client.register_schema(subject, Schema(json.dumps({**FIRST, "doc": subject})))
    column = pa.array([record(number, b"\x02")])
    client.delete_subject(subject)
    assert len(reader(registry).deserialize(column)) == 1
    client.delete_subject(subject, permanent=True)
    close_clients()
    for bad in (column, pa.array([record(10**6, b"")]), pa.array([b"\1" + bytes(16)])):
        with pytest.raises(UnknownSchemaError, match="no schema with id"):
            reader(registry).deserialize(bad)


def test_an_incompatible_schema_is_refused_before_the_job(
    registry: SchemaRegistry, client: SchemaRegistryClient
) -> None:
    """With the difference that the registry names."""
    topic = unique("strict")
    client.register_schema(f"{topic}-value", Schema(json.dumps(FIRST)))
    client.set_compatibility(f"{topic}-value", "BACKWARD")
    other = {**FIRST, "fields": [{"name": "id", "type": "string"}]}
    with pytest.raises(ConfigError, match=rf"subject={topic}-value .*STRING not compatible"):
        AvroRegistrySerializer(registry=registry, topic=topic, schema=other)


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_registry_that_is_dead_or_frozen_is_no_bad_record(
    registry: SchemaRegistry,
    registry_server: EmbeddedRegistry,
    client: SchemaRegistryClient,
    how: str,
) -> None:
    """And is used again as soon as it answers."""
    number = client.register_schema(unique("s"), Schema(json.dumps(FIRST)))
    column = pa.array([record(number, b"\x02")])
    getattr(registry_server, how)()
    with pytest.raises(UnreachableError, match=f"id={number}"):
        reader(hasty(registry)).deserialize(column)
    registry_server.resume()
    registry_server.start()
    assert reader(hasty(registry, timeout_s=60)).deserialize(column).to_pylist()[0]["id"] == 1


@contextmanager
def behind_a_password(url: str) -> Iterator[str]:
    """The registry behind a proxy with basic authentication; the proxy's address."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = f"Basic {base64.b64encode(b'ann:right').decode()}"
            status, text = 401, b'{"error_code":40101,"message":"Unauthorized"}'
            if self.headers.get("Authorization") == wanted:
                try:
                    with urllib.request.urlopen(url + self.path, timeout=PATIENCE_S) as answer:
                        status, text = answer.status, answer.read()
                except urllib.error.HTTPError as err:
                    status, text = err.code, err.read()
                    err.close()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_wrong_credentials_are_no_bad_record(
    registry: SchemaRegistry, client: SchemaRegistryClient
) -> None:
    """The error does not show them."""
    number = client.register_schema(unique("s"), Schema(json.dumps(FIRST)))
    column = pa.array([record(number, b"\x02")])
    with behind_a_password(registry.url) as url:
        right = hasty(registry, url=url, timeout_s=30, basic_auth_user_info="ann:right")
        assert len(reader(right).deserialize(column)) == 1
        for user in ({"basic_auth_user_info": "ann:s3cret"}, {}):
            with pytest.raises(AuthenticationError, match=f"url={url} id={number}") as caught:
                reader(hasty(registry, url=url, **user)).deserialize(column)
            assert "s3cret" not in str(caught.value)
    close_clients()


def test_a_million_records_of_fifty_schemas(
    registry: SchemaRegistry, client: SchemaRegistryClient
) -> None:
    """Mixed in one topic: each schema is fetched once, and each record is read by its own."""
    subject = unique("fifty")
    ids = []
    for number in range(50):
        fields = [{"name": "id" if number % 2 else f"id_{number}", "type": "long"}]
        fields += [{"name": f"skipped_{number}", "type": "string"}] if number % 3 else []
        schema = {"type": "record", "name": "Order", "doc": subject, "fields": fields}
        ids.append(client.register_schema(f"{subject}-{number}", Schema(json.dumps(schema))))
    field = {"name": "id", "type": "long", "aliases": [f"id_{each}" for each in range(50)]}
    made = reader(registry, {"type": "record", "name": "Order", "fields": [field]})
    numbers = np.random.default_rng(1).integers(0, 50, 1_000_000)
    payloads = [
        [record(ids[n], b"\x02" * (at % 2) + b"\x04" * (1 - at % 2)) for at in range(2)]
        for n in range(50)
    ]
    skipped = [b"\x06abc" if n % 3 else b"" for n in range(50)]
    seen = 0
    for start in range(0, len(numbers), 10_000):
        some = numbers[start : start + 10_000].tolist()
        column = pa.array([payloads[n][at % 2] + skipped[n] for at, n in enumerate(some)])
        found = made.deserialize(column).field("id").to_numpy()
        assert (found == 2 - np.arange(len(some)) % 2).all()
        seen += len(found)
    assert seen == 1_000_000


class FirstCommit:
    """A listener that ends the registry when the first records are visible."""

    def __init__(self, server: EmbeddedRegistry) -> None:
        self.server = server
        self.has_ended = False

    def on_progress(self, progress: Progress) -> None:
        if progress.state is State.MARKED and not self.has_ended:
            self.has_ended = True
            self.server.kill()


class Returning(logging.Handler):
    """Starts the registry again when a region has failed because of it."""

    def __init__(self, server: EmbeddedRegistry) -> None:
        super().__init__()
        self.server = server
        self.failed = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "the schema registry does not answer" in record.getMessage():
            self.failed.set()

    def run(self) -> None:
        self.failed.wait(PATIENCE_S)
        self.server.start()


def test_a_job_waits_for_its_registry(
    registry: SchemaRegistry,
    registry_server: EmbeddedRegistry,
    client: SchemaRegistryClient,
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    """It dies after the first epoch; later records have a schema that no task knows yet. None of
    them is lost, doubled or a dead letter; but a record with an unknown id is one."""
    source, output, dead = topic(), topic(), topic()
    first, second = (
        client.register_schema(unique("s"), Schema(json.dumps(s))) for s in (FIRST, SECOND)
    )
    early = [record(first, _varint(number)) for number in range(20)]
    late = [record(second, _varint(number) + b"\x02n") for number in range(20, 40)]
    unknown = record(10**6, b"\x02")
    values = [*early, *late[:10], unknown, *late[10:]]
    produce(kafka.bootstrap, source, [Record(value=value) for value in values])
    job = Job(
        "waiting",
        spark,
        engine="micro-batch",
        checkpoint_dir=str(tmp_path / "checkpoint"),
        interval_s=0.2,
        restart_strategy=FixedDelayRestart(attempts=100, delay_s=0.5),
        listeners=[FirstCommit(registry_server)],
    )
    made = AvroRegistrySerializer(registry=registry, topic=output, schema=SECOND)
    stream = job.source(
        KafkaSource(
            bootstrap_servers=kafka.bootstrap,
            topics=[source],
            bounded=True,
            value_deserializer=reader(hasty(registry)),
            on_error=DeadLetters(topic=dead),
            options={"maxOffsetsPerTrigger": "20"},
        )
    )
    stream.map_batches(made).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=output, transactional_id_prefix=unique("w")
        )
    )
    returning = Returning(registry_server)
    logging.getLogger("sluice").addHandler(returning)
    thread = threading.Thread(target=returning.run)
    thread.start()
    try:
        job.run()
        assert returning.failed.is_set()
    finally:
        returning.failed.set()
        thread.join()
        logging.getLogger("sluice").removeHandler(returning)
    registry_server.start()
    written = pa.array([each.value for each in read(kafka.bootstrap, output)], pa.binary())
    found = reader(registry).deserialize(written).to_pylist()
    assert [row["id"] for row in found] == list(range(40))
    assert [row["note"] for row in found] == ["-"] * 20 + ["n"] * 20
    (letter,) = read(kafka.bootstrap, dead)
    assert letter.value == unknown
    assert dict(letter.headers)["sluice.source.offset"] == b"30"
    assert b"no schema with id 1000000" in (dict(letter.headers)["sluice.error.message"] or b"")


def _varint(number: int) -> bytes:
    """A small number in Avro."""
    return bytes([2 * number]) if number < 64 else bytes([2 * number & 127 | 128, number >> 6])
