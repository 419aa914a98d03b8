"""The record that lets one job at a time have a name that it shares with others: rule
`lease-guards-outputs`.

It lies where what it guards is, in Kafka or beside staged files, because two jobs with one name
have two checkpoint directories, and so does a job that was started from a copy of its own.
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
from sluice.runtime.process.host_clock import slept_s, wall_ms
from sluice.runtime.process.pause_tolerant_clock import PauseTolerantClock

__all__ = [
    "RENEWAL_INTERVAL_S",
    "WATCHED_INTERVALS",
    "Lease",
    "LeaseRecord",
    "LeaseStore",
    "OwnedName",
    "is_of_another_directory",
]

log = logging.getLogger(__name__)

RENEWAL_INTERVAL_S = 5.0
"""Fixed: a starter judges another's life by it, so both must know it without being told."""

WATCHED_INTERVALS = 3

_WATCH_S = RENEWAL_INTERVAL_S * WATCHED_INTERVALS

_POLL_S = 1.0
_ANSWER_S = RENEWAL_INTERVAL_S + _POLL_S
"""Within it a run that lives finds what was written over its record."""
_LATE_WRITES = 2
"""Of a renewal that was on its way when its record was taken over: a late one writes twice."""
_MOST_OVERTAKEN = 8
"""A job may be started again a few times while one of its runs is paused."""
_FORMAT = 1
_LONGEST_URI = 1500  # Kafka's offset metadata holds 4096 bytes by default


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedName:
    """What a record is about, for people.

    Attributes:
        kind: what it is, e.g. ``transactional id prefix``.
        name: which one.
        remedy: what somebody does whose job is refused because another job has it.
    """

    kind: str
    name: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """Who has a name.

    Attributes:
        job_uid: of the job.
        checkpoint_uri: of its directory; the same job and directory may always take over.
        session: of the coordinator that wrote it.
        host: where it runs; for people.
        renewed_at_ms: that host's wall clock; for people, never compared.
        renewals: raised each time; a record that changes is alive.
        attempt_id: of that run in its checkpoint directory; a higher one has sealed it.
        overtaken: sessions that this one took over from, the last one first, and those that they
            did: their last writes may be on their way.
        is_ended: that run has given the name back. Nobody has it, and the record tells whose
            checkpoints know what was done under it.
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
        content = {
            "v": _FORMAT,
            "uid": self.job_uid,
            "uri": self.checkpoint_uri[-_LONGEST_URI:],
            "session": self.session,
            "host": self.host,
            "time": self.renewed_at_ms,
            "n": self.renewals,
            "gen": self.attempt_id,
            "after": ",".join(self.overtaken),
            "ended": self.is_ended,
        }
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> "LeaseRecord | None":
        """The record, or None for an empty or foreign text."""
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
                attempt_id=int(content.get("gen", 0)),
                overtaken=tuple(filter(None, str(content.get("after", "")).split(","))),
                is_ended=bool(content.get("ended")),
            )
        except (ValueError, KeyError, TypeError):
            return None


def is_of_another_directory(owner: LeaseRecord, *, session: str, checkpoint_uri: str) -> bool:
    """Whether a name is held, or was held last, by a run of another checkpoint directory than this
    one. Of a directory that was copied, each of the two knows nothing of what the other one's runs
    have done since.

    Args:
        owner: what the name's record says.
        session: of the directory's last record. One that was moved has it in the owner record, too,
            under its old URI.
        checkpoint_uri: of the directory.
    """
    # Of a long one the end is kept.
    return owner.session != session and not checkpoint_uri.endswith(owner.checkpoint_uri)


class LeaseStore(Protocol):
    """Where the record lies. Last writer wins; readers look again after writing."""

    def read(self) -> LeaseRecord | None:
        """The record there is now, of a run that has ended, too; UnreachableError,
        AuthenticationError."""
        ...

    def write(self, record: LeaseRecord) -> None:
        """Replace it; ``renewals`` are higher with each record that one store is given."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


