"""A job's transactions, from its checkpoint directory and its cluster.

Data of ``sluice txn``; needs neither the job nor Spark.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.connectors.kafka.client.client_options import PREFIX
from sluice.connectors.kafka.client.connection import REDACTED, KafkaConnection
from sluice.connectors.kafka.sink.committer.commit_outcomes import judge
from sluice.connectors.kafka.sink.committer.transaction_requests import (
    TransactionDescription,
    TransactionState,
)
from sluice.connectors.kafka.sink.handles import (
    COMMITTABLE_KIND,
    TransactionalId,
    TransactionHandle,
    TransactionIdentity,
    decode_handle,
)
from sluice.runtime.checkpoint.inspect.inspection import Slot
from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import CheckpointRecord, StateEntry, Verdict

__all__ = [
    "NamedTransaction",
    "SinkKey",
    "SinkSettings",
    "Standing",
    "TransactionLine",
    "connection_of",
    "job_transactions",
    "named_transactions",
    "sinks_of",
]

_BOOTSTRAP = f"{PREFIX}bootstrap.servers"
_ID_PREFIX = "transactional_id_prefix"

Standing = str
"""State of the checkpoint that names a transaction: `Slot`."""

SinkKey = tuple[str, str]
"""Operator name and prefix: after a change of the prefix, ids of the old one may remain."""

_ABORTED = "aborted"
_COMMIT_IS_DUE = frozenset({"unfinished", "committed", "decided"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """The settings of a Kafka sink in a checkpoint.

    Attributes:
        name: of the operator.
        prefix: of its transactional ids.
        options: its ``kafka.*`` options, secrets redacted.
    """

    name: str
    prefix: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTransaction:
    """A transaction that a checkpoint names.

    Attributes:
        entry: the committable, as the committer takes it.
        handle: the same, decoded.
        checkpoint_id: of the record that names it.
        standing: of that record.
        sink: name of the operator.
    """

    entry: StateEntry
    handle: TransactionHandle
    checkpoint_id: int
    standing: Standing
    sink: str

    @property
    def sink_key(self) -> SinkKey:
        """The job's sink that owns it."""
        return self.sink, _prefix_of(self.handle.transactional_id)

    @property
    def is_given_up(self) -> bool:
        """Whether the checkpoint was aborted, so that no decision can follow."""
        return self.standing == _ABORTED

    @property
    def commit_is_due(self) -> bool:
        """Whether a decision that is not superseded requires its commit."""
        return self.standing in _COMMIT_IS_DUE


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLine:
    """One transactional id: the checkpoint that names it, and its state at the coordinator.

    Attributes:
        transactional_id: its name.
        sink: name of the operator.
        named: the newest checkpoint's transaction of this id, None if no checkpoint names it.
        described: its state, None if the coordinator does not know the id.
    """

    transactional_id: str
    sink: str
    named: NamedTransaction | None
    described: TransactionDescription | None

    @property
    def is_open(self) -> bool:
        """Whether it blocks read_committed readers."""
        return self.described is not None and self.described.state is TransactionState.ONGOING

    @property
    def is_orphan(self) -> bool:
        """Whether it is open, and no decision names it. An aborted checkpoint may name it, if its
        job could not abort it then."""
        return self.is_open and (self.named is None or self.named.is_given_up)

    @property
    def is_unfinished(self) -> bool:
        """Whether a decision names it that is not committed on record."""
        return self.named is not None and self.named.standing == "unfinished"

    @property
    def sink_key(self) -> SinkKey:
        """The job's sink that owns it."""
        return self.sink, _prefix_of(self.transactional_id)

    @property
    def identity(self) -> TransactionIdentity | None:
        """From the checkpoint if one names it, else from the coordinator
        (`handle-from-producer`)."""
        if self.named is not None:
            return self.named.handle.identity
        return self.described.identity if self.described is not None else None

    @property
    def verdict(self) -> str:
        """The certain state, for people."""
        if self.named is None:
            return "open, no decision names it" if self.is_open else "idle"
        judgement = judge(self.named.handle.identity, self.described)
        if judgement.open:
            return "open"
        if judgement.outcome is CommitOutcome.UNKNOWN and self.named.standing == "committed":
            return "committed on record"
        return judgement.outcome.value


