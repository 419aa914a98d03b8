"""The work of ``sluice verify``: read both sides into histories on disk, and compare them."""

import contextlib
import json
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sluice.connectors.kafka.tools.txn.txn_session import named_in
from sluice.connectors.kafka.tools.verify.places import Place, Topic
from sluice.connectors.kafka.tools.verify.topic_history import await_readable
from sluice.runtime.checker import (
    Finding,
    HistoryVerdict,
    Identity,
    Location,
    Record,
    SpilledHistory,
    TransactionRange,
    Transactions,
    check_spilled,
    origin_of,
)
from sluice.runtime.checkpoint.inspect.checkpoint_opening import command_store, split_slot
from sluice.runtime.errors import ConfigError, StorageError
from sluice.runtime.model.checkpoint_record import CheckpointRecord
from sluice.runtime.model.json_text import parsed_json

__all__ = [
    "Comparison",
    "Plan",
    "findings_file",
    "name_function",
    "transactions_of",
    "verify",
    "why_nothing_expected",
]

Progress = Callable[[str, int], None]
"""Receives the step, and the number of records read so far."""

_REPORT_EVERY = 10_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parts of a comparison.

    Attributes:
        source, output: the two sides.
        mapping: from an input record to its output records. A result is expected in the output if
            its topic is the output or that of the input record; most mappings keep the latter.
        identity: the compared fields.
        transactions: see `transactions_of`.
        memory_bytes: memory limit of the comparison.
        scratch: directory for data that does not fit; None: the system's.
        settle_s: longest wait for open transactions of the output; None: do not wait.
    """

    source: Place
    output: Place
    mapping: Callable[[Record], Iterable[Record]]
    identity: Identity
    transactions: Transactions | None
    memory_bytes: int
    scratch: Path | None
    settle_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of a comparison, its size and its limits: parts that it does not judge.

    Attributes:
        verdict: on the expected output.
        records_read: of the input, before the mapping.
        elsewhere: number of records that the mapping sends to a topic other than the output.
        starts, output_starts: see `Topic.first_offsets`; of the output after it was read.
        held_back: `Topic.held_back` of the input, before it was read.
        columns: columns of files that are not compared.
    """

    verdict: HistoryVerdict
    records_read: int
    elsewhere: int
    starts: Mapping[str, int]
    output_starts: Mapping[str, int]
    held_back: Mapping[str, int]
    columns: frozenset[str]

    def limits(self) -> Iterator[str]:
        """Parts that the verdict does not judge."""
        if self.columns:
            names = ", ".join(sorted(self.columns))
            yield f"not compared: the columns {names}, in files with a column value"
        if self.elsewhere:
            yield (
                f"not judged: {self.elsewhere:,} records that the mapping sends to another topic; "
                "compare again with that topic as the output"
            )
        if self.starts:
            locations = _offsets(self.starts)
            yield f"not judged: input records that retention deleted, before {locations}"
        if self.output_starts:
            locations = _offsets(self.output_starts)
            yield (
                f"the output begins at {locations}: retention deleted its records before, and they "
                "count as lost; copies keep the timestamps of old records"
            )
        if self.held_back:
            locations = _offsets(self.held_back)
            yield f"not judged: input records after an open transaction, from {locations}"


