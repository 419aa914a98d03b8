"""Decides where a run starts, from the records in the checkpoint directory alone. Pure."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.runtime.checkpoint.resumable_attempts import ListedAttempts
from sluice.runtime.checkpoint.retention import name_other_records
from sluice.runtime.contracts import RegionRegistration
from sluice.runtime.coordinator.policy.assignment import assignment_of, to_least_loaded
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.coordinator.start.keyed_matching import verify_keyed_state, verify_partitioning
from sluice.runtime.coordinator.start.rescaling import verify_rescalable
from sluice.runtime.errors import ConfigError, WrongJobError
from sluice.runtime.functions.operator_state import OPERATOR_LIST_KIND
from sluice.runtime.functions.record_counts import COUNTS_KIND
from sluice.runtime.model.checkpoint_record import (
    FENCING,
    CheckpointKind,
    CheckpointRecord,
    OperatorNode,
    RegionRecord,
    StateEntry,
    Verdict,
)
from sluice.runtime.model.splits import BatchKey, SplitRange
from sluice.runtime.model.state.batch_lineage import BatchLineage, Rewind

__all__ = [
    "History",
    "Slot",
    "fencing_record_of",
    "first_record",
    "first_regions",
    "given_up",
    "has_wish",
    "is_already_restored",
    "is_bypassed",
    "last_decision",
    "left_open",
    "lineage_of",
    "lineage_until",
    "may_be_void",
    "may_resume",
    "positions_of",
    "recorded_wish",
    "refuse_restore",
    "resume_point",
    "superseded_by_restore",
    "to_settle",
    "verify_same_job",
    "with_lineage",
]

_NO_ATTEMPT = 1 << 62
_LINEAGE = "lineage"
_RUN_ATTEMPT_ID = "run_attempt_id"
"""Settings of the records of a job with repartition topics."""
_RESTORE_FROM = "restore_from"  # setting of a fencing record: the user's request


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A record and the markers beside it.

    Attributes:
        is_void: it is the fencing record of a start that decided nothing, and the checkpoint that
            it names as its start is gone: an older run has retired it at the same time.
    """

    record: CheckpointRecord
    is_committed: bool
    is_superseded: bool
    is_void: bool = False

    @property
    def checkpoint_id(self) -> int:
        """Number of the slot."""
        return self.record.checkpoint_id

    @property
    def is_decided(self) -> bool:
        """Whether the record is a decision."""
        return self.record.verdict is Verdict.DECIDED

    @property
    def resumed_from(self) -> int | None:
        """The checkpoint from which its run and later starts resume, if it is a fencing record."""
        is_fencing_record = self.record.requested_by == FENCING and not self.is_void
        return self.record.restored_from if is_fencing_record else None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The slots that a start has read.

    Attributes:
        ids: all slots that hold a record, ascending.
        slots: newest first, down to the newest marked decision that no start has passed over.
            Completion markers are written in order, so all older decisions are settled.
    """

    ids: tuple[int, ...]
    slots: tuple[Slot, ...]

    @property
    def next_slot(self) -> int:
        """The first empty slot above everything; ids are never used twice."""
        return self.ids[-1] + 1 if self.ids else 0

    @property
    def newest(self) -> CheckpointRecord:
        """The record at the last slot."""
        return self.slots[0].record


def resume_point(history: History, *, restore_from: int | None) -> int:
    """The checkpoint that a run starts from.

    This is the newest decision, unless a later fencing record names an older one as its start. So a
    start from an older checkpoint that crashed at once is repeated from the same checkpoint, if
    that one is still there.

    Raises:
        ConfigError: ``restore_from`` is not a decided checkpoint that is still there.
    """
    if restore_from is not None:
        found = next((p for p in history.slots if p.checkpoint_id == restore_from), None)
        if found is None or not found.is_decided:
            raise refuse_restore(history.ids, restore_from)
        return restore_from
    for slot in history.slots:
        if slot.is_decided and not slot.is_superseded:
            return slot.checkpoint_id
        if slot.resumed_from is not None:
            return slot.resumed_from
    raise ConfigError(
        "the checkpoint directory holds no decided checkpoint",
        {"slots": _short(history.ids)},
        "Give the job an empty directory, or its own.",
    )


def last_decision(history: History, fencing_records: Collection[int]) -> int:
    """The newest decided checkpoint. A damaged record that a start has passed over counts as one:
    its work may have been committed.
    """
    read = {slot.checkpoint_id: slot for slot in history.slots}
    for checkpoint_id in reversed(history.ids):
        slot = read.get(checkpoint_id)
        is_decided = slot.is_decided if slot else checkpoint_id not in fencing_records
        if is_decided:
            return checkpoint_id
    return 0


def is_already_restored(history: History, *, restore_from: int) -> bool:
    """Whether the newest run had the same ``restore_from``, or executed it (`recorded_wish`).

    Then a cluster manager, for example, has started the same program again, and the request is not
    new. Only the newest run counts: a start that died may have left a fencing record below. A start
    whose fencing record is void was no run.
    """
    records = [slot.record for slot in history.slots if not slot.is_void]
    fencing_records = (
        record
        for record in records
        if record.requested_by == FENCING
        and record.leader_session_id == records[0].leader_session_id
    )
    fencing_record = next(fencing_records, None)
    return fencing_record is not None and has_wish(fencing_record, restore_from)


def has_wish(fencing_record: CheckpointRecord, restore_from: int) -> bool:
    """Whether a start with this ``restore_from`` has published the record; see `recorded_wish`."""
    return fencing_record.settings.get(_RESTORE_FROM) == str(restore_from)


def recorded_wish(history: History, restore_from: int | None) -> int | None:
    """The ``restore_from`` that a start records: its own, or that of the restore which it repeats.

    A start without a wish may resume through the fencing record of a run that went back and decided
    nothing. Then it executes that run's restore. If its fencing record did not say so, a restart
    of the other program would go back once more, and leave out what this run has decided.
    """
    if restore_from is not None:
        return restore_from
    for slot in history.slots:
        if slot.is_decided and not slot.is_superseded:
            return None
        if slot.resumed_from is not None:
            is_restore = has_wish(slot.record, slot.resumed_from)
            return slot.resumed_from if is_restore else None
    return None


def refuse_restore(ids: Sequence[int], restore_from: int) -> ConfigError:
    """The error of a start from a checkpoint that is missing or aborted."""
    return ConfigError(
        "the checkpoint to start from is not there, or was aborted",
        {"restore_from": restore_from, "slots": _short(ids)},
        "Choose a decided checkpoint from `sluice checkpoint list`.",
    )


def to_settle(history: History) -> list[CheckpointRecord]:
    """Decisions without a completion marker, oldest first: a start commits them first of all."""
    found = (slot for slot in reversed(history.slots) if slot.is_decided)
    return [slot.record for slot in found if not slot.is_committed]


def is_bypassed(checkpoint_id: int, above: Iterable[Slot]) -> bool:
    """Whether a fencing record above names an older checkpoint than this as its start."""
    return any(
        slot.resumed_from is not None and slot.resumed_from < checkpoint_id for slot in above
    )


def may_be_void(record: CheckpointRecord, above: Iterable[Slot]) -> bool:
    """Whether this is a fencing record after which its run has decided nothing. A run that has
    decided had read the checkpoint that it started from after its fencing record."""
    session = record.leader_session_id
    return (
        record.requested_by == FENCING
        and record.restored_from is not None
        and not any(s.is_decided and s.record.leader_session_id == session for s in above)
    )


def superseded_by_restore(history: History, resume_id: int) -> list[int]:
    """Decisions that a start from ``resume_id`` passes over."""
    return [
        slot.checkpoint_id
        for slot in reversed(history.slots)
        if slot.is_decided and slot.checkpoint_id > resume_id and not slot.is_superseded
    ]


def may_resume(
    record: CheckpointRecord,
    history: History,
    plan: JobPlan,
    fenced: Collection[int],
    *,
    listed: ListedAttempts,
    attempt_id: int,
) -> bool:
    """Whether listed attempts may continue in run ``attempt_id``, which resumes from a record: they
    read on from there. After a start from another checkpoint, they do not.

    With repartition topics, this run must read them as the record says. If it has a new rewind, its
    readers leave out all later batches of attempts before it, and a resumed attempt still makes
    some. A resumed reader has the old lineage, too.
    """
    if plan.forgotten or not listed.follow(record.checkpoint_id, _may_be_decided(history, fenced)):
        return False
    has_topics = any(region.upstream for region in plan.regions)
    lineage = lineage_of(record, history, fenced, attempt_id=attempt_id)
    return not has_topics or lineage == _lineage(record)


def lineage_of(
    record: CheckpointRecord, history: History, fenced: Collection[int], *, attempt_id: int
) -> BatchLineage:
    """The lineage of run ``attempt_id``, which resumes from a record.

    If decisions after the record exist, their batches are not in its past. A slot that cannot be
    read may hold one.

    Args:
        fenced: slots with fencing records.
    """
    later = range(record.checkpoint_id + 1, attempt_id)
    if not any(i in later for i in _may_be_decided(history, fenced)):
        return _lineage(record)
    return lineage_until(record, attempt_id=attempt_id)


def _may_be_decided(history: History, fenced: Collection[int]) -> list[int]:
    """Slots that hold a decision, or a record that cannot be read, down to a settled decision."""
    without = {slot.checkpoint_id for slot in history.slots if not slot.is_decided} | {*fenced}
    return [each for each in history.ids if each not in without]


def lineage_until(record: CheckpointRecord, *, attempt_id: int = _NO_ATTEMPT) -> BatchLineage:
    """The batches up to a record, and those of run ``attempt_id`` and later ones."""
    run_attempt_id = int(record.settings.get(_RUN_ATTEMPT_ID, "0"))
    rewind = Rewind.to(record.regions, run_attempt_id=run_attempt_id, attempt_id=attempt_id)
    return _lineage(record).after(rewind)


def _lineage(record: CheckpointRecord) -> BatchLineage:
    return BatchLineage.from_json(json.loads(record.settings.get(_LINEAGE, "[]")))


def with_lineage(plan: JobPlan, lineage: BatchLineage, *, attempt_id: int) -> JobPlan:
    """The plan of run ``attempt_id``: with the settings from which `lineage_of` makes the lineage
    of a later run, if the job has repartition topics."""
    if not any(region.upstream for region in plan.regions):
        return plan
    own = {_RUN_ATTEMPT_ID: str(attempt_id), _LINEAGE: json.dumps(lineage.to_json())}
    return replace(plan, settings={**plan.settings, **own})


def left_open(
    registrations: Iterable[RegionRegistration], history: History, plan: JobPlan
) -> list[StateEntry]:
    """Open work of earlier attempts that no decision contains: the start aborts it.

    A decision that names the work, or contains its batch, commits it. Whether a region is stateful
    follows from the plan, not from the record: the region may have become stateless since.
    """
    decided = [slot.record for slot in history.slots if slot.is_decided]
    named = {entry for record in decided for entry in record.committables}
    continuing = {region.name for region in plan.regions if region.batch_ids_continue}
    return [
        entry
        for registration in registrations
        for work in registration.open
        if not any(_contains(record, work.batch, continuing) for record in decided)
        for entry in work.committables
        if entry not in named
    ]


def _contains(record: CheckpointRecord, batch: BatchKey, continuing: Collection[str]) -> bool:
    return any(
        region.region == batch.region
        and region.batch_id is not None
        and batch.batch_id <= region.batch_id
        and (region.attempt_id == batch.attempt_id or region.region in continuing)
        for region in record.regions
    )


def fencing_record_of(
    history: History,
    plan: JobPlan,
    *,
    session: str,
    resume_id: int,
    restore_from: int | None,
    fenced: Collection[int],
    now_ms: int,
) -> CheckpointRecord:
    """The aborted record that closes the next slot to every older coordinator (`fence-first`).

    Args:
        resume_id: the checkpoint that the run starts from.
        restore_from: see `recorded_wish` and `is_already_restored`.
        fenced: slots that hold only a fencing record.
    """
    newest = history.newest
    wish = {} if restore_from is None else {_RESTORE_FROM: str(restore_from)}
    return CheckpointRecord(
        job_uid=newest.job_uid,
        job_name=plan.name,
        checkpoint_id=history.next_slot,
        kind=CheckpointKind.CHECKPOINT,
        verdict=Verdict.ABORTED,
        leader_session_id=session,
        run_attempt=max(slot.record.run_attempt for slot in history.slots) + 1,
        restored_from=resume_id,
        requested_by=FENCING,
        reason="a new run of the job begins",
        created_at_ms=now_ms,
        sluice_version=plan.sluice_version,
        spark_version=plan.spark_version,
        cluster_ids=plan.cluster_ids,
        settings={**plan.settings, **wish, **name_other_records(history.ids, fenced)},
        graph=plan.graph,
    )


def first_record(
    plan: JobPlan,
    regions: tuple[RegionRecord, ...],
    *,
    job_uid: str,
    session: str,
    now_ms: int,
    origin: Mapping[str, str] | None = None,
) -> CheckpointRecord:
    """Checkpoint 0: the identity of the job, and its start offsets as numbers.

    Args:
        origin: further settings of a restored job.
    """
    return CheckpointRecord(
        job_uid=job_uid,
        job_name=plan.name,
        checkpoint_id=0,
        kind=CheckpointKind.CHECKPOINT,
        verdict=Verdict.DECIDED,
        leader_session_id=session,
        run_attempt=1,
        requested_by="start",
        created_at_ms=now_ms,
        sluice_version=plan.sluice_version,
        spark_version=plan.spark_version,
        cluster_ids=plan.cluster_ids,
        settings={**plan.settings, **(origin or {})},
        graph=plan.graph,
        regions=regions,
        assignment=assignment_of(regions),
    )


def first_regions(
    plan: JobPlan, starts: Mapping[str, Sequence[SplitRange]]
) -> tuple[RegionRecord, ...]:
    """Regions of checkpoint 0: each source's splits assigned to the regions that read it.

    Raises:
        ConfigError: a keyed region reads several topics: a key would have a state in each.
    """
    splits: dict[str, list[SplitRange]] = {region.name: [] for region in plan.regions}
    for source_id, found in starts.items():
        readers = [r.name for r in plan.regions if source_id in r.source_ids]
        topics = sorted({split.topic for split in found})
        if len(topics) > 1 and any(r.keyed for r in plan.regions if r.name in readers):
            raise ConfigError(
                "a keyed pipeline reads several topics that are partitioned by its key",
                {"regions": ",".join(readers), "topics": ",".join(topics)},
                "Use key_by(…, partitioned=False), which brings the rows of a key together.",
            )
        if readers:
            loads = {name: len(splits[name]) for name in readers}
            for name, mine in to_least_loaded(found, loads).items():
                splits[name].extend(mine)
    return tuple(
        RegionRecord(region=name, attempt_id=0, splits=tuple(mine)) for name, mine in splits.items()
    )


def verify_same_job(
    record: CheckpointRecord,
    plan: JobPlan,
    sink_ids: Iterable[str],
    *,
    is_settled: bool = False,
    stateless: Collection[str] = (),
) -> None:
    """Check that the directory belongs to this job, and that each entry has an operator.

    Args:
        is_settled: whether the decision has nothing left to commit: then its sinks may be removed.
        stateless: regions whose state location in the record is empty.
    Raises:
        WrongJobError: another name, unknown operators, regions that cannot be exchanged, or keyed
            state that no function takes.
        ConfigError: keyed state has another schema.
    """
    if record.job_name != plan.name:
        raise WrongJobError(
            "the checkpoint directory belongs to another job",
            {"job": plan.name, "found": record.job_name, "job_uid": record.job_uid},
            "Give each job a checkpoint directory of its own, or use the job's old name.",
        )
    verify_partitioning(record, plan)
    pending = set() if is_settled else {entry.operator_id for entry in record.committables}
    _verify_operators(record, plan, pending - set(sink_ids))
    verify_rescalable(record, plan)
    _verify_state(record, plan, stateless)
    verify_keyed_state(record, plan)


def _verify_state(record: CheckpointRecord, plan: JobPlan, stateless: Collection[str]) -> None:
    """Refuse a region that changes between stateful and stateless.

    Batch ids of a stateful region continue over restarts. Those of a stateless region start at 0
    again, and its directory is deleted. So after a change, new batches would count as decided, or
    the state would be lost. A stateful region that never wrote state may become stateless: its
    attempts are distinguished by their ids from now on, and there is no state to lose.
    """
    plans = {region.name: region for region in plan.regions}
    sinks = {node.operator_id: node.name for node in plan.graph if node.kind == "sink"}
    for region in record.regions:
        planned = plans.get(region.region)
        if planned is None:
            continue
        _verify_sinks_stayed(region, planned, sinks)
        if region.batch_id is None:
            continue
        if not planned.stateful and region.region in stateless:
            continue
        if planned.stateful != (region.state is not None):
            raise WrongJobError(
                "a region has changed between stateful and stateless",
                {"job": plan.name, "region": region.region, "keeps_state_now": planned.stateful},
                "Start with the old functions, or with a new checkpoint directory at the offsets "
                "that `sluice checkpoint inspect` shows.",
            )


def _verify_sinks_stayed(
    region: RegionRecord, planned: RegionPlan, sinks: Mapping[str, str]
) -> None:
    """Refuse to move a sink with state to another region.

    Its state is in the record of the region that writes it. That region's next batch would drop the
    state of a sink that it no longer writes.
    """
    kept = {entry.operator_id for entry in region.operator_states}
    moved = sorted(kept & sinks.keys() - set(planned.state_sink_ids))
    if moved:
        raise WrongJobError(
            "a sink with state has moved to another region",
            {"region": region.region, "sinks": ", ".join(f"{sinks[i]!r} ({i})" for i in moved)},
            "Put the sink back into its pipeline. Give a sink of another pipeline its own uid.",
        )


def _verify_operators(record: CheckpointRecord, plan: JobPlan, missing_sinks: set[str]) -> None:
    names = {node.operator_id: f"{node.kind} {node.name!r}" for node in record.graph}
    own_logs = {region.name for region in plan.regions if region.keeps_logs}
    sources = {
        split.source_id
        for region in record.regions
        if region.region not in own_logs  # Spark's log names the sources, not the job
        for split in region.splits
    }
    planned_sources = {source for region in plan.regions for source in region.source_ids}
    states = {
        entry.operator_id
        for region in record.regions
        for entry in region.operator_states
        if entry.kind != COUNTS_KIND  # of a function that may have left
    }
    known_states = {node.operator_id for node in plan.graph}
    lists = {
        entry.operator_id
        for region in record.regions
        for entry in region.operator_states
        if entry.kind == OPERATOR_LIST_KIND
    }
    known_states -= lists - {i for region in plan.regions for i in region.list_ids}
    missing = (sources - planned_sources) | missing_sinks | (states - known_states)
    if missing:
        raise WrongJobError(
            "the checkpoint has entries of operators that the job lacks",
            {
                "job": plan.name,
                "checkpoint_id": record.checkpoint_id,
                "missing": ", ".join(f"{names.get(i, 'operator')} ({i})" for i in sorted(missing)),
                "job_has": ", ".join(_described(node) for node in plan.graph),
            },
            "Use the old names again, or set uid: an operator's id comes from its uid, or else "
            "from its name and its inputs. To remove a sink, start the job with it once more and "
            "stop it in order: then its transactions are settled.",
        )


def _described(node: OperatorNode) -> str:
    return f"{node.kind} {node.name!r} ({node.operator_id})"


def _short(ids: Sequence[int]) -> str:
    shown = ",".join(map(str, ids[-10:]))
    return f"…,{shown}" if len(ids) > 10 else shown


def given_up(record: CheckpointRecord, forgotten: Collection[tuple[str, str]]) -> str:
    """The positions of forgotten topics, as text."""
    splits = (split for region in record.regions for split in region.splits)
    given_up = (split for split in splits if split.key[:2] in forgotten)
    return " ".join(f"{split.name}={split.end_offset}" for split in given_up)


def positions_of(record: CheckpointRecord, source_id: str) -> list[SplitRange]:
    """The splits of one source."""
    return [
        split
        for region in record.regions
        for split in region.splits
        if split.source_id == source_id
    ]
