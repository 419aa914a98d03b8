"""The record that lets one job at a time use a transactional-id prefix: protocol rule 22.

It lies in Kafka, because two jobs with one prefix have two checkpoint directories: in the offset
metadata of group ``sluice-owner.{prefix}``. Ids of two jobs never meet (the job uid is in them);
the record tells the second one so before it writes, instead of leaving both to share a name.
"""

import json
import logging
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from connectors.kafka._client import (
    KafkaError,
    KafkaException,
    TopicPartition,
    make_consumer,
    translate,
)
from connectors.kafka.client_options import Role
from connectors.kafka.group_offsets import ANSWER_MS
from connectors.kafka.security import KafkaConnection
from runtime.contracts import Clock, SinkContext
from runtime.errors import FencedError, UnreachableError
from runtime.json_text import parsed_json

__all__ = [
    "RENEWAL_INTERVAL_S",
    "WATCHED_INTERVALS",
    "KafkaOwnerStore",
    "OwnerClaim",
    "OwnerRecord",
    "OwnerStore",
    "owner_group",
]

log = logging.getLogger(__name__)

RENEWAL_INTERVAL_S = 5.0
"""Fixed: a starter judges another's life by it, so both must know it without being told."""

WATCHED_INTERVALS = 3

_T = TypeVar("_T")
_POLL_S = 1.0
_RETRY_S = 0.1
_FORMAT = 1
_LONGEST_URI = 1500  # offset metadata holds 4096 bytes by default
_PLACE = ("__consumer_offsets", 0)  # exists wherever a group does; every starter looks there


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRecord:
    """Who uses a prefix.

    Attributes:
        job_uid: of the job.
        checkpoint_uri: of its directory; the same job and directory may always take over.
        session: of the coordinator that wrote it.
        host: where it runs; for people.
        renewed_at_ms: that host's wall clock; for people, never compared.
        renewals: raised each time; a record that changes is alive.
        overtaken: session that this one took over from, whose last write may be on its way.
    """

    job_uid: str
    checkpoint_uri: str
    session: str
    host: str
    renewed_at_ms: int
    renewals: int
    overtaken: str = ""

    def encode(self) -> str:
        """Text for the offset metadata."""
        content = {
            "v": _FORMAT,
            "uid": self.job_uid,
            "uri": self.checkpoint_uri[-_LONGEST_URI:],
            "session": self.session,
            "host": self.host,
            "time": self.renewed_at_ms,
            "n": self.renewals,
            "after": self.overtaken,
        }
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> "OwnerRecord | None":
        """The record, or None for an empty, released or foreign text."""
        try:
            content: Any = parsed_json(text)
            if content["v"] != _FORMAT:
                return None
            return cls(
                job_uid=str(content["uid"]),
                checkpoint_uri=str(content["uri"]),
                session=str(content["session"]),
                host=str(content["host"]),
                renewed_at_ms=int(content["time"]),
                renewals=int(content["n"]),
                overtaken=str(content.get("after", "")),
            )
        except (ValueError, KeyError, TypeError):
            return None


def owner_group(prefix: str) -> str:
    """The consumer group whose offset metadata holds the record of ``prefix``."""
    return f"sluice-owner.{prefix}"


