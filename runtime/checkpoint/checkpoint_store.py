"""The checkpoint directory: one record for each checkpoint id, published whole or not at all.

::

    chk-000000000042/_metadata      the decision, or the abort (Avro, `metadata`)
                     _committed     everything it names is visible (JSON)
                     _superseded    a start from an older checkpoint passed it over (JSON)
                     _unsettled     committables that the last attempt could not commit (JSON)
                     _accepted      those of them that no longer stop a start (JSON)
                     _repair-1      replacements of lost committables, or claims on them (Avro)
                     .{name}.{session}.{random}.tmp   half-made; never read
    state/…                         files of keyed state (`sluice.runtime.state`)
    _leader                         where the coordinator is (`run_record`)
    _election/…                     who leads, and who waits (`sluice.runtime.election`)
    .{name}.{random}.tmp            half-made likewise (`sluice.runtime.checkpoint.leftover_files`)
"""

import json
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sluice.runtime.checkpoint.acceptance import (
    claim_of,
    decode_accepted,
    decode_unsettled,
    encode_accepted,
    encode_unsettled,
)
from sluice.runtime.checkpoint.checkpoint_slots import METADATA, STATE, KnownSlots, slot_name
from sluice.runtime.checkpoint.format.metadata import (
    Repair,
    decode,
    decode_repair,
    encode,
    encode_repair,
)
from sluice.runtime.checkpoint.leftover_files import Leftovers
from sluice.runtime.checkpoint.resumable_attempts import ResumableAttempts
from sluice.runtime.checkpoint.retention import SlotFacts, indispensable, retirable
from sluice.runtime.checkpoint.slot_publishing import SlotPublication, session_text
from sluice.runtime.contracts import (
    AcceptedWork,
    Clock,
    MetadataStore,
    PublishOutcome,
    UnsettledWork,
)
from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    DamagedCheckpointError,
    StorageError,
    WrongJobError,
)
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.checkpoint_record import CheckpointRecord, StateEntry, Verdict
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.storage.file_copies import wrong_files, wrong_lengths
from sluice.runtime.storage.file_system import FileSystem, files_below
from sluice.runtime.storage.file_system_opening import open_file_system

__all__ = ["STORE_FAILPOINTS", "CheckpointStore", "open_store"]

log = logging.getLogger(__name__)

STORE_FAILPOINTS = (
    "before-publish",
    "after-temp-sync",
    "after-link",  # local files: linked, the directory not yet synced
    "after-put",  # object stores: the answer is there, and nothing is noted
    "after-publish",
    "before-committed-mark",
    "after-committed-mark",
    "before-repair",
    "after-repair",
    "before-unsettled",
    "after-unsettled",
    "before-acceptance",
    "after-acceptance",
)
"""Every point in the store where a test may kill or pause the process."""

_MARK_VERSION = 1
_COMMITTED = "_committed"
_SUPERSEDED = "_superseded"
_UNSETTLED = "_unsettled"
_ACCEPTED = "_accepted"
_ACCEPTING = "accept-loss"  # the session of a claim, which no run has
_REPAIR = re.compile(r"_repair-([1-9]\d*)")
_TEMPORARY = re.compile(r"\..+\.([A-Za-z0-9-]+)\.[0-9a-f]{32}\.tmp")
_PAUSE_S = 0.05
_MOST_FAULTS = 10
_CLEANED_STARTS = 10  # a start that was killed has cleaned nothing, so more than one


def open_store(
    uri: str,
    jvm: Any = None,  # noqa: ANN401 - py4j's view
    storage_options: Mapping[str, str] | None = None,
) -> "CheckpointStore":
    """The store at a checkpoint directory; nothing is touched yet.

    Args:
        uri: ``file:`` or a bare path (by Python), ``hdfs:`` (by Hadoop's client in a JVM), or
            ``s3:``, ``gs:``, ``abfss:`` (by obstore).
        jvm: py4j's view of a JVM that has Hadoop's client, e.g. a SparkContext's; for ``hdfs:``.
        storage_options: of an object store; see `object_location`.
    Raises:
        ConfigError: a scheme without a tested no-replace step, or no JVM for ``hdfs:``.
    """
    return CheckpointStore(open_file_system(uri, jvm, storage_options))


