"""Dead letters as other people's programs read them: names and forms are frozen."""

from collections.abc import Mapping

import pyarrow as pa
import pytest

from sluice.connectors.kafka.records.rows import RecordColumns
from sluice.runtime.functions import dead_letters
from sluice.runtime.functions.dead_letters import MOST_MESSAGE_CHARACTERS, Failure, dead_letter_rows
from tests.kit.source.source_rows import FIRST_MS, source_rows

FROZEN = {
    "ERROR_CLASS": "sluice.error.class",
    "ERROR_MESSAGE": "sluice.error.message",
    "SOURCE_TOPIC": "sluice.source.topic",
    "SOURCE_PARTITION": "sluice.source.partition",
    "SOURCE_OFFSET": "sluice.source.offset",
    "SOURCE_TIMESTAMP": "sluice.source.timestamp",
    "JOB": "sluice.job",
    "OPERATOR": "sluice.operator",
}


class OddError(Exception):
    """With an exception in its text."""

    def __str__(self) -> str:
        raise ValueError("no text")


def failure(row: int, error: Exception | None = None) -> Failure:
    return Failure.of(error or ValueError("no number"), row=row, operator="parse")


def headers_of(rows: pa.RecordBatch, row: int) -> list[tuple[str, bytes | None]]:
    return [(entry["key"], entry["value"]) for entry in rows.column("headers")[row].as_py()]


def test_the_names_of_the_headers_are_frozen() -> None:
    found: Mapping[str, object] = vars(dead_letters)
    assert {name: found[name] for name in FROZEN} == FROZEN


def test_a_dead_letter_is_the_source_record_with_headers_after_its_own() -> None:
    """Key and value byte for byte; in the order given."""
    given = source_rows(b"\xff\x00", None, b"c", first_offset=40)
    rows = dead_letter_rows(given, [failure(0), failure(1)], job_name="orders")
    assert rows.column("key").to_pylist() == [b"k0", b"k1"]
    assert rows.column("value").to_pylist() == [b"\xff\x00", None]
    assert headers_of(rows, 1) == [
        ("trace", b"1"),
        ("sluice.error.class", b"ValueError"),
        ("sluice.error.message", b"no number"),
        ("sluice.source.topic", b"orders"),
        ("sluice.source.partition", b"3"),
        ("sluice.source.offset", b"41"),
        ("sluice.source.timestamp", b"%d" % (FIRST_MS + 1)),
        ("sluice.job", b"orders"),
        ("sluice.operator", b"parse"),
    ]


def test_the_sink_takes_dead_letters_as_they_are() -> None:
    """To the topic named, wherever the source's columns point."""
    rows = dead_letter_rows(source_rows(b"a"), [failure(0)], job_name="j")
    columns = RecordColumns.of(rows.schema, "dead")
    assert (columns.partition, columns.timestamp, columns.topic_column) == (None, None, None)
    arguments = columns.arguments(rows)
    assert list(arguments.values) == [b"a"]
    [headers] = arguments.headers
    assert headers is not None
    assert headers[0] == ("trace", b"0")


def test_headers_that_the_source_does_not_read_are_left_out() -> None:
    rows = dead_letter_rows(source_rows(b"a", headers=False), [failure(0)], job_name="j")
    assert next(iter(headers_of(rows, 0)))[0] == "sluice.error.class"


def test_a_record_without_a_timestamp_has_none_in_its_letter() -> None:
    """Kafka says -1; a source may also leave the column out."""
    given = source_rows(b"a")
    at = given.schema.get_field_index("timestamp")
    never = pa.array([-1000], pa.int64()).view(given.schema.field(at).type)
    for batch in (given.set_column(at, "timestamp", never), given.remove_column(at)):
        rows = dead_letter_rows(batch, [failure(0)], job_name="j")
        assert "sluice.source.timestamp" not in dict(headers_of(rows, 0))


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (KeyError("k"), b"KeyError", b"'k'"),
        (ValueError(), b"ValueError", b""),
        (OddError(), b"tests.unit.runtime.functions.test_dead_letters.OddError", b""),
        (ValueError("half \ud800"), b"ValueError", b"half ?"),
        (ValueError("x" * 5000), b"ValueError", b"x" * MOST_MESSAGE_CHARACTERS),
        (pa.ArrowInvalid("a"), b"pyarrow.lib.ArrowInvalid", b"a"),
    ],
    ids=["builtin", "empty", "without text", "surrogate", "long", "module"],
)
def test_any_exception_fits_into_the_headers(error: Exception, name: bytes, message: bytes) -> None:
    """Bounded, and in UTF-8, whatever it says."""
    rows = dead_letter_rows(source_rows(b"a"), [failure(0, error)], job_name="j")
    found = dict(headers_of(rows, 0))
    assert (found["sluice.error.class"], found["sluice.error.message"]) == (name, message)
