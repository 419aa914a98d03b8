"""``sluice verify`` over files: verdicts, exit codes, options, and errors that say what to do."""

import json
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from sluice.connectors.kafka.tools.verify.verification import name_function, transactions_of
from sluice.connectors.kafka.tools.verify.verify_cli import verify_command
from sluice.runtime.checker import Identity, Record
from sluice.runtime.checker.records.user_mapping import load_mapping
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.errors import ConfigError, StorageError
from sluice.runtime.model.checkpoint_record import OperatorNode, RegionRecord
from tests.kit.coordinator.checkpoint_records import record

app = typer.Typer()
app.command()(verify_command)


def written(directory: Path, values: Sequence[str]) -> str:
    directory.mkdir()
    lines = (json.dumps({"value": value}) for value in values)
    (directory / "part.json").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return str(directory)


def run(tmp_path: Path, given: Sequence[str], found: Sequence[str], *options: str) -> Result:
    source, output = written(tmp_path / "in", given), written(tmp_path / "out", found)
    return CliRunner().invoke(app, ["--input", source, "--output", output, *options])


def facts(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_whole_copy_is_exactly_once(tmp_path: Path) -> None:
    result = run(tmp_path, ["a", "b"], ["a", "b"])
    assert result.exit_code == 0, result.output
    assert "exactly once" in result.stdout
    assert "NOT" not in result.stdout


@pytest.mark.parametrize(
    ("found", "fault", "place"),
    [
        (["a", "c"], "lost", "in/part.json-0@1"),
        (["a", "b", "b", "c"], "duplicated", "out/part.json-0@2"),
        (["a", "b", "x", "c"], "unexpected", "out/part.json-0@2"),
        (["a", "c", "b"], "reordered", "out/part.json-0@1"),
    ],
)
def test_each_fault_has_its_place_and_its_exit_code(
    tmp_path: Path, found: Sequence[str], fault: str, place: str
) -> None:
    findings = tmp_path / "findings"
    result = run(tmp_path, ["a", "b", "c"], found, "--json", "--findings", str(findings))
    assert result.exit_code == 3
    verdict = facts(result)
    assert not verdict["exactly_once"]
    kinds = ("lost", "duplicated", "unexpected", "reordered", "corrupted", "torn")
    assert {kind: verdict[kind] for kind in kinds} == {**dict.fromkeys(kinds, 0), fault: 1}
    (line,) = map(json.loads, findings.read_text("utf-8").splitlines())
    assert line["kind"] == fault
    assert f"{line['topic']}-{line['partition']}@{line['offset']}".endswith(place)
    assert verdict["examples"][fault][0].endswith(place)


def test_a_corrupted_record_is_reported_apart_by_its_name(tmp_path: Path) -> None:
    given = ['{"id": 1, "cents": 5}', '{"id": 2, "cents": 6}']
    found = [given[0], '{"id": 2, "cents": 7}']
    result = run(tmp_path, given, found, "--json", "--name-by", "json:id")
    verdict = facts(result)
    assert (verdict["corrupted"], verdict["lost"], verdict["unexpected"]) == (1, 0, 0)
    assert result.exit_code == 3


def test_a_mapping_says_what_a_record_must_become(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record, several, or none; a module beside the user is found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_mapping.py").write_text(
        "def spread(record):\n"
        "    if record.value == b'drop':\n"
        "        return None\n"
        "    if record.value == b'two':\n"
        "        return [record, record._replace(value=b'2')]\n"
        "    return record._replace(value=record.value + b'!')\n",
        "utf-8",
    )
    result = run(tmp_path, ["a", "drop", "two"], ["a!", "two", "2"], "--map", "my_mapping:spread")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("name", ["no_such_module:f", "json:no_such_function", "json", ":", ".x:f"])
def test_a_mapping_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="MODULE:FUNCTION"):
        load_mapping(name)


def own_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> str:
    """The name of a function ``f`` in a module with this code; one module for each test."""
    module = re.sub(r"\W", "_", f"mapping_{tmp_path.name}")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{module}.py").write_text(f"import numpy as np\n\n{code}\n", "utf-8")
    return f"{module}:f"


