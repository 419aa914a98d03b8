"""What turns the bytes of keys and values into Arrow columns, and values into text again."""

from connectors.kafka.serde.avro_records import AvroDeserializer, Framing
from connectors.kafka.serde.deserializing import Deserializer
from connectors.kafka.serde.json_records import JsonDeserializer
from connectors.kafka.serde.json_text import JsonSerializer

__all__ = ["AvroDeserializer", "Deserializer", "Framing", "JsonDeserializer", "JsonSerializer"]
