"""Checks for tests of your own: what a reader saw all along, and what a topic holds in the end."""

from sluice.connectors.kafka.tools.demo.observer import Observer
from sluice.connectors.kafka.tools.verify.topic_history import read_records
from sluice.connectors.testing.assertions import assert_exactly_once
from sluice.connectors.testing.verdict import NotExactlyOnceError, Verdict
from sluice.runtime.checker import Payload, Record, SpilledPrefix

__all__ = [
    "NotExactlyOnceError",
    "Observer",
    "Payload",
    "Record",
    "SpilledPrefix",
    "Verdict",
    "assert_exactly_once",
    "read_records",
]
