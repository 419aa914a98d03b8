"""What drivers and tasks share, and how one driver reaches it: directory, brokers, lease.

Each call lies between two points at which others have their turn, or the driver dies. A driver may
be truncated from each of them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sluice.connectors.kafka.sink.committer.transaction_requests import EndReport
from sluice.connectors.kafka.sink.handles import TransactionIdentity, decode_handle
from sluice.runtime.checkpoint.retention import indispensable
from sluice.runtime.checkpoint.run_record import RunRecord
from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.errors import StorageError, UnreachableError
from sluice.runtime.functions.record_counts import COUNTS_KIND, decode_totals
from sluice.runtime.model.checkpoint_record import FENCING, CheckpointRecord, Verdict
from sluice.runtime.ownership.lease import LeaseRecord
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.kafka.fake_kafka import FakeBroker, FakeWire, Fault
from tests.kit.threads.switched_threads import Switched
from tests.kit.threads.threaded_tasks import Faults

_AWAY_S = 3.0
_FAULTS_BY_HAND = (Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.CONCURRENT, Fault.LATE)


@dataclass(kw_only=True)
class Directory(FakeStore):
    """The checkpoint directory of all runs.

    Attributes:
        decided: transactions that decisions name.
        aborted: transactions that are.
        leader: who has announced itself last.
        late: records on their way, which nobody waits for any more.
        head: the decision that the job continues from.
        begins: of a partition, where its records continue after the last start that went back.
        before: of a partition, what readers see before that.
    """

    decided: set[TransactionIdentity] = field(default_factory=set)
    aborted: set[TransactionIdentity] = field(default_factory=set)
    leader: RunRecord | None = None
    late: list[CheckpointRecord] = field(default_factory=list)
    head: CheckpointRecord | None = None
    begins: dict[int, int] = field(default_factory=dict)
    before: dict[int, list[int]] = field(default_factory=dict)
    require: Callable[[bool, str], None]

    def publish(self, record: CheckpointRecord, *, timeout_s: float) -> PublishOutcome:
        """See `MetadataStore.publish`. The sessions of places that count follow one another: what
        an older run writes after a seal is no record of the job's."""
        ids = self.slots()
        is_last = not ids or record.checkpoint_id > ids[-1]
        is_new = record.checkpoint_id not in self.records
        outcome = super().publish(record, timeout_s=timeout_s)
        if is_new and is_last:
            # A start that was overtaken seals once more.
            is_good = record.requested_by in (FENCING, "start") or (
                self.records[ids[-1]].leader_session_id == record.leader_session_id
            )
            self.require(is_good, f"a run decides behind another one's seal: {record}")
            self._follow(record)
        return outcome

    def _follow(self, record: CheckpointRecord) -> None:
        if record.verdict is Verdict.DECIDED:
            named = {decode_handle(e).identity for e in record.committables}
            self.require(not named & self.aborted, f"aborted and decided: {named & self.aborted}")
            self.decided |= named
            self._require_counts(record)
            self.head = record
        elif record.requested_by == FENCING and record.restored_from is not None:
            self._go_on_from(self.records[record.restored_from])

    def _require_counts(self, record: CheckpointRecord) -> None:
        states = [entry for region in record.regions for entry in region.operator_states]
        totals = [decode_totals(entry) for entry in states if entry.kind == COUNTS_KIND]
        read = sum(found.read for found in totals)
        seen = sum(found.counters.get("seen", 0) for found in totals)
        ends = sum(_positions(record).values())
        self.require(read == seen == ends, f"counted: {read}, {seen}, of {ends}: {record}")

    def _go_on_from(self, resumed: CheckpointRecord) -> None:
        if self.head is None or resumed.checkpoint_id == self.head.checkpoint_id:
            return
        ends, at = _positions(self.head), _positions(resumed)
        for partition in self.begins.keys() | ends.keys() | at.keys():
            begin = self.begins.get(partition, 0)
            seen = self.before.setdefault(partition, [])
            seen += range(begin, ends.get(partition, begin))
            self.begins[partition] = at.get(partition, 0)
        self.head = resumed

    def expected(self, partition: int, end: int) -> list[int]:
        """Offsets as readers see them, once all up to this one are copied."""
        return [*self.before.get(partition, ()), *range(self.begins.get(partition, 0), end)]

    def retire(self, checkpoint_ids: Collection[int]) -> None:
        """See `CheckpointStore.retire`."""
        if indispensable(self.facts()) & set(checkpoint_ids):
            raise StorageError("a checkpoint that is still needed was to be deleted", {}, "")
        super().retire(checkpoint_ids)

    def land(self, number: int) -> None:
        """A record arrives late."""
        self.publish(self.late.pop(number), timeout_s=0.0)