@pytest.mark.parametrize(
    "changed",
    [
        "headers=[['h', b'1']]",
        "headers=(('h', bytearray(b'1')),)",
        "headers=((Text('h'), b'1'),)",
        "topic=Text('t')",
        "partition=np.int64(0)",
        "timestamp_ms=np.int64(5)",
        "key=bytearray(b'k')",
        "value=memoryview(b'v')",
    ],
)
def test_what_a_mapping_gives_is_compared_by_content_and_not_by_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    record = Record("t", 0, 3, b"k", b"v", (("h", b"1"),), 5)
    text = "class Text(str):\n    def __str__(self):\n        return 'as enum.Enum does'"
    code = f"{text}\n\ndef f(record):\n    return record._replace({changed})"
    (wanted,) = load_mapping(own_mapping(tmp_path, monkeypatch, code))(record)
    identity = Identity(timestamp=True)
    assert wanted == record
    assert identity.fingerprint(wanted) == identity.fingerprint(record)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ("record._replace(key='k')", "the key is of type str"),
        ("record._replace(value={'a': 1})", "the value is of type dict"),
        ("record._replace(headers=(('h', 'x'),))", "a header's value is of type str"),
        ("record._replace(headers=((b'h', b'x'),))", "a header's name is of type bytes"),
        ("record._replace(headers=(('h', b'x', 1),))", "unpack"),
        ("record._replace(partition='0')", "integer"),
        ("5", "a result of type int"),
        ("('t', 0, 0, b'k', b'v')", "a result of type str"),
    ],
)
def test_what_a_mapping_must_not_give_is_refused_with_what_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: str, reason: str
) -> None:
    name = own_mapping(tmp_path, monkeypatch, f"def f(record):\n    return {result}")
    with pytest.raises(ConfigError, match=reason) as caught:
        list(load_mapping(name)(Record("orders", 2, 7, b"k", b"v")))
    assert "input=orders-2@7" in str(caught.value)
    assert "Return a Record" in str(caught.value)


@pytest.mark.parametrize(
    "code",
    [
        "def f(record):\n    raise ValueError('bad record')",
        "def f(record):\n    yield record\n    raise ValueError('bad record')",
    ],
    ids=["function", "generator"],
)
def test_a_mapping_that_raises_is_reported_with_the_record_and_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    name = own_mapping(tmp_path, monkeypatch, code)
    with pytest.raises(ConfigError, match="the mapping function raised") as caught:
        load_mapping(name)(Record("orders", 2, 7, b"k", b"v"))
    for fact in (f"map={name}", "input=orders-2@7", "reason=ValueError: bad record"):
        assert fact in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)


def test_ctrl_c_within_a_mapping_is_no_error_of_the_mapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def f(record):\n    raise KeyboardInterrupt"
    with pytest.raises(KeyboardInterrupt):
        load_mapping(own_mapping(tmp_path, monkeypatch, code))(Record("t", 0, 0, b"k", b"v"))


_EXITS = ["import sys\n\nsys.exit({})", "def f(record):\n    raise SystemExit({})"]


@pytest.mark.parametrize("code", [*_EXITS, "def f(record):\n    yield record\n    exit({})"])
@pytest.mark.parametrize("status", ["0", "", "'bye'"])
def test_a_mapping_that_exits_gives_no_verdict_and_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, status: str
) -> None:
    """Exit code 0 would be "exactly once"; as where a module has no ``__main__`` guard."""
    name = own_mapping(tmp_path, monkeypatch, code.format(status))
    result = run(tmp_path, ["a"], [], "--map", name)
    assert result.exit_code == 1
    assert isinstance(result.exception, ConfigError)
    for fact in (f"map={name}", f"reason=SystemExit: {status.strip(chr(39))}"):
        assert fact in str(result.exception)


@pytest.fixture
def _handler_of_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


_TERMINATED = "signal.raise_signal(signal.SIGTERM)"


@pytest.mark.usefixtures("_handler_of_before")
@pytest.mark.parametrize(
    "code",
    [_TERMINATED, f"def f(record):\n    {_TERMINATED}", f"def f(record):\n    yield {_TERMINATED}"],
    ids=["import", "function", "generator"],
)
def test_sigterm_within_a_mapping_is_no_error_of_the_mapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    name = own_mapping(tmp_path, monkeypatch, f"import signal\n\n{code}")
    assert run(tmp_path, ["a"], ["a"], "--map", name).exit_code == 143


