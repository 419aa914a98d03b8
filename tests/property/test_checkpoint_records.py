"""Records in a checkpoint directory: their bytes, damage, publication and retention."""

import contextlib
import copy
import hashlib
import itertools
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.connectors.hdfs.partition_commit.partition_state import decode_state
from sluice.connectors.hdfs.staging.committables import decode_file_set
from sluice.connectors.hdfs.staging.pending_files import decode_pending_files
from sluice.connectors.hdfs.staging.uploaded_files import decode_upload_set
from sluice.connectors.kafka.sink.handles import decode_handle
from sluice.runtime.checkpoint.acceptance import decode_accepted, decode_unsettled
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore, open_store, slot_name
from sluice.runtime.checkpoint.format.container import DIGEST_KEY
from sluice.runtime.checkpoint.format.metadata import decode, decode_repair, encode
from sluice.runtime.checkpoint.lost_work import digest_of
from sluice.runtime.checkpoint.retention import SlotFacts, fencing_records, retirable, unfinished
from sluice.runtime.checkpoint.run_record import LEADER_FILE, RunRecordStore, command_file
from sluice.runtime.contracts import AcceptedAs, AcceptedWork, PublishOutcome
from sluice.runtime.errors import ConfigError, DamagedCheckpointError, StorageError, StreamError
from sluice.runtime.functions.at_most_once import decode_drops
from sluice.runtime.functions.record_counts import decode_totals
from sluice.runtime.model.checkpoint_record import (
    CheckpointRecord,
    StateEntry,
    Verdict,
)
from sluice.runtime.ownership.lease import LeaseRecord
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.coordinator.checkpoint_records import committable, record, records
from tests.kit.effort import examples
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault, SimulatedCrashError
from tests.kit.mutations import json_texts, mutated_bytes, mutated_everywhere, mutated_json
from tests.kit.threads.thread_turns import CallQueue

_PLACE = 5
_PATH = f"{slot_name(_PLACE)}/_metadata"
_orders = st.lists(st.integers(0, 3), max_size=60)
_faults = st.lists(st.sampled_from([Fault.NONE, Fault.NONE, *Fault]), max_size=12)


@dataclass(slots=True)
class _World:
    """The disk, and everything that was ever seen under the name of the record."""

    disk: Disk = field(default_factory=Disk)
    seen: list[bytes] = field(default_factory=list)

    def look(self) -> None:
        """After each step: what a reader would find now is whole, and stays."""
        found = self.disk.files.get(_PATH)
        if found is None:
            assert not self.seen, "a published record has vanished"
        elif found not in self.seen:
            self.seen.append(found)
            assert CheckpointStore(FakeFileSystem(self.disk)).read(_PLACE) is not None


@dataclass(slots=True)
class _Publisher:
    """One session that publishes its decision, and gives up when the answer stays unknown."""

    session: str
    store: CheckpointStore
    answer: PublishOutcome | str = "crashed"
    given_up: PublishOutcome | str | None = None

    @property
    def decision(self) -> CheckpointRecord:
        return record(_PLACE, leader_session_id=self.session)

    @property
    def abort(self) -> CheckpointRecord:
        return record(_PLACE, leader_session_id=self.session, verdict=Verdict.ABORTED)

    def run(self) -> None:
        try:
            for _ in range(2):  # asked again, as its answer says
                self.answer = "crashed"
                self.answer = self._publish(self.decision)
                if self.answer is not PublishOutcome.UNKNOWN:
                    return
            self.given_up = self._publish(self.abort)
        except SimulatedCrashError:
            return

    def _publish(self, wanted: CheckpointRecord) -> PublishOutcome | str:
        try:
            return self.store.publish(wanted, timeout_s=3)
        except StorageError:
            return "not published"


def _store(world: _World, faults: list[Fault], turn: Callable[[], None]) -> CheckpointStore:
    left = iter(faults)
    clock = itertools.count()
    fs = FakeFileSystem(world.disk, fault=lambda _: next(left, Fault.NONE), turn=turn)
    return CheckpointStore(fs, clock=lambda: next(clock), pause=lambda _: turn())