def _positions(record: CheckpointRecord) -> dict[int, int]:
    return {s.partition: s.end_offset for region in record.regions for s in region.splits}


class Reach(Protocol):
    """How far a driver comes.

    Attributes:
        has_store: the directory answers it.
        has_brokers: brokers do.
    """

    has_store: bool
    has_brokers: bool
    switched: Switched
    faults: Faults


class ReachedStore:
    """A `MetadataStore`, and who leads."""

    def __init__(self, reach: Reach, directory: Directory) -> None:
        self._reach = reach
        self._directory = directory
        self.uri = directory.uri

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._directory, name)

        def call(*args: Any, **words: Any) -> Any:
            self._reach.switched.point(name)
            self._require_there()
            found = method(*args, **words)
            self._reach.switched.point(f"behind {name}")
            return found

        return call

    def publish(self, record: CheckpointRecord, *, timeout_s: float) -> PublishOutcome:
        """See `MetadataStore.publish`."""
        reach = self._reach
        reach.switched.point("publish")
        self._require_there()
        if reach.faults.happens("lose_record"):
            self._directory.late.append(record)
            reach.switched.sleep(timeout_s)
            raise StorageError("no answer", {}, "")
        outcome = self._directory.publish(record, timeout_s=timeout_s)
        reach.switched.point("behind publish")
        if reach.faults.happens("lose_record"):
            raise StorageError("the answer is lost", {}, "")
        return outcome

    def announce(self, leader: RunRecord) -> None:
        """See `RunRecordStore.announce`."""
        self._reach.switched.point("announce")
        self._require_there()
        self._directory.leader = leader

    def _require_there(self) -> None:
        if not self._reach.has_store:
            self._reach.switched.sleep(_AWAY_S)
            raise StorageError("the directory is away", {}, "")


class ReachedWire:
    """A `Wire`."""

    def __init__(self, reach: Reach, broker: FakeBroker) -> None:
        self._reach = reach
        self._wire = FakeWire(broker, topics=("out",))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._wire, name)

        def call(*args: Any, **words: Any) -> Any:
            self._reach.switched.point(name)
            if not self._reach.has_brokers:
                self._reach.switched.sleep(min(_AWAY_S, words.get("timeout_s", _AWAY_S)))
            self._wire.unreachable = not self._reach.has_brokers
            found = method(*args, **words)
            self._reach.switched.point(f"behind {name}")
            return found

        return call

    def end(
        self, transactions: Sequence[TransactionIdentity], *, commit: bool, timeout_s: float
    ) -> list[EndReport]:
        """See `Wire.end`: each by itself."""
        reports: list[EndReport] = []
        for transaction in transactions:
            self._reach.switched.point("end")
            if self._reach.faults.happens("lose_hand"):
                chosen = self._reach.faults.choose(len(_FAULTS_BY_HAND))
                self._wire.faults = [_FAULTS_BY_HAND[chosen]]
            self._wire.unreachable = not self._reach.has_brokers
            reports += self._wire.end([transaction], commit=commit, timeout_s=timeout_s)
            self._wire.faults.clear()
        self._reach.switched.point("behind end")
        return reports

    def topic_ids(self, topics: Sequence[str], *, timeout_s: float) -> Mapping[str, str | None]:
        """See `Wire.topic_ids`. No other thread can tell when it happens."""
        self._wire.unreachable = not self._reach.has_brokers
        return self._wire.topic_ids(topics, timeout_s=timeout_s)

    def close(self) -> None:
        """See `Wire.close`."""


class ReachedOwner:
    """An `LeaseStore`: all sinks of the job have one name.

    Args:
        records: the record, by the name.
    """

    def __init__(self, reach: Reach, records: dict[str, LeaseRecord | None]) -> None:
        self._reach = reach
        self._records = records

    def read(self) -> LeaseRecord | None:
        """See `LeaseStore.read`."""
        self._ask("read owner")
        found = self._records.get("")
        self._reach.switched.point("behind read owner")
        return found

    def write(self, record: LeaseRecord) -> None:
        """See `LeaseStore.write`."""
        self._ask("write owner")
        self._records[""] = LeaseRecord.decode(record.encode())
        self._reach.switched.point("behind write owner")

    def close(self) -> None:
        """See `LeaseStore.close`."""

    def _ask(self, what: str) -> None:
        self._reach.switched.point(what)
        if not self._reach.has_brokers:
            self._reach.switched.sleep(_AWAY_S)
            raise UnreachableError("no broker answers", {}, "")