def test_a_mapping_without_a_colon_is_refused_before_its_module_is_loaded() -> None:
    with pytest.raises(ConfigError, match="it has no ':'"):
        load_mapping("no_such_module")


@pytest.mark.parametrize("code", ["def f(:", "f = 5", "f = 1 +", "f = absent"])
def test_a_mapping_that_cannot_be_called_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    with pytest.raises(ConfigError, match="MODULE:FUNCTION"):
        load_mapping(own_mapping(tmp_path, monkeypatch, code))


def test_a_record_is_named_by_key_header_or_field() -> None:
    record = Record("t", 0, 0, b"k", b'{"id": "x", "none": null}', (("h", b"1"),))
    named = {said: name_function(said) for said in ("key", "header:h", "header:x")}
    named |= {said: name_function(said) for said in ("json:id", "json:none", "json:absent")}
    names = {said: function(record) for said, function in named.items() if function}
    assert names == {
        "key": b"k",
        "header:h": b"1",
        "header:x": None,
        "json:id": b'"x"',
        "json:none": None,
        "json:absent": None,
    }
    json_name = name_function("json:id")
    assert json_name is not None
    assert json_name(record._replace(value=b"\xff")) is None
    assert name_function(None) is None
    for wrong in ("", "header:", "value"):
        with pytest.raises(ConfigError, match="header:NAME"):
            name_function(wrong)


def test_help_names_every_exit_code_and_every_way_to_name_records() -> None:
    told = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "500"}).stdout
    for word in ("130 Ctrl-C, 143 SIGTERM", "header:NAME, json:FIELD, or origin"):
        assert word in told


def test_a_topic_without_servers_is_refused_with_what_to_give(tmp_path: Path) -> None:
    output = written(tmp_path / "out", [])
    result = CliRunner().invoke(app, ["--input", "orders", "--output", output])
    assert isinstance(result.exception, ConfigError)
    assert "--bootstrap-servers" in str(result.exception)


@pytest.mark.parametrize("side", ["--input", "--output"])
def test_timestamps_of_files_are_refused_because_there_are_none(tmp_path: Path, side: str) -> None:
    places = {"--input": "orders", "--output": "orders", side: written(tmp_path / "data", ["a"])}
    options = [word for place in places.items() for word in place]
    servers = ["--bootstrap-servers", "127.0.0.1:1"]
    result = CliRunner().invoke(app, [*options, *servers, "--timestamps"])
    assert isinstance(result.exception, ConfigError)
    assert "--timestamps" in str(result.exception)


def test_a_file_of_options_that_is_no_text_is_named(tmp_path: Path) -> None:
    options = tmp_path / "options"
    options.write_bytes(b"kafka.bootstrap.servers=\xff")
    result = run(tmp_path, ["a"], ["a"], "--config-file", str(options))
    assert isinstance(result.exception, ConfigError)
    assert str(options) in str(result.exception)


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    result = run(tmp_path, [], [], "--scratch", str(absent))
    assert isinstance(result.exception, StorageError)
    assert "--scratch" in str(result.exception)
    places = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*places, "--findings", str(absent / "f")])
    assert isinstance(result.exception, StorageError)
    assert "findings" in str(result.exception)


def rows_by_day(directory: Path, rows: Sequence[tuple[str, str]]) -> str:
    for day, line in rows:
        (directory / f"day={day}").mkdir(parents=True, exist_ok=True)
        with (directory / f"day={day}" / "part.json").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    return str(directory)


def compare(tmp_path: Path, given: Any, found: Any, *options: str) -> Result:
    places = ("--input", rows_by_day(tmp_path / "in", given))
    places += ("--output", rows_by_day(tmp_path / "out", found))
    return CliRunner().invoke(app, [*places, *options])


def test_a_decimal_with_another_last_digit_is_not_the_one_expected(tmp_path: Path) -> None:
    given = [("1", '{"amount":12345678901234567.89}')]
    found = [("1", '{"amount":12345678901234567.11}')]
    result = compare(tmp_path, given, found, "--json")
    assert result.exit_code == 3
    assert (facts(result)["lost"], facts(result)["unexpected"]) == (1, 1)


