"""What must hold after every step of a simulated world, judged by facts that no process sees."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.sink.handles import TransactionIdentity, decode_handle
from sluice.runtime.checkpoint.lost_work import digest_of
from sluice.runtime.contracts import UnsettledWork
from sluice.runtime.coordinator.policy.assignment import hand_over
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import (
    FENCING,
    Assignment,
    CheckpointRecord,
    RegionRecord,
    RegionStatus,
    StateEntry,
    Verdict,
)
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.model.state.batch_lineage import BatchLineage
from tests.kit.kafka.fake_kafka import Written
from tests.simulation.file_watch import FileWatch
from tests.simulation.kafka import identities_of, identity_of
from tests.simulation.lineage import Lineages, Standing
from tests.simulation.moves import owners
from tests.simulation.shared import SharedWatch
from tests.simulation.state_watch import StateWatch

if TYPE_CHECKING:
    from tests.simulation.world import World

_S = TransactionState
_OPEN = frozenset({_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT})
_COMMITTED = frozenset({_S.PREPARE_COMMIT, _S.COMPLETE_COMMIT})
_ABORTED = frozenset({_S.PREPARE_ABORT, _S.COMPLETE_ABORT})


class ViolationError(AssertionError):
    """A promise is broken: ``what`` names the promise, the rest is this world's."""

    def __init__(self, what: str, story: str) -> None:
        super().__init__(f"{what}; {story}")
        self.what = what.partition(":")[0]


