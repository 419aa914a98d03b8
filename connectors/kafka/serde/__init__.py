"""Deserializers: what turns the bytes of keys and values into Arrow columns."""

from connectors.kafka.serde.avro_records import AvroDeserializer, Framing
from connectors.kafka.serde.deserializing import Deserializer
from connectors.kafka.serde.json_records import JsonDeserializer

__all__ = ["AvroDeserializer", "Deserializer", "Framing", "JsonDeserializer"]
