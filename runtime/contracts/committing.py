"""Finishing pre-committed work: outcomes, committers, the driver's side of a sink."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sluice.runtime.model.model import BatchKey, StateEntry

__all__ = [
    "Clock",
    "CommitOutcome",
    "CommitReport",
    "Committer",
    "RegisteredAttempt",
    "SinkContext",
    "SinkCoordinator",
    "SweepView",
]

Clock = Callable[[], float]
"""Monotonic seconds. Passed in, so that tests own time."""


class CommitOutcome(enum.Enum):
    """What is certain about one committable after a commit was asked for."""

    COMMITTED = "committed"  # visible, by this call or an earlier one
    PENDING = "pending"  # decided at the broker or still ongoing: wait, ask again
    ABORTED = "aborted"  # certainly never visible; the only outcome that may be repaired
    UNKNOWN = "unknown"  # may be committed: delete nothing, ask again


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitReport:
    """Outcome of one committable, with words for people.

    ``ranges``: of one that is lost, the source ranges that it held, ``orders-0:[10,20)``, if known.
    ``has_progressed``: of a pending one of many parts, that this try has finished some for good.
    """

    outcome: CommitOutcome
    detail: str = ""
    ranges: tuple[str, ...] = ()
    has_progressed: bool = False


class Committer(Protocol):
    """Finishes pre-committed work. Runs on the driver, called by one thread at a time.

    ``commit`` is idempotent: a recovery calls it again for every committable of every decided
    checkpoint without a committed mark, oldest first. ``abort`` is called only for work that no
    decision names. Neither raises for what a remote answered; an unreachable remote is PENDING.
    """

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        """Commit each; report i belongs to committable i.

        ``after_crash``: ask for the verdict first (`outcome-from-broker`); otherwise the writers
        are known to be alive and the first try may go straight to the commit request.
        """
        ...

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        """Discard each; ABORTED when certainly gone."""
        ...

    def await_visible(self, *, timeout_s: float) -> bool:
        """Wait until readers can see all that was ever committed (`commit-acknowledged`), also by
        earlier runs; False when time ran out, or when it cannot be told."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredAttempt:
    """Work that a task opened, told to the coordinator before its first record
    (`ids-never-reused`).

    Attributes:
        batch: the batch it belongs to.
        operator_id: of the sink.
        resource: connector's own text, e.g. ``transactional id|producer id|producer epoch``.
        checkpoint_id: that the batch was expected to join; a hint, and no part of what it is.
    """

    batch: BatchKey
    operator_id: str
    resource: str
    checkpoint_id: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """What a sweep may know; everything it decides follows from this and the remote's listing.

    Attributes:
        job_uid: of this job.
        attempt_ids: current attempt by region; an attempt of an older one is an orphan.
        protected: committables of decided checkpoints without a committed mark: never touched.
        orphans: attempts of the current attempt whose batch was decided without naming them,
            or aborted. Attempts of undecided batches are in neither and are left alone.
        kept: operator states of every record that can be started from: what they name is needed.
        settled: by region the last batch of its current attempt that is committed on record;
            what it and those before it wrote, and nobody names, is an orphan.
    """

    job_uid: str
    attempt_ids: Mapping[str, int]
    protected: tuple[StateEntry, ...]
    orphans: tuple[RegisteredAttempt, ...]
    kept: tuple[StateEntry, ...] = ()
    settled: Mapping[str, int] = field(default_factory=dict)

    def is_settled(self, batch: BatchKey) -> bool:
        """Whether a batch is of the present life of its region, and committed on record."""
        is_present = self.attempt_ids.get(batch.region) == batch.attempt_id
        return is_present and batch.batch_id <= self.settled.get(batch.region, -1)

    def is_left_behind(self, region: str, attempt_id: int) -> bool:
        """Whether this life of a region is over, so that all it opened and nobody protects goes.

        An attempt that the view does not know yet is not: the view is then older than what was
        listed. A region of an earlier run that this run does not have is, below all present
        attempt_ids: they only grow, so it is not one that is just being made.
        """
        current = self.attempt_ids.get(region)
        if current is None:
            return bool(self.attempt_ids) and attempt_id < min(self.attempt_ids.values())
        return attempt_id < current


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What a sweep has done.

    Attributes:
        aborted: orphans that are gone now.
        is_complete: none is left that could hold back readers; False also where it cannot be told,
            as a part of the remote was not reached.
    """

    aborted: int
    is_complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What a sink's coordinator side learns once, before anything remote is touched.

    Attributes:
        attempt_id: of this run; it has sealed all that are lower in its checkpoint directory.
    """

    job_uid: str
    job_name: str
    operator_id: str
    checkpoint_uri: str
    leader_session_id: str
    attempt_id: int = 0


class SinkCoordinator(Protocol):
    """The driver's side of one sink operator. Made after checkpoint 0 and the seal are durable,
    except `check`, which runs before anything is written anywhere.

    Order of calls: `check` (no side effects), `claim`, then `sweep`, `committer`, `renew` at will,
    `close`. One at a time, but for the committer and `renew`: one call of each may be at work while
    another one runs, for neither may wait for a sweep. `renew` may come before `claim`.
    """

    committer: Committer

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """Verify reachability, credentials, timeouts and unsafe settings; change nothing.

        Returns facts for ``_metadata``: at least ``cluster_id`` where there is one, and
        ``transaction_timeout_s`` where the remote gives up by itself what tasks leave open so long.
        Raises: ConfigError, UnreachableError, AuthenticationError, SourceChangedError.
        """
        ...

    def claim(self, context: SinkContext, *, timeout_s: float) -> None:
        """Take ownership of the sink's name space (`lease-guards-outputs`); FencedError when
        another job lives."""
        ...

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        """Abort orphans. Never raises for an unreachable remote: next time."""
        ...

    def renew(self) -> None:
        """Renew the ownership record; FencedError when another session is found in it."""
        ...

    def close(self) -> None:
        """Release connections and give the ownership record back."""
        ...
