"""`sluice checkpoint inspect` of keyed state: tables, files, splits, and rows that people read."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from sluice.runtime.checkpoint.format.metadata import encode
from sluice.runtime.errors import DamagedCheckpointError
from sluice.runtime.job.job_cli import checkpoint_app
from sluice.runtime.keyed.key_encoding import encode as encode_keys
from sluice.runtime.model.checkpoint_record import OperatorNode, RegionRecord
from sluice.runtime.model.state.keyed_state import StateTableInfo
from sluice.runtime.state.codec.expiry import with_expiry
from sluice.runtime.state.codec.row_codec import RowCodec
from sluice.runtime.state.codec.schema_text import schema_to_json
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.files.keyed_files import written_state

_COUNTS, _TIMERS, _MEMORY, _SEEN, _LAST, _ODD = range(6)
_KEY = pa.schema([("account", pa.string())])
_COUNT = pa.schema([("count", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])
_SPLITS = [("orders", "orders", partition) for partition in range(2)]


def _key(text: str) -> bytes:
    found: bytes = encode_keys(pa.array([text]))[0].as_py()
    return found


def _value(count: int) -> bytes:
    row = pa.RecordBatch.from_pylist([{"count": count, "at": 1_700_000_000_000}], schema=_COUNT)
    return RowCodec(_COUNT).encode(row)[0]


def _tables() -> list[StateTableInfo]:
    key, count = schema_to_json(_KEY), schema_to_json(_COUNT)
    return [
        StateTableInfo(
            number=_COUNTS,
            operator_id="counts",
            name="totals",
            kind="aggregate count=Count()",
            key_schema=key,
        ),
        StateTableInfo(number=_TIMERS, operator_id="counts", name="timers", kind="timers"),
        StateTableInfo(number=_MEMORY, operator_id="counts", name="memory", kind="memory"),
        StateTableInfo(number=_SEEN, operator_id="", name="gone", kind="value"),
        StateTableInfo(
            number=_LAST,
            operator_id="last",
            name="last",
            kind="value ttl by processing time",
            key_schema=key,
            value_schema=count,
        ),
        StateTableInfo(number=_ODD, operator_id="last", name="odd", kind="value"),
    ]


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    """Two splits with a base and changes: a key that was overridden, and one that was removed."""
    first, second = _SPLITS
    row = schema_to_json(pa.schema([("amount", pa.int64())]))
    schemas = json.dumps([schema_to_json(_KEY), row, schema_to_json(_COUNT)]).encode()
    state = written_state(
        tmp_path,
        [
            {
                first: [
                    (_COUNTS, None, _key("ada"), _value(1)),
                    (_COUNTS, None, _key("bob"), _value(2)),
                    (_TIMERS, 1_700_000_005_000, _key("ada"), b""),
                    (_MEMORY, None, b"schemas of rows", schemas),
                    (_LAST, None, _key("ada"), with_expiry([_value(7)], 1_700_000_009_000)[0]),
                    (_ODD, None, b"\x01\xff", b"\x00\xfe"),
                ],
                second: [(_COUNTS, None, _key("eve"), _value(9))],
            },
            {
                first: [
                    (_COUNTS, None, _key("ada"), _value(3)),
                    (_COUNTS, None, _key("bob"), None),
                ]
            },
        ],
        tables=_tables(),
        partitions=2,
    )
    made = record(
        7,
        graph=tuple(
            OperatorNode(operator_id=name, name=name, kind=kind, upstream=())
            for name, kind in (("orders", "source"), ("counts", "aggregate"), ("last", "process"))
        ),
        regions=(RegionRecord(region="r0", attempt_id=0, batch_id=2, keyed_state=state),),
    )
    (tmp_path / "_metadata").write_bytes(encode(made))
    return tmp_path


def _inspect(*arguments: str) -> dict[str, Any]:
    shown = CliRunner().invoke(
        checkpoint_app, ["inspect", *arguments, "--json"], catch_exceptions=False
    )
    found: dict[str, Any] = json.loads(shown.output)["regions"][0]["keyed_state"]
    return found


def _rows(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    (rows,) = (table["rows"] for table in found["tables"] if table["name"] == name)
    return list(rows)


def test_tables_files_and_splits_are_shown_without_reading_a_file(savepoint: Path) -> None:
    for file in (savepoint / "state/r0").iterdir():
        file.unlink()
    found = _inspect(str(savepoint))
    assert [(t["operator"], t["name"], t["key"]) for t in found["tables"]][:2] == [
        ("counts", "totals", "account: string"),
        ("counts", "timers", None),
    ]
    assert found["tables"][3]["operator"] == "(dropped)"
    assert [(s["source"], s["partition"], s["parts"], s["has_base"]) for s in found["splits"]] == [
        ("orders", 0, 2, True),
        ("orders", 1, 1, True),
    ]
    assert found["length_bytes"] == sum(file["length_bytes"] for file in found["files"])
    assert sum(split["length_bytes"] for split in found["splits"]) == found["length_bytes"]


def test_rows_are_those_that_a_restore_reads(savepoint: Path) -> None:
    """The latest value of each key, without removed ones, decoded by the schemas."""
    found = _inspect(str(savepoint), "--state")
    at = "2023-11-14 22:13:20+00:00"
    assert _rows(found, "totals") == [
        {"split": "orders-0", "key": {"account": "ada"}, "value": {"count": 3, "at": at}},
        {"split": "orders-1", "key": {"account": "eve"}, "value": {"count": 9, "at": at}},
    ]
    assert _rows(found, "last") == [
        {
            "split": "orders-0",
            "key": {"account": "ada"},
            "value": {"count": 7, "at": at},
            "expires": "2023-11-14T22:13:29.000Z",
        }
    ]


def test_timers_are_decoded_by_the_types_that_their_operator_remembers(savepoint: Path) -> None:
    found = _inspect(str(savepoint), "--state")
    assert _rows(found, "timers") == [
        {"split": "orders-0", "time": "2023-11-14T22:13:25.000Z", "key": {"account": "ada"}}
    ]


def test_bytes_of_no_known_type_are_shown_as_text_or_hex(savepoint: Path) -> None:
    found = _inspect(str(savepoint), "--state")
    assert _rows(found, "odd") == [{"split": "orders-0", "key": "0x01FF", "value": "0x00FE"}]
    assert _rows(found, "memory")[0]["key"] == "schemas of rows"


def test_a_limit_and_an_operator_choose_rows(savepoint: Path) -> None:
    found = _inspect(str(savepoint), "--state", "--limit", "1", "--operator", "counts")
    assert [table["name"] for table in found["tables"]] == ["totals", "timers", "memory"]
    assert [len(table["rows"]) for table in found["tables"]] == [1, 1, 1]
    shown = CliRunner().invoke(checkpoint_app, ["inspect", str(savepoint), "--operator", "orders"])
    assert "Tables of keyed state" not in shown.output


def test_people_read_the_same_in_tables(savepoint: Path) -> None:
    shown = CliRunner().invoke(
        checkpoint_app, ["inspect", str(savepoint), "--state"], catch_exceptions=False
    )
    for text in ("Splits of keyed state", "State totals of counts", '"account": "eve"'):
        assert text in shown.output


def test_a_damaged_file_is_named(savepoint: Path) -> None:
    path = savepoint / "state/r0/0-1-00000001.changes"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(DamagedCheckpointError, match=r"path=state/r0/0-1-00000001.changes"):
        _inspect(str(savepoint), "--state")
