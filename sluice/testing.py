"""Checks for tests of your own: what a reader saw all along, and what a topic holds in the end."""

from sluice.connectors.kafka.tools.demo.observer import Observer
from sluice.connectors.kafka.tools.verify.topic_history import read_records
from sluice.runtime.checker import Payload, Record, SpilledPrefix

__all__ = [
    "Observer",
    "Payload",
    "Record",
    "SpilledPrefix",
    "read_records",
]
