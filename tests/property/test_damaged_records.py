"""What is read back from a checkpoint directory, in any bytes: a value, or an error of ours.

Three kinds of damage: rubbish; a whole file with some bytes changed, which its checksum tells; and
the same with a checksum that fits, as a faulty writer or a stranger would leave it.
"""

import contextlib
import copy
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.connectors.hdfs.partition_commit.partition_state import decode_state
from sluice.connectors.hdfs.staging.committables import decode_file_set
from sluice.connectors.hdfs.staging.pending_files import decode_pending_files
from sluice.connectors.kafka.sink.handles import decode_handle
from sluice.runtime.checkpoint.acceptance import decode_accepted, decode_unsettled
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.checkpoint.format.container import DIGEST_KEY
from sluice.runtime.checkpoint.format.metadata import decode, decode_repair
from sluice.runtime.checkpoint.run_record import LEADER_FILE, RunRecordStore, command_file
from sluice.runtime.errors import DamagedCheckpointError, StreamError
from sluice.runtime.functions.at_most_once import decode_drops
from sluice.runtime.functions.record_counts import decode_totals
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.ownership.lease import LeaseRecord
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.coordinator.checkpoint_records import committable, record
from tests.kit.effort import examples
from tests.kit.mutations import json_texts, mutated_bytes, mutated_everywhere, mutated_json

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
@example(text='{"v": 1, "uid": 1, "uri": 1, "session": 1, "host": 1, "time": Infinity, "n": 1}')
def test_what_stands_in_place_of_a_lease_is_nobodys(text: str) -> None:
    LeaseRecord.decode(text)
