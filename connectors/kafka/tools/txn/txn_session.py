"""The work of ``sluice txn``: read a job's directory, connect to its clusters, refuse harmful
requests, end transactions."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.committer.kafka_sink_coordinator import OpenLeaseStore
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_lease import KafkaLeaseStore
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionDescription, Wire
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.connectors.kafka.tools.txn.job_transactions import (
    NamedTransaction,
    SinkKey,
    SinkSettings,
    TransactionLine,
    connection_of,
    job_transactions,
    named_transactions,
    sinks_of,
)
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.inspect.checkpoint_opening import command_store, split_slot
from sluice.runtime.checkpoint.inspect.inspection import survey
from sluice.runtime.contracts import Clock, CommitReport
from sluice.runtime.errors import (
    ConfigError,
    FencedError,
    TransactionUnknownError,
    UnreachableError,
)
from sluice.runtime.model.checkpoint_record import CheckpointRecord
from sluice.runtime.ownership.lease import (
    RENEWAL_INTERVAL_S,
    WATCHED_INTERVALS,
    LeaseStore,
    is_of_another_directory,
)

__all__ = [
    "Ended",
    "TransactionSession",
    "abort_transactions",
    "commit_transactions",
    "end_transactions",
    "named_in",
    "open_session",
    "session_of",
]

Ended = list[tuple[TransactionLine, CommitReport]]
"""The committer's report for each transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSession:
    """The known facts about a job, and a client for each sink's cluster.

    Attributes:
        checkpoint_uri: of the directory.
        last_session: of the coordinator that wrote its last record.
        job_uid: of the job.
        sinks: its transactional sinks, with all their prefixes.
        connections, wires: to the cluster of each.
        lines: the transactions of the checkpoints and of the cluster, when the session was opened.
        missing: brokers that did not answer.
        refresh_named: reads again the transactions that the checkpoints name.
        open_lease_store: of a prefix.
        clock, sleep: monotonic seconds.
    """

    checkpoint_uri: str
    last_session: str
    job_uid: str
    sinks: Mapping[SinkKey, SinkSettings]
    connections: Mapping[SinkKey, KafkaConnection]
    wires: Mapping[SinkKey, Wire]
    lines: Sequence[TransactionLine]
    missing: Sequence[str]
    refresh_named: Callable[[], Sequence[NamedTransaction]]
    open_lease_store: OpenLeaseStore = KafkaLeaseStore
    clock: Clock = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def chosen(self, ids: Sequence[str]) -> list[TransactionLine]:
        """The lines of these ids; ConfigError for an id of another job."""
        by_id = {line.transactional_id: line for line in self.lines}
        unknown = [name for name in ids if name not in by_id]
        if unknown:
            raise ConfigError(
                "this transactional id does not belong to the job",
                {"transactional_id": unknown[0]},
                "List the ids with `sluice txn list --all`.",
            )
        return [by_id[name] for name in dict.fromkeys(ids)]


@contextmanager
def open_session(
    path: str, *, bootstrap: str | None, options: Mapping[str, str], timeout_s: float
) -> Iterator[TransactionSession]:
    """Read the directory, connect, and describe every id that either side knows.

    Args:
        path: checkpoint directory, or a drop-in query's checkpoint location.
        bootstrap: servers that replace those on record.
        options: ``kafka.*`` options that are not on record, such as secrets.
        timeout_s: of each request round.
    Raises:
        ConfigError, UnreachableError, AuthenticationError, StorageError.
    """
    uri, records, named = _read(path)
    sinks = {key: sink for record in records for key, sink in sinks_of(record).items()}
    if not sinks:
        raise ConfigError(
            "no checkpoint here names a transactional Kafka sink",
            {"path": path},
            "Give the checkpoint directory of a job with an exactly-once Kafka sink.",
        )
    connections = {
        key: connection_of(sink, bootstrap=bootstrap, options=options)
        for key, sink in sinks.items()
    }
    with ExitStack() as stack:
        wires = {key: TransactionWire(connection) for key, connection in connections.items()}
        for wire in wires.values():
            stack.callback(wire.close)
        yield session_of(
            named,
            checkpoint_uri=uri,
            last=records[-1],
            sinks=sinks,
            connections=connections,
            wires=wires,
            refresh_named=lambda: _read(path)[2],
            timeout_s=timeout_s,
        )


def _read(path: str) -> tuple[str, list[CheckpointRecord], Sequence[NamedTransaction]]:
    uri, _ = split_slot(path)
    with command_store(uri) as store:
        return store.uri, *named_in(store)


