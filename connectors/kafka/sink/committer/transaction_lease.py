"""The lease on a transactional-id prefix, stored in Kafka (`lease-guards-outputs`).

It is the offset metadata of group ``sluice-lease.{prefix}``. Transactional ids of two jobs never
meet, since the job uid is part of them; the lease refuses the second job before it writes.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import (
    KafkaError,
    KafkaException,
    TopicPartition,
    make_consumer,
    translate,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.source.enumerator.group_offsets import ANSWER_MS
from sluice.runtime.errors import UnreachableError
from sluice.runtime.ownership.lease import LeaseRecord, LeaseStore

__all__ = ["KafkaLeaseStore", "lease_group"]

_T = TypeVar("_T")
_RETRY_S = 0.1
_PARTITION = ("__consumer_offsets", 0)  # exists where a group does; every start uses it


def lease_group(prefix: str) -> str:
    """The consumer group whose offset metadata holds the record of ``prefix``."""
    return f"sluice-lease.{prefix}"


class KafkaLeaseStore(LeaseStore):
    """Implements `LeaseStore` on a Kafka cluster. Driver; one thread at a time.

    It uses a consumer that never joins its group. The admin client's offset calls fail while the
    group coordinator loads, which each new coordinator does.
    """

    def __init__(self, connection: KafkaConnection, prefix: str, *, timeout_s: float) -> None:
        group = lease_group(prefix)
        self._where = {"group": group, "servers": connection.bootstrap_servers}
        self._timeout_s = timeout_s
        self._answers: dict[int, KafkaError | None] = {}  # by the committed offset
        self._consumer = make_consumer(
            {
                **connection.librdkafka(Role.CONSUMER),
                "socket.timeout.ms": ANSWER_MS,
                "group.id": group,
                "enable.auto.commit": False,
                "on_commit": self._note_answers,
            }
        )

    def read(self) -> LeaseRecord | None:
        return self._until_answered(self._read_once)

    def write(self, record: LeaseRecord) -> None:
        self._until_answered(lambda: self._write_once(record))

    def close(self) -> None:
        """See `LeaseStore.close`. The client's own ``close`` would wait for the answer to the last
        commit, as long as the group coordinator hangs."""
        del self._consumer

    def _read_once(self) -> LeaseRecord | None:
        (found,) = self._consumer.committed([TopicPartition(*_PARTITION)], self._timeout_s)
        if found.error is not None:
            raise KafkaException(found.error)
        return LeaseRecord.decode(found.metadata) if found.metadata else None

    def _write_once(self, record: LeaseRecord) -> None:
        offset = TopicPartition(*_PARTITION, record.renewals, record.encode())
        self._answers.clear()
        self._consumer.commit(offsets=[offset], asynchronous=True)
        deadline = time.monotonic() + self._timeout_s
        while record.renewals not in self._answers:
            if time.monotonic() > deadline:
                raise UnreachableError(
                    "Kafka did not confirm the lease in time",
                    self._where,
                    "Check that the brokers run and can be reached from here.",
                )
            self._consumer.poll(0.05)
        error = self._answers.pop(record.renewals)
        if error is not None:
            raise KafkaException(error)

    def _note_answers(self, error: KafkaError | None, offsets: Sequence[TopicPartition]) -> None:
        """The answer to an earlier commit may arrive late: each has its own offset."""
        self._answers.update((each.offset, error) for each in offsets)

    def _until_answered(self, call: Callable[[], _T]) -> _T:
        """Repeat a call while the group coordinator is new, moves or loads, until time is up."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return call()
            except KafkaException as err:
                error = translate(err, self._where)
                if not isinstance(error, UnreachableError):
                    raise error from err
                if time.monotonic() > deadline:  # also if the group is refused
                    raise UnreachableError(
                        "Kafka did not return the lease in time",
                        {**self._where, "error": err.args[0].name()},
                        "Check that the brokers run and can be reached, and that the principal "
                        "may READ this group and topic __consumer_offsets.",
                    ) from err
            time.sleep(_RETRY_S)  # the coordinator loads or moves
