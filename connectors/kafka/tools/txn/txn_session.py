"""What ``sluice txn`` does: open a job's directory and clusters, refuse what would harm, end."""

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
from sluice.runtime.checkpoint.inspect.checkpoint_opening import command_store, split_place
from sluice.runtime.checkpoint.inspect.inspection import survey
from sluice.runtime.contracts import Clock, CommitReport
from sluice.runtime.errors import (
    ConfigError,
    FencedError,
    TransactionUnknownError,
    UnreachableError,
)
from sluice.runtime.model.model import CheckpointRecord
from sluice.runtime.ownership.lease_record import (
    RENEWAL_INTERVAL_S,
    WATCHED_INTERVALS,
    LeaseRecord,
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
"""What the committer says of each transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSession:
    """Everything that is known of a job, and a client for each sink's cluster.

    Attributes:
        checkpoint_uri: of the directory.
        last_session: of the coordinator that wrote its last record.
        job_uid: of the job.
        sinks: its transactional sinks, with prefixes that they had.
        connections, wires: to the cluster of each.
        lines: what the checkpoints name and what the brokers say of it, as of the look, and of
            what no checkpoint names.
        missing: brokers that did not answer.
        refresh_named: at the checkpoints, for what they name now.
        open_owner_store: where a prefix says who has it.
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
        """The lines of these ids; ConfigError for one that is not the job's."""
        by_id = {line.transactional_id: line for line in self.lines}
        unknown = [name for name in ids if name not in by_id]
        if unknown:
            raise ConfigError(
                "neither a checkpoint nor the cluster knows this transactional id as the job's",
                {"transactional_id": unknown[0]},
                "Look it up with `sluice txn list --all`.",
            )
        return [by_id[name] for name in dict.fromkeys(ids)]


@contextmanager
def open_session(
    path: str, *, bootstrap: str | None, options: Mapping[str, str], timeout_s: float
) -> Iterator[TransactionSession]:
    """Read the directory, connect, and ask for every id that either side knows.

    Args:
        path: checkpoint directory, or a drop-in query's checkpoint location.
        bootstrap: servers to use in place of those on record.
        options: ``kafka.*`` options, secrets above all, that are not on record.
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
    uri, _ = split_place(path)
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
    """Ask the brokers for all that the checkpoints name, and for what only they know.

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
    """What the brokers say of every id that they or ``named`` know, and who did not answer."""
    described: dict[str, TransactionDescription | None] = {}
    missing: list[str] = []
    for key, sink in sinks.items():
        wires[key].cluster(timeout_s=timeout_s)  # says at once what is wrong with the connection
        listing = wires[key].list_transactions(f"{sink.prefix}/{job_uid}/", timeout_s=timeout_s)
        missing += [place for place in listing.missing if place not in missing]
        asked = {row.transactional_id for row in listing.transactions}
        asked |= {one.handle.transactional_id for one in named if one.sink_key == key}
        answers = wires[key].describe(sorted(asked), timeout_s=timeout_s)
        silent = sorted(asked - set(answers))
        if silent:
            raise UnreachableError(
                "a transaction's coordinator did not answer",
                {"transactional_id": silent[0], "transactions": len(silent)},
                "Bring the broker back, or give more --timeout.",
            )
        described |= answers
    return described, missing


def _refuse_undecided_commit(line: TransactionLine, *, force: bool) -> None:
    """ConfigError when no decision asks for the commit of this transaction."""
    if force or (line.named is not None and line.named.commit_is_due):
        return
    standing = line.named.standing if line.named is not None else "in no checkpoint"
    raise ConfigError(
        "no decision asks for the commit of this transaction",
        {"transactional_id": line.transactional_id, "standing": standing},
        "Its records will be written again by the job, so a commit would double them; "
        "abort it, or use --force if the job will never run again.",
    )


def _refuse_decided_abort(line: TransactionLine, *, force: bool) -> None:
    """ConfigError when a decision asks for the commit of this transaction."""
    if force or line.named is None or not line.named.commit_is_due:
        return
    raise ConfigError(
        "a decided checkpoint names this transaction",
        {"transactional_id": line.transactional_id, "checkpoint_id": line.named.checkpoint_id},
        "An abort would lose its records; commit it, or use --force and write them again.",
    )


def _refuse_decided_since(job: TransactionSession, lines: Sequence[TransactionLine]) -> None:
    """ConfigError when a checkpoint that was decided behind the session's look names one of these:
    the job may have died between its decision and its commits."""
    chosen = {line.transactional_id for line in lines}
    described = {line.transactional_id: line.described for line in job.lines}
    for line in job_transactions(job.refresh_named(), described, job.sinks):
        if line.transactional_id in chosen:
            _refuse_decided_abort(line, force=False)


def _refuse_of_a_copy(job: TransactionSession, sinks: set[SinkKey], *, timeout_s: float) -> None:
    """FencedError when a run of another checkpoint directory has the prefix
    (`lease-guards-outputs`): what it has decided since one of both was copied is not in this
    one."""
    for key in sorted(sinks & set(job.sinks)):
        prefix = job.sinks[key].prefix
        store = job.open_lease_store(job.connections[key], prefix, timeout_s=timeout_s)
        with closing(store):
            found = store.read()
        if found is None or found.job_uid != job.job_uid:
            continue
        if is_of_another_directory(
            found, session=job.last_session, checkpoint_uri=job.checkpoint_uri
        ):
            raise FencedError(
                "a run of another checkpoint directory has this prefix",
                {"prefix": prefix, "checkpoint": found.checkpoint_uri, "host": found.host},
                "One directory is a copy of the other, and only the other one's checkpoints say "
                "what is decided: give the command that one. If there is none but this one, as it "
                "was moved, use --force.",
            )


def _refuse_while_alive(job: TransactionSession, sinks: set[SinkKey], *, timeout_s: float) -> None:
    """FencedError when the job lives, as its owner record tells by changing
    (`lease-guards-outputs`)."""
    for key in sorted(sinks & set(job.sinks)):
        prefix = job.sinks[key].prefix
        store = job.open_lease_store(job.connections[key], prefix, timeout_s=timeout_s)
        with closing(store):
            found = _renewed(job, store)
        if found is not None:
            raise FencedError(
                "the job runs, and may still commit what is open",
                {"prefix": prefix, "host": found.host, "session": found.session},
                "Leave it to the job's own sweep, stop the job first, or use --force.",
            )


def _renewed(job: TransactionSession, store: LeaseStore) -> LeaseRecord | None:
    """The record of a holder that renews it, watched for as long as a start of another job does."""
    first = store.read()
    until = job.clock() + RENEWAL_INTERVAL_S * WATCHED_INTERVALS
    if first is None or first.is_ended or first.job_uid != job.job_uid:
        return None
    while job.clock() < until:
        job.sleep(0.25)  # a living holder shows itself only by its next renewal
        found = store.read()
        if found is not None and not found.is_ended and found != first:
            return found
    return None


def commit_transactions(
    job: TransactionSession, ids: Sequence[str], *, force: bool, timeout_s: float
) -> Ended:
    """Commit these, or all that decided checkpoints name and that are not committed on record.

    Raises:
        ConfigError: no decision asks for one of these.
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
        ConfigError: a decision asks for the commit of one.
        FencedError: the job runs, or its last run has another checkpoint directory.
    """
    chosen = job.chosen(ids) if ids else [line for line in job.lines if line.is_orphan]
    for line in chosen:
        _refuse_decided_abort(line, force=force)
    if chosen and not force:
        keys = {line.sink_key for line in chosen}
        _refuse_of_a_copy(job, keys, timeout_s=timeout_s)
        _refuse_while_alive(job, keys, timeout_s=timeout_s)
        _refuse_decided_since(job, chosen)
    return end_transactions(job, chosen, commit=False, timeout_s=timeout_s)


def end_transactions(
    job: TransactionSession, lines: Sequence[TransactionLine], *, commit: bool, timeout_s: float
) -> Ended:
    """Commit or abort, oldest checkpoint first; what the committer says of each."""
    lines = sorted(lines, key=lambda line: line.named.checkpoint_id if line.named else 0)
    reports: Ended = []
    for key in dict.fromkeys(line.sink_key for line in lines):
        mine = [line for line in lines if line.sink_key == key]
        if key not in job.wires:
            raise ConfigError(
                "the checkpoint does not tell which cluster this transaction is in",
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
            "the coordinator does not know this id any more",
            {"transactional_id": line.transactional_id},
            "There is nothing to end; count the records of the output.",
        )
    return found