class CheckpointStore(MetadataStore):
    """`sluice.runtime.contracts.MetadataStore` on a file system with an atomic no-replace step.

    Runs on the driver or in the command line; the caller serialises the calls. Reading writes
    nothing. Records never change, so the store keeps a few small facts of each slot it has read.

    Args:
        fs: rooted at the checkpoint directory.
        clock, pause: time, for the bound of `publish`; passed in so that tests own it.
    """

    def __init__(
        self,
        fs: FileSystem,
        *,
        clock: Clock = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.uri = fs.uri
        self.fs = fs
        self._clock = clock
        self._pause = pause
        self._job_uid: str | None = None
        self._slots = KnownSlots(
            fs,
            read=self.read,
            has_file=self._has_file,
        )
        self._leftovers = Leftovers(fs, clock=clock)
        self._has_published = False
        self._uncleaned_session: str | None = None
        self._open_answers: set[str] = set()  # files that may have landed, or may land yet

    # --- reading --------------------------------------------------------------------------------

    def slots(self) -> list[int]:
        """Ids of all slots that hold a record, ascending; the last one is the last of all.

        The last record is never deleted. Others may be deleted after they were listed, once there
        are newer ones: then the caller lists again.
        """
        return self._slots.ids()

    def known_fencing_records(self) -> frozenset[int]:
        return self._slots.fenced()

    def is_empty(self, directory: str) -> bool:
        return not self.fs.entries(directory)

    def read(self, checkpoint_id: int) -> CheckpointRecord | None:
        """The record at a slot, None when the slot is empty.

        Raises:
            DamagedCheckpointError, UnsupportedFormatError: see `metadata`.
            StorageError: the store did not answer.
        """
        path = _path(checkpoint_id, METADATA)
        data = self.fs.read(path)
        if data is None:
            self._slots.note(checkpoint_id, None)
            return None
        return self._decoded(checkpoint_id, data)

    def is_committed(self, checkpoint_id: int) -> bool:
        """Whether everything that the record names is visible, on record."""
        return self._has_file(checkpoint_id, _COMMITTED)

    def is_superseded(self, checkpoint_id: int) -> bool:
        """Whether a start from an older checkpoint has passed this one over."""
        return self._has_file(checkpoint_id, _SUPERSEDED)

    def unsettled(self, checkpoint_id: int) -> tuple[UnsettledWork, ...]:
        """The work named by the last error that ended a job, or its start, at this decision."""
        path = _path(checkpoint_id, _UNSETTLED)
        data = self.fs.read(path)
        where = {"uri": self.uri, "path": path}
        return () if data is None else decode_unsettled(data, checkpoint_id, where=where)

    def accepted(self, checkpoint_id: int) -> Mapping[str, AcceptedWork]:
        """The work of a decision that no longer stops a start, by its digest."""
        path = _path(checkpoint_id, _ACCEPTED)
        data = self.fs.read(path)
        where = {"uri": self.uri, "path": path}
        return {} if data is None else decode_accepted(data, checkpoint_id, where=where)

    def superseded_by(self, checkpoint_id: int) -> int | None:
        """The first checkpoint of the start that passed this one over, or None."""
        data = self.fs.read(_path(checkpoint_id, _SUPERSEDED))
        return None if data is None else _mark_field(data, "by", self._where(checkpoint_id))

    def repairs(self, checkpoint_id: int) -> list[Repair]:
        """Repairs of a slot, in order of their numbers."""
        names = (entry.name for entry in self.fs.entries(slot_name(checkpoint_id)))
        numbers = sorted(int(match[1]) for name in names if (match := _REPAIR.fullmatch(name)))
        found = []
        for number in numbers:
            path = _path(checkpoint_id, f"_repair-{number}")
            data = self.fs.read(path)
            where = {"uri": self.uri, "path": path}
            if data is None:
                raise StorageError("a repair record vanished while it was read", where, "Retry.")
            found.append(decode_repair(data, where=where))
        return found

    def effective_committables(self, record: CheckpointRecord) -> tuple[StateEntry, ...]:
        """The record's committables with every repair applied, in order (`two-phase-repair`)."""
        standing = list(record.committables)
        if not standing:
            return ()
        for repair in self.repairs(record.checkpoint_id):
            replaced = dict(repair.replaced)
            standing = [replaced.get(entry.payload, entry) for entry in standing]
        return tuple(standing)

    def make_durable(self, checkpoint_id: int) -> None:
        for entry in self.fs.entries(slot_name(checkpoint_id)):
            if entry.name == METADATA or _REPAIR.fullmatch(entry.name):
                self.fs.make_durable(_path(checkpoint_id, entry.name))

    def facts(self) -> list[SlotFacts]:
        """Facts for retention of every slot that can be read, ascending."""
        return self._slots.facts(committed=_COMMITTED, superseded=_SUPERSEDED)

    # --- deciding -------------------------------------------------------------------------------

    def publish(self, record: CheckpointRecord, *, timeout_s: float) -> PublishOutcome:
        """Put a record into its slot: whole, synced, never replacing another (`fence-first` and
        `publish-whole`).

        A repeated call with the same record has the same outcome. TAKEN means that another record
        is there for ever; `read` returns it. A caller that gives up after UNKNOWN publishes its own
        aborted record in that slot. Then OURS means certainly aborted. TAKEN with a record of this
        session means that the late decision has arrived after all.

        Raises:
            WrongJobError: the directory belongs to another job; nothing was written.
            StorageError: nothing was published.
            AuthenticationError, ConfigError: the store refuses, or cannot promise it.
            DamagedCheckpointError: the slot holds a file that cannot be read.
        """
        self._require_same_job(record)
        if not (self._has_published or self.fs.has_temporaries):
            self._clear_slots(record.checkpoint_id)
        failpoint("before-publish")
        outcome = self._publish_file(
            record.checkpoint_id,
            METADATA,
            encode(record),
            session=record.leader_session_id,
            timeout_s=timeout_s,
        )
        failpoint("after-publish")
        if outcome is PublishOutcome.OURS and not self._has_published:
            self._has_published = True
            self._uncleaned_session = record.leader_session_id
            self._slots.note(record.checkpoint_id, record)
        if outcome is PublishOutcome.TAKEN:
            self.read(record.checkpoint_id)  # raises if the other record is damaged
        return outcome

    def publish_repair(
        self,
        checkpoint_id: int,
        replaced: Mapping[bytes, StateEntry],
        *,
        session: str,
        timeout_s: float = 30.0,
    ) -> PublishOutcome:
        """Publish the next ``_repair-k``: lost committable's payload -> its replacement
        (`two-phase-repair`).

        TAKEN: a repair of one of these committables exists; follow it. Or the decision is retired,
        so another run has committed its work. The decision is read last: a repair that is published
        in a retired slot has no effect.
        """
        outcome = self._publish_repair(checkpoint_id, replaced, session, timeout_s)
        record = self.read(checkpoint_id)
        holds_decision = record is not None and record.verdict is Verdict.DECIDED
        return outcome if holds_decision else PublishOutcome.TAKEN

    def _publish_repair(
        self,
        checkpoint_id: int,
        replaced: Mapping[bytes, StateEntry],
        session: str,
        timeout_s: float,
    ) -> PublishOutcome:
        wanted = tuple(sorted(replaced.items(), key=lambda item: item[0]))
        standing = self.repairs(checkpoint_id)
        for repair in standing:
            if repair.leader_session_id == session and repair.replaced == wanted:
                self.fs.make_durable(_path(checkpoint_id, f"_repair-{repair.number}"))
                return PublishOutcome.OURS
            if set(dict(repair.replaced)) & set(replaced):
                return PublishOutcome.TAKEN
        repair = Repair(
            checkpoint_id=checkpoint_id,
            number=len(standing) + 1,
            leader_session_id=session,
            replaced=wanted,
        )
        failpoint("before-repair")
        outcome = self._publish_file(
            checkpoint_id,
            f"_repair-{repair.number}",
            encode_repair(repair),
            session=session,
            timeout_s=timeout_s,
        )
        failpoint("after-repair")
        if outcome is PublishOutcome.TAKEN:
            # If that repair replaces other committables, ours gets the next number.
            return self._publish_repair(checkpoint_id, replaced, session, timeout_s)
        return outcome

    def mark_committed(self, checkpoint_id: int) -> None:
        """Write the completion marker ``_committed``; idempotent. After it returns, used ids may be
        used again (`outcome-from-broker`)."""
        failpoint("before-committed-mark")
        self._mark(checkpoint_id, _COMMITTED, {})
        failpoint("after-committed-mark")

    def mark_superseded(self, checkpoint_id: int, *, by: int) -> None:
        """Record that a start from an older checkpoint passed this one over; idempotent."""
        self._mark(checkpoint_id, _SUPERSEDED, {"by": by})
        self._slots.forget(checkpoint_id)

    def end_attempts(self, run_attempt_id: int) -> None:
        """After it, no later coordinator resumes attempts of runs up to this one."""
        ResumableAttempts(self.fs).end_all(run_attempt_id)

    def note_unsettled(self, checkpoint_id: int, works: Sequence[UnsettledWork]) -> None:
        """Record the work that an error is about to name; replaces the previous list."""
        failpoint("before-unsettled")
        self.fs.replace(_path(checkpoint_id, _UNSETTLED), encode_unsettled(checkpoint_id, works))
        failpoint("after-unsettled")

    def accept(self, checkpoint_id: int, works: Iterable[AcceptedWork]) -> None:
        """Record that this work no longer stops a start, in addition to earlier acceptances.

        Idempotent. Raises ConfigError if some of it was written again meanwhile: nothing is
        accepted then.
        """
        found = {work.digest: work for work in works}
        self._claim(checkpoint_id, found.values())
        whole = {**self.accepted(checkpoint_id), **found}
        failpoint("before-acceptance")
        data = encode_accepted(checkpoint_id, whole.values())
        self.fs.replace(_path(checkpoint_id, _ACCEPTED), data)
        failpoint("after-acceptance")

    def _claim(self, checkpoint_id: int, works: Collection[AcceptedWork]) -> None:
        """Publish a repair that replaces each accepted committable by itself. It excludes any other
        repair, so no coordinator writes accepted work again (`two-phase-repair`)."""
        where, record = self._where(checkpoint_id), self.read(checkpoint_id)
        standing = () if record is None else self.effective_committables(record)
        repairs = [dict(repair.replaced) for repair in self.repairs(checkpoint_id)]
        claim = claim_of(works, standing, repairs, where=where)
        if claim:
            outcome = self.publish_repair(checkpoint_id, claim, session=_ACCEPTING)
            if outcome is PublishOutcome.UNKNOWN:
                raise StorageError(
                    "the store did not confirm the acceptance", where, "Repeat the command."
                )
            self._claim(checkpoint_id, works)  # another claim may have been first

    # --- retiring -------------------------------------------------------------------------------

    def retirable(self, *, retain: int = 3) -> list[int]:
        """Slots that may be deleted now; see `sluice.runtime.checkpoint.retention.retirable`."""
        return retirable(self.facts(), retain=retain)

    def retire(self, checkpoint_ids: Collection[int]) -> None:
        """Delete retired slots; refuses an unfinished decision and every fencing record
        (`retire-after-commit`).

        A store that has published also deletes half-made files of crashed sessions: those in the
        slots at the first call, those beside the slots about once an hour.
        """
        self._clean_once()
        if self._has_published:
            self._leftovers.delete_abandoned()
        wanted = set(checkpoint_ids)
        if not wanted:
            return
        refused = wanted & indispensable(self.facts())
        if refused:
            raise StorageError(
                "a checkpoint that is still needed must not be deleted",
                {"uri": self.uri, "checkpoint_ids": sorted(refused)},
                "Keep unfinished decisions, fencing records and the last record.",
            )
        for checkpoint_id in sorted(wanted):
            self.fs.delete(slot_name(checkpoint_id))
            log.debug("checkpoint retired: checkpoint_id=%d", checkpoint_id)

    def state_files(self) -> list[str]:
        """See `MetadataStore.state_files`."""
        return list(files_below(self.fs, STATE))

    def require_files(self, record: CheckpointRecord, *, whole: bool) -> None:
        """See `MetadataStore.require_files`."""
        faults = (wrong_files if whole else wrong_lengths)(self.fs, record.keyed_files)
        if faults:
            shown = {each.path: each.problem for each in faults[:_MOST_FAULTS]}
            raise DamagedCheckpointError(
                "files of keyed state are missing or damaged",
                {**self._where(record.checkpoint_id), "files": len(faults), **shown},
                "Restore from another checkpoint or savepoint, or copy these files back.",
            )

    def delete_files(self, paths: Collection[str]) -> None:
        """See `MetadataStore.delete_files`."""
        for path in paths:
            self.fs.delete(path)
            log.debug("file of keyed state deleted: path=%s", path)

    def _clean_once(self) -> None:
        if self._uncleaned_session is not None:
            session, self._uncleaned_session = self._uncleaned_session, None
            cleaned = self.clean(session=session)
            log.debug("incomplete files deleted: uri=%s files=%d", self.uri, cleaned)

    def clean(self, *, session: str) -> int:
        """Delete half-made files of crashed writers; returns how many. Called after this session
        has published its fencing record.

        It deletes only below the last record: no writer can publish there any more. Files of this
        session stay. Slots of old fencing records are left out: each start leaves one, and an
        earlier start has cleaned them.
        """
        slots = self.slots()
        clean = set(sorted(self._slots.fenced())[:-_CLEANED_STARTS])
        cleaned = 0
        for checkpoint_id in self._slots.listed():
            if not slots or checkpoint_id > slots[-1]:
                break
            if checkpoint_id in clean:
                continue
            entries = self.fs.entries(slot_name(checkpoint_id))
            if METADATA not in {entry.name for entry in entries}:
                self.fs.delete(slot_name(checkpoint_id))  # a writer found the slot retired
                cleaned += 1
                continue
            for entry in entries:
                match = _TEMPORARY.fullmatch(entry.name)
                if match and match[1] != session_text(session):
                    self.fs.delete(_path(checkpoint_id, entry.name))
                    cleaned += 1
        return cleaned

    def _clear_slots(self, first: int) -> None:
        """Delete markers that the deletion of an earlier job has left in slots from ``first`` on.
        An object store deletes a slot's record first; a killed deletion leaves the rest.

        A marker of a decision that another run publishes meanwhile may go, too: the decision is
        then committed again, which changes nothing.
        """
        for checkpoint_id in self._slots.listed():
            if checkpoint_id >= first:
                names = {entry.name for entry in self.fs.entries(slot_name(checkpoint_id))}
                for name in names if METADATA not in names else ():
                    self.fs.delete(_path(checkpoint_id, name))

    # --- inside ---------------------------------------------------------------------------------

    def _has_file(self, checkpoint_id: int, name: str) -> bool:
        return self.fs.length_bytes(_path(checkpoint_id, name)) is not None

    def _where(self, checkpoint_id: int) -> dict[str, object]:
        return {"uri": self.uri, "path": _path(checkpoint_id, METADATA)}

    def _decoded(self, checkpoint_id: int, data: bytes) -> CheckpointRecord:
        where = self._where(checkpoint_id)
        record = self._record_in(data, where)
        if record.checkpoint_id != checkpoint_id:
            raise DamagedCheckpointError(
                f"slot {checkpoint_id} holds the record of checkpoint {record.checkpoint_id}",
                where,
                "Restore from another checkpoint; do not copy or rename checkpoint directories.",
            )
        self._slots.note(checkpoint_id, record)
        return record

    def _record_in(self, data: bytes, where: Mapping[str, object]) -> CheckpointRecord:
        # A method of its own: a test that simulates many processes decodes equal bytes once.
        return decode(data, where=where)

    def _require_same_job(self, record: CheckpointRecord) -> None:
        if self._job_uid is None:
            slots = self.slots()
            first = self.read(slots[0]) if slots else None
            if first is None:
                return  # the first record of all: once it is published, it names the job
            self._job_uid = first.job_uid
        if record.job_uid != self._job_uid:
            raise WrongJobError(
                "the checkpoint directory belongs to another job",
                {"uri": self.uri, "job_uid": record.job_uid, "found": self._job_uid},
                "Give each job a checkpoint directory of its own.",
            )

    def _publish_file(
        self, checkpoint_id: int, name: str, data: bytes, *, session: str, timeout_s: float
    ) -> PublishOutcome:
        """Try until the slot holds a record or time is over; read it back after a lost answer."""
        deadline = self._clock() + timeout_s
        path = _path(checkpoint_id, name)
        while True:
            attempt = SlotPublication(self.fs, slot_name(checkpoint_id), name, data, session)
            try:
                outcome = attempt.run()
                self._open_answers.discard(path)
                return outcome
            except (StorageError, AuthenticationError, ConfigError) as error:
                if attempt.was_tried and isinstance(error, StorageError):
                    self._open_answers.add(path)
                is_open = path in self._open_answers
                is_over = self._clock() >= deadline
                if not is_open and (is_over or not isinstance(error, StorageError)):
                    raise
                if is_over:
                    log.warning("store did not answer a publish: path=%s error=%s", path, error)
                    return PublishOutcome.UNKNOWN
                log.info("retrying publish: path=%s error=%s", path, error)
                self._pause(_PAUSE_S)

    def _mark(self, checkpoint_id: int, name: str, content: Mapping[str, object]) -> None:
        path, slot = _path(checkpoint_id, name), slot_name(checkpoint_id)
        there = {entry.name for entry in self.fs.entries(slot)}
        if name in there:
            self.fs.make_durable(path)
        if name in there or METADATA not in there:  # it would apply to a later job's decision
            return
        text = {"format_version": _MARK_VERSION, "checkpoint_id": checkpoint_id, **content}
        self.fs.replace(path, json.dumps(text).encode())


def _path(checkpoint_id: int, name: str) -> str:
    return f"{slot_name(checkpoint_id)}/{name}"


def _mark_field(data: bytes, name: str, where: Mapping[str, object]) -> int:
    try:
        found: Any = parsed_json(data)
        return int(found[name])
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedCheckpointError(
            "a completion marker is damaged", where, "Read the file; it is small JSON."
        ) from error