def verify(
    plan: Plan,
    *,
    progress: Progress,
    sink: Callable[[Finding], None] | None = None,
) -> Comparison:
    """Read both sides and compare them; deletes its files at the end.

    Raises:
        ConfigError: also if both sides are empty: a wrong name, or a job that never ran, must not
            look like exactly once.
        SourceChangedError, StorageError, UnreachableError.
    """
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(_scratch(plan.scratch)))
        want, have = (
            stack.enter_context(
                SpilledHistory(scratch / side, plan.identity, memory_bytes=plan.memory_bytes)
            )
            for side in ("expected", "found")
        )
        source, output = plan.source, plan.output
        if plan.settle_s is not None and isinstance(output, Topic):
            await_readable(output.connection, output.name, timeout_s=plan.settle_s)
        starts = source.first_offsets() if isinstance(source, Topic) else {}
        held_back = source.held_back() if isinstance(source, Topic) else {}
        columns: set[str] = set()
        records_read, elsewhere = _read_input(plan, want, columns, progress)
        found = output.records(need_headers=plan.identity.headers, left_out=columns)
        with _reported(found, "reading the output", progress) as given:
            for record, location in given:
                have.append(record, read_from=location)
        if not len(want) + len(have):
            raise _nothing_to_compare(plan, records_read, elsewhere)
        progress("comparing", len(want) + len(have))
        verdict = check_spilled(want, have, transactions=plan.transactions, sink=sink)
        return Comparison(
            verdict=verdict,
            records_read=records_read,
            elsewhere=elsewhere,
            starts=starts,
            output_starts=output.first_offsets() if isinstance(output, Topic) else {},
            held_back=held_back,
            columns=frozenset(columns),
        )


def _read_input(
    plan: Plan, want: SpilledHistory, columns: set[str], progress: Progress
) -> tuple[int, int]:
    """Append what each input record becomes; the number of records, and of results for another
    topic."""
    source, need_headers = plan.source, plan.identity.headers
    records_read = elsewhere = 0
    visible = source.records(need_headers=need_headers, left_out=columns)
    with _reported(visible, "reading the input", progress) as given:
        for record, location in given:
            elsewhere += _expect(plan, record, location, want)
            records_read += 1
    if isinstance(source, Topic) and source.holds_others(records_read):
        hidden = source.hidden_records(need_headers=need_headers)
        with _reported(hidden, "reading aborted input", progress) as given:
            for record, location in given:
                _expect(plan, record, location, want, is_hidden=True)
    return records_read, elsewhere


def _offsets(by_partition: Mapping[str, int]) -> str:
    return ", ".join(f"{partition}@{offset}" for partition, offset in by_partition.items())


def _expect(
    plan: Plan,
    record: Record,
    location: Location,
    want: SpilledHistory,
    *,
    is_hidden: bool = False,
) -> int:
    """Append the expected output; returns the number of records for another topic."""
    elsewhere = 0
    output = plan.output.name
    try:
        results = plan.mapping(record)
    except ConfigError:
        if not is_hidden:
            raise
        results = ()  # a mapping may refuse what no reader should see
    for wanted in results:
        if wanted.topic in (record.topic, output):
            made = wanted._replace(topic=output)
            want.append(made, read_from=location, is_hidden=is_hidden)
        else:  # expected here, it would excuse a job that writes everything to one topic
            elsewhere += 1
    return elsewhere


def name_function(lines: str | None) -> Callable[[Record], bytes | None] | None:
    """The function that finds a record's unique name: ``key``, ``header:NAME``, ``json:FIELD`` or
    ``origin``.

    Raises:
        ConfigError: none of these.
    """
    kind, _, argument = (lines or "").partition(":")
    if lines is None:
        return None
    if lines == "key":
        return lambda record: record.key
    if lines == "origin":
        return _origin
    if kind == "header" and argument:
        return lambda record: next((v for n, v in record.headers if n == argument), None)
    if kind == "json" and argument:
        return lambda record: _field(record.value, argument)
    raise ConfigError(
        "this cannot be the unique name of a record",
        {"name_by": lines},
        "Write key, header:NAME, json:FIELD, or origin (of generated loads).",
    )


