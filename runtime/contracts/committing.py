"""Finishing pre-committed work: outcomes, committers, the driver's side of a sink."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey

__all__ = [
    "CheckpointCommitter",
    "Clock",
    "CommitOutcome",
    "CommitReport",
    "Committer",
    "RegisteredAttempt",
    "SinkContext",
    "SinkCoordinator",
    "SweepReport",
    "SweepView",
]

Clock = Callable[[], float]
"""Monotonic seconds. Tests pass in their own clock."""


class CommitOutcome(enum.Enum):
    """The outcome of one committable that is certain after a commit request."""

    COMMITTED = "committed"  # Visible, by this call or an earlier one.
    PENDING = "pending"  # Decided at the broker or still ongoing: wait, commit again.
    ABORTED = "aborted"  # Certainly never visible; the only outcome that may be repaired.
    UNKNOWN = "unknown"  # May be committed: delete nothing, commit again.


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitReport:
    """Outcome of one committable, with words for people.

    ``ranges``: of a lost committable, its source ranges, ``orders-0:[10,20)``, if known.
    ``has_progressed``: of a pending committable with many parts, whether this try finished some of
    them.
    """

    outcome: CommitOutcome
    detail: str = ""
    ranges: tuple[str, ...] = ()
    has_progressed: bool = False


class Committer(Protocol):
    """Finishes pre-committed work. Runs on the driver; one thread at a time calls it.

    ``commit`` is idempotent: a recovery calls it again for every committable of every decided
    checkpoint without a committed mark, oldest first. ``abort`` is called only for work that no
    decision names. Neither method raises for an answer of the remote; an unreachable remote is
    PENDING.
    """

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        """Commit each; report i belongs to committable i.

        ``after_crash``: ask the remote for the outcome first (`outcome-from-broker`); otherwise the
        writers are alive and the first try may send the commit request directly.
        """
        ...

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        """Discard each; ABORTED if the work certainly no longer exists."""
        ...

    def await_visible(self, *, timeout_s: float) -> bool:
        """Wait until readers can see all committed work (`commit-acknowledged`), also that of
        earlier runs; False if the time ran out, or if the state is unknown."""
        ...


@runtime_checkable
class CheckpointCommitter(Committer, Protocol):
    """A committer whose output names the checkpoint that decided it."""

    def begin_checkpoint(self, checkpoint_id: int) -> None:
        """The next calls of `commit` are for this decision. The same thread as `commit`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredAttempt:
    """Work that a task opened; the coordinator knows it before its first record
    (`ids-never-reused`).

    Attributes:
        batch: the batch it belongs to.
        operator_id: of the sink.
        resource: connector's own text, e.g. ``transactional id|producer id|producer epoch``.
        checkpoint_id: that the batch was expected to join: a hint, not a part of the identity.
    """

    batch: BatchKey
    operator_id: str
    resource: str
    checkpoint_id: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """The facts that a sweep may use; it decides from these and the remote's listing alone.

    Attributes:
        job_uid: of this job.
        attempt_ids: current attempt by region; work of an older attempt is an orphan.
        protected: committables of decided checkpoints without a committed mark: never touched.
        orphans: work of the current attempt whose batch was aborted, or decided without naming it.
            Work of undecided batches is in neither field and stays untouched.
        kept: operator states of every record from which a start is possible: everything they name
            is needed.
        settled: by region the last batch of its current attempt that is committed on record; work
            of this batch and earlier ones is an orphan unless a record names it.
    """

    job_uid: str
    attempt_ids: Mapping[str, int]
    protected: tuple[StateEntry, ...]
    orphans: tuple[RegisteredAttempt, ...]
    kept: tuple[StateEntry, ...] = ()
    settled: Mapping[str, int] = field(default_factory=dict)

    def is_settled(self, batch: BatchKey) -> bool:
        """Whether a batch belongs to the current attempt of its region, and is committed on
        record."""
        is_present = self.attempt_ids.get(batch.region) == batch.attempt_id
        return is_present and batch.batch_id <= self.settled.get(batch.region, -1)

    def is_attempt_over(self, region: str, attempt_id: int) -> bool:
        """Whether this attempt of a region is over, so that the sweep may end its unprotected work.

        False for an attempt that the view does not know yet: the view is then older than the
        listing. If this run does not have the region, its attempt is over when it is below all
        current attempt ids. Attempt ids only grow, so it is not a new attempt.
        """
        current = self.attempt_ids.get(region)
        if current is None:
            return bool(self.attempt_ids) and attempt_id < min(self.attempt_ids.values())
        return attempt_id < current


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """Result of a sweep.

    Attributes:
        aborted: orphans that no longer exist.
        is_complete: no orphan is left that could block readers; False also if a part of the remote
            was unreachable.
    """

    aborted: int
    is_complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """Facts that the coordinator side of a sink receives once, before any remote call.

    Attributes:
        attempt_id: of this run; the run has fenced all lower ones in its checkpoint directory.
        last_decision: the newest decided checkpoint of the directory at the start. Work of a later
            one is known to a newer directory of the job alone.
        committed: the newest committables of the sink that are committed on record, up to the
            checkpoint that the run starts from. A remote that lacks them is not the one that has
            them, or was put back to an earlier state.
    """

    job_uid: str
    job_name: str
    operator_id: str
    checkpoint_uri: str
    leader_session_id: str
    attempt_id: int = 0
    last_decision: int = 0
    committed: tuple[StateEntry, ...] = ()


class SinkCoordinator(Protocol):
    """The driver's side of one sink operator. It is made after checkpoint 0 and the fencing record
    are durable; only `check` runs before anything is written.

    Order of calls: `check` (no side effects), `claim`, then `sweep`, `committer`, `renew` at will,
    `close`. Calls are serial, with two exceptions: one call of the committer and one of `renew` may
    run beside another call, because neither may wait for a sweep. `renew` may come before `claim`.
    """

    committer: Committer

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """Verify reachability, credentials, timeouts and unsafe settings; change nothing.

        Returns facts for ``_metadata``: ``cluster_id`` if there is one, and
        ``transaction_timeout_s`` if the remote aborts open work by itself after so long. Raises:
        ConfigError, UnreachableError, AuthenticationError, SourceChangedError.
        """
        ...

    def claim(self, context: SinkContext, *, timeout_s: float) -> None:
        """Take the lease on the sink's name space (`lease-guards-outputs`); FencedError if another
        job holds it."""
        ...

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        """Abort orphans. Never raises for an unreachable remote: the next sweep tries again."""
        ...

    def renew(self) -> None:
        """Renew the lease; FencedError if another session holds it."""
        ...

    def close(self) -> None:
        """Release connections and the lease."""
        ...
