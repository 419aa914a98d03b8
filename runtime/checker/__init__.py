"""Judges a finished run by its input and by the output that a read_committed reader found."""

from sluice.runtime.checker.prefix import PrefixVerdict, SpilledPrefix
from sluice.runtime.checker.records.history import History, Location
from sluice.runtime.checker.records.payload import Origin, Payload, origin_of
from sluice.runtime.checker.records.record import Headers, Identity, Record
from sluice.runtime.checker.records.transactions import TransactionRange, Transactions
from sluice.runtime.checker.spilled import SpilledHistory, check_spilled
from sluice.runtime.checker.verdict import Examples, Finding, HistoryVerdict, Kind

__all__ = [
    "Examples",
    "Finding",
    "Headers",
    "History",
    "HistoryVerdict",
    "Identity",
    "Kind",
    "Location",
    "Origin",
    "Payload",
    "PrefixVerdict",
    "Record",
    "SpilledHistory",
    "SpilledPrefix",
    "TransactionRange",
    "Transactions",
    "check_spilled",
    "origin_of",
]
