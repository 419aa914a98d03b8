"""The bytes of ``_metadata``: whole or refused, and readable for ever."""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
from fastavro.schema import to_parsing_canonical_form

from sluice.runtime.checkpoint.format.container import DIGEST_KEY, VERSION_KEY, ContainerWriter
from sluice.runtime.checkpoint.format.metadata import (
    Repair,
    decode,
    decode_repair,
    encode,
    encode_repair,
    require_known_kinds,
)
from sluice.runtime.checkpoint.format.schema import METADATA_V1, METADATA_VERSION
from sluice.runtime.errors import ConfigError, DamagedCheckpointError, UnsupportedFormatError
from sluice.runtime.model.checkpoint_record import Redistribution, StateEntry
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import StatePart
from tests.kit.coordinator.checkpoint_records import committable, full_record, keyed_state, record

_DATA = Path(__file__).parents[4] / "data"
_KNOWN = {"kafka-transaction": 1, "hdfs-file": 1, "running-count": 3}


def _rewritten(version: int = METADATA_VERSION, **changes: Any) -> bytes:
    """A whole, correctly summed file, whose content a faulty or later writer chose."""
    reader: Any = fastavro.reader(io.BytesIO(encode(full_record())))
    fields: dict[str, Any] = {**next(reader), "format_version": version, **changes}
    return ContainerWriter(METADATA_V1, format_version=version).write(fields)


def test_metadata_of_version_1_is_read() -> None:
    """The golden file decodes to the record it was made of, in every later Sluice."""
    assert decode((_DATA / "metadata-v1.avro").read_bytes()) == full_record()


def test_the_file_of_version_1_was_written_as_its_schema_says() -> None:
    """The schema in the code is the schema in the file."""
    golden = (_DATA / "metadata-v1.avro").read_bytes()
    written: Any = fastavro.reader(io.BytesIO(golden)).writer_schema
    assert to_parsing_canonical_form(written) == to_parsing_canonical_form(METADATA_V1)


def test_format_version_1_is_frozen() -> None:
    """As long as version 1 is written, its bytes do not change: a change needs a new version."""
    assert METADATA_VERSION == 1
    assert encode(full_record()) == (_DATA / "metadata-v1.avro").read_bytes()


def test_a_split_in_two_regions_is_damage() -> None:
    """An assignment that gives a split to two regions would have it read twice."""
    reader: Any = fastavro.reader(io.BytesIO(encode(full_record())))
    assignment = next(reader)["assignment"]
    assignment["regions"][1]["splits"] = assignment["regions"][0]["splits"]
    with pytest.raises(DamagedCheckpointError, match="assignment of splits is not valid"):
        decode(_rewritten(assignment=assignment))


@pytest.mark.parametrize(
    "change",
    [
        {"part_files": [0, 1, 2]},
        {"part_files": [0, 1]},
        {"part_offsets": [0, 0, -1]},
        {"files": []},
    ],
)
def test_parts_that_do_not_fit_their_files_and_splits_are_damage(change: dict[str, Any]) -> None:
    """The record would give some split the state of another one, or none."""
    reader: Any = fastavro.reader(io.BytesIO(encode(full_record())))
    regions = next(reader)["regions"]
    regions[0]["keyed_state"] |= change
    with pytest.raises(DamagedCheckpointError, match="record is damaged"):
        decode(_rewritten(regions=regions))


@pytest.mark.parametrize(
    "change",
    [{"parts": [1, 1]}, {"parts": [4, -1]}, {"parts": [3]}, {"has_base": [True, True, True]}],
)
def test_columns_of_keyed_state_that_do_not_fit_are_damage(change: dict[str, Any]) -> None:
    """Splits, their numbers of parts, and the parts have to fit."""
    reader: Any = fastavro.reader(io.BytesIO(encode(full_record())))
    regions = next(reader)["regions"]
    topics = regions[0]["keyed_state"]["topics"]
    topics[-1 if "has_base" in change else 0] |= change
    with pytest.raises(DamagedCheckpointError, match="record is damaged"):
        decode(_rewritten(regions=regions))


def test_repair_of_version_1_is_read_for_ever() -> None:
    """The golden repair decodes to what it was made of, and is still written so."""
    repair = Repair(
        checkpoint_id=42,
        number=2,
        leader_session_id="second",
        replaced=((b"lost", committable(b"found")),),
    )
    golden = (_DATA / "repair-v1.avro").read_bytes()
    assert decode_repair(golden) == repair
    assert encode_repair(repair) == golden


def test_metadata_is_avro_that_any_tool_reads() -> None:
    """Schema inside, format version first, the two reserved keys in the container."""
    reader: Any = fastavro.reader(io.BytesIO(encode(full_record())))
    fields = next(reader)
    assert next(iter(fields.items())) == ("format_version", METADATA_VERSION)
    assert fields["job_name"] == full_record().job_name
    assert reader.metadata[VERSION_KEY] == "1"
    assert len(reader.metadata[DIGEST_KEY]) == 64


def test_digest_rule_is_the_documented_one() -> None:
    """SHA-256 of the whole file, the digest's own 64 characters taken as zeros."""
    data = encode(record())
    reader: Any = fastavro.reader(io.BytesIO(data))
    said = reader.metadata[DIGEST_KEY].encode()
    assert hashlib.sha256(data.replace(said, b"0" * 64)).hexdigest().encode() == said


def test_a_reason_may_quote_any_text() -> None:
    """A function's error may hold half a surrogate pair, which has no UTF-8; the record of the
    abort is written all the same."""
    given = replace(full_record(), reason="a region failed: \ud800!")
    assert decode(encode(given)) == replace(given, reason="a region failed: ?!")


