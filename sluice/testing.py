"""Checks for tests of your own: what a reader saw all along, and what a topic holds in the end."""

from sluice.connectors.kafka.tools.demo.observer import Observer
from sluice.connectors.kafka.tools.verify.topic_history import read_records
from sluice.runtime.checker import History, Payload, Record, SpilledPrefix, check_prefix

__all__ = [
    "History",
    "Observer",
    "Payload",
    "Record",
    "SpilledPrefix",
    "check_prefix",
    "read_records",
]
