"""Names and handles of transactions, and their form in checkpoints. Pure.

Executors make handles; the driver, a recovery in another process and ``sluice txn`` read them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from sluice.connectors.kafka.client.client_options import is_sendable
from sluice.runtime.errors import ConfigError, StreamError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.payloads import committable, content_of, number, rows, text

__all__ = [
    "COMMITTABLE_KIND",
    "COMMITTABLE_VERSION",
    "InvalidHandleError",
    "OutputCount",
    "SourceRange",
    "TransactionHandle",
    "TransactionIdentity",
    "TransactionalId",
    "decode_handle",
    "encode_handle",
]

COMMITTABLE_KIND = "kafka-transaction"
COMMITTABLE_VERSION = 1


class InvalidHandleError(StreamError):
    """A transaction handle is out of range: its transaction must not be ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalId:
    """``{prefix}/{job uid}/{region}.{attempt_id}/{owner}/{slot}``; one living process owns it.

    Attributes:
        prefix: the user's ``transactionalIdPrefix``; may hold slashes.
        job_uid: of the job, from checkpoint 0.
        region: name of the region; may hold dots, no slash.
        attempt_id: of the region; >= 0.
        owner: random for each worker process, or of an ended one (`ids-never-reused`).
        slot: number of the id in its process; >= 0.
    """

    prefix: str
    job_uid: str
    region: str
    attempt_id: int
    owner: str
    slot: int

    def __post_init__(self) -> None:
        parts = {"job_uid": self.job_uid, "region": self.region, "owner": self.owner}
        for name, part in parts.items():
            if not part or "/" in part or not is_sendable(part):
                raise ConfigError(
                    "part of a transactional id is empty or has a forbidden character",
                    {name: ascii(part), "prefix": self.prefix},
                    "Choose a name without slashes and null characters.",
                )
        if not self.prefix or self.attempt_id < 0 or self.slot < 0:
            raise ConfigError(
                "a transactional id is not valid",
                {"prefix": self.prefix, "attempt_id": self.attempt_id, "slot": self.slot},
                "Set transactionalIdPrefix; attempt and slot must be >= 0.",
            )

    def __str__(self) -> str:
        place = f"{self.region}.{self.attempt_id}"
        return f"{self.prefix}/{self.job_uid}/{place}/{self.owner}/{self.slot}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The parts of an id, or None if it is not an id of Sluice."""
        head = text.rsplit("/", 4)
        if len(head) != 5:
            return None
        prefix, job_uid, place, owner, slot = head
        region, _, attempt_id = place.rpartition(".")
        numbers = attempt_id + slot
        if not (attempt_id and slot and numbers.isascii() and numbers.isdecimal()):
            return None
        if not (prefix and region and job_uid and owner):
            return None
        return cls(
            prefix=prefix,
            job_uid=job_uid,
            region=region,
            attempt_id=int(attempt_id),
            owner=owner,
            slot=int(slot),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionIdentity:
    """Identifies a transaction: one (producer id, epoch) of an id has one transaction.

    Attributes:
        transactional_id: see `TransactionalId`.
        producer_id: from the broker; int64, >= 0.
        producer_epoch: fencing number; int16, >= 0.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int

    @property
    def resource(self) -> str:
        """Text for `RegisteredAttempt`: ``id|producer id|producer epoch``."""
        return f"{self.transactional_id}|{self.producer_id}|{self.producer_epoch}"

    @classmethod
    def parse(cls, resource: str) -> Self:
        """The inverse of `resource`; InvalidHandleError if it is not one."""
        parts = resource.rsplit("|", 2)
        if len(parts) != 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
            raise InvalidHandleError(
                "a registered attempt does not name a transaction",
                {"resource": resource},
                "Restart the job: a task of another version registered it.",
            )
        return cls(
            transactional_id=parts[0], producer_id=int(parts[1]), producer_epoch=int(parts[2])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCount:
    """The number of records that a transaction wrote to one topic."""

    topic: str
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRange:
    """A source range whose records a transaction contains: `repair` or a person reads it again.

    ``start_offset`` is inclusive, ``end_offset`` exclusive.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}:[{self.start_offset},{self.end_offset})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionHandle:
    """A pre-committed Kafka transaction that any process may finish.

    Attributes:
        transactional_id: see `TransactionalId`; one process owns it.
        producer_id: from the broker; int64, >= 0.
        producer_epoch: fencing number; int16, >= 0; a larger one fences us.
        checkpoint_id: the checkpoint it was pre-committed for; >= 1.
        record_count: records in it; >= 1, because an empty transaction has no handle
            (`outcome-from-broker`).
        outputs: topics of its records.
        sources: the ranges that its task read, if known.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    checkpoint_id: int
    record_count: int
    outputs: tuple[OutputCount, ...] = ()
    sources: tuple[SourceRange, ...] = ()

    def __post_init__(self) -> None:
        in_range = 0 <= self.producer_id < 2**63 and 0 <= self.producer_epoch < 2**15
        if not in_range or self.checkpoint_id < 1 or self.record_count < 1:
            raise InvalidHandleError(
                "a transaction handle is out of range",
                {
                    "transactional_id": self.transactional_id,
                    "producer_id": self.producer_id,
                    "producer_epoch": self.producer_epoch,
                    "checkpoint_id": self.checkpoint_id,
                    "record_count": self.record_count,
                },
                "Restore from the previous checkpoint; report the damaged one.",
            )

    @property
    def identity(self) -> TransactionIdentity:
        """The facts that distinguish this transaction from every other one."""
        return TransactionIdentity(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
        )


def encode_handle(handle: TransactionHandle, *, operator_id: str) -> StateEntry:
    """The committable for an acknowledgement and ``_metadata``."""
    content = {
        "transactional_id": handle.transactional_id,
        "producer_id": handle.producer_id,
        "producer_epoch": handle.producer_epoch,
        "checkpoint_id": handle.checkpoint_id,
        "record_count": handle.record_count,
        "outputs": [[o.topic, o.records] for o in handle.outputs],
        "sources": [[s.topic, s.partition, s.start_offset, s.end_offset] for s in handle.sources],
    }
    return committable(
        content, kind=COMMITTABLE_KIND, version=COMMITTABLE_VERSION, operator_id=operator_id
    )


def decode_handle(entry: StateEntry) -> TransactionHandle:
    """The handle inside a committable.

    Raises:
        UnsupportedFormatError: another kind, or a version newer than this code.
        DamagedCheckpointError: the payload does not match its version.
    """
    return content_of(
        entry,
        _from_content,
        kind=COMMITTABLE_KIND,
        version=COMMITTABLE_VERSION,
        what="a Kafka transaction",
    )


def _from_content(content: Mapping[str, object]) -> TransactionHandle:
    return TransactionHandle(
        transactional_id=text(content["transactional_id"]),
        producer_id=number(content["producer_id"]),
        producer_epoch=number(content["producer_epoch"]),
        checkpoint_id=number(content["checkpoint_id"]),
        record_count=number(content["record_count"]),
        outputs=tuple(
            OutputCount(topic=text(topic), records=number(count))
            for topic, count in rows(content["outputs"])
        ),
        sources=tuple(
            SourceRange(
                topic=text(t), partition=number(p), start_offset=number(a), end_offset=number(b)
            )
            for t, p, a, b in rows(content["sources"])
        ),
    )