class Watch:
    """The promises, and the facts they are about. Called by broker, store and tasks as it happens.

    Attributes:
        history: every record that was ever published.
        seen: offsets that a read_committed reader has seen, in order, by input partition.
        lineages: which decision follows which.
        accepted: transactions that a person has accepted as lost.
        moves, rescales: how often decisions moved splits, or assigned them again.
    """

    def __init__(self, world: "World") -> None:
        self._world = world
        self.history: list[CheckpointRecord] = []
        self.seen: dict[int, list[int]] = {}
        self.lineages = Lineages(self.require)
        self.moves = 0
        self.rescales = 0
        self.files = FileWatch(world, self.require, self.lineages)
        self.state = StateWatch(world, self.require)
        self.shared = SharedWatch(self.require)
        self._places: set[int] = set()
        self._marked: set[int] = set()
        self.accepted: set[TransactionIdentity] = set()
        self._given_up: set[tuple[int, int, int]] = set()  # lineage, input partition, offset
        self._read: dict[int, tuple[int, int]] = {}  # by input partition: lineage, next offset
        self._named: dict[TransactionIdentity, int] = {}
        self._replaced: set[TransactionIdentity] = set()
        self._expired: set[TransactionIdentity] = set()
        self._forgotten: set[str] = set()
        self._told: set[TransactionIdentity] = set()
        self._ended: dict[TransactionIdentity, Written] = {}
        self._seen: dict[int, int] = {}  # by output partition: records after which nothing changes
        self._io_executor: dict[str, str] = {}
        self._last_of: dict[str, TransactionIdentity] = {}
        self._ends: dict[int, int] = {}
        self._broken: ViolationError | None = None
        self._due_s: dict[StateEntry, float] = {}
        self._assignment: Assignment | None = None
        self._led_by = 0

    def require(self, holds: object, what: str) -> None:
        """A promise, and whether it is kept."""
        if not holds:
            self._broken = ViolationError(what, self._world.facts())
            raise self._broken

    def require_unbroken(self) -> None:
        """Raise the error of a broken promise again: some code catches every error, this one, too."""
        if self._broken is not None:
            raise self._broken

    # --- the broker -------------------------------------------------------------------------------

    def initialised(self, transactional_id: str, hand: str, made: TransactionIdentity) -> None:
        """Rules `ids-never-reused` and `outcome-from-broker`: an id has one owner, and is
        initialised only when nobody needs it."""
        holder = self._io_executor.setdefault(transactional_id, hand)
        self.require(holder == hand, "a transactional id is in two hands")
        last = self._last_of.get(transactional_id)
        at = None if last is None else self._named.get(last)
        if at is not None and last not in self._replaced:
            self.require(at in self._marked, "an id is used again before the committed mark")
        self._last_of[transactional_id] = made

    def expires(self, transaction: TransactionIdentity) -> None:
        """The broker is about to abort it at its timeout. No process is to blame."""
        self._expired.add(transaction)

    def unmarked_ids(self) -> set[str]:
        """Ids of decisions that are not committed on record."""
        return {
            identity.transactional_id
            for identity, at in self._named.items()
            if at not in self._marked and identity not in self._replaced
        }

    def forgets(self, transactional_id: str) -> None:
        """From now on the broker does not know how it ended."""
        self._forgotten.add(transactional_id)

    def is_forgotten(self, identity: TransactionIdentity) -> bool:
        """Whether no broker knows how it ended."""
        return identity.transactional_id in self._forgotten

    def is_committed(self, identity: TransactionIdentity) -> bool:
        """Whether readers see it, or will. No process of the job knows that."""
        return identity in self._ended and self._ended[identity].state in _COMMITTED

    def tells_committed(self, identity: TransactionIdentity) -> None:
        """A broker has answered that it is committed, or an operator has checked."""
        self._told.add(identity)

    def ended(self, written: Written) -> None:
        """A transaction's end is certain, or its markers are written."""
        identity, state = written.identity, written.state
        if state is _S.PREPARE_COMMIT:
            self._world.note(f"commits {identity.resource}")
            self.require(identity in self._named, "visible before its decision")
        elif state is _S.PREPARE_ABORT:
            self._world.note(f"aborts {identity.resource}")
            is_lost = identity in self._named and identity not in self._expired
            is_first = identity not in self._ended
            self.require(not (is_lost and is_first), "a decided transaction is aborted")
        self._ended.setdefault(identity, written)
        if state not in _OPEN:
            for partition in written.partitions:
                self._read_on(partition)

    def _read_on(self, partition: int) -> None:
        """A reader sees a prefix: nothing twice, nothing missing before it, in order."""
        log = self._world.broker.logs.get(partition, [])
        at = self._seen.get(partition, 0)
        while at < len(log) and log[at][1].state not in _OPEN:
            value, written = log[at]
            at += 1
            if written.state is _S.COMPLETE_COMMIT:
                assert isinstance(value, tuple)
                source, offset = value
                lineage, due = self._next(source)
                self.require(offset >= due, f"doubled: {source}-{offset}, seen up to {due}")
                self.require(offset == due, f"lost or reordered: {source}-{offset} before {due}")
                self._read[source] = lineage, due + 1
                self.seen.setdefault(source, []).append(offset)
        self._seen[partition] = at

    def _next(self, source: int) -> tuple[int, int]:
        lineage, due = self._read.get(source, (0, 0))
        while True:
            if (lineage, source, due) in self._given_up:
                due += 1
            elif self.lineages.is_over(lineage, source, due):
                lineage += 1
                due = self.lineages.start(lineage, source)
            else:
                return lineage, due

    def missing(self, ends: Mapping[int, int]) -> dict[int, tuple[int, int, int]]:
        """By input partition what a reader sees next, in which lineage, and its end, if that is
        not the same."""
        found = {source: (*self._next(source), end) for source, end in ends.items()}
        whole = {source: (self.lineages.number, end, end) for source, end in ends.items()}
        return {source: each for source, each in found.items() if each != whole[source]}

    def accepts(
        self, at: int, standing: Iterable[StateEntry], works: Iterable[UnsettledWork]
    ) -> None:
        """An operator accepts that these ranges of a decision are missing."""
        entries = {digest_of(entry): entry for entry in standing}
        for work in works:
            identity = identity_of(entries[work.digest])
            self.require(
                identity in self._ended and self._ended[identity].state in _ABORTED,
                "what is accepted as lost is not lost",
            )
            sources = decode_handle(entries[work.digest]).sources
            self.require(work.ranges == tuple(map(str, sources)), "other ranges are reported")
            self.accepted.add(identity)
            self._given_up |= {
                (self.lineages.of(at), each.partition, offset)
                for each in sources
                for offset in range(each.start_offset, each.end_offset)
            }

    # --- the checkpoint directory -----------------------------------------------------------------

    def acknowledged(self, ack: Acknowledgement) -> None:
        """A region reports what it has pre-committed, and until when that is safe to decide."""
        if ack.decide_by_s is not None:
            self._due_s |= dict.fromkeys(ack.region.committables, ack.decide_by_s)

    def publishes(self, record: CheckpointRecord) -> None:
        """Rule `transaction-timeout`: no decision is tried whose transactions may have expired. A
        repeated publish of a record that is already in its slot is no new decision."""
        if record.verdict is Verdict.DECIDED and record.checkpoint_id not in self._places:
            now_s = self._world.ages()
            is_safe = all(now_s <= self._due_s.get(e, now_s) for e in record.committables)
            self.require(is_safe, "a decision is tried that has grown old")

    def _leads(self, number: int) -> None:
        """Rule `fence-first`: processes are elected in the order of their numbers."""
        self.require(number >= self._led_by, "a leader is fenced by one that was elected before it")
        self._led_by = number

    def placed(self, record: CheckpointRecord, *, is_over: bool = False) -> None:
        """A record is published; over another one, which was not retired, if ``is_over``."""
        at = record.checkpoint_id
        self._world.note(
            f"slot {at}: {record.verdict.value} by {record.leader_session_id} ({record.requested_by})"
        )
        is_again = at in self._places and not is_over
        if is_again and any(record == known for known in self.history):
            return  # its writer was not answered, asked again, and the place had been retired
        if is_again and record.verdict is Verdict.ABORTED:
            # A start that has slept since it listed the places, or a run that withdraws a decision
            # which others have followed. Both look after it for newer records; who does not, and
            # decides in the next retired place, is found out there.
            return
        self.require(at not in self._places, "a place holds two records")
        self.require(not at or at - 1 in self._places, "a place is published before the one below")
        self._places.add(at)
        self.history.append(record)
        if self._world.profile.led:
            self._leads(int(record.leader_session_id.rpartition("-")[2]))
        if record.requested_by == FENCING:
            self._sealed(record)
        elif not at:
            self.lineages.begins(self._world.wish_of(record.leader_session_id))
        if record.verdict is Verdict.DECIDED:
            self._name(at, record.committables)
            self.files.decided(record, self._new_ranges(record))
            self._check_ranges(record)
            self._check_assignment(record)
            if self._world.profile.keyed:
                self.state.decided(record)
            if self._world.profile.topic:
                self.shared.written(self.state.epochs)
            if self._world.profile.shared:
                self.shared.decided(record, self.state.epochs)
            standing = Standing(ends=dict(self._ends), assignment=self._assignment)
            self.lineages.decided(at, standing)

    def _sealed(self, record: CheckpointRecord) -> None:
        resumed = record.restored_from
        if resumed is not None and self._world.store_without_faults().read(resumed) is None:
            self._world.faults["what a start goes back to is retired before its seal"] += 1
            return  # it finds that out, and later starts do not return there
        wish = self._world.wish_of(record.leader_session_id)
        standing = self.lineages.sealed(resumed, wish)
        if standing is not None:
            assert record.restored_from is not None
            self._world.note(f"it goes back to place {record.restored_from}")
            self._ends, self._assignment = dict(standing.ends), standing.assignment
            self.files.goes_back(record.restored_from)
            if self._world.profile.keyed:
                self.state.goes_back(record.restored_from)

    def started(self, restored_from: int, attempt_id: int) -> None:
        """A start is over: what it has left is marked, wherever it stands in the way."""
        store = self._world.store_without_faults()
        left = [at for at in self.lineages.decisions() if restored_from < at < attempt_id]
        there = [at for at in left if _is_decided(store.read(at))]  # a seal may be in its place
        unmarked = [at for at in there if not store.is_superseded(at)]
        self.require(not unmarked, "a decision that was left is not marked")

    def shares(self, lineage: BatchLineage, restored: Iterable[RegionRecord]) -> None:
        """The newest run begins: which messages of the past its readers take."""
        self.shared.started(lineage, self.state.epochs, restored)

    def _name(self, at: int, entries: Iterable[StateEntry]) -> None:
        for identity in identities_of(entries):
            self._named[identity] = at
            ended = self._ended.get(identity)
            if ended is not None and identity not in self._expired:
                self.require(ended.state not in _ABORTED, "a decision names an aborted one")

    def repaired(
        self, at: int, replaced: Mapping[bytes, StateEntry], old: CheckpointRecord
    ) -> None:
        """A repair stands: its transactions are instead of lost ones."""
        self._world.note(f"a repair of place {at}: {len(replaced)} transactions")
        earlier = {entry.payload: entry for entry in old.committables}
        for payload, entry in replaced.items():
            if payload == entry.payload:
                continue  # claimed by a person who accepts it as lost
            if payload in earlier:
                lost = identity_of(earlier[payload])
                self.require(
                    lost in self._ended and self._ended[lost].state in _ABORTED,
                    "a repair replaces what is not lost",
                )
                self._replaced.add(lost)
            self._name(at, [entry])

    def marked(self, at: int, effective: Callable[[], Iterable[StateEntry]]) -> None:
        """Rule `outcome-from-broker`: the mark says that all it names is committed."""
        if at in self._marked:
            return
        self._marked.add(at)
        self.files.marked(at)
        for identity in identities_of(effective()):
            if identity in self.accepted:
                continue
            ended = self._ended.get(identity)
            self.require(
                ended is not None and ended.state in _COMMITTED, "marked before it is committed"
            )
            self.require(identity in self._told, "marked though no record says how it ended")

    def retires(self, record: CheckpointRecord, *, is_marked: bool) -> None:
        """Rules `fence-first` and `retire-after-commit`: seals stay, and what may still have to be
        committed."""
        is_fencing_record = record.requested_by == FENCING or record.checkpoint_id == 0
        self.require(not is_fencing_record, "a seal is deleted")
        is_open = record.verdict is Verdict.DECIDED and not is_marked
        self.require(not is_open, "a decision is deleted that is not committed on record")
        is_needed = self.lineages.is_needed(record.checkpoint_id)
        self.require(not is_needed, "what a run continues from is deleted")

    def _new_ranges(self, record: CheckpointRecord) -> list[SplitRange]:
        return [
            split
            for region in record.regions
            if region.status is RegionStatus.COMPLETED
            for split in region.splits
            if not split.is_empty and split.start_offset == self._ends.get(split.partition, 0)
        ]

    def _check_ranges(self, record: CheckpointRecord) -> None:
        """Rule `restore-by-attempt`: what a decision completes begins where the one before it
        ended."""
        for region in record.regions:
            for split in region.splits:
                due = self._ends.get(split.partition, 0)
                if due not in (split.start_offset, split.end_offset):
                    what = "a decided range does not continue"
                    self.require(False, f"{what}: {split}, decided to {due}")
                if region.status is RegionStatus.SKIPPED:
                    self.require(split.end_offset == due, "a skipped region has moved on")
        for region in record.regions:
            for split in region.splits:
                self._ends[split.partition] = split.end_offset

    def _check_assignment(self, record: CheckpointRecord) -> None:
        """Each decision gives every split to one region, and none takes a split from the job."""
        now, last = record.assignment, self._assignment
        if now is None:
            return
        hand_over(record.regions, now)  # raises unless whole
        self._assignment = now
        if last is None:
            return
        before, after = owners(last), owners(now)
        self.require(before.keys() <= after.keys(), "a split was lost")
        if last.regions.keys() != now.regions.keys():
            self.rescales += 1
            self.require(now.version > last.version, "the assignment's version does not tell")
            return
        status = {region.region: region.status for region in record.regions}
        moved = {key for key, name in before.items() if after[key] != name}
        self.moves += len(moved)
        for key in moved:
            both = {status[before[key]], status[after[key]]}
            self.require(both == {RegionStatus.COMPLETED}, "a skipped region's split moved")
        is_newer = now.version > last.version
        self.require(
            is_newer == (now.regions != last.regions), "the assignment's version does not tell"
        )


def _is_decided(record: CheckpointRecord | None) -> bool:
    return record is not None and record.verdict is Verdict.DECIDED
