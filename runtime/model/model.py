"""Values that cross module and process boundaries: frozen, checked, picklable. No I/O.

The words are those of ``docs/glossary.md``. A `CheckpointRecord` is what ``_metadata`` holds;
`sluice.runtime.checkpoint.format.metadata` gives its Avro form.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from sluice.runtime.errors import ConfigError

__all__ = [
    "FENCING",
    "Acknowledgement",
    "Assignment",
    "Barrier",
    "BatchKey",
    "CheckpointKind",
    "CheckpointRecord",
    "FileReference",
    "OperatorNode",
    "RecordCounts",
    "Redistribution",
    "RegionRecord",
    "RegionStatus",
    "SplitKey",
    "SplitRange",
    "StateEntry",
    "StateSnapshot",
    "Verdict",
    "committables_of",
]


class Redistribution(enum.Enum):
    """How the entries of one operator state are dealt out after a change of parallelism."""

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


SplitKey = tuple[str, str, int]
"""Source id, topic and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRange:
    """A range of one topic-partition: what one region read, or reads, in one epoch.

    Attributes:
        source_id: operator id of the source.
        topic: name of the topic.
        topic_id: Kafka's topic UUID in its text form; tells a recreated topic from the old one.
        partition: >= 0.
        start_offset: inclusive.
        end_offset: exclusive, the next one to read; >= ``start_offset``.
        leader_epoch: a leader of the partition, if known: no record before ``end_offset`` is of a
            later one.
        leader_epoch_end: behind the last record that this is known of; nothing but markers was seen
            between it and ``end_offset``. None: ``end_offset`` itself.
        largest_timestamp_ms: largest record timestamp seen so far, if known.
        watermark_ms: the split's event-time watermark, if one is defined.
        idle_since_ms: since when no record came, or None while records come.
        set_back_from: how far the partition had been read when its log was cut off at
            ``start_offset``, before that; from the cut to the decision, never on record.
    """

    source_id: str
    topic: str
    topic_id: str
    partition: int
    start_offset: int
    end_offset: int
    leader_epoch: int | None = None
    leader_epoch_end: int | None = None
    largest_timestamp_ms: int | None = None
    watermark_ms: int | None = None
    idle_since_ms: int | None = None
    set_back_from: int | None = field(default=None, metadata={"on_record": False})

    def __post_init__(self) -> None:
        if self.partition < 0 or not 0 <= self.start_offset <= self.end_offset:
            raise ConfigError(
                "a split's range is not valid",
                {
                    "topic": self.topic,
                    "partition": self.partition,
                    "start_offset": self.start_offset,
                    "end_offset": self.end_offset,
                },
                "Start offsets must be >= 0 and not behind the end offset.",
            )

    @property
    def key(self) -> SplitKey:
        """Which split it is, whatever its range."""
        return self.source_id, self.topic, self.partition

    @property
    def name(self) -> str:
        """``topic-partition``, the key of the split inside Spark's offset."""
        return f"{self.topic}-{self.partition}"

    @property
    def is_empty(self) -> bool:
        """Whether the range holds no offset at all."""
        return self.start_offset == self.end_offset

    @property
    def known_end(self) -> int:
        """Behind the last record that ``leader_epoch`` is told of."""
        return self.end_offset if self.leader_epoch_end is None else self.leader_epoch_end

    def at_end(self) -> "SplitRange":
        """Where the next range begins, as an empty one."""
        return self if self.is_empty else replace(self, start_offset=self.end_offset)


def busy_by_source(ranges: Iterable[SplitRange]) -> dict[str, list[SplitRange]]:
    """Those that hold something, by the operator id of the source that they are of."""
    found: dict[str, list[SplitRange]] = {}
    for split in ranges:
        if not split.is_empty:
            found.setdefault(split.source_id, []).append(split)
    return found


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BatchKey:
    """The identity of a batch: never its offsets, never its checkpoint id (`batch-identity`).

    Attributes:
        region: name of the region.
        attempt_id: one life of the region between restarts; >= 0, never used twice.
        batch_id: Spark's batch id inside the region's checkpoint location; >= 0.
    """

    region: str
    attempt_id: int
    batch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """A cut for one region: the ranges of the epoch that checkpoint ``checkpoint_id`` ends.

    Attributes:
        checkpoint_id, region, attempt_id: whose epoch it is.
        splits: the ranges; all empty where a sink asked for a batch without records.
        is_last: the region's bounded sources end with it.
    """

    checkpoint_id: int
    region: str
    attempt_id: int
    splits: tuple[SplitRange, ...]
    is_last: bool = False