def transactions_of(path: str, plan_source: str, plan_output: str) -> Transactions:
    """Transactions into the output that a job's retained checkpoints name, by input ranges.

    Raises:
        ConfigError: there is no checkpoint, none names such a transaction, or they belong to a
            drop-in query and name no ranges.
    """
    uri, _ = split_slot(path)
    with command_store(uri) as store:
        records, named = named_in(store)
    handles = [one.handle for one in named if one.commit_is_due]
    ranges = [
        TransactionRange(
            transaction=f"{handle.transactional_id} of checkpoint {handle.checkpoint_id}",
            topic=one.topic,
            partition=one.partition,
            start_offset=one.start_offset,
            end_offset=one.end_offset,
        )
        for handle in handles
        if any(output.topic == plan_output for output in handle.outputs)
        for one in handle.sources
        if one.topic == plan_source
    ]
    if not ranges and records and not any(map(_has_source, records)):
        raise ConfigError(
            "checkpoints of a drop-in query do not record ranges of transactions",
            {"checkpoint": path},
            "Leave out --checkpoint: torn transactions then count as lost records.",
        )
    if not ranges:
        raise ConfigError(
            "no checkpoint here names a transaction from this input to this output",
            {"checkpoint": path, "input": plan_source, "output": plan_output},
            "Give the checkpoint directory of the job that wrote the output.",
        )
    return Transactions(ranges)


def _has_source(record: CheckpointRecord) -> bool:
    """False for a drop-in query: Sluice sees only the sink of its graph."""
    return any(node.kind == "source" for node in record.graph)


@contextlib.contextmanager
def findings_file(path: Path | None) -> Iterator[Callable[[Finding], None] | None]:
    """A file for all findings, a JSON object a line; None: findings were not requested.

    Raises:
        StorageError: it cannot be written.
    """
    if path is None:
        yield None
        return
    with _unwritable(path):
        file = path.open("w", encoding="utf-8")

    def write(finding: Finding) -> None:
        location = finding.location._asdict()
        line = {"kind": finding.kind.value, **location, "detail": finding.detail}
        with _unwritable(path):
            file.write(json.dumps(line) + "\n")  # ASCII: the name of a file may be no valid Unicode

    try:
        yield write
    finally:
        with _unwritable(path):
            file.close()


@contextlib.contextmanager
def _unwritable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise StorageError(
            "the findings cannot be written",
            {"path": path, "reason": err},
            "Name a file in a directory that can be written.",
        ) from err


def why_nothing_expected(records_read: int, elsewhere: int) -> str:
    """Reasons: the mapping returned nothing, or nothing for this topic, or the input is empty."""
    if elsewhere:
        return (
            f"the mapping sends all results for {records_read:,} input records to another topic "
            "than the output"
        )
    if records_read:
        return f"the mapping returned no record for {records_read:,} input records"
    return "nothing was expected"


def _nothing_to_compare(plan: Plan, records_read: int, elsewhere: int) -> ConfigError:
    reason = why_nothing_expected(records_read, elsewhere)
    return ConfigError(
        f"there is nothing to compare: {reason}, and the output is empty",
        {"input": plan.source.name, "records_read": records_read, "output": plan.output.name},
        "Name the topics or files that the job has read and written; a function of --map or "
        "`expected` that never returns a record may lack a return.",
    )


def _reported(
    records: Iterable[T], step: str, progress: Progress
) -> contextlib.closing[Generator[T, None, None]]:
    """The records, in a context that closes their reader, also on Ctrl-C."""

    def reported() -> Generator[T, None, None]:
        count = 0
        for count, record in enumerate(records, 1):
            if count % _REPORT_EVERY == 0:
                progress(step, count)
            yield record
        progress(step, count)

    return contextlib.closing(reported())


def _scratch(directory: Path | None) -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="sluice-verify-", dir=directory)
    except OSError as err:
        raise StorageError(
            "there is no space for data larger than memory",
            {"directory": directory or tempfile.gettempdir(), "reason": err},
            "Set --scratch to a directory that can be written.",
        ) from err


def _origin(record: Record) -> bytes | None:
    origin = origin_of(record)
    return None if origin is None else origin.encode()


def _field(value: bytes | None, name: str) -> bytes | None:
    try:
        found = parsed_json(value or b"null")
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get(name) is None:
        return None
    return json.dumps(found[name], sort_keys=True).encode()
