"""`assert_exactly_once`: the verdict of ``sluice verify`` as an assertion of a test."""

import bisect
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.tools.verify.places import Topic
from sluice.connectors.kafka.tools.verify.topic_history import await_readable
from sluice.connectors.kafka.tools.verify.verification import (
    Comparison,
    Plan,
    name_function,
    transactions_of,
    verify,
    why_nothing_expected,
)
from sluice.connectors.testing.last_values import last_values
from sluice.connectors.testing.sides import Content, as_bytes, expectation, opened
from sluice.connectors.testing.verdict import (
    OPEN,
    Fault,
    NotExactlyOnceError,
    Verdict,
    content_of,
)
from sluice.runtime.checker import Finding, Identity, Kind, Location, Record
from sluice.runtime.errors import ConfigError, UnreachableError

__all__ = ["assert_exactly_once"]

_PLACES = 3
_MEMORY_BYTES = 256 << 20
_REQUEST_S = 30.0
_UNFINISHED = (
    TransactionState.ONGOING,
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
)

Expected = Callable[[Record], object] | Sequence[object] | Mapping[Content, Content] | None


def assert_exactly_once(
    input: object,  # noqa: A002 - the word of a test
    output: object,
    *,
    expected: Expected = None,
    bootstrap: str | KafkaConnection | None = None,
    name_by: str | Callable[[Record], Content] | None = None,
    order: bool = True,
    ignore_headers: bool = False,
    ignore_partition: bool = True,
    last_per_key: bool = False,
    checkpoint: str | Path | None = None,
    timeout: float = 60.0,
) -> Verdict:
    """Assert that the output has what the input must become: each record once, whole, in order.

    Call it after the pipeline has written everything. The output is read as a ``read_committed``
    reader sees it.

    Args:
        input, output: a topic, files, or a list of values. A topic is its name, or an object with
            ``name`` and ``connection`` (or ``bootstrap``). Files are a `Path`, a path with a ``/``
            or an ``hdfs:`` URI. An item of a list is a value, a pair of key and value, a `Record`,
            or a dict for a row of files.
        expected: a function of an input `Record`. It returns such an item, a list of items, or None
            for no output. Left out: each input record itself. A list holds the expected records;
            then the input is not read. A dict is for ``last_per_key``.
        bootstrap: servers, or a `KafkaConnection`, of topics that are given by name.
        name_by: the unique name of a record, to separate corrupted records from lost ones:
            ``key``, ``header:NAME``, ``json:FIELD``, or a function.
        order: records of an input partition must keep their order in each output partition or file.
        ignore_headers: do not compare headers.
        ignore_partition: accept a record in any partition.
        last_per_key: ``expected`` maps a key to the value of its last record; None: no value. For
            aggregations that update their results: extra records of a key are no fault.
        checkpoint: the checkpoint directory of a job of Sluice, to find torn transactions.
        timeout: seconds to wait until open transactions of the output have ended.
    Returns:
        The verdict, for its notes: its faults are empty.
    Raises:
        NotExactlyOnceError: an AssertionError whose text names each fault and its first places.
        ConfigError: also if ``expected`` raises.
        UnreachableError, StorageError, SourceChangedError: a side cannot be read.
    """
    __tracebackhide__ = True
    if last_per_key is not isinstance(expected, Mapping):
        raise ConfigError(
            "last_per_key and a dict of expected values belong together",
            {"last_per_key": last_per_key, "expected": type(expected).__name__},
            "Pass expected={key: value} and last_per_key=True.",
        )
    reached = bootstrap or _connection_of(input) or _connection_of(output)
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(opened(output, name="output", bootstrap=reached))
        blocking = _blocking(found, timeout) if isinstance(found, Topic) else None
        if isinstance(expected, Mapping):
            verdict = last_values(found, expected)
        else:
            function = None if isinstance(expected, Sequence) else expected
            is_list = isinstance(expected, Sequence)
            side, name = (expected, "expected") if is_list else (input, "input")
            source = stack.enter_context(opened(side, name=name, bootstrap=reached))
            plan = Plan(
                source=source,
                output=found,
                mapping=expectation(function),
                identity=Identity(
                    partition=not ignore_partition,
                    headers=not ignore_headers,
                    name_of=_name_function(name_by),
                ),
                transactions=None
                if checkpoint is None
                else transactions_of(str(checkpoint), source.name, found.name),
                memory_bytes=_MEMORY_BYTES,
                scratch=None,
                settle_s=None,
            )
            verdict = _compared(plan, order=order)
        if blocking is not None:
            verdict = _without_hidden(verdict, blocking, last_per_key=last_per_key)
        if verdict.faults:
            raise NotExactlyOnceError(f"{found.name} is not exactly once", verdict)
        return verdict


def _connection_of(side: object) -> object:
    return getattr(side, "connection", None) or getattr(side, "bootstrap", None)


