"""Avro records of a registry: Sluice's columns against a loop over confluent-kafka's serializers.

Both run in this process, in turn, with the same records and schemas that are fetched already. The
loop ends with values of Python, ours with an Arrow column.
"""

import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from benchmarks.measuring.figures import Figure
from sluice.registry import (
    AvroRegistryDeserializer,
    AvroRegistrySerializer,
    RegisteredSchema,
    SchemaRegistry,
)

__all__ = ["measure"]

_BATCH, _SCHEMAS = 10_000, 50
_STATES = ("NEW", "PAID", "SENT")
_CONTEXT = SerializationContext("orders", MessageField.VALUE)


def _schema(number: int | None = None) -> dict[str, Any]:
    """Ten fields. Each number has another name for one of them; without one, the reader's."""
    state = {"type": "enum", "name": "State", "symbols": list(_STATES)}
    types = {
        "id": "long",
        "customer": "string",
        "article": "string",
        "quantity": "int",
        "price": "double",
        "paid": "boolean",
        "note": ["null", "string"],
        "discount": ["null", "double"],
        "state": state,
        "at": {"type": "long", "logicalType": "timestamp-millis"},
    }
    fields: list[dict[str, Any]] = [{"name": n, "type": kind} for n, kind in types.items()]
    if number is None:
        fields[1]["aliases"] = [f"customer_{each}" for each in range(_SCHEMAS)]
    else:
        fields[1]["name"] = f"customer_{number}"
    return {"type": "record", "name": "Order", "fields": fields}


def _row(chance: random.Random) -> dict[str, Any]:
    return {
        "id": chance.randrange(10**12),
        "customer": f"customer-{chance.randrange(10**6)}",
        "article": f"article-{chance.randrange(1_000)}",
        "quantity": chance.randrange(1, 300),
        "price": chance.random() * 100,
        "paid": chance.random() < 0.5,
        "note": None if chance.random() < 0.5 else f"note {chance.randrange(100)}",
        "discount": None if chance.random() < 0.5 else chance.random(),
        "state": chance.choice(_STATES),
        "at": 1_700_000_000_000 + chance.randrange(10**9),
    }


def measure(*, records: int, repeat: int) -> list[Figure]:
    """Processor time of the loop over ours, for batches of 10,000 records."""
    chance = random.Random(1)
    rows = [_row(chance) for _ in range(_BATCH)]
    registry = SchemaRegistry(url="mock://benchmark")
    with SchemaRegistryClient.new_client({"url": "mock://benchmark"}) as client:
        written = [_registered(number, client, registry) for number in (None, *range(_SCHEMAS))]
        one = [written[0](row, _CONTEXT) for row in rows]
        mixed = [
            written[1 + at % _SCHEMAS](_renamed(row, at % _SCHEMAS), _CONTEXT)
            for at, row in enumerate(rows)
        ]
        batches = max(1, records // _BATCH // 10)
        return [
            _read("of one schema", one, client, registry, batches, repeat),
            _read("of 50 schemas mixed", mixed, client, registry, batches, repeat),
            _write(rows, written[0], registry, batches, repeat),
        ]


def _registered(
    number: int | None, client: SchemaRegistryClient, registry: SchemaRegistry
) -> AvroSerializer:
    """Register a schema for both sides."""
    text = json.dumps(_schema(number))
    client.register_schema("orders-value", Schema(text))
    registry.client().registered("orders-value", RegisteredSchema(text=text), register=True)
    made: AvroSerializer = AvroSerializer(client, text)
    return made


def _renamed(row: dict[str, Any], number: int) -> dict[str, Any]:
    return {f"customer_{number}" if name == "customer" else name: row[name] for name in row}


def _read(
    what: str,
    records: Sequence[bytes | None],
    client: SchemaRegistryClient,
    registry: SchemaRegistry,
    batches: int,
    repeat: int,
) -> Figure:
    loop = AvroDeserializer(client, json.dumps(_schema()))
    ours = AvroRegistryDeserializer(registry=registry, reader_schema=_schema())
    column = pa.array(records, pa.binary())
    theirs: list[Any] = [loop(record) for record in records]
    assert ours.deserialize(column).field("customer").to_pylist() == [v["customer"] for v in theirs]
    return _figure(
        f"Avro records of ten fields, {what}, decoded",
        lambda: [loop(record) for record in records],
        lambda: ours.deserialize(column),
        batches=batches,
        repeat=repeat,
    )


def _write(
    rows: Sequence[dict[str, Any]],
    loop: AvroSerializer,
    registry: SchemaRegistry,
    batches: int,
    repeat: int,
) -> Figure:
    ours = AvroRegistrySerializer(registry=registry, topic="orders", schema=_schema())
    kind = AvroRegistryDeserializer(registry=registry, reader_schema=_schema()).type
    batch = pa.record_batch({"value": pa.array(rows, kind)})
    assert ours(batch).column("value").to_pylist() == [loop(row, _CONTEXT) for row in rows]
    return _figure(
        "the same of one schema, encoded",
        lambda: [loop(row, _CONTEXT) for row in rows],
        lambda: ours(batch),
        batches=batches,
        repeat=repeat,
    )


def _figure(
    what: str, loop: Callable[[], object], ours: Callable[[], object], *, batches: int, repeat: int
) -> Figure:
    turns = []
    for _ in range(repeat):
        loop_s = _seconds(loop, max(1, batches // 10))
        turns.append((loop_s, _seconds(ours, batches)))
    best = min(turns, key=lambda turn: turn[1])
    micros = ", ".join(f"{1e6 * each_s / _BATCH:.2f}" for each_s in best)
    return Figure(
        what=f"{what}, over a loop of confluent-kafka's serializers in turn",
        runs=[loop_s / ours_s for loop_s, ours_s in turns],
        unit="x",
        goal=">= 3 x",
        least=3.0,
        note=f"processor time of a record: {micros} us",
    )


def _seconds(run: Callable[[], object], batches: int) -> float:
    """Processor time of a batch."""
    began_s = time.process_time()
    for _ in range(batches):
        run()
    return (time.process_time() - began_s) / batches
