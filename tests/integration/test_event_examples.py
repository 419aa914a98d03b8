"""The examples for CloudEvents and Debezium, run from their files: each record that they write."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read
from tests.kit.kafka.registry_server import EmbeddedRegistry

pytestmark = [pytest.mark.integration, pytest.mark.extended]

EXAMPLES = Path(__file__).parents[2] / "examples"
Run = Callable[..., None]


@pytest.fixture
def run(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Runs an example in the session's Spark to the end of its input; its checkpoints are the
    test's."""

    def started(name: str, **options: str) -> None:
        given = {"bootstrap": kafka.bootstrap, "checkpoint": str(tmp_path / "checkpoint")}
        named = (text for key, value in (given | options).items() for text in (f"--{key}", value))
        monkeypatch.setattr(sys, "argv", [name, *named, "--until-end", "--interval", "0.2"])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")

    assert spark
    return started


def _binary(data: bytes | None, content: str = "application/json", **attributes: str) -> Record:
    """An event in binary content mode, as CloudEvents' SDKs write it."""
    given = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "shop.order.created"}
    headers = [(f"ce_{name}", text.encode()) for name, text in (given | attributes).items()]
    return Record(key=b"k", value=data, headers=(*headers, ("content-type", content.encode())))


def test_cloud_events_in_both_modes_are_routed(
    kafka: EmbeddedKafka, topic: TopicFactory, run: Run
) -> None:
    """Attributes of extensions stay; binary data is in base64; each other record is a dead letter."""
    order = {"price": 2.5, "quantity": 4, "note": "é"}
    whole = {
        "specversion": "1.0", "id": "2", "source": "/shop", "type": "shop.order.created",
        "traceparent": "00-1", "data": order,
    }  # fmt: skip
    structured = Record(
        key=b"s",
        value=json.dumps(whole).encode(),
        headers=(("content-type", b"application/cloudevents+json; charset=UTF-8"),),
    )
    names = {name: topic() for name in ("input", "output", "others", "dead")}
    produce(
        kafka.bootstrap,
        names["input"],
        [
            _binary(json.dumps(order).encode(), traceparent="00-2"),
            structured,
            _binary(b"\0\xff", "image/png", type="shop.photo", id="3"),
            Record(key=b"x", value=b"{}"),
            _binary(b"{", id="4"),
            _binary(None, id="5", type="shop.gone"),
            _binary(b"{}", specversion="0.3"),
        ],
    )
    for _ in range(2):
        run("cloud_events", **names)

    made = read(kafka.bootstrap, names["output"])
    events = [json.loads(record.value or b"") for record in made]
    for record in made:
        assert dict(record.headers) == {"content-type": b"application/cloudevents+json"}
    by_id = {event["id"]: event for event in events}
    assert len(events) == 2
    assert by_id["1-priced"] == {
        "specversion": "1.0", "id": "1-priced", "source": "/shop", "type": "shop.order.priced",
        "traceparent": "00-2", "datacontenttype": "application/json", "data": order | {"total": 10.0},
    }  # fmt: skip
    assert by_id["2-priced"]["data"] == order | {"total": 10.0}
    others = [json.loads(each.value or b"") for each in read(kafka.bootstrap, names["others"])]
    assert sorted((each["id"], each.get("data_base64")) for each in others) == [
        ("3", "AP8="),
        ("5", None),
    ]
    assert len(read(kafka.bootstrap, names["dead"])) == 3


_ROW = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}},
    ],
}
_ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.public.customers",
    "fields": [
        {"name": "before", "type": ["null", _ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [{"name": "lsn", "type": ["null", "long"], "default": None}],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
    "connect.name": "shop.public.customers.Envelope",
}


def _row(number: int, name: str | None) -> dict[str, Any]:
    return {"id": number, "name": name, "at": 1_700_000_000_000_000}


def _changes() -> list[tuple[bytes, dict[str, Any] | None]]:
    """Changes of three rows: the second one is deleted, with Debezium's tombstone after it."""

    def change(op: str, before: Any, after: Any) -> dict[str, Any]:
        return {"before": before, "after": after, "source": {"lsn": 1}, "op": op, "ts_ms": 2}

    return [
        (b"1", change("r", None, _row(1, "Anna"))),
        (b"2", change("c", None, _row(2, None))),
        (b"1", change("u", _row(1, "Anna"), _row(1, "Änne"))),
        (b"2", change("d", _row(2, None), None)),
        (b"2", None),
        (b"3", change("c", None, _row(3, "Cem"))),
        (b"3", change("t", None, None)),
    ]


@pytest.mark.parametrize("form", ["json", "json with schemas", "avro"])
def test_change_events_become_current_rows(
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    run: Run,
    registry_server: EmbeddedRegistry,
    form: str,
) -> None:
    """A consumer that keeps the last value of each key has the table."""
    names = {name: topic() for name in ("input", "output", "dead")}
    if form == "avro":
        with SchemaRegistryClient({"url": registry_server.url}) as client:
            write = AvroSerializer(client, json.dumps(_ENVELOPE))
            context = SerializationContext(names["input"], MessageField.VALUE)
            values = [None if each is None else write(each, context) for _, each in _changes()]
    else:
        wrapped = form == "json with schemas"
        values = [
            None
            if each is None
            else json.dumps({"schema": {}, "payload": each} if wrapped else each).encode()
            for _, each in _changes()
        ]
    records = [
        Record(key=key, value=each) for (key, _), each in zip(_changes(), values, strict=True)
    ]
    records.append(Record(key=b"9", value=b"nonsense"))
    produce(kafka.bootstrap, names["input"], records)
    by = {"registry": registry_server.url} if form == "avro" else {}
    for _ in range(2):
        run("debezium", **names, **by)
    found = read(kafka.bootstrap, names["output"])
    assert [(each.key, each.value is None) for each in found] == [
        (b"1", False),
        (b"2", False),
        (b"1", False),
        (b"2", True),
        (b"2", True),
        (b"3", False),
    ]
    table = {each.key: json.loads(each.value) for each in found if each.value is not None}
    assert table == {b"1": _row(1, "Änne"), b"2": _row(2, None), b"3": _row(3, "Cem")}
    assert [each.key for each in read(kafka.bootstrap, names["dead"])] == [b"3", b"9"]