def named_in(store: CheckpointStore) -> tuple[list[CheckpointRecord], Sequence[NamedTransaction]]:
    """The directory's records, and the transactions that they name."""
    places = survey(store)
    records = [place.record for place in places if place.record is not None]
    committables = {r.checkpoint_id: store.effective_committables(r) for r in records}
    return records, named_transactions(places, committables)


def session_of(
    named: Sequence[NamedTransaction],
    *,
    checkpoint_uri: str,
    last: CheckpointRecord,
    sinks: Mapping[SinkKey, SinkSettings],
    connections: Mapping[SinkKey, KafkaConnection],
    wires: Mapping[SinkKey, Wire],
    refresh_named: Callable[[], Sequence[NamedTransaction]],
    timeout_s: float,
) -> TransactionSession:
    """Describe all ids that the checkpoints name, and those that only the brokers know.

    Args:
        last: of the directory's records.
        timeout_s: of each request round; the rest is as in `TransactionSession`.
    Raises:
        UnreachableError, AuthenticationError: a coordinator, or the cluster, did not answer.
    """
    described, missing = _describe_all(wires, sinks, named, last.job_uid, timeout_s)
    return TransactionSession(
        checkpoint_uri=checkpoint_uri,
        last_session=last.leader_session_id,
        job_uid=last.job_uid,
        sinks=sinks,
        connections=connections,
        wires=wires,
        lines=job_transactions(named, described, sinks),
        missing=missing,
        refresh_named=refresh_named,
    )


def _describe_all(
    wires: Mapping[SinkKey, Wire],
    sinks: Mapping[SinkKey, SinkSettings],
    named: Sequence[NamedTransaction],
    job_uid: str,
    timeout_s: float,
) -> tuple[dict[str, TransactionDescription | None], list[str]]:
    """The brokers' description of every id that they or ``named`` know, and the brokers without an
    answer."""
    described: dict[str, TransactionDescription | None] = {}
    missing: list[str] = []
    for key, sink in sinks.items():
        wires[key].cluster(timeout_s=timeout_s)  # fails at once if the connection is wrong
        listing = wires[key].list_transactions(f"{sink.prefix}/{job_uid}/", timeout_s=timeout_s)
        missing += [place for place in listing.missing if place not in missing]
        ids = {row.transactional_id for row in listing.transactions}
        ids |= {one.handle.transactional_id for one in named if one.sink_key == key}
        answers = wires[key].describe(sorted(ids), timeout_s=timeout_s)
        unanswered = sorted(ids - set(answers))
        if unanswered:
            raise UnreachableError(
                "a transaction's coordinator did not answer",
                {"transactional_id": unanswered[0], "transactions": len(unanswered)},
                "Restart the broker, or raise --timeout.",
            )
        described |= answers
    return described, missing


def _refuse_undecided_commit(line: TransactionLine, *, force: bool) -> None:
    """ConfigError if no decision requires the commit of this transaction."""
    if force or (line.named is not None and line.named.commit_is_due):
        return
    standing = line.named.standing if line.named is not None else "in no checkpoint"
    raise ConfigError(
        "no decision requires the commit of this transaction",
        {"transactional_id": line.transactional_id, "standing": standing},
        "Abort it: the job writes its records again, so a commit would double them. Use --force "
        "if the job will never run again.",
    )


def _refuse_decided_abort(line: TransactionLine, *, force: bool) -> None:
    """ConfigError if a decision requires the commit of this transaction."""
    if force or line.named is None or not line.named.commit_is_due:
        return
    raise ConfigError(
        "a decided checkpoint names this transaction",
        {"transactional_id": line.transactional_id, "checkpoint_id": line.named.checkpoint_id},
        "Commit it: an abort would lose its records. Or use --force and write them again.",
    )


def _refuse_decided_since(job: TransactionSession, lines: Sequence[TransactionLine]) -> None:
    """ConfigError if a checkpoint that was decided after the session was opened names one of these:
    the job may have died between its decision and its commits."""
    chosen = {line.transactional_id for line in lines}
    described = {line.transactional_id: line.described for line in job.lines}
    for line in job_transactions(job.refresh_named(), described, job.sinks):
        if line.transactional_id in chosen:
            _refuse_decided_abort(line, force=False)


def _leases(
    job: TransactionSession, sinks: set[SinkKey], *, timeout_s: float
) -> Iterator[tuple[str, LeaseStore]]:
    """Each prefix of the job's sinks, and its lease."""
    for key in sorted(sinks & set(job.sinks)):
        prefix = job.sinks[key].prefix
        store = job.open_lease_store(job.connections[key], prefix, timeout_s=timeout_s)
        with closing(store):
            yield prefix, store