class CheckpointKind(enum.Enum):
    """Why a checkpoint was taken."""

    CHECKPOINT = "checkpoint"
    FULL = "full"
    SAVEPOINT = "savepoint"
    FINAL = "final"


class Verdict(enum.Enum):
    """What the record at a checkpoint's place says."""

    DECIDED = "decided"
    ABORTED = "aborted"  # an expired or failed checkpoint, or a new coordinator's seal


class RegionStatus(enum.Enum):
    """How a region takes part in a checkpoint."""

    COMPLETED = "completed"
    SKIPPED = "skipped"  # failed or expired: represented by its last good snapshot


def _require_relative(path: str, *, what: str) -> None:
    """Refuse a path that would leave the checkpoint directory, or tie the record to its place."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or ":" in parts[0]:
        raise ConfigError(
            f"a {what} inside a checkpoint must be relative to the checkpoint directory",
            {"path": path},
            "Store the part behind the checkpoint directory, without '..' and without a scheme.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReference:
    """A file that a checkpoint needs, told from a damaged or another one by length and checksum.

    Attributes:
        path: relative to the checkpoint directory, with ``/``.
        length_bytes: >= 0.
        sha256: of the whole file, 64 lower-case hexadecimal digits.
    """

    path: str
    length_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        _require_relative(self.path, what="file")
        is_digest = len(self.sha256) == 64 and set(self.sha256) <= set("0123456789abcdef")
        if not self.path or self.length_bytes < 0 or not is_digest:
            raise ConfigError(
                "a file reference is not valid",
                {"path": self.path, "length_bytes": self.length_bytes, "sha256": self.sha256},
                "Give a path, a length >= 0 and the file's SHA-256 in hexadecimal.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """Where Spark keeps the state that belongs to a checkpoint, and what is needed to read it.

    Attributes:
        provider: class name of the state store provider.
        checkpoint_format_version: ``spark.sql.streaming.stateStore.checkpointFormatVersion``.
        state_version: version to load: batch id + 1.
        state_partitions: number of state partitions; fixed for the life of the query.
        operators: (operator number, name) of Spark's stateful operators, in order.
        state_schema: Spark's state schema as JSON, or "" when Spark has not written one.
        key_schema: key schema as JSON, or "".
        location: state directory relative to the checkpoint directory.
        files: the state's files one by one, where the checkpoint has its own copy of them; empty
            while Spark keeps them by version under ``location``.
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
        _require_relative(self.location, what="state location")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRecord:
    """A region inside a checkpoint.

    Attributes:
        region: name of the region.
        attempt_id: in which ``batch_id`` was run.
        status: completed in this checkpoint, or carried from an older one.
        carried_from: checkpoint id of the snapshot when carried, else None.
        query_id: Spark's query id (UUID text), "" before the first batch.
        batch_id: last batch this checkpoint contains, None when it contains none yet.
        splits: start and end offsets of that last batch; the next batch starts at the ends.
        least_watermark_ms: minimum over the live splits, if watermarks are defined.
        offset_log_version: of Spark's offset log (2: sources by name, 1: by place, as a drop-in
            query's session has it unless told otherwise; 0: the log does not tell).
        other_offsets_sha256: of what Spark's logs say of the batch's sources that are not
            ours, in a drop-in query; "" where there are none.
        state: Spark's state, None for a stateless region.
        committables: what the committers need, empty when nothing was produced.
        operator_states: other state of operators.
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

    @property
    def batch(self) -> BatchKey | None:
        """Identity of the last batch contained, if any."""
        if self.batch_id is None:
            return None
        return BatchKey(region=self.region, attempt_id=self.attempt_id, batch_id=self.batch_id)


def committables_of(regions: Iterable[RegionRecord]) -> tuple[StateEntry, ...]:
    """What a decision about these regions commits: the work of those that it completes, in order.

    The record of a carried one names the work of an older checkpoint, which that one committed.
    """
    return tuple(
        entry
        for region in regions
        if region.status is RegionStatus.COMPLETED
        for entry in region.committables
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Which region goes on with each split: one value, changed by a decision and by nothing else.

    Attributes:
        version: rises with each decision that changes it; >= 1.
        regions: every region of the job by name, with its splits; no split stands in two.
    """

    version: int
    regions: Mapping[str, frozenset[SplitKey]]

    def __post_init__(self) -> None:
        splits = frozenset().union(*self.regions.values())
        if self.version < 1 or len(splits) != sum(map(len, self.regions.values())):
            raise ConfigError(
                "an assignment of splits is not valid",
                {"version": self.version, "regions": ",".join(self.regions)},
                "Its version is 1 or more, and no split belongs to two regions.",
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
    """

    operator_id: str
    name: str
    kind: str
    upstream: tuple[str, ...]
    parallelism: int = 0
    max_parallelism: int = 32_768


FENCING = "fencing"
"""``CheckpointRecord.requested_by`` of a seal: the first record of a run that is not the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """What ``_metadata`` says: the decision about one checkpoint id, or its abort.

    Attributes:
        job_uid: made once, in checkpoint 0 (UUID text); part of every transactional id.
        job_name: the name given by the user.
        checkpoint_id: its place; >= 0, dense, never used twice.
        kind: see `CheckpointKind`.
        verdict: decided or aborted (a seal is an aborted record of a new leader session).
        leader_session_id: of the coordinator that published it.
        run_attempt: how often the job has been started, from 1.
        restored_from: checkpoint id that this run started from, None for a new job.
        asked_by: who triggered it: ``interval``, ``spark``, ``user``, ``end``; of a run's own first
            record ``start`` (checkpoint 0) or `FENCING`.
        reason: why it was aborted, "" when decided.
        created_at_ms: wall clock of the driver; for people, never compared by the protocol.
        sluice_version, spark_version: of the writer.
        cluster_ids: Kafka cluster ids that the job touches, sorted.
        settings: the job's settings with every secret redacted.
        graph: all operators.
        regions: all regions of a decided checkpoint; for an aborted one the regions whose
            pre-committed work was thrown away, or empty.
        assignment: who goes on with which split from this decision on; positions are the ends in
            ``regions``, in whichever region they stand. None in aborted records, and in those of
            format version 1: there each region goes on with its own.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCounts:
    """Of one function; all >= 0.

    Attributes:
        read: rows that it was given.
        skipped: source records left out because it raised for them.
        dead_lettered: source records written to a dead-letter topic because it raised for them.
    """

    read: int = 0
    skipped: int = 0
    dead_lettered: int = 0

    def __post_init__(self) -> None:
        if min(self.read, self.skipped, self.dead_lettered) < 0:
            raise ConfigError(
                "record counts are out of range",
                asdict(self),
                "Restore from the previous checkpoint; report the damaged one.",
            )

    @property
    def failed(self) -> int:
        """Records that did not come through, whatever became of them."""
        return self.skipped + self.dead_lettered

    def __add__(self, other: "RecordCounts") -> "RecordCounts":
        return RecordCounts(
            read=self.read + other.read,
            skipped=self.skipped + other.skipped,
            dead_lettered=self.dead_lettered + other.dead_lettered,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """A region's answer to a barrier: its batch is pre-committed (step 3 of the protocol).

    Attributes:
        batch: identity; an older attempt is refused.
        checkpoint_id: the barrier's id, a hint (`batch-identity`); None for a batch no barrier
            asked for.
        region: the region as it shall stand in the record: splits, committables, state.
        again_in_s: a sink wants a batch again after so long, also if there are no records then.
        state_is_due: what it keeps has more to give in a batch behind this one, also if there are
            no records then.
        counts: of the batch, by name of the function that counts.
        dropped: ranges of the batch that approximate recovery left out.
        decide_by_s: on the coordinator's age clock: undecided later, what it pre-committed may be
            lost; None: as long as a checkpoint may take.
    """

    batch: BatchKey
    checkpoint_id: int | None
    region: RegionRecord
    again_in_s: float | None = None
    state_is_due: bool = False
    counts: Mapping[str, RecordCounts] = field(default_factory=dict)
    dropped: tuple[SplitRange, ...] = ()
    decide_by_s: float | None = None