def test_truncation_at_every_byte_is_damage() -> None:
    """However much of the file a crash leaves, it is never taken for a record."""
    data = encode(full_record())
    for length in range(len(data)):
        with pytest.raises(DamagedCheckpointError):
            decode(data[:length])


@pytest.mark.parametrize("bit", [0, 3, 7])
def test_a_flipped_bit_anywhere_is_damage(bit: int) -> None:
    """Also in the schema, the version and the digest: never a wrong record, never "too new"."""
    data = bytearray(encode(record(settings={"a": "1"})))
    for at in range(len(data)):
        data[at] ^= 1 << bit
        with pytest.raises(DamagedCheckpointError):
            decode(bytes(data))
        data[at] ^= 1 << bit
    assert decode(bytes(data)) == record(settings={"a": "1"})


def test_appended_bytes_are_damage() -> None:
    """Two records in one file, or rubbish after one, are not a record."""
    data = encode(record())
    for tail in (b"\0", data):
        with pytest.raises(DamagedCheckpointError):
            decode(data + tail)


@pytest.mark.parametrize("data", [b"", b"Obj\x01", b"{}", b"\0" * 5000])
def test_other_files_are_damage_and_say_where(data: bytes) -> None:
    with pytest.raises(DamagedCheckpointError, match="path=somewhere"):
        decode(data, where={"path": "somewhere"})


def test_later_version_is_refused_by_number() -> None:
    with pytest.raises(UnsupportedFormatError, match=r"format version 2 .*reads=1"):
        decode(_rewritten(version=2))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kind": "incremental"}, "CheckpointKind 'incremental'"),
        ({"verdict": "maybe"}, "Verdict 'maybe'"),
    ],
)
def test_unknown_enumeration_value_is_refused_by_name(
    changes: Mapping[str, Any], named: str
) -> None:
    """A value that only a later Sluice knows is not taken for one of today's."""
    with pytest.raises(UnsupportedFormatError, match=named):
        decode(_rewritten(**changes))


def test_nonsense_from_a_faulty_writer_is_damage() -> None:
    """A checksum that fits does not make an impossible range possible."""
    reader: Any = fastavro.reader(io.BytesIO(encode(full_record())))
    regions = next(reader)["regions"]
    regions[0]["splits"][0]["end_offset"] = 0
    with pytest.raises(DamagedCheckpointError, match="content is invalid"):
        decode(_rewritten(regions=regions))


def test_a_third_sink_and_an_operator_state_need_no_new_format() -> None:
    """Kinds are data: a connector of tomorrow stores its committables in today's file."""
    cube = StateEntry(
        operator_id="c" * 32,
        state_name="committables",
        kind="iceberg-snapshot",
        version=7,
        redistribution=Redistribution.UNION,
        payload=b"\xff\x00anything",
    )
    window = replace(cube, state_name="window", kind="window-buffer", version=1)
    base = full_record()
    region = replace(
        base.regions[0],
        committables=(*base.regions[0].committables, cube),
        operator_states=(*base.regions[0].operator_states, window),
    )
    changed = replace(base, regions=(region, base.regions[1]))
    assert decode(encode(changed)) == changed
    require_known_kinds(changed, {**_KNOWN, "iceberg-snapshot": 7, "window-buffer": 1})
    with pytest.raises(UnsupportedFormatError, match="'iceberg-snapshot' version 7"):
        require_known_kinds(changed, _KNOWN)
    with pytest.raises(UnsupportedFormatError, match="'window-buffer'"):
        require_known_kinds(changed, {**_KNOWN, "iceberg-snapshot": 9})


def test_later_version_of_a_known_kind_is_refused() -> None:
    require_known_kinds(full_record(), _KNOWN)
    with pytest.raises(UnsupportedFormatError, match="'running-count' version 3"):
        require_known_kinds(full_record(), {**_KNOWN, "running-count": 2})


@pytest.mark.parametrize("path", ["/etc/passwd", "../other/1.zip", "a/../../b", "hdfs://h/x", ""])
def test_paths_inside_a_checkpoint_are_relative(path: str) -> None:
    """A record can be moved with its directory, and names nothing outside of it."""
    with pytest.raises(ConfigError):
        FileReference(path=path, length_bytes=1, sha256="0" * 64)


def test_a_record_that_contradicts_its_own_format_version_is_damage() -> None:
    """Which of the two is true cannot be reported, so neither is taken."""
    reader: Any = fastavro.reader(io.BytesIO(encode(full_record())))
    fields: dict[str, Any] = {**next(reader), "format_version": 2}
    data = ContainerWriter(METADATA_V1, format_version=METADATA_VERSION).write(fields)
    with pytest.raises(DamagedCheckpointError, match="two format versions differ"):
        decode(data)


def test_a_format_version_that_never_was_is_damage() -> None:
    """A whole file says 0: no Sluice has ever written that."""
    with pytest.raises(DamagedCheckpointError, match="exactly one record"):
        decode(_rewritten(version=0))


def test_a_part_of_keyed_state_costs_few_bytes() -> None:
    """A record is written each second: 256 splits with 8 parts each add less than 16 bytes for
    each part."""
    splits = tuple(("a" * 32, "orders", partition) for partition in range(256))
    state = keyed_state(*splits)
    chain = tuple(
        StatePart(file=at % 2, offset=2**24 * at, length=2**20, is_base=at == 0) for at in range(8)
    )
    long = replace(state, splits=tuple(replace(split, parts=chain) for split in state.splits))
    region = full_record().regions[0]
    with_parts, without = (
        len(encode(record(regions=(replace(region, keyed_state=each),))))
        for each in (long, replace(state, splits=()))
    )
    assert with_parts - without < 16 * 8 * 256
