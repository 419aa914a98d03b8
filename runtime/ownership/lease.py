"""The lease that lets only one job at a time write to an output: rule `lease-guards-outputs`.

Its record lies beside the output, in Kafka or in the staging directory. Two jobs that use one
output have two checkpoint directories, and so has a job that was started from a copy of its own.
"""

import json
import logging
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sluice.runtime.contracts import Clock, SinkContext
from sluice.runtime.errors import FencedError
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.process.host_clock import slept_s, wall_ms
from sluice.runtime.process.pause_tolerant_clock import PauseTolerantClock

__all__ = [
    "RENEWAL_INTERVAL_S",
    "WATCHED_INTERVALS",
    "Lease",
    "LeaseRecord",
    "LeaseStore",
    "LeasedOutput",
    "is_of_another_directory",
]

log = logging.getLogger(__name__)

RENEWAL_INTERVAL_S = 5.0
"""Fixed: a start judges by it whether another job runs, so all jobs must use the same value."""

WATCHED_INTERVALS = 3

_WATCH_S = RENEWAL_INTERVAL_S * WATCHED_INTERVALS

_POLL_S = 1.0
_ANSWER_S = RENEWAL_INTERVAL_S + _POLL_S
"""Within this time a running holder notices that its record was overwritten."""
_LATE_WRITES = 2
"""A renewal that was under way when its record was taken over may write twice."""
_MOST_OVERTAKEN = 8
"""A job may be restarted a few times while one of its runs is paused."""
_FORMAT = 1
_LONGEST_URI = 1500  # Kafka's offset metadata holds 4096 bytes by default


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedOutput:
    """The output that a lease guards, for messages.

    Attributes:
        kind: e.g. ``transactional id prefix``.
        name: of the output.
        remedy: of the error that a job gets if another job holds the lease.
    """

    kind: str
    name: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The stored lease: its holder and its last renewal.

    Attributes:
        job_uid: of the job.
        checkpoint_uri: of its directory; a later run of the same job and directory may take over.
        session: of the coordinator that wrote the record.
        host: of that coordinator; only for messages.
        renewed_at_ms: wall clock of that host; only for messages, never compared.
        renewals: grows with each renewal; a record that changes belongs to a running job.
        attempt_id: slot of that run's fencing record; a higher one has fenced it.
        overtaken: sessions from which this one and those before it took over, newest first. A last
            write of each may still be under way.
        is_ended: that run released the lease. The record stays: it shows which checkpoint directory
            knows the last writes to the output.
    """

    job_uid: str
    checkpoint_uri: str
    session: str
    host: str
    renewed_at_ms: int
    renewals: int
    attempt_id: int = 0
    overtaken: tuple[str, ...] = ()
    is_ended: bool = False

    def encode(self) -> str:
        """Text for the offset metadata."""
        return json.dumps({"v": _FORMAT, **to_json(self)}, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> "LeaseRecord | None":
        """The record, or None for an empty or foreign text."""
        try:
            content: Any = parsed_json(text)
            return from_json(cls, content) if content.pop("v") == _FORMAT else None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def is_of_another_directory(record: LeaseRecord, *, session: str, checkpoint_uri: str) -> bool:
    """Whether a run of another checkpoint directory holds the lease, or held it last.

    If a directory was copied, neither copy knows what runs of the other one have done since.

    Args:
        record: the stored lease.
        session: of the directory's last record. If the directory was moved, the lease holds this
            session with the old URI.
        checkpoint_uri: of the directory.
    """
    # A long URI is stored without its beginning.
    return record.session != session and not checkpoint_uri.endswith(record.checkpoint_uri)


class LeaseStore(Protocol):
    """Stores one lease. The last writer wins, so a holder reads again after it has written."""

    def read(self) -> LeaseRecord | None:
        """The stored record, also of a run that has ended; UnreachableError,
        AuthenticationError."""
        ...

    def write(self, record: LeaseRecord) -> None:
        """Replace the record. Each record that a store writes has more ``renewals``."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


