"""Names, handles and their codec."""

import dataclasses
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.kafka.sink.handles import (
    COMMITTABLE_KIND,
    InvalidHandleError,
    OutputCount,
    SourceRange,
    TransactionalId,
    TransactionHandle,
    TransactionIdentity,
    decode_handle,
    encode_handle,
)
from sluice.runtime.errors import ConfigError, DamagedCheckpointError, UnsupportedFormatError
from sluice.runtime.model.checkpoint_record import Redistribution, StateEntry

HANDLE = TransactionHandle(
    transactional_id="orders/5b2f/main.3/a1b2/0",
    producer_id=4_000_000_001,
    producer_epoch=17,
    checkpoint_id=42,
    record_count=5,
    outputs=(OutputCount(topic="out", records=5),),
    sources=(SourceRange(topic="in", partition=1, start_offset=10, end_offset=15),),
)
DATA = Path(__file__).parents[4] / "data"

names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)
handles = st.builds(
    TransactionHandle,
    transactional_id=st.text(min_size=1),
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    checkpoint_id=st.integers(1, 2**62),
    record_count=st.integers(1, 2**62),
    outputs=st.tuples(st.builds(OutputCount, topic=names, records=st.integers(1))),
    sources=st.tuples(
        st.builds(
            SourceRange,
            topic=names,
            partition=st.integers(0),
            start_offset=st.integers(0),
            end_offset=st.integers(0),
        )
    ),
)


@given(handles)
def test_a_handle_survives_storage(handle: TransactionHandle) -> None:
    entry = encode_handle(handle, operator_id="op")

    assert decode_handle(entry) == handle
    assert (entry.kind, entry.version) == (COMMITTABLE_KIND, 1)


def test_version_1_is_written_byte_for_byte() -> None:
    stored = (DATA / "kafka-transaction-v1.json").read_bytes().rstrip(b"\n")

    assert encode_handle(HANDLE, operator_id="op").payload == stored
    assert decode_handle(_entry(stored)) == HANDLE


def _entry(payload: bytes, *, kind: str = COMMITTABLE_KIND, version: int = 1) -> StateEntry:
    return StateEntry(
        operator_id="op",
        state_name="committables",
        kind=kind,
        version=version,
        redistribution=Redistribution.SPLIT,
        payload=payload,
    )


@pytest.mark.parametrize(("kind", "version"), [("hdfs-file", 1), (COMMITTABLE_KIND, 2)])
def test_another_kind_or_a_later_version_is_named(kind: str, version: int) -> None:
    """An unknown committable stops the restore; it is never skipped."""
    with pytest.raises(UnsupportedFormatError) as caught:
        decode_handle(_entry(b"{}", kind=kind, version=version))

    assert caught.value.args[1]["kind"] == kind


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        encode_handle(HANDLE, operator_id="op").payload[:-9],
        encode_handle(HANDLE, operator_id="op").payload.replace(b"17", b'"17"'),
        encode_handle(HANDLE, operator_id="op").payload.replace(b'["in",1,10,15]', b'["in",1]'),
    ],
)
def test_a_damaged_payload_is_a_typed_error(damage: bytes) -> None:
    with pytest.raises(DamagedCheckpointError):
        decode_handle(_entry(damage))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("producer_id", -1),
        ("producer_epoch", -1),
        ("producer_epoch", 2**15),
        ("checkpoint_id", 0),
        ("record_count", 0),
    ],
)
def test_a_handle_out_of_range_cannot_be_made_nor_restored(name: str, value: int) -> None:
    """Rule `outcome-from-broker`: among others, a task that produced nothing has no handle."""
    with pytest.raises(InvalidHandleError):
        dataclasses.replace(HANDLE, **{name: value})  # type: ignore[arg-type]
    content = json.loads(encode_handle(HANDLE, operator_id="op").payload) | {name: value}
    with pytest.raises(InvalidHandleError):
        decode_handle(_entry(json.dumps(content).encode()))


def test_handles_cross_processes() -> None:
    """Tasks return them to the driver by pickle."""
    assert pickle.loads(pickle.dumps(HANDLE)) == HANDLE


@given(
    prefix=st.text(min_size=1).filter(lambda text: not text.endswith("/")),
    uid=names,
    region=names,
    attempt_id=st.integers(0),
    owner=names,
    slot=st.integers(0),
)
def test_ids_never_reused_a_transactional_id_names_its_owner(
    prefix: str, uid: str, region: str, attempt_id: int, owner: str, slot: int
) -> None:
    """Rule `ids-never-reused`: the sweep reads job, region and attempt back from the id
    alone."""
    name = TransactionalId(
        prefix=prefix, job_uid=uid, region=region, attempt_id=attempt_id, owner=owner, slot=slot
    )

    assert TransactionalId.parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "a/b/c",
        "p/u/region/o/0",
        "p/u/r.x/o/0",
        "p/u/r.1/o/x",
        "/u/r.1/o/0",
        "p//r.1/o/0",
    ],
)
def test_ids_never_reused_other_programs_ids_are_not_ours(text: str) -> None:
    """Rule `ids-never-reused`: what does not have the layout is never taken for an orphan."""
    assert TransactionalId.parse(text) is None


@pytest.mark.parametrize("part", ["job_uid", "region", "owner"])
@pytest.mark.parametrize("value", ["", "a/b", "a\0b", "\ud800"])
def test_a_part_that_would_confuse_the_layout_is_refused(part: str, value: str) -> None:
    """A slash inside a part would make another job's id of it, and a null cut the id off there."""
    parts: dict[str, str] = {"job_uid": "u", "region": "r", "owner": "o"} | {part: value}
    with pytest.raises(ConfigError):
        TransactionalId(prefix="p", attempt_id=1, slot=0, **parts)


@given(st.text(), st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1))
def test_a_registered_attempt_names_its_transaction(name: str, producer: int, epoch: int) -> None:
    """Rule `ids-never-reused`: ownership is reported by (id, producer id, epoch), whatever the id
    holds."""
    identity = TransactionIdentity(
        transactional_id=name, producer_id=producer, producer_epoch=epoch
    )

    assert TransactionIdentity.parse(identity.resource) == identity


@pytest.mark.parametrize("wrong", [{"prefix": ""}, {"attempt_id": -1}, {"slot": -1}])
def test_an_id_that_names_nobody_cannot_be_made(wrong: dict[str, object]) -> None:
    """Without a prefix the sweep would take every job's transactions for its own."""
    parts: dict[str, object] = {"prefix": "p", "job_uid": "u", "region": "r", "attempt_id": 0}
    with pytest.raises(ConfigError, match="transactionalIdPrefix"):
        TransactionalId(**(parts | {"owner": "o", "slot": 0} | wrong))  # type: ignore[arg-type]


def test_a_count_of_more_than_a_topic_and_a_partition_is_damage() -> None:
    content = json.loads(encode_handle(HANDLE, operator_id="op").payload)
    content["outputs"] = [["out", 0, 7, 5]]
    with pytest.raises(DamagedCheckpointError):
        decode_handle(_entry(json.dumps(content).encode()))