def _refuse_of_a_copy(job: TransactionSession, prefix: str, store: LeaseStore) -> None:
    """FencedError if a run of another checkpoint directory has the prefix (`lease-guards-outputs`):
    this directory may lack its decisions since one was copied."""
    found = store.read()
    if found is None or found.job_uid != job.job_uid:
        return
    if is_of_another_directory(found, session=job.last_session, checkpoint_uri=job.checkpoint_uri):
        raise FencedError(
            "a run of another checkpoint directory has this prefix",
            {"prefix": prefix, "checkpoint": found.checkpoint_uri, "host": found.host},
            "Use the checkpoint directory of that run: only its checkpoints hold all "
            "decisions. If the directory was moved to here, use --force.",
        )


def _refuse_while_alive(job: TransactionSession, prefix: str, store: LeaseStore) -> None:
    """FencedError if the job runs: it renews its lease (`lease-guards-outputs`). This watches the
    lease as long as the start of another job does."""
    first = store.read()
    until = job.clock() + RENEWAL_INTERVAL_S * WATCHED_INTERVALS
    if first is None or first.is_ended or first.job_uid != job.job_uid:
        return
    while job.clock() < until:
        job.sleep(0.25)  # only a renewal shows that the holder lives
        found = store.read()
        if found is not None and not found.is_ended and found != first:
            raise FencedError(
                "the job runs, and may still commit its open transactions",
                {"prefix": prefix, "host": found.host, "session": found.session},
                "Leave it to the job's own sweep, stop the job first, or use --force.",
            )


def commit_transactions(
    job: TransactionSession, ids: Sequence[str], *, force: bool, timeout_s: float
) -> Ended:
    """Commit these, or all of decided checkpoints that are not committed on record.

    Raises:
        ConfigError: no decision requires the commit of one.
    """
    chosen = job.chosen(ids) if ids else [line for line in job.lines if line.is_unfinished]
    for line in chosen:
        _refuse_undecided_commit(line, force=force)
    return end_transactions(job, chosen, commit=True, timeout_s=timeout_s)


def abort_transactions(
    job: TransactionSession, ids: Sequence[str], *, force: bool, timeout_s: float
) -> Ended:
    """Abort these, or all that are open and that no decision names.

    Raises:
        ConfigError: a decision requires the commit of one.
        FencedError: the job runs, or its last run has another checkpoint directory.
    """
    chosen = job.chosen(ids) if ids else [line for line in job.lines if line.is_orphan]
    for line in chosen:
        _refuse_decided_abort(line, force=force)
    if chosen and not force:
        keys = {line.sink_key for line in chosen}
        for refuse in (_refuse_of_a_copy, _refuse_while_alive):
            for prefix, store in _leases(job, keys, timeout_s=timeout_s):
                refuse(job, prefix, store)
        _refuse_decided_since(job, chosen)
    return end_transactions(job, chosen, commit=False, timeout_s=timeout_s)


def end_transactions(
    job: TransactionSession, lines: Sequence[TransactionLine], *, commit: bool, timeout_s: float
) -> Ended:
    """Commit or abort, oldest checkpoint first; returns the committer's reports."""
    lines = sorted(lines, key=lambda line: line.named.checkpoint_id if line.named else 0)
    reports: Ended = []
    for key in dict.fromkeys(line.sink_key for line in lines):
        mine = [line for line in lines if line.sink_key == key]
        if key not in job.wires:
            raise ConfigError(
                "the checkpoint does not name the cluster of this transaction",
                {"transactional_id": mine[0].transactional_id, "operator": key[0]},
                "Use the checkpoint directory of the job that made it.",
            )
        committer = KafkaCommitter(job.wires[key], clock=job.clock, sleep=job.sleep)
        identities = [_identity(line) for line in mine]
        answers = (
            committer.commit_transactions(identities, timeout_s=timeout_s)
            if commit
            else committer.abort_transactions(identities, timeout_s=timeout_s)
        )
        reports += zip(mine, answers, strict=True)
    return reports


def _identity(line: TransactionLine) -> TransactionIdentity:
    found = line.identity
    if found is None:
        raise TransactionUnknownError(
            "the coordinator no longer knows this id",
            {"transactional_id": line.transactional_id},
            "Count the records of the output: there is nothing to end.",
        )
    return found