@settings(max_examples=examples(150), deadline=None)
@given(_orders, st.lists(_faults, min_size=2, max_size=3), st.lists(st.integers(0, 40), max_size=3))
@example([], [[Fault.NONE, Fault.LATE, *[Fault.REFUSED] * 9], [Fault.CRASH_BEFORE]], [])
@example([], [[Fault.NONE, Fault.LATE] * 6, [Fault.CRASH_BEFORE]], [])
@example([], [[Fault.NONE, Fault.LATE] * 6, [Fault.CRASH_BEFORE]], [33])  # before it is given up
@example([], [[Fault.NONE, Fault.LATE] * 3, [Fault.CRASH_BEFORE]], [])
def test_a_place_holds_one_record_whole_or_none(
    order: list[int], faults: list[list[Fault]], landings: list[int]
) -> None:
    """Whatever dies, lies or is late: one record for ever, and every answer given was true."""
    world = _World()
    steps = itertools.count()

    def between() -> None:
        if next(steps) in landings:
            world.disk.land_late_steps()
        world.look()

    turns = CallQueue(order, between=between)
    publishers = [
        _Publisher(session=f"s{n}", store=_store(world, mine, turns.wait))
        for n, mine in enumerate(faults)
    ]
    turns.run([publisher.run for publisher in publishers])
    world.disk.land_late_steps()
    world.look()

    assert len(world.seen) <= 1
    standing = CheckpointStore(FakeFileSystem(world.disk)).read(_PLACE)
    for publisher in publishers:
        _require_true(publisher, standing)


def _require_true(publisher: _Publisher, standing: CheckpointRecord | None) -> None:
    """The answers that one publisher was given, against what stands there in the end."""
    is_decided = standing == publisher.decision
    if publisher.answer is PublishOutcome.OURS:
        assert is_decided
    elif publisher.answer is PublishOutcome.TAKEN:
        assert standing is not None
        assert not is_decided
    elif publisher.answer == "not published":
        assert not is_decided
    if publisher.given_up is PublishOutcome.OURS:
        assert standing == publisher.abort
    elif publisher.given_up is PublishOutcome.TAKEN:
        assert standing is not None
        assert standing != publisher.abort
    elif publisher.given_up == "not published":
        assert standing != publisher.abort


@settings(max_examples=examples(150), deadline=None)
@given(_orders, st.lists(_faults, min_size=2, max_size=2))
def test_one_session_repairs_and_the_other_is_reported(
    order: list[int], faults: list[list[Fault]]
) -> None:
    """Rule `two-phase-repair`: two sessions that both found a transaction lost never both write it
    again."""
    world = _World()
    CheckpointStore(FakeFileSystem(world.disk)).publish(record(_PLACE), timeout_s=1)
    lost = committable().payload
    answers: dict[str, PublishOutcome] = {}
    turns = CallQueue(order, between=lambda: None)

    def repairer(session: str, mine: list[Fault]) -> Callable[[], None]:
        store = _store(world, mine, turns.wait)

        def run() -> None:
            replaced = {lost: committable(session.encode())}
            try:
                answers[session] = store.publish_repair(
                    _PLACE, replaced, session=session, timeout_s=3
                )
            except (StorageError, SimulatedCrashError):
                return

        return run

    turns.run([repairer(f"s{n}", mine) for n, mine in enumerate(faults)])
    world.disk.land_late_steps()
    store = CheckpointStore(FakeFileSystem(world.disk))
    (effective,) = store.effective_committables(record(_PLACE))
    assert len(store.repairs(_PLACE)) <= 1
    for session, answer in answers.items():
        if answer is not PublishOutcome.UNKNOWN:
            is_ours = effective == committable(session.encode())
            assert is_ours == (answer is PublishOutcome.OURS)


@settings(max_examples=examples(150), deadline=None)
@given(_orders, st.lists(_faults, min_size=2, max_size=2))
def test_two_phase_repair_lost_work_is_written_again_or_accepted_never_both(
    order: list[int], faults: list[list[Fault]]
) -> None:
    world = _World()
    CheckpointStore(FakeFileSystem(world.disk)).publish(record(_PLACE), timeout_s=1)
    lost = committable()
    word = AcceptedWork(digest=digest_of(lost), accepted_as=AcceptedAs.LOST, region="r0", ranges=())
    said: list[bool] = []
    answers: list[PublishOutcome] = []
    turns = CallQueue(order, between=lambda: None)
    accepting, repairing = (_store(world, mine, turns.wait) for mine in faults)

    def accept() -> None:
        with suppress(StorageError, SimulatedCrashError):
            try:
                accepting.accept(_PLACE, [word])
                said.append(True)
            except ConfigError:
                said.append(False)

    def repair() -> None:
        with suppress(StorageError, SimulatedCrashError):
            answers.append(
                repairing.publish_repair(
                    _PLACE, {lost.payload: committable(b"again")}, session="s", timeout_s=3
                )
            )

    turns.run([accept, repair])
    world.disk.land_late_steps()
    store = CheckpointStore(FakeFileSystem(world.disk))
    (effective,) = store.effective_committables(record(_PLACE))
    is_repaired = effective != lost
    assert not (is_repaired and store.accepted(_PLACE))
    assert said in ([], [not is_repaired])
    for answer in answers:
        if answer is not PublishOutcome.UNKNOWN:
            assert is_repaired == (answer is PublishOutcome.OURS)