def _name_function(
    name_by: str | Callable[[Record], Content] | None,
) -> Callable[[Record], bytes | None] | None:
    if not callable(name_by):
        return name_function(name_by)
    return lambda record: as_bytes(name_by(record))


class _FirstPlaces:
    """The first findings of each kind, by position; more are not kept."""

    def __init__(self) -> None:
        self.by_kind: dict[Kind, list[Finding]] = {kind: [] for kind in Kind}

    def __call__(self, finding: Finding) -> None:
        mine = self.by_kind[finding.kind]
        bisect.insort(mine, finding)
        del mine[_PLACES:]


def _compared(plan: Plan, *, order: bool) -> Verdict:
    first = _FirstPlaces()
    compared = verify(plan, progress=lambda *_: None, sink=first)
    counts = compared.verdict
    kinds = [kind for kind in Kind if getattr(counts, kind.value)]
    if not order and Kind.REORDERED in kinds:
        kinds.remove(Kind.REORDERED)
    shown = _contents(plan, [one for kind in kinds for one in first.by_kind[kind]])
    return Verdict(
        expected=counts.expected,
        found=counts.found,
        faults=tuple(
            Fault(
                kind=kind.value,
                count=getattr(counts, kind.value),
                places=tuple(_place(one, shown) for one in first.by_kind[kind]),
            )
            for kind in kinds
        ),
        notes=tuple(_notes(compared, plan)),
    )


def _contents(plan: Plan, findings: Sequence[Finding]) -> Mapping[Location, Record]:
    """The records at the places of findings, as far as they can still be read."""
    lost = [one.location for one in findings if one.kind is Kind.LOST]
    others = [one.location for one in findings if one.kind not in (Kind.LOST, Kind.TORN)]
    return {
        **(plan.source.records_at(lost) if lost else {}),
        **(plan.output.records_at(others) if others else {}),
    }


def _place(finding: Finding, shown: Mapping[Location, Record]) -> str:
    record = shown.get(finding.location) if finding.kind is not Kind.TORN else None
    parts = [str(finding.location), content_of(record) if record else "", finding.detail]
    return " ".join(filter(None, parts))


def _notes(compared: Comparison, plan: Plan) -> Iterator[str]:
    counts = compared.verdict
    yield from compared.limits()
    if not counts.is_reordered_exact:
        yield "reordered is an upper bound: too many records are out of order"
    if counts.unordered:
        yield f"order not judged: {counts.unordered:,} records with equal contents"
    if not counts.expected:
        yield why_nothing_expected(compared.records_read, compared.elsewhere)
    if 0 < counts.expected == counts.lost and 0 < counts.found == counts.unexpected:
        yield "no found record was expected: does `expected` return another key, value or headers?"


def _blocking(output: Topic, timeout_s: float) -> Fault | None:
    """The open transactions that readers of the output still wait for after the timeout."""
    try:
        await_readable(output.connection, output.name, timeout_s=timeout_s)
    except UnreachableError:
        held_back = output.held_back()  # raises if the broker cannot be reached
        if held_back:
            return _open_transactions(output, held_back)
    return None


def _open_transactions(output: Topic, held_back: Mapping[str, int]) -> Fault:
    with contextlib.closing(TransactionWire(output.connection)) as wire:
        listing = wire.list_transactions("", timeout_s=_REQUEST_S, states=_UNFINISHED)
        names = [row.transactional_id for row in listing.transactions]
        described = wire.describe(names, timeout_s=_REQUEST_S)
    places = []
    for one in filter(None, described.values()):
        partitions = [f"{topic}-{n}" for topic, n in one.partitions if topic == output.name]
        if partitions:
            places.append(
                f"transactional_id={one.transactional_id} producer_id={one.producer_id} "
                f"partitions={','.join(sorted(partitions))} since={_time(one.started_at_ms)}"
            )
    unlisted = [f"{partition}@{at}: no broker lists it" for partition, at in held_back.items()]
    places = sorted(places) or unlisted
    return Fault(kind=OPEN, count=len(places), places=tuple(places[:_PLACES]))


def _time(timestamp_ms: int | None) -> str:
    if timestamp_ms is None:  # while its end is under way
        return "unknown"
    return f"{datetime.fromtimestamp(timestamp_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _without_hidden(verdict: Verdict, blocking: Fault, *, last_per_key: bool) -> Verdict:
    """The verdict without faults that the end of the open transactions may undo."""
    undone = {Kind.LOST.value, Kind.TORN.value, *([Kind.CORRUPTED.value] if last_per_key else [])}
    kept = [fault for fault in verdict.faults if fault.kind not in undone]
    note = f"{' and '.join(sorted(undone))} not judged: an open transaction hides records"
    return dataclasses.replace(verdict, faults=(*kept, blocking), notes=(*verdict.notes, note))
