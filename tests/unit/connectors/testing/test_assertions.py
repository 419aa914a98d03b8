"""`assert_exactly_once` over lists and files: each fault by its name and place, and no other."""

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.testing.assertions import assert_exactly_once
from sluice.connectors.testing.verdict import NotExactlyOnceError, Verdict
from sluice.runtime.checker import Record
from sluice.runtime.errors import ConfigError, StorageError

GIVEN = [(f"k{number}", f"v{number}") for number in range(6)]


def faults(input: object, output: object, **options: Any) -> Verdict:  # noqa: A002 - as there
    with pytest.raises(NotExactlyOnceError) as caught:
        assert_exactly_once(input, output, **options)
    return caught.value.verdict


def shout(record: Record) -> tuple[bytes | None, bytes]:
    return record.key, (record.value or b"").upper()


def test_a_right_pipeline_passes() -> None:
    output = [(key, value.upper()) for key, value in GIVEN]
    verdict = assert_exactly_once(GIVEN, output, expected=shout)
    assert (verdict.expected, verdict.found, verdict.faults) == (6, 6, ())
    assert str(verdict) == "exactly once (expected 6, found 6)"


def swapped(values: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [*values[:2], values[3], values[2], *values[4:]]


@pytest.mark.parametrize(
    ("pipeline", "kind", "place"),
    [
        (lambda v: [*v[:2], *v[3:]], "lost", "input-0@2 key='k2' value='v2'"),
        (lambda v: [*v[:3], *v[2:]], "duplicated", "output-0@3 key='k2' value='v2'"),
        (lambda v: [*v[:2], ("x", "y"), *v[2:]], "unexpected", "output-0@2 key='x' value='y'"),
        (swapped, "reordered", "output-0@2 key='k3' value='v3'"),
        (
            lambda v: [*v[:2], ("k2", "?"), *v[3:]],
            "corrupted",
            "output-0@2 key='k2' value='?' of input-0@2",
        ),
    ],
    ids=["lost", "duplicated", "unexpected", "reordered", "corrupted"],
)
def test_each_fault_is_named_alone_with_its_place(
    pipeline: Callable[[list[tuple[str, str]]], list[tuple[str, str]]], kind: str, place: str
) -> None:
    verdict = faults(GIVEN, pipeline(GIVEN), name_by="key")
    (fault,) = verdict.faults
    assert (fault.kind, fault.count, fault.places) == (kind, 1, (place,))
    assert place in str(verdict)


def test_the_text_names_the_first_places_and_the_number_of_all() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_exactly_once(GIVEN, GIVEN[5:])
    assert str(caught.value).splitlines() == [
        "output is not exactly once: lost 5 (expected 6, found 1)",
        "lost 5: expected, and not in the output",
        "  input-0@0 key='k0' value='v0'",
        "  input-0@1 key='k1' value='v1'",
        "  input-0@2 key='k2' value='v2'",
        "  and 2 more",
        "  Commit the position in the input in the transaction of the output, or after it. "
        "Compare after the pipeline has written everything.",
    ]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # from a process


def test_long_and_binary_contents_are_shortened() -> None:
    (fault,) = faults([b"a"], [b"a", b"\xff" * 100, "ä" * 100]).faults
    assert fault.places == (
        "output-0@1 key=None value=b'" + r"\xff" * 14 + r"\x…",
        "output-0@2 key=None value='" + "ä" * 59 + "…",
    )


def test_order_counts_unless_it_is_waived() -> None:
    assert faults(GIVEN, swapped(GIVEN)).kinds == {"reordered"}
    assert_exactly_once(GIVEN, swapped(GIVEN), order=False)


def test_headers_count_unless_they_are_waived() -> None:
    given = [Record("", 0, 0, b"k", b"v", (("trace", b"1"),))]
    assert_exactly_once(given, given)
    assert faults(given, [("k", "v")]).kinds == {"lost", "unexpected"}
    assert_exactly_once(given, [("k", "v")], ignore_headers=True)


def test_the_partition_counts_if_it_is_asked_for() -> None:
    given = [Record("", 1, 0, b"k", b"v")]
    assert_exactly_once(given, [("k", "v")])
    assert faults(given, [("k", "v")], ignore_partition=False).kinds == {"lost", "unexpected"}


@pytest.mark.parametrize(
    "result",
    [
        lambda r: r._replace(value=b"V"),
        lambda _: "V",
        lambda _: b"V",
        lambda r: [(r.key, "V")],
        lambda r: iter((r.key, "V") for _ in range(1)),
    ],
    ids=["record", "text", "bytes", "pairs", "generator"],
)
def test_a_function_returns_records_or_values(result: Callable[[Record], object]) -> None:
    assert_exactly_once([("k", "v")], [("k", "V")], expected=result)


def test_a_function_may_return_several_records_or_none() -> None:
    def words(record: Record) -> list[bytes] | None:
        return (record.value or b"").split() or None

    assert_exactly_once(["a b", "", "c"], ["a", "b", "c"], expected=words)

    def two(record: Record) -> tuple[Record, Record]:
        return record._replace(value=b"a"), record._replace(value=b"b")

    assert_exactly_once(["x"], ["a", "b"], expected=two)


def test_a_list_of_expected_records_replaces_the_input() -> None:
    assert_exactly_once(None, ["a", "b"], expected=["a", "b"])
    (fault,) = faults(None, ["a"], expected=["a", "b"]).faults
    assert (fault.kind, fault.places) == ("lost", ("expected-0@1 key=None value='b'",))


def test_where_nothing_was_compared_the_assertion_fails() -> None:
    """A wrong name, or a pipeline that never ran, must not look like exactly once."""
    for expected in (None, [], lambda _: None):
        with pytest.raises(ConfigError, match="nothing to compare"):
            assert_exactly_once([], [], expected=expected)
    with pytest.raises(ConfigError, match="returned no record for 1 input"):
        assert_exactly_once(["a"], [], expected=lambda _: None)
    with pytest.raises(ConfigError, match="nothing to compare"):
        assert_exactly_once(None, [], expected={}, last_per_key=True)


def test_what_the_function_raises_is_an_error_with_the_record() -> None:
    with pytest.raises(ConfigError, match=r"raised an exception .*input-0@1") as caught:
        assert_exactly_once(
            [b"1", b"x"], [], expected=lambda record: int(record.value or 0) and "a"
        )
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(ConfigError, match="write text or bytes"):
        assert_exactly_once(["a"], [], expected=lambda _: 3)


def test_a_hint_says_that_the_function_may_be_wrong() -> None:
    verdict = faults(["a"], ["b"])
    assert any("no found record was expected" in note for note in verdict.notes)


@pytest.mark.parametrize(
    ("input", "options", "remedy"),
    [
        ("orders", {}, "Pass bootstrap="),
        (3, {}, "Pass a topic's name"),
        (["a"], {"name_by": "value"}, "Write key, header:NAME"),
        ([3], {}, "input-0@0 reason=a key or value of type int"),
        (["a"], {"last_per_key": True}, "last_per_key=True"),
        (["a"], {"expected": {"a": "b"}}, "last_per_key=True"),
    ],
)
def test_wrong_arguments_are_errors_that_say_what_to_write(
    input: object,  # noqa: A002 - as there
    options: dict[str, Any],
    remedy: str,
) -> None:
    with pytest.raises(ConfigError, match=remedy):
        assert_exactly_once(input, ["a"], **options)


class TestLastPerKey:
    """Aggregations update their results: only the last record of a key counts."""

    def test_the_last_records_are_compared(self) -> None:
        output = [("a", "1"), ("b", "1"), ("a", "2"), ("c", None)]
        expected = {"a": "2", b"b": b"1", "c": None, "d": None}
        verdict = assert_exactly_once(None, output, expected=expected, last_per_key=True)
        assert (verdict.expected, verdict.found) == (4, 4)

    @pytest.mark.parametrize(
        ("output", "kind", "place"),
        [
            ([("a", "2")], "lost", "key='b' value='1'"),
            (
                [("a", "2"), ("b", "1"), ("a", "3")],
                "corrupted",
                "output-0@2 key='a' value='3' expected key='a' value='2'",
            ),
            ([("a", "2"), ("b", "1"), ("c", "1")], "unexpected", "output-0@2 key='c' value='1'"),
        ],
        ids=["lost", "corrupted", "unexpected"],
    )
    def test_each_fault_is_named_alone(
        self, output: Sequence[tuple[str, str]], kind: str, place: str
    ) -> None:
        verdict = faults(None, output, expected={"a": "2", "b": "1"}, last_per_key=True)
        (fault,) = verdict.faults
        assert (fault.kind, fault.count, fault.places) == (kind, 1, (place,))

    def test_files_have_no_last_record(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no last record"):
            assert_exactly_once(None, tmp_path, expected={"a": "2"}, last_per_key=True)


class TestFiles:
    """Outputs of file sinks."""

    def test_rows_of_parquet_and_json_are_compared_as_dicts(self, tmp_path: Path) -> None:
        rows = [{"id": 1, "cents": 5}, {"id": 2, "cents": 6}]
        (tmp_path / "day=1").mkdir()
        pq.write_table(pa.Table.from_pylist(rows[:1]), tmp_path / "day=1" / "a.parquet")
        (tmp_path / "day=1" / "b.json").write_text(json.dumps(rows[1]) + "\n", "utf-8")
        (tmp_path / "_SUCCESS").write_text("", "utf-8")
        given = [json.dumps(row) for row in rows]

        def parsed(record: Record) -> dict[str, object]:
            return {**json.loads(record.value or b""), "day": "1"}

        for output in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
            assert_exactly_once(given, output, expected=parsed)
        verdict = faults([*given, '{"id": 3}'], tmp_path, expected=parsed)
        (fault,) = verdict.faults
        assert (fault.kind, fault.places) == ("lost", ("""input-0@2 key=None value='{"id": 3}'""",))

    def test_the_place_of_a_row_is_its_file(self, tmp_path: Path) -> None:
        file = tmp_path / "a.json"
        file.write_text('{"value": "a"}\n{"value": "b"}\n', "utf-8")
        (fault,) = faults(["a"], tmp_path).faults
        assert fault.places == (f"{file}-0@1 key=None value='b'",)

    def test_a_damaged_file_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text('{"value": "a"', "utf-8")
        with pytest.raises(StorageError):
            assert_exactly_once(["a"], tmp_path)