_DATA = Path(__file__).parent.parent / "data"
_READERS: dict[str, Callable[[bytes], object]] = {
    "metadata-v1.avro": decode,
    "repair-v1.avro": decode_repair,
}
_CODECS: dict[str, tuple[str, Callable[[StateEntry], object]]] = {
    "kafka-transaction-v1.json": ("kafka-transaction", decode_handle),
    "staged-files-v1.json": ("staged-files", decode_file_set),
    "pending-files-v1.json": ("pending-files", decode_pending_files),
    "open-partitions-v1.json": ("open-partitions", decode_state),
    "uploaded-files-v1.json": ("uploaded-files", decode_upload_set),
    "record-counts-v1.json": ("record-counts", decode_totals),
    "dropped-ranges-v1.json": ("dropped-ranges", decode_drops),
}
_EACH_READER = pytest.mark.parametrize("name", _READERS)
_EACH_CODEC = pytest.mark.parametrize("name", _CODECS)
_VERSION = re.compile(r"-v(\d+)\.json$")


def in_an_entry(name: str, payload: bytes) -> StateEntry:
    found = _VERSION.search(name)
    assert found is not None
    return replace(committable(payload, kind=_CODECS[name][0]), version=int(found[1]))


def resealed(data: bytes) -> bytes:
    """The same with a checksum that fits, if there is still a place for one."""
    mark = DIGEST_KEY.encode() + b"\x80\x01"
    at = data.find(mark) + len(mark)
    if at < len(mark) or len(data) < at + 64:
        return data
    blank = data[:at] + b"0" * 64 + data[at + 64 :]
    return blank[:at] + hashlib.sha256(blank).hexdigest().encode() + blank[at + 64 :]


@_EACH_READER
@given(data=st.binary(max_size=300))
def test_rubbish_is_damage(name: str, data: bytes) -> None:
    for prefix in (b"", b"Obj\x01", (_DATA / name).read_bytes()[:200]):
        with pytest.raises(DamagedCheckpointError):
            _READERS[name](prefix + data)


@_EACH_READER
@given(data=st.data())
def test_changed_bytes_are_damage(name: str, data: st.DataObject) -> None:
    whole = (_DATA / name).read_bytes()
    changed = data.draw(mutated_bytes(whole))
    if changed == whole:
        return
    with pytest.raises(DamagedCheckpointError):
        _READERS[name](changed)


@_EACH_READER
@settings(max_examples=examples(300))
@given(data=st.data())
def test_changed_bytes_with_a_checksum_that_fits_are_a_record_or_an_error_of_ours(
    name: str, data: st.DataObject
) -> None:
    """Schema, codec, lengths and values: whatever Avro's reader makes of them."""
    changed = resealed(data.draw(mutated_bytes((_DATA / name).read_bytes())))
    with contextlib.suppress(StreamError):
        _READERS[name](changed)


@_EACH_CODEC
@given(data=st.data())
def test_a_payload_is_what_its_kind_says_or_an_error_of_ours(
    name: str, data: st.DataObject
) -> None:
    golden = json.loads((_DATA / name).read_bytes())
    payload = data.draw(
        st.one_of(
            st.binary(max_size=40),
            json_texts.map(str.encode),
            mutated_json(golden).map(lambda found: json.dumps(found).encode()),
        )
    )
    _read_or_refused(name, payload)


@_EACH_CODEC
def test_a_payload_with_something_else_in_any_one_place_is_read_or_an_error_of_ours(
    name: str,
) -> None:
    for found in mutated_everywhere(json.loads((_DATA / name).read_bytes())):
        _read_or_refused(name, json.dumps(found).encode())


def _read_or_refused(name: str, payload: bytes) -> None:
    with contextlib.suppress(StreamError):
        value: Any = _CODECS[name][1](in_an_entry(name, payload))
        assert copy.copy(value) == value, "whole, and not something that fails when it is used"


@_EACH_CODEC
def test_the_golden_payload_is_read(name: str) -> None:
    read = _CODECS[name][1]
    assert read(in_an_entry(name, (_DATA / name).read_bytes())) is not None


def test_every_golden_payload_is_tried() -> None:
    """A format that is added is one of those above, or of those that lie beside a decision."""
    stored = {file.name for file in _DATA.glob("*-v*.json")}
    assert stored == {*_CODECS, *_BESIDE}


@pytest.mark.parametrize("place", [-1, 2, True])
def test_a_held_file_of_no_staging_directory_is_damage(place: object) -> None:
    content = json.loads((_DATA / "pending-files-v1.json").read_bytes())
    content["files"][0][1] = place
    with pytest.raises(DamagedCheckpointError):
        decode_pending_files(in_an_entry("pending-files-v1.json", json.dumps(content).encode()))