class Lease:
    """A job's hold on a name. Driver, called by one thread at a time.

    Args:
        clock: monotonic seconds.
        slept: seconds that this host has slept, in which that clock stood still.
    """

    def __init__(
        self,
        store: LeaseStore,
        context: SinkContext,
        owned: OwnedName,
        *,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        slept: Clock = slept_s,
    ) -> None:
        self._store = store
        self._owned = owned
        self._clock = clock
        self._sleep = sleep
        self._slept = slept
        self._looked_s = self._written_s = self._age_s()
        self._record = LeaseRecord(
            job_uid=context.job_uid,
            checkpoint_uri=context.checkpoint_uri[-_LONGEST_URI:],
            session=context.leader_session_id or uuid.uuid4().hex,
            host=socket.gethostname(),
            renewed_at_ms=0,
            renewals=0,
            attempt_id=context.attempt_id,
        )
        self._late_writes = _LATE_WRITES  # of those that are over, and no sign of their lives

    def take(self) -> None:
        """Take the name.

        At once when nobody has it, or an older run of the same checkpoint directory: that one is
        stopped by the seal. Another job's record is watched for 3 renewal intervals; no clocks
        are compared. A start that is paused between its look and its write may write over the
        record of a run that lives: before it goes on that one has had the time to find this, and to
        end.

        Raises:
            FencedError: the record changes, so the other job lives; nothing was changed.
        """
        found = self._look()
        if found is not None:
            # Ours: another sink of this job has the name, too, and was here a moment ago.
            is_ours = found.session == self._record.session
            if not self._is_same_job(found) or found.attempt_id > self._record.attempt_id:
                self._watch(found)  # that one has sealed us, or the directory is an older copy
            elif not is_ours:  # a run that ended gave it back; this one was killed, or lives
                self._warn_of(found)
            # Whoever was frozen between its look and its write wakes up.
            overtaken = found.overtaken if is_ours else (found.session, *found.overtaken)
            self._record = replace(self._record, overtaken=overtaken[:_MOST_OVERTAKEN])
        looked_s = self._looked_s
        self._write()
        is_late = self._age_s() - looked_s >= RENEWAL_INTERVAL_S
        if is_late:  # somebody may have taken the name behind that look, and have it for some more
            log.info(
                "owner record was late, it is looked at again: name=%s wait_s=%.0f",
                self._owned.name,
                _ANSWER_S,
            )
            self._sleep(_ANSWER_S)
        if self._is_written_over(self._written_s) or is_late:
            self._write_again()

    def renew(self) -> None:
        """Say that this job lives; FencedError when another session has taken the name.

        One that comes so late that somebody else may have watched the last one for long enough, as
        behind a pause or where the store stood still, may cross the record of who took this run for
        dead. That one writes once more with its next renewal, and is looked for then. And this one
        writes again: it has been waiting for as long as would make it look dead with its next one.
        """
        before_s = self._written_s
        self._is_written_over(before_s)
        self._write()
        if self._may_be_dead_since(before_s):
            self._sleep(_ANSWER_S)
            self._is_written_over(before_s)
            self._write_again()

    def release(self) -> None:
        """Give the name back, if it is still ours, and close the store. The record stays, for who
        wants to know whether a checkpoint directory is the one that had the name last."""
        try:
            found = self._look()
            if found is not None and found.session == self._record.session:
                renewals = self._record.renewals + 1  # a store tells its answers apart by it
                self._store.write(replace(self._record, renewals=renewals, is_ended=True))
        finally:
            self._store.close()

    def _is_written_over(self, since_s: float) -> bool:
        """Whether a run that is over, as it was overtaken or sealed, has written once more.

        Its renewal had looked before we wrote, and slept: it finds our record the next time, and
        ends. If it goes on, it lives in another store of the same name.

        Args:
            since_s: when this run was last heard of.
        Raises:
            FencedError: anybody else has, or it has more often than a late renewal may; or somebody
                else may have had the name and given it back.
        """
        found = self._look()
        if found is None and self._may_be_dead_since(since_s):
            raise self._refusal_of_none()
        if found is None or found.session == self._record.session:
            return False
        if not self._is_over(found) or not self._late_writes:
            raise self._refusal(found)
        self._late_writes -= 1
        log.info("the run before had a renewal on its way: name=%s", self._owned.name)
        return True

    def _is_same_job(self, found: LeaseRecord) -> bool:
        ours = self._record
        return (found.job_uid, found.checkpoint_uri) == (ours.job_uid, ours.checkpoint_uri)

    def _is_over(self, found: LeaseRecord) -> bool:
        """A start that was paused in its claim is sealed, and nobody has overtaken it."""
        is_fenced = self._is_same_job(found) and found.attempt_id < self._record.attempt_id
        return is_fenced or found.session in self._record.overtaken

    def _warn_of(self, found: LeaseRecord) -> None:
        """No clocks are compared: when it was last heard of is for people."""
        log.warning(
            "took over from a run that may still live: "
            "name=%s job=%s host=%s session=%s renewed_at_ms=%d",
            self._owned.name,
            found.job_uid,
            found.host,
            found.session,
            found.renewed_at_ms,
        )

    def _watch(self, found: LeaseRecord) -> None:
        log.warning(
            "%s record holds the name, watching it: name=%s host=%s wait_s=%.0f",
            "a later run's" if self._is_same_job(found) else "another job's",
            self._owned.name,
            found.host,
            _WATCH_S,
        )
        # A store that stands still for a while holds up renewals as long as these looks.
        watching = PauseTolerantClock(self._clock, longest_step_s=2 * _POLL_S)
        until_s = watching() + _WATCH_S
        while watching() < until_s:
            self._sleep(_POLL_S)
            now = self._look()
            if now is None:
                return
            if now != found:
                raise self._refusal(now)

    def _look(self) -> LeaseRecord | None:
        """The record of who has the name."""
        self._looked_s = self._age_s()
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
        """Behind a second look. It may be late, too, and cross a record: so is the next one then,
        and looks for that."""
        between_s = self._written_s
        self._write()
        if self._may_be_dead_since(between_s):
            self._written_s = between_s

    def _age_s(self) -> float:
        return self._clock() + self._slept()

    def _may_be_dead_since(self, written_s: float) -> bool:
        """Whether somebody who has watched what was written then may take this run for dead."""
        return self._age_s() - written_s >= _WATCH_S

    def _refusal_of_none(self) -> FencedError:
        return FencedError(
            f"another run may have had this {self._owned.kind} while this one was not heard of",
            {self._owned.kind.replace(" ", "_"): self._owned.name},
            "Nothing undecided of this one is visible. Start it again, unless that run has gone on "
            "from a copy of its checkpoint directory: then from that.",
        )

    def _refusal(self, found: LeaseRecord) -> FencedError:
        where = {
            self._owned.kind.replace(" ", "_"): self._owned.name,
            "job_uid": found.job_uid,
            "host": found.host,
            "checkpoint": found.checkpoint_uri,
        }
        if self._is_same_job(found):
            return FencedError(
                f"another run of this job has its {self._owned.kind}",
                where,
                "Let that one run, or stop it first; nothing undecided of this one is visible.",
            )
        return FencedError(
            f"another job uses this {self._owned.kind}",
            where,
            self._owned.remedy,
        )
