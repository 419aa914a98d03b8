"""Judges a finished run by its input and by the output that a read_committed reader found."""

from sluice.runtime.checker.exactly_once import Mapping, check, expect, wanted_of
from sluice.runtime.checker.prefix import PrefixVerdict, check_prefix
from sluice.runtime.checker.records.history import History, Location
from sluice.runtime.checker.records.payload import Origin, Payload, origin_of
from sluice.runtime.checker.records.record import Headers, Identity, Record
from sluice.runtime.checker.records.transactions import TransactionRange, Transactions
from sluice.runtime.checker.spilled import SpilledHistory, check_spilled
from sluice.runtime.checker.spilled_prefix import SpilledPrefix
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
    "Mapping",
    "Origin",
    "Payload",
    "PrefixVerdict",
    "Record",
    "SpilledHistory",
    "SpilledPrefix",
    "TransactionRange",
    "Transactions",
    "check",
    "check_prefix",
    "check_spilled",
    "expect",
    "origin_of",
    "wanted_of",
]
