"""The promises between the runtime and connectors: connectors implement, `runtime` calls.

Every blocking call takes a timeout in seconds. ``driver`` below means the user's own Python
process, where the coordinator runs; ``executor`` means a Python worker of a Spark task.
"""

import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from runtime.model import (
    Acknowledgement,
    Barrier,
    BatchKey,
    CheckpointKind,
    CheckpointRecord,
    SplitRange,
    StateEntry,
)

__all__ = [
    "AttemptRegistry",
    "Clock",
    "CommitOutcome",
    "CommitReport",
    "Committer",
    "Coordinator",
    "MetadataStore",
    "PublishOutcome",
    "RegisteredAttempt",
    "Sink",
    "SinkContext",
    "SinkCoordinator",
    "SinkWriter",
    "Source",
    "SplitEnumerator",
    "SplitReader",
    "SweepView",
    "TaskScope",
    "WriterFactory",
]

Clock = Callable[[], float]
"""Monotonic seconds. Passed in, so that tests own time."""


# --- committing -----------------------------------------------------------------------------


class CommitOutcome(enum.Enum):
    """What is certain about one committable after a commit was asked for."""

    COMMITTED = "committed"  # visible, by this call or an earlier one
    PENDING = "pending"  # decided at the broker or still ongoing: wait, ask again
    ABORTED = "aborted"  # certainly never visible; the only outcome that may be repaired
    UNKNOWN = "unknown"  # may be committed: delete nothing, ask again


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitReport:
    """Outcome of one committable, with words for people."""

    outcome: CommitOutcome
    detail: str = ""


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

        ``after_crash``: ask for the verdict first (rule 5); otherwise the writers are known to be
        alive and the first try may go straight to the commit request.
        """
        ...

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        """Discard each; ABORTED when certainly gone."""
        ...

    def await_visible(self, committables: Sequence[StateEntry], *, timeout_s: float) -> bool:
        """Wait until readers can see every committed entry (rule 24); False when time ran out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredAttempt:
    """Work that a task opened, told to the coordinator before its first record (rule 4).

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
        generations: current generation by region; an attempt of an older one is an orphan.
        protected: committables of decided checkpoints without a committed mark: never touched.
        orphans: attempts of the current generation whose batch was decided without naming them,
            or aborted. Attempts of undecided batches are in neither and are left alone.
    """

    job_uid: str
    generations: Mapping[str, int]
    protected: tuple[StateEntry, ...]
    orphans: tuple[RegisteredAttempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What a sink's coordinator side learns once, before anything remote is touched."""

    job_uid: str
    job_name: str
    operator_id: str
    checkpoint_uri: str
    leader_session_id: str


class SinkCoordinator(Protocol):
    """The driver's side of one sink operator. Made after checkpoint 0 and the seal are durable,
    except `check`, which runs before anything is written anywhere.

    Order of calls: `check` (no side effects), `claim`, then `sweep`, `committer`, `renew` at will,
    `close`. One at a time, but for the committer: it may be at work while another one runs, for a
    commit must not wait for a sweep.
    """

    committer: Committer

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """Verify reachability, credentials, timeouts and unsafe settings; change nothing.

        Returns facts for ``_metadata``: at least ``cluster_id`` where there is one.
        Raises: ConfigError, UnreachableError, AuthenticationError, SourceChangedError.
        """
        ...

    def claim(self, context: SinkContext, *, timeout_s: float) -> None:
        """Take ownership of the sink's name space (rule 22); FencedError when another job lives."""
        ...

    def sweep(self, view: SweepView, *, timeout_s: float) -> int:
        """Abort orphans; returns how many. Never raises for an unreachable remote: next time."""
        ...

    def renew(self) -> None:
        """Renew the ownership record; FencedError when another session is found in it."""
        ...

    def close(self) -> None:
        """Release connections and give the ownership record back."""
        ...


# --- executors ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScope:
    """What a sink task knows about the batch it writes for. Picklable.

    Attributes:
        job_uid, operator_id: of the job and the sink operator.
        batch: identity of the batch.
        committed_through: every checkpoint id <= this has its committed mark (or was aborted and
            swept); resources used by them may be used again.
        checkpoint_id: the checkpoint this batch is expected to join (a hint).
        task: ``partition.attempt`` of the Spark task, for messages.
        source_ranges: what the task reads, where it is known (chained tasks); for a committable's
            repair and for messages.
    """

    job_uid: str
    operator_id: str
    batch: BatchKey
    checkpoint_id: int
    committed_through: int
    task: str = ""
    source_ranges: tuple[SplitRange, ...] = ()


class AttemptRegistry(Protocol):
    """How an executor tells the coordinator what it opened. Safe to repeat, retried."""

    def register(self, attempt: RegisteredAttempt) -> None:
        """Returns when the coordinator has it; FencedError when the batch is no longer wanted."""
        ...


class SinkWriter(Protocol):
    """Writes one task's records of one epoch. Executor, one thread."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand over records in order. Raises DeliveryError, ConfigError."""
        ...

    def pre_commit(self) -> list[StateEntry]:
        """Flush and check (rule 1). Empty when nothing was produced. Never commits."""
        ...

    def abort(self) -> None:
        """Give up what was written; called instead of `pre_commit` after an error."""
        ...


class WriterFactory(Protocol):
    """Picklable; opened inside the executor for each task and epoch."""

    def open(self, scope: TaskScope, registry: AttemptRegistry) -> SinkWriter:
        """A writer for the epoch; readied resources of this worker process are reused."""
        ...


class SplitReader(Protocol):
    """Picklable; reads exact ranges inside an executor, replayable."""

    def read(self, splits: Sequence[SplitRange]) -> Iterator[pa.RecordBatch]:
        """Records of each range in offset order, in the source's columns."""
        ...


# --- sources on the driver ------------------------------------------------------------------


class SplitEnumerator(Protocol):
    """The driver's side of one source. Called by one thread at a time."""

    def resolve_start(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        """The starting position of every split as numbers (empty ranges), before any record."""
        ...

    def restore(self, positions: Sequence[SplitRange], *, timeout_s: float) -> None:
        """Go on at the ends of ``positions``; SourceChangedError, DataLostError by name."""
        ...

    def discover(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        """Splits that are new since the last call, as empty ranges at their first record."""
        ...

    def cut(
        self, positions: Sequence[SplitRange], *, max_records: int | None, timeout_s: float
    ) -> tuple[SplitRange, ...]:
        """A barrier: for each position (its ``end_offset`` is where to go on) the next range.

        An unchanged split gives an empty range. Never beyond the bounded end.
        """
        ...

    def is_finished(self, positions: Sequence[SplitRange]) -> bool:
        """Bounded sources: whether every position has reached its end. Unbounded: False."""
        ...

    def committed(self, positions: Sequence[SplitRange]) -> None:
        """Told after the committed mark: publish group offsets for lag tools. Never raises."""
        ...

    def lag_records(self, positions: Sequence[SplitRange]) -> int | None:
        """Records not read yet, if cheaply known from the last cut."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


class Source(Protocol):
    """What `Job.source` takes. Picklable (without connections)."""

    @property
    def name(self) -> str:
        """Operator name; unique in the job unless `uid` is set."""
        ...

    @property
    def uid(self) -> str | None:
        """The user's stable id, if given."""
        ...

    @property
    def bounded(self) -> bool:
        """Whether the run ends when everything present at its start has been read."""
        ...

    @property
    def yields_only_committed(self) -> bool:
        """Whether no record is yielded that its writer may yet abort, or has aborted."""
        ...

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """As `SinkCoordinator.check`."""
        ...

    def enumerator(self, source_id: str) -> SplitEnumerator:
        """Driver side."""
        ...

    def reader(self) -> SplitReader:
        """Executor side."""
        ...

    def schema_ddl(self) -> str:
        """Spark DDL of the columns that `reader` yields."""
        ...

    def settings(self) -> Mapping[str, str]:
        """Settings for ``_metadata``, secrets redacted."""
        ...


class Sink(Protocol):
    """What `.sink(…)` takes. Picklable (without connections)."""

    @property
    def name(self) -> str:
        """Operator name; unique in the job unless `uid` is set."""
        ...

    @property
    def uid(self) -> str | None:
        """The user's stable id, if given."""
        ...

    @property
    def is_exactly_once(self) -> bool:
        """Whether it promises that every record is visible once."""
        ...

    def coordinator(self) -> SinkCoordinator:
        """Driver side."""
        ...

    def writer_factory(self) -> WriterFactory:
        """Executor side."""
        ...

    def source_ranges(self, committable: StateEntry) -> Sequence[tuple[str, int, int, int]]:
        """(topic, partition, start, end) whose records a committable holds, if known (rule 11)."""
        ...

    def settings(self) -> Mapping[str, str]:
        """Settings for ``_metadata``, secrets redacted."""
        ...


# --- checkpoint storage -----------------------------------------------------------------------


class PublishOutcome(enum.Enum):
    """Answer of a no-replace publish."""

    OURS = "ours"  # durable, by this call or an earlier one of this session
    TAKEN = "taken"  # another record is there: read it; another session's = stop
    UNKNOWN = "unknown"  # neither read back nor refused: ask again, decide nothing


class MetadataStore(Protocol):
    """The checkpoint directory. Driver or command line; calls are serialised by the caller.

    A place holds one record for ever: DECIDED or ABORTED, whole (rules 6, 7, 29).
    """

    uri: str

    def places(self) -> list[int]:
        """Ids of all places that hold a record, ascending."""
        ...

    def read(self, checkpoint_id: int) -> CheckpointRecord | None:
        """The record at a place, None when empty.

        Raises: DamagedCheckpointError, UnsupportedFormatError.
        """
        ...

    def publish(self, record: CheckpointRecord, *, timeout_s: float) -> PublishOutcome:
        """Put a record in its place: whole, synced, never replacing another."""
        ...

    def mark_committed(self, checkpoint_id: int) -> None:
        """Durable ``_committed``; idempotent."""
        ...

    def is_committed(self, checkpoint_id: int) -> bool:
        """Whether ``_committed`` is there."""
        ...

    def mark_superseded(self, checkpoint_id: int, *, by: int) -> None:
        """Say that a start from an older checkpoint left this one behind; idempotent."""
        ...

    def is_superseded(self, checkpoint_id: int) -> bool:
        """Whether the mark is there."""
        ...

    def publish_repair(
        self, checkpoint_id: int, replaced: Mapping[bytes, StateEntry], *, session: str
    ) -> PublishOutcome:
        """The next ``_repair-k``: lost committable's payload -> its replacement (rule 11)."""
        ...

    def effective_committables(self, record: CheckpointRecord) -> tuple[StateEntry, ...]:
        """The record's committables with every repair applied."""
        ...

    def retirable(self, *, retain: int) -> list[int]:
        """Ids that nothing needs any more when ``retain`` decisions are kept, ascending."""
        ...

    def retire(self, checkpoint_ids: Collection[int]) -> None:
        """Delete retired places; refuses an unfinished decision and every seal (rule 29)."""
        ...


# --- the coordinator, as the engines see it ---------------------------------------------------


class Coordinator(AttemptRegistry, Protocol):
    """One barrier checkpoint coordinator per job, in the driver. Every method is thread-safe."""

    def poll_barrier(self, region: str, generation: int, *, wait_s: float) -> Barrier | None:
        """The next barrier of a region once one is due and there is something to cut, else None.

        Asked again before the batch is acknowledged, it gives the same barrier again.
        """
        ...

    def is_decided(self, batch: BatchKey) -> bool:
        """Whether a decided checkpoint contains this batch (or a later one of the region)."""
        ...

    def acknowledge(self, ack: Acknowledgement) -> None:
        """Step 3. FencedError for an older generation."""
        ...

    def await_committed(self, batch: BatchKey, *, timeout_s: float | None = None) -> None:
        """Return only when the batch's checkpoint is committed on record; raise otherwise.

        A region that is being stopped is woken with FencedError.
        """
        ...

    def fail(self, region: str, generation: int, error: BaseException) -> None:
        """A region's batch failed: its open epoch is aborted."""
        ...

    def trigger(self, kind: CheckpointKind, *, asked_by: str) -> int:
        """Ask for a checkpoint now; returns its id."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