class OwnerStore(Protocol):
    """Where the record lies. Last writer wins; readers look again after writing."""

    def read(self) -> OwnerRecord | None:
        """The record there is now; UnreachableError, AuthenticationError."""
        ...

    def write(self, record: OwnerRecord | None) -> None:
        """Replace it; None gives it back."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


class KafkaOwnerStore:
    """The record in a real cluster. Driver; one thread at a time.

    A consumer that never joins its group: the admin client's calls for offsets cannot wait while
    the group's coordinator loads, which it does whenever it is new.
    """

    def __init__(self, connection: KafkaConnection, prefix: str, *, timeout_s: float) -> None:
        group = owner_group(prefix)
        self._where = {"group": group, "servers": connection.bootstrap_servers}
        self._timeout_s = timeout_s
        self._answers: list[KafkaError | None] = []
        self._consumer = make_consumer(
            {
                **connection.librdkafka(Role.CONSUMER),
                "socket.timeout.ms": ANSWER_MS,
                "group.id": group,
                "enable.auto.commit": False,
                "on_commit": lambda error, _: self._answers.append(error),
            }
        )

    def read(self) -> OwnerRecord | None:
        """See `OwnerStore.read`."""
        return self._until_answered(self._read_once)

    def write(self, record: OwnerRecord | None) -> None:
        """See `OwnerStore.write`."""
        self._until_answered(lambda: self._write_once(record))

    def close(self) -> None:
        """See `OwnerStore.close`. Not by the client's own ``close``, which waits until a record
        that was written is confirmed: for as long as the coordinator hangs."""
        del self._consumer

    def _read_once(self) -> OwnerRecord | None:
        (place,) = self._consumer.committed([TopicPartition(*_PLACE)], self._timeout_s)
        if place.error is not None:
            raise KafkaException(place.error)
        return OwnerRecord.decode(place.metadata) if place.metadata else None

    def _write_once(self, record: OwnerRecord | None) -> None:
        renewals, text = (record.renewals, record.encode()) if record is not None else (0, "{}")
        self._answers.clear()
        self._consumer.commit(offsets=[TopicPartition(*_PLACE, renewals, text)], asynchronous=True)
        deadline = time.monotonic() + self._timeout_s
        while not self._answers:
            if time.monotonic() > deadline:
                raise UnreachableError(
                    "the owner record was not confirmed in time",
                    self._where,
                    "Check that the brokers run and can be reached from here.",
                )
            self._consumer.poll(0.05)
        error = self._answers.pop()
        if error is not None:
            raise KafkaException(error)

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


class OwnerClaim:
    """A job's hold on a prefix. Driver, called by one thread at a time."""

    def __init__(
        self,
        store: OwnerStore,
        context: SinkContext,
        *,
        prefix: str,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._clock = clock
        self._sleep = sleep
        self._record = OwnerRecord(
            job_uid=context.job_uid,
            checkpoint_uri=context.checkpoint_uri[-_LONGEST_URI:],
            session=context.leader_session_id or uuid.uuid4().hex,
            host=socket.gethostname(),
            renewed_at_ms=0,
            renewals=0,
        )
        self._overtaken: str | None = None  # session whose last write may still be on its way

    def take(self) -> None:
        """Take the prefix.

        At once when nobody has it, or the same job with the same checkpoint directory: that one
        is stopped by the seal. Another job's record is watched for 3 renewal intervals; no clocks
        are compared.

        Raises:
            FencedError: the record changes, so the other job lives; nothing was changed.
        """
        found = self._store.read()
        if found is not None and self._is_same_job(found):
            # Ours: another sink of this job has the prefix, too, and was here a moment ago.
            is_ours = found.session == self._record.session
            self._overtaken = found.overtaken if is_ours else found.session
            self._record = replace(self._record, overtaken=self._overtaken)
            if not is_ours:  # a run that ended gave it back; this one was killed, or lives
                self._warn_of(found)
        elif found is not None:
            self._watch(found)
        self._write()
        if self._is_written_over():
            self._write()

    def renew(self) -> None:
        """Say that this job lives; FencedError when another session has taken the prefix."""
        self._is_written_over()
        self._write()

    def release(self) -> None:
        """Give the prefix back, if it is still ours, and close the store."""
        try:
            found = self._store.read()
            if found is not None and found.session == self._record.session:
                self._store.write(None)
        finally:
            self._store.close()

    def _is_written_over(self) -> bool:
        """Whether the run that we overtook has written once more.

        Its renewal had looked before we wrote, and slept: it finds our record the next time, and
        ends. Twice, it lives on in another store of the same name.

        Raises:
            FencedError: anybody else has, or it has twice.
        """
        found = self._store.read()
        if found is None or found.session == self._record.session:
            return False
        if found.session != self._overtaken:
            raise self._refusal(found)
        self._overtaken = None
        log.info("the run before had a renewal on its way: prefix=%s", self._prefix)
        return True

    def _is_same_job(self, found: OwnerRecord) -> bool:
        ours = self._record
        return (found.job_uid, found.checkpoint_uri) == (ours.job_uid, ours.checkpoint_uri)

    def _warn_of(self, found: OwnerRecord) -> None:
        """No clocks are compared: when it was last heard of is for people."""
        log.warning(
            "took over from a run that may still live: "
            "prefix=%s job=%s host=%s session=%s renewed_at_ms=%d",
            self._prefix,
            found.job_uid,
            found.host,
            found.session,
            found.renewed_at_ms,
        )

    def _watch(self, found: OwnerRecord) -> None:
        log.warning(
            "another job's record holds the prefix, watching it: prefix=%s host=%s wait_s=%.0f",
            self._prefix,
            found.host,
            RENEWAL_INTERVAL_S * WATCHED_INTERVALS,
        )
        until = self._clock() + RENEWAL_INTERVAL_S * WATCHED_INTERVALS
        while self._clock() < until:
            self._sleep(_POLL_S)
            now = self._store.read()
            if now is None:
                return
            if now != found:
                raise self._refusal(now)

    def _write(self) -> None:
        self._record = replace(
            self._record,
            renewed_at_ms=int(time.time() * 1000),
            renewals=self._record.renewals + 1,
        )
        self._store.write(self._record)

    def _refusal(self, found: OwnerRecord) -> FencedError:
        where = {
            "prefix": self._prefix,
            "job_uid": found.job_uid,
            "host": found.host,
            "checkpoint": found.checkpoint_uri,
        }
        if self._is_same_job(found):
            return FencedError(
                "another run of this job has its transactional id prefix",
                where,
                "Let that one run, or stop it first; nothing undecided of this one is visible.",
            )
        return FencedError(
            "another job uses this transactional id prefix",
            where,
            "Stop the other job, or give this one its own transactionalIdPrefix.",
        )
