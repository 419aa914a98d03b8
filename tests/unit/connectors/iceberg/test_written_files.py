"""The committable of data files: a frozen format."""

import base64
import uuid
from dataclasses import replace
from decimal import Decimal

import pytest

from sluice.connectors.iceberg.iceberg_kinds import DATA_FILES
from sluice.connectors.iceberg.written_files import (
    InvalidDataFilesError,
    WriteAttempt,
    WrittenFile,
    WrittenFiles,
    decode_written_files,
    encode_written_files,
)
from sluice.runtime.errors import DamagedCheckpointError, UnsupportedFormatError
from sluice.runtime.model.splits import BatchKey

_ATTEMPT = WriteAttempt(batch=BatchKey(region="a.b", attempt_id=3, batch_id=7), attempt="0f" * 16)
_WRITTEN = WrittenFiles(
    table="lake.events",
    table_uuid="11111111-2222-3333-4444-555555555555",
    location="s3://lake/events",
    job_uid="job",
    attempt=_ATTEMPT,
    spec_id=2,
    checkpoint_id=8,
    types={1: "long", 2: "decimal(9, 2)", 3: "long"},
    files=(
        WrittenFile(
            path="s3://lake/events/data/day=19000/f.parquet",
            length_bytes=1234,
            rows=10,
            partition=(
                *(19000, "x", None, True, 0.1, b"\x00\xff"),
                *(Decimal("12.30"), uuid.UUID(int=5)),
            ),
            sort_order_id=1,
            split_offsets=(4, 600),
            column_sizes={2: 50, 1: 40},
            value_counts={1: 10, 2: 10},
            null_value_counts={1: 0, 2: 3},
            nan_value_counts={},
            lower_bounds={1: b"\x01\x00\x00\x00"},
            upper_bounds={1: b"\x09\x00\x00\x00"},
        ),
    ),
)
_VERSION_1 = (
    b'{"table":"lake.events","uuid":"11111111-2222-3333-4444-555555555555",'
    b'"location":"s3://lake/events","job":"job","region":"a.b","attempt":3,"batch":7,'
    b'"id":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f","spec":2,"checkpoint":8,'
    b'"types":{"long":[1,3],"decimal(9, 2)":[2]},"files":['
    b'["s3://lake/events/data/day=19000/f.parquet",1234,10,'
    b'[19000,"x",null,true,{"float":"0x1.999999999999ap-4"},{"bytes":"AP8="},'
    b'{"decimal":"12.30"},{"uuid":"00000000-0000-0000-0000-000000000005"}],1,[4,600],'
    b'[[1,40],[2,50]],[[1,10],[2,10]],[[1,0],[2,3]],[],[[1,"AQAAAA=="]],[[1,"CQAAAA=="]]]]}'
)


def test_version_1_is_frozen() -> None:
    entry = encode_written_files(_WRITTEN, operator_id="sink")
    assert (entry.kind, entry.version, entry.payload) == ("iceberg-data-files", 1, _VERSION_1)
    assert decode_written_files(entry) == _WRITTEN


_UPSERTS = replace(
    _WRITTEN,
    files=(WrittenFile(path="s3://lake/f", length_bytes=9, rows=1, run=1),),
    deletes=(WrittenFile(path="s3://lake/d", length_bytes=8, rows=1, run=1),),
    equality_ids=(1, 3),
)
_VERSION_2 = (
    b'{"table":"lake.events","uuid":"11111111-2222-3333-4444-555555555555",'
    b'"location":"s3://lake/events","job":"job","region":"a.b","attempt":3,"batch":7,'
    b'"id":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f","spec":2,"checkpoint":8,'
    b'"types":{"long":[1,3],"decimal(9, 2)":[2]},'
    b'"files":[["s3://lake/f",9,1,[],null,[],[],[],[],[],[],[],1]],'
    b'"deletes":[["s3://lake/d",8,1,[],null,[],[],[],[],[],[],[],1]],"key":[1,3]}'
)


def test_version_2_of_upserts_is_frozen() -> None:
    entry = encode_written_files(_UPSERTS, operator_id="sink")
    assert (entry.version, entry.payload) == (2, _VERSION_2)
    assert decode_written_files(entry) == _UPSERTS
    with pytest.raises(InvalidDataFilesError):
        decode_written_files(replace(entry, payload=entry.payload.replace(b"[1,3]", b"[]")))


def test_people_see_table_rows_and_files() -> None:
    shown = DATA_FILES.describe(encode_written_files(_WRITTEN, operator_id="sink"))
    assert (shown["table"], shown["rows"], shown["length_bytes"]) == ("lake.events", 10, 1234)


@pytest.mark.parametrize(
    "damage",
    [
        (b'"files":[', b'"files":[[],'),
        (b'"spec":2', b'"spec":"2"'),
        (b'{"float":"0x1.999999999999ap-4"}', b'{"odd":"1"}'),
        (b'"job":"job",', b""),
        (b'"long":[1,3]', b'"long":3'),
    ],
)
def test_a_damaged_payload_is_refused(damage: tuple[bytes, bytes]) -> None:
    entry = encode_written_files(_WRITTEN, operator_id="sink")
    with pytest.raises(DamagedCheckpointError):
        decode_written_files(replace(entry, payload=entry.payload.replace(*damage)))


def test_a_newer_version_and_values_out_of_range_are_refused() -> None:
    entry = encode_written_files(_WRITTEN, operator_id="sink")
    with pytest.raises(UnsupportedFormatError):
        decode_written_files(replace(entry, version=3))
    with pytest.raises(InvalidDataFilesError):
        decode_written_files(replace(entry, payload=entry.payload.replace(b",1234,10,", b",0,10,")))


def test_the_name_of_an_attempt_can_be_read_back() -> None:
    assert WriteAttempt.parse(_ATTEMPT.path) == _ATTEMPT
    for name in ("lease", "a.1/7-xyz", "a/7-" + "0f" * 16, ".1/7-" + "0f" * 16):
        assert WriteAttempt.parse(name) is None
    assert base64.b64decode("AP8=") == b"\x00\xff"
