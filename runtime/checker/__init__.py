"""Judges a finished run from what was put in and what a read_committed reader found."""

from runtime.checker.exactly_once import Mapping, check, expect, wanted_of
from runtime.checker.history import History, Place
from runtime.checker.key_counts import KeyCountVerdict, check_key_counts
from runtime.checker.payload import Origin, Payload, origin_of
from runtime.checker.prefix import PrefixVerdict, check_prefix
from runtime.checker.record import Headers, Identity, Record
from runtime.checker.spilled import SpilledHistory, check_spilled
from runtime.checker.spilled_prefix import SpilledPrefix
from runtime.checker.transactions import TransactionRange, Transactions
from runtime.checker.verdict import Examples, Finding, HistoryVerdict, Kind
from runtime.checker.window_counts import WindowVerdict, check_windows

__all__ = [
    "Examples",
    "Finding",
    "Headers",
    "History",
    "HistoryVerdict",
    "Identity",
    "KeyCountVerdict",
    "Kind",
    "Mapping",
    "Origin",
    "Payload",
    "Place",
    "PrefixVerdict",
    "Record",
    "SpilledHistory",
    "SpilledPrefix",
    "TransactionRange",
    "Transactions",
    "WindowVerdict",
    "check",
    "check_key_counts",
    "check_prefix",
    "check_spilled",
    "check_windows",
    "expect",
    "origin_of",
    "wanted_of",
]