def sinks_of(record: CheckpointRecord) -> dict[SinkKey, SinkSettings]:
    """The transactional Kafka sinks in a record's settings."""
    found = {}
    for node in record.graph:
        own = {
            key.removeprefix(f"{node.name}."): value
            for key, value in record.settings.items()
            if key.startswith(f"{node.name}.")
        }
        if node.kind == "sink" and own.get(_ID_PREFIX):
            options = {key: value for key, value in own.items() if key.startswith(PREFIX)}
            prefix = own[_ID_PREFIX]
            found[node.name, prefix] = SinkSettings(name=node.name, prefix=prefix, options=options)
    return found


def named_transactions(
    places: Iterable[Slot], committables: Mapping[int, Sequence[StateEntry]]
) -> list[NamedTransaction]:
    """Every Kafka transaction that a record names, oldest checkpoint first.

    Args:
        places: of the checkpoint directory.
        committables: with repairs applied, by checkpoint id.
    """
    found = []
    for place in places:
        if place.record is None:
            continue
        names = {node.operator_id: node.name for node in place.record.graph}
        found += [
            NamedTransaction(
                entry=entry,
                handle=decode_handle(entry),
                checkpoint_id=place.checkpoint_id,
                standing=_standing(place, place.record),
                sink=names.get(entry.operator_id, entry.operator_id),
            )
            for entry in committables.get(place.checkpoint_id, ())
            if entry.kind == COMMITTABLE_KIND
        ]
    return found


def _standing(place: Slot, record: CheckpointRecord) -> Standing:
    if place.superseded_by is not None:
        return "superseded"
    return _ABORTED if record.verdict is Verdict.ABORTED else place.standing


def job_transactions(
    named: Sequence[NamedTransaction],
    described: Mapping[str, TransactionDescription | None],
    sinks: Mapping[SinkKey, SinkSettings],
) -> list[TransactionLine]:
    """One line for each id that a checkpoint or the cluster knows; pure.

    An id in several checkpoints belongs to the newest: the id was used again. If an id was used
    again after all checkpoints, no checkpoint names its open transaction.
    """
    newest = {
        one.handle.transactional_id: one
        for one in named
        if not _is_used_again(one, described.get(one.handle.transactional_id))
    }
    by_prefix = {sink.prefix: sink.name for sink in sinks.values()}
    return [
        TransactionLine(
            transactional_id=name,
            sink=newest[name].sink if name in newest else by_prefix.get(_prefix_of(name), ""),
            named=newest.get(name),
            described=described.get(name),
        )
        for name in sorted({*newest, *described})
    ]


def _is_used_again(named: NamedTransaction, described: TransactionDescription | None) -> bool:
    # Not an unfinished one: its id is not used until it is committed on record
    # (`ids-never-reused`), so another transaction under it is an error that a person must see.
    return (
        described is not None
        and described.state is TransactionState.ONGOING
        and described.identity != named.handle.identity
        and named.standing != "unfinished"
    )


def _prefix_of(transactional_id: str) -> str:
    parsed = TransactionalId.parse(transactional_id)
    return parsed.prefix if parsed is not None else ""


def connection_of(
    sink: SinkSettings, *, bootstrap: str | None, options: Mapping[str, str]
) -> KafkaConnection:
    """The connection to a sink's cluster: as recorded, with changes from the command line.

    Raises:
        ConfigError: a secret is redacted in the checkpoint and missing here, or no servers are
            known.
    """
    given = {_prefixed(name): value for name, value in options.items()}
    if bootstrap is not None:
        given[_BOOTSTRAP] = bootstrap
    merged = {**sink.options, **given}
    hidden = sorted(name for name, value in merged.items() if value == REDACTED)
    if hidden:
        raise ConfigError(
            "an option is a secret, which checkpoints do not hold",
            {"option": hidden[0], "sink": sink.name},
            f"Give it by --config-file (a file of key=value lines) or --config {hidden[0]}=….",
        )
    return KafkaConnection.of(merged)


def _prefixed(name: str) -> str:
    name = name.strip()
    return name if name.lower().startswith(PREFIX) else PREFIX + name