_FILES = {
    "format_version": 1,
    "address": "http://127.0.0.1:1",
    "token": "t",
    "leader_session_id": "s",
    "job_uid": "u",
}
_SMALL = st.one_of(
    st.binary(max_size=40),
    json_texts.map(str.encode),
    mutated_json(_FILES).map(json.dumps).map(str.encode),
)


@given(data=_SMALL)
@example(data=b"[" * 100_000)
@example(data=b'{"format_version": Infinity}')
@example(data=b'{"format_version": ' + b"9" * 5000 + b"}")
def test_small_files_are_read_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    fs = LocalFileSystem(tmp_path_factory.getbasetemp() / "small-files")
    for name, read in (
        (command_file(0), RunRecordStore(fs).newest_command),
        (LEADER_FILE, RunRecordStore(fs).current),
    ):
        fs.replace(name, data)
        with contextlib.suppress(StreamError):
            read()


@given(data=_SMALL)
@example(data=b"[" * 100_000)
@example(data=b'{"by": Infinity}')
def test_a_mark_is_read_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    """``_committed`` of a decided checkpoint: that it is there says that all is committed."""
    directory = tmp_path_factory.mktemp("mark")
    store = open_store(str(directory))
    store.publish(record(1), timeout_s=60.0)
    (directory / "chk-000000000001" / "_committed").write_bytes(data)
    with contextlib.suppress(StreamError):
        assert store.is_committed(1)


_BESIDE: dict[str, Callable[..., object]] = {
    "unsettled-v1.json": decode_unsettled,
    "accepted-v1.json": decode_accepted,
}


@pytest.mark.parametrize("name", _BESIDE)
@given(data=st.data())
def test_what_lies_beside_a_decision_is_read_or_an_error_of_ours(
    name: str, data: st.DataObject
) -> None:
    golden = json.loads((_DATA / name).read_bytes())
    text = data.draw(mutated_json(golden).map(json.dumps) | json_texts)
    with contextlib.suppress(StreamError):
        _BESIDE[name](text.encode(), 42, where={})
    assert _BESIDE[name](json.dumps(golden).encode(), 42, where={})


@given(text=st.text(max_size=40) | json_texts)
@example(text="[" * 100_000)
@example(text='{"v": 1, "job_uid": 1, "renewals": Infinity}')
def test_what_stands_in_place_of_a_lease_is_nobodys(text: str) -> None:
    LeaseRecord.decode(text)


@st.composite
def _histories(draw: st.DrawFn) -> list[SlotFacts]:
    places: list[SlotFacts] = []
    for checkpoint_id in range(draw(st.integers(0, 30))):
        earlier = st.integers(0, checkpoint_id)
        places.append(
            SlotFacts(
                checkpoint_id=checkpoint_id,
                verdict=draw(st.sampled_from(Verdict)),
                names=draw(st.frozensets(earlier, max_size=2)),
                has_committables=draw(st.booleans()),
                is_committed=draw(st.booleans()),
                is_superseded=draw(st.booleans()),
                is_fencing_record=checkpoint_id == 0 or draw(st.booleans()),
            )
        )
    return places


@given(_histories(), st.integers(1, 4))
def test_retired_is_never_needed_and_retiring_again_changes_nothing(
    places: list[SlotFacts], retain: int
) -> None:
    gone = set(retirable(places, retain=retain))
    left = [place for place in places if place.checkpoint_id not in gone]
    assert not gone & (fencing_records(places) | unfinished(places))
    assert not gone & {each for place in left for each in place.names}
    assert places[-1:] == left[-1:]
    assert fencing_records(left) == fencing_records(places)
    assert retirable(left, retain=retain) == []


@given(st.integers(1, 5), st.integers(1, 300))
def test_living_job_keeps_a_bounded_number(retain: int, checkpoints: int) -> None:
    """One session without failures never holds more than retain + checkpoint 0."""
    places: list[SlotFacts] = []
    for checkpoint_id in range(checkpoints):
        places.append(
            SlotFacts(
                checkpoint_id=checkpoint_id,
                verdict=Verdict.DECIDED,
                names=frozenset(),
                has_committables=True,
                is_committed=True,
                is_fencing_record=checkpoint_id == 0,
            )
        )
        gone = set(retirable(places, retain=retain))
        places = [place for place in places if place.checkpoint_id not in gone]
        assert len(places) <= retain + 1


@given(records)
def test_any_record_comes_back_as_it_was_written(record: CheckpointRecord) -> None:
    """decode(encode(r)) == r, and the same bytes again."""
    data = encode(record)
    found = decode(data)
    assert found == record
    assert encode(found) == data
