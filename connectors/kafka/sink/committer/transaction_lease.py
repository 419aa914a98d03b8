"""Where the owner record of a transactional-id prefix lies: in Kafka (`lease-guards-outputs`).

In the offset metadata of group ``sluice-lease.{prefix}``. Ids of two jobs never meet (the job uid
is in them); the record tells the second one so before it writes, instead of leaving both to share
a name.
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
from sluice.runtime.ownership.lease_record import LeaseRecord

__all__ = ["KafkaLeaseStore", "owner_group"]

_T = TypeVar("_T")
_RETRY_S = 0.1
_PLACE = ("__consumer_offsets", 0)  # exists wherever a group does; every starter looks there


def owner_group(prefix: str) -> str:
    """The consumer group whose offset metadata holds the record of ``prefix``."""
    return f"sluice-lease.{prefix}"


class KafkaLeaseStore:
    """The record in a real cluster. Driver; one thread at a time.

    A consumer that never joins its group: the admin client's calls for offsets cannot wait while
    the group's coordinator loads, which it does whenever it is new.
    """

    def __init__(self, connection: KafkaConnection, prefix: str, *, timeout_s: float) -> None:
        group = owner_group(prefix)
        self._where = {"group": group, "servers": connection.bootstrap_servers}
        self._timeout_s = timeout_s
        self._answers: dict[int, KafkaError | None] = {}  # by what was written as the offset
        self._consumer = make_consumer(
            {
                **connection.librdkafka(Role.CONSUMER),
                "socket.timeout.ms": ANSWER_MS,
                "group.id": group,
                "enable.auto.commit": False,
                "on_commit": self._note,
            }
        )

    def read(self) -> LeaseRecord | None:
        """See `LeaseStore.read`."""
        return self._until_answered(self._read_once)

    def write(self, record: LeaseRecord) -> None:
        """See `LeaseStore.write`."""
        self._until_answered(lambda: self._write_once(record))

    def close(self) -> None:
        """See `LeaseStore.close`. Not by the client's own ``close``, which waits until a record
        that was written is confirmed: for as long as the coordinator hangs."""
        del self._consumer

    def _read_once(self) -> LeaseRecord | None:
        (place,) = self._consumer.committed([TopicPartition(*_PLACE)], self._timeout_s)
        if place.error is not None:
            raise KafkaException(place.error)
        return LeaseRecord.decode(place.metadata) if place.metadata else None

    def _write_once(self, record: LeaseRecord) -> None:
        place = TopicPartition(*_PLACE, record.renewals, record.encode())
        self._answers.clear()
        self._consumer.commit(offsets=[place], asynchronous=True)
        deadline = time.monotonic() + self._timeout_s
        while record.renewals not in self._answers:
            if time.monotonic() > deadline:
                raise UnreachableError(
                    "the owner record was not confirmed in time",
                    self._where,
                    "Check that the brokers run and can be reached from here.",
                )
            self._consumer.poll(0.05)
        error = self._answers.pop(record.renewals)
        if error is not None:
            raise KafkaException(error)

    def _note(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        """An earlier record's answer may come late, as behind its time-out: each has a number."""
        self._answers.update((place.offset, error) for place in places)

    def _until_answered(self, ask: Callable[[], _T]) -> _T:
        """A group's coordinator that is new, moves or loads is asked again until time is up."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return ask()
            except KafkaException as err:
                error = translate(err, self._where)
                if not isinstance(error, UnreachableError):
                    raise error from err
                if time.monotonic() > deadline:  # of a group that is refused it says no more
                    raise UnreachableError(
                        "the owner record was not answered in time",
                        {**self._where, "error": err.args[0].name()},
                        "Do the brokers run, can they be reached from here, and may the principal "
                        "READ this group and topic __consumer_offsets?",
                    ) from err
            time.sleep(_RETRY_S)  # a coordinator that loads or moves says only: not yet