class Lease:
    """A job's lease on one output. Driver, called by one thread at a time.

    Args:
        clock: monotonic seconds.
        slept: seconds for which this host was suspended; ``clock`` did not count them.
    """

    def __init__(
        self,
        store: LeaseStore,
        context: SinkContext,
        output: LeasedOutput,
        *,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        slept: Clock = slept_s,
    ) -> None:
        self._store = store
        self._output = output
        self._clock = clock
        self._sleep = sleep
        self._slept = slept
        self._read_s = self._written_s = self._age_s()
        self._record = LeaseRecord(
            job_uid=context.job_uid,
            checkpoint_uri=context.checkpoint_uri[-_LONGEST_URI:],
            session=context.leader_session_id or uuid.uuid4().hex,
            host=socket.gethostname(),
            renewed_at_ms=0,
            renewals=0,
            attempt_id=context.attempt_id,
        )
        self._late_writes = _LATE_WRITES  # of ended runs; they do not prove that the run lives

    def acquire(self) -> None:
        """Acquire the lease.

        This is immediate if the lease is free, or held by an older run of the same checkpoint
        directory, which our fencing record stops. Another job's record is watched for 3 renewal
        intervals; clocks are not compared. A start that is paused between its read and its write
        may overwrite the record of a running job. Then it waits until that job must have
        noticed, and ended.

        Raises:
            FencedError: the record changes, so the other job runs; nothing was changed.
        """
        found = self._read()
        if found is not None:
            # Another sink of this job may share the name and have acquired the lease just now.
            is_ours = found.session == self._record.session
            if not self._is_same_job(found) or found.attempt_id > self._record.attempt_id:
                self._watch(found)  # it has fenced us, or the directory is an older copy
            elif not is_ours:  # that run was killed, or still runs: an ended one releases
                self._warn_of(found)
            # A holder that was frozen between its read and its write may wake up.
            overtaken = found.overtaken if is_ours else (found.session, *found.overtaken)
            self._record = replace(self._record, overtaken=overtaken[:_MOST_OVERTAKEN])
        read_s = self._read_s
        self._write()
        is_late = self._age_s() - read_s >= RENEWAL_INTERVAL_S
        if is_late:  # another job may have acquired the lease after that read
            log.info(
                "lease was written late, reading it again: name=%s wait_s=%.0f",
                self._output.name,
                _ANSWER_S,
            )
            self._sleep(_ANSWER_S)
        if self._is_overwritten(self._written_s) or is_late:
            self._write_again()

    def renew(self) -> None:
        """Renew the lease; FencedError if another session holds it.

        A renewal may be so late that another start has watched the last one for long enough: this
        process was paused, or the store did not answer. Then our write may cross the record of the
        job that took over. That job writes once more with its next renewal. So this method waits
        for that, reads again, and writes again, since its own record has not changed meanwhile.
        """
        before_s = self._written_s
        self._is_overwritten(before_s)
        self._write()
        if self._may_be_expired_since(before_s):
            self._sleep(_ANSWER_S)
            self._is_overwritten(before_s)
            self._write_again()

    def release(self) -> None:
        """Release the lease if it is still ours, and close the store.

        The record stays: it shows which checkpoint directory held the lease last.
        """
        try:
            found = self._read()
            if found is not None and found.session == self._record.session:
                renewals = self._record.renewals + 1  # a store matches its answers by the number
                self._store.write(replace(self._record, renewals=renewals, is_ended=True))
        finally:
            self._store.close()

    def _is_overwritten(self, since_s: float) -> bool:
        """Whether an ended run, overtaken or fenced, has written once more.

        Its renewal read before we wrote, and was paused. It finds our record at its next renewal,
        and ends. If it continues, it runs with another store of the same name.

        Args:
            since_s: time of our last renewal.
        Raises:
            FencedError: another run has written, or this one more often than a late renewal may.
                Or the lease is free, and another run may have held and released it.
        """
        found = self._read()
        if found is None and self._may_be_expired_since(since_s):
            raise self._refusal_after_expiry()
        if found is None or found.session == self._record.session:
            return False
        if not self._is_over(found) or not self._late_writes:
            raise self._refusal(found)
        self._late_writes -= 1
        log.info("previous run wrote a late renewal: name=%s", self._output.name)
        return True

    def _is_same_job(self, found: LeaseRecord) -> bool:
        ours = self._record
        return (found.job_uid, found.checkpoint_uri) == (ours.job_uid, ours.checkpoint_uri)

    def _is_over(self, found: LeaseRecord) -> bool:
        """A start that was paused before it acquired is fenced, but not overtaken."""
        is_fenced = self._is_same_job(found) and found.attempt_id < self._record.attempt_id
        return is_fenced or found.session in self._record.overtaken

    def _warn_of(self, found: LeaseRecord) -> None:
        log.warning(
            "took over the lease of a run that may still run: name=%s job=%s host=%s session=%s "
            "renewed_at_ms=%d",
            self._output.name,
            found.job_uid,
            found.host,
            found.session,
            found.renewed_at_ms,
        )

    def _watch(self, found: LeaseRecord) -> None:
        log.warning(
            "%s holds the lease, watching it: name=%s host=%s wait_s=%.0f",
            "a later run" if self._is_same_job(found) else "another job",
            self._output.name,
            found.host,
            _WATCH_S,
        )
        # A store that does not answer for a while delays renewals as long as these reads.
        watching = PauseTolerantClock(self._clock, longest_step_s=2 * _POLL_S)
        until_s = watching() + _WATCH_S
        while watching() < until_s:
            self._sleep(_POLL_S)
            now = self._read()
            if now is None:
                return
            if now != found:
                raise self._refusal(now)

    def _read(self) -> LeaseRecord | None:
        """The record, unless its holder has released it."""
        self._read_s = self._age_s()
        found = self._store.read()
        return None if found is None or found.is_ended else found

    def _write(self) -> None:
        self._record = replace(
            self._record,
            renewed_at_ms=wall_ms(),
            renewals=self._record.renewals + 1,
        )
        began_s = self._age_s()
        self._store.write(self._record)
        self._written_s = began_s

    def _write_again(self) -> None:
        """Write after a second read. If this write is late too, the next renewal counts as late,
        and reads again."""
        between_s = self._written_s
        self._write()
        if self._may_be_expired_since(between_s):
            self._written_s = between_s

    def _age_s(self) -> float:
        return self._clock() + self._slept()

    def _may_be_expired_since(self, written_s: float) -> bool:
        """Whether a start that watched the record since then may take this run for dead."""
        return self._age_s() - written_s >= _WATCH_S

    def _refusal_after_expiry(self) -> FencedError:
        return FencedError(
            f"the lease on the {self._output.kind} expired: another run may have used it",
            {self._output.kind.replace(" ", "_"): self._output.name},
            "Start the job again: nothing undecided of this run is visible. If the other run used "
            "a copy of the checkpoint directory, start from that copy.",
        )

    def _refusal(self, found: LeaseRecord) -> FencedError:
        where = {
            self._output.kind.replace(" ", "_"): self._output.name,
            "job_uid": found.job_uid,
            "host": found.host,
            "checkpoint": found.checkpoint_uri,
        }
        if self._is_same_job(found):
            return FencedError(
                f"another run of this job has its {self._output.kind}",
                where,
                "Keep that run, or stop it first; nothing undecided of this one is visible.",
            )
        return FencedError(
            f"another job uses this {self._output.kind}",
            where,
            self._output.remedy,
        )