def test_a_null_that_the_writer_left_out_is_no_fault(tmp_path: Path) -> None:
    given = [("1", '{"id":1,"note":null}')]
    assert compare(tmp_path, given, [("1", '{"id":1}')]).exit_code == 0
    assert compare(tmp_path / "lost", given, [("1", "{}")]).exit_code == 3


def test_directories_of_whole_records_are_said_not_to_be_compared(tmp_path: Path) -> None:
    """A record has no such column; its name is reported, whatever the verdict is."""
    given = [("1", '{"value":"a"}'), ("2", '{"value":"b","id":1}')]
    moved = [("1", '{"value":"a"}'), ("1", '{"value":"b"}')]
    result = compare(tmp_path, given, moved)
    assert result.exit_code == 0
    assert "not compared: the columns day, id" in result.stdout
    result = compare(tmp_path / "json", given, moved, "--json")
    assert facts(result)["not_compared"] == ["day", "id"]


def test_where_nothing_was_expected_it_says_so(tmp_path: Path) -> None:
    result = run(tmp_path, [], ["a"])
    assert result.exit_code == 3
    assert "nothing was expected: is this the input" in result.stdout


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["table", "json"])
def test_two_empty_sides_are_an_error_that_names_both(
    tmp_path: Path, options: Sequence[str]
) -> None:
    """A wrong path, or a job that never ran, must not pass for exactly once."""
    result = run(tmp_path, [], [], *options)
    assert isinstance(result.exception, ConfigError)
    assert result.exit_code == 1
    assert result.stdout == ""
    for name in (f"input={tmp_path / 'in'}", f"output={tmp_path / 'out'}", "records_read=0"):
        assert name in str(result.exception)


def test_where_no_record_fits_it_asks_for_the_mapping(tmp_path: Path) -> None:
    """It looks like a catastrophe, and is most often that."""
    result = run(tmp_path, ["a", "b"], ["a!", "b!"])
    assert result.exit_code == 3
    assert "is --map missing" in result.stdout


def test_a_mapping_that_leaves_out_every_record_is_not_exactly_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "no_return.py").write_text("def f(record):\n    pass\n", "utf-8")
    result = run(tmp_path, ["a", "b"], [], "--map", "no_return:f")
    assert isinstance(result.exception, ConfigError)
    assert "the mapping returned no record for 2 input records" in str(result.exception)
    assert "--map" in str(result.exception)


def test_a_mapping_that_gave_no_record_is_reported_beside_an_output_that_holds_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = own_mapping(tmp_path, monkeypatch, "def f(record):\n    pass")
    result = run(tmp_path, ["a", "b"], ["a"], "--map", name)
    assert result.exit_code == 3
    assert "the mapping returned no record for 2 input records" in result.stdout
    assert "is this the input" not in result.stdout


def decided(directory: Path, *kinds: str) -> None:
    """A checkpoint of a graph of such operators, which names no transaction."""
    graph = tuple(
        OperatorNode(operator_id=kind, name=kind, kind=kind, upstream=()) for kind in kinds
    )
    nothing = RegionRecord(region="r", attempt_id=0, batch_id=0)
    made = record(0, graph=graph, regions=(nothing,))
    open_store(str(directory)).publish(made, timeout_s=60)


@pytest.mark.parametrize("below", [".", "sluice"])
def test_a_drop_in_querys_checkpoints_are_said_to_tell_no_ranges(
    tmp_path: Path, below: str
) -> None:
    decided(tmp_path / "sluice", "sink")
    with pytest.raises(ConfigError, match="checkpoints of a drop-in query") as caught:
        transactions_of(str(tmp_path / below), "orders", "out")
    assert "Leave out --checkpoint" in str(caught.value)


def test_another_jobs_checkpoints_are_said_to_be_another_jobs(tmp_path: Path) -> None:
    decided(tmp_path, "source", "sink")
    with pytest.raises(ConfigError, match="of the job that wrote the output"):
        transactions_of(str(tmp_path), "orders", "out")


def test_headers_of_another_form_are_no_error_where_they_are_ignored(tmp_path: Path) -> None:
    row = [("1", '{"value":"a","headers":{"a":"1"}}')]
    result = compare(tmp_path, row, row, "--json", "--ignore-headers")
    assert result.exit_code == 0, result.output
    result = compare(tmp_path / "compared", row, row, "--json")
    assert isinstance(result.exception, ConfigError)
