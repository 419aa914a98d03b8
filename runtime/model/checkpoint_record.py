"""The record of a checkpoint and its parts: frozen, checked, picklable. No I/O.

A `CheckpointRecord` is the content of ``_metadata``;
`sluice.runtime.checkpoint.format.metadata` gives its Avro form.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.splits import BatchKey, SplitKey, SplitRange
from sluice.runtime.model.state.file_reference import FileReference, require_relative
from sluice.runtime.model.state.keyed_state import KeyedState

__all__ = [
    "FENCING",
    "RESTORED_FROM_URI",
    "RESTORED_OPERATORS",
    "Assignment",
    "CheckpointKind",
    "CheckpointRecord",
    "OperatorNode",
    "Redistribution",
    "RegionRecord",
    "RegionStatus",
    "StateEntry",
    "StateSnapshot",
    "Verdict",
    "committables_of",
]


class Redistribution(enum.Enum):
    """How the entries of one operator state are distributed after a change of parallelism."""

    SPLIT = "split"
    UNION = "union"
    BROADCAST = "broadcast"
    KEYED_RANGE = "keyed_range"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEntry:
    """One committable or one piece of operator state; the payload's meaning belongs to ``kind``.

    Attributes:
        operator_id: hash of uid, or of kind, name and upstream ids (`operator_ids`).
        state_name: which state of the operator, e.g. ``committables``.
        kind: names the codec, e.g. ``kafka-transaction``; an unknown kind is an error at restore.
        version: of the codec; >= 1.
        redistribution: see `Redistribution`.
        payload: bytes that only the codec of (kind, version) reads.
    """

    operator_id: str
    state_name: str
    kind: str
    version: int
    redistribution: Redistribution
    payload: bytes


class CheckpointKind(enum.Enum):
    """Why a checkpoint was taken."""

    CHECKPOINT = "checkpoint"
    FULL = "full"
    SAVEPOINT = "savepoint"
    FINAL = "final"


class Verdict(enum.Enum):
    """The content of the record in a checkpoint slot."""

    DECIDED = "decided"
    ABORTED = (
        "aborted"  # an expired or failed checkpoint, or the fencing record of a new coordinator
    )


class RegionStatus(enum.Enum):
    """How a region takes part in a checkpoint."""

    COMPLETED = "completed"
    SKIPPED = "skipped"  # failed or expired: represented by its last snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """Location of the Spark state of a checkpoint, and the facts that are needed to read it.

    Attributes:
        provider: class name of the state store provider.
        checkpoint_format_version: ``spark.sql.streaming.stateStore.checkpointFormatVersion``.
        state_version: version to load: batch id + 1.
        state_partitions: number of state partitions; fixed for all attempts of the query.
        operators: (operator number, name) of Spark's stateful operators, in order.
        state_schema: Spark's state schema as JSON, or "" if Spark has not written one.
        key_schema: key schema as JSON, or "".
        location: state directory relative to the checkpoint directory.
        files: the state's files, if the checkpoint has its own copies; empty while Spark keeps them
            by version under ``location``.
    """

    provider: str
    checkpoint_format_version: int
    state_version: int
    state_partitions: int
    operators: tuple[tuple[int, str], ...] = ()
    state_schema: str = ""
    key_schema: str = ""
    location: str = ""
    files: tuple[FileReference, ...] = ()

    def __post_init__(self) -> None:
        require_relative(self.location, what="state location")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRecord:
    """A region inside a checkpoint.

    Attributes:
        region: name of the region.
        attempt_id: of the attempt that ran ``batch_id``.
        status: completed in this checkpoint, or skipped with its last snapshot.
        snapshot_id: checkpoint id of the snapshot if skipped, else None.
        query_id: Spark's query id (UUID text), "" before the first batch. Of a frame without a
            query: "", or ``beside`` and the ids of queries with a callback.
        batch_id: last batch in this checkpoint, None before the first.
        splits: start and end offsets of that last batch; the next batch starts at the ends.
        least_watermark_ms: minimum over the live splits, if watermarks are defined.
        offset_log_version: of Spark's offset log (2: sources by name, 1: by position, the default
            of a drop-in query's session; 0: unknown).
        other_offsets_sha256: in a drop-in query, of Spark's offsets for sources that are not
            Sluice's; "" if there are none.
        state: Spark's state, None for a stateless region.
        committables: for the committers, empty if nothing was produced.
        operator_states: other state of operators.
        keyed_state: of the keyed functions, up to the ends of ``splits``; None without any.
    """

    region: str
    attempt_id: int
    status: RegionStatus = RegionStatus.COMPLETED
    snapshot_id: int | None = None
    query_id: str = ""
    batch_id: int | None = None
    splits: tuple[SplitRange, ...] = ()
    least_watermark_ms: int | None = None
    offset_log_version: int = 2
    other_offsets_sha256: str = ""
    state: StateSnapshot | None = None
    committables: tuple[StateEntry, ...] = ()
    operator_states: tuple[StateEntry, ...] = ()
    keyed_state: KeyedState | None = None

    @property
    def batch(self) -> BatchKey | None:
        """Identity of the last batch contained, if any."""
        if self.batch_id is None:
            return None
        return BatchKey(region=self.region, attempt_id=self.attempt_id, batch_id=self.batch_id)


def committables_of(regions: Iterable[RegionRecord]) -> tuple[StateEntry, ...]:
    """The work that a decision about these regions commits: that of the completed ones, in order.

    The record of a skipped one names the work of an older checkpoint, which that one committed.
    """
    return tuple(
        entry
        for region in regions
        if region.status is RegionStatus.COMPLETED
        for entry in region.committables
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The region that reads each split: one value, which only a decision changes.

    Attributes:
        version: rises with each decision that changes it; >= 1.
        regions: every region of the job by name, with its splits; each split occurs once.
    """

    version: int
    regions: Mapping[str, frozenset[SplitKey]]

    def __post_init__(self) -> None:
        splits = frozenset().union(*self.regions.values())
        if self.version < 1 or len(splits) != sum(map(len, self.regions.values())):
            raise ConfigError(
                "an assignment of splits is not valid",
                {"version": self.version, "regions": ",".join(self.regions)},
                "Give a version of 1 or more, and each split to one region.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorNode:
    """A node of the job graph as recorded in checkpoints.

    Attributes:
        operator_id: stable over restarts, parallelism, chaining and what follows it.
        name: unique in the job unless a uid is given.
        kind: ``source``, ``map_batches``, ``transform``, ``sink``.
        upstream: operator ids.
        parallelism: subtasks now; 0 = Spark decides per batch.
        max_parallelism: bound on later rescaling.
        uid: the user's stable id, "" without one.
    """

    operator_id: str
    name: str
    kind: str
    upstream: tuple[str, ...]
    parallelism: int = 0
    max_parallelism: int = 32_768
    uid: str = ""


FENCING = "fencing"
"""``CheckpointRecord.requested_by`` of a fencing record: the first record of a later run of the
job."""

RESTORED_FROM_URI = "restored_from_uri"
"""Setting of checkpoint 0 of a job that was restored: the URI of the other job's checkpoint."""

RESTORED_OPERATORS = "restored_operators"
"""Setting of the same record: the matched operators, and how they match, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """The content of ``_metadata``: the decision about one checkpoint id, or its abort.

    Attributes:
        job_uid: made once, in checkpoint 0 (UUID text); part of every transactional id.
        job_name: the name given by the user.
        checkpoint_id: of its slot; >= 0, dense, never used twice.
        kind: see `CheckpointKind`.
        verdict: decided or aborted (a fencing record is an aborted record of a new leader session).
        leader_session_id: of the coordinator that published it.
        run_attempt: number of starts of the job, from 1.
        restored_from: checkpoint id that this run started from, None for a new job.
        requested_by: the trigger: ``interval``, ``spark``, ``user``, ``end``; of a run's own first
            record ``start`` (checkpoint 0) or `FENCING`.
        reason: why it was aborted, "" when decided.
        created_at_ms: wall clock of the driver; for people, never compared by the protocol.
        sluice_version, spark_version: of the writer.
        cluster_ids: Kafka cluster ids that the job touches, sorted.
        settings: the job's settings with every secret redacted.
        graph: all operators.
        regions: all regions of a decided checkpoint; for an aborted one the regions whose
            pre-committed work was discarded, or empty.
        assignment: the region that reads each split from this decision on; positions are the ends
            in ``regions``, in any region. None in aborted records, and in those of format version
            1: there each region keeps its own splits.
    """

    job_uid: str
    job_name: str
    checkpoint_id: int
    kind: CheckpointKind
    verdict: Verdict
    leader_session_id: str
    run_attempt: int
    restored_from: int | None = None
    requested_by: str = "interval"
    reason: str = ""
    created_at_ms: int = 0
    sluice_version: str = ""
    spark_version: str = ""
    cluster_ids: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    graph: tuple[OperatorNode, ...] = ()
    regions: tuple[RegionRecord, ...] = ()
    assignment: Assignment | None = None

    @property
    def committables(self) -> tuple[StateEntry, ...]:
        """Every committable of the regions completed here, in order."""
        return committables_of(self.regions)

    @property
    def keyed_files(self) -> tuple[FileReference, ...]:
        """Every file of keyed state that it names, each once."""
        states = (region.keyed_state for region in self.regions)
        return tuple(dict.fromkeys(file for state in states if state for file in state.files))
