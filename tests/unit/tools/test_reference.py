"""The pages of ``docs/reference`` are as the code is, and options and arguments are complete."""

import inspect
import re
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from sluice import KafkaSink, KafkaSource
from sluice.connectors.hdfs.file_drop_in import FileDropIn
from sluice.connectors.hdfs.formats.choice import OPTIONS as FORMAT_OPTIONS
from sluice.connectors.kafka.kafka_sink import _OPTIONS as SINK_OPTIONS
from sluice.connectors.kafka.source.source_options import SOURCE_OPTIONS
from sluice.runtime.errors import StreamError
from tools.reference import REFERENCE, described_arguments, errors_page, pages

OPTIONS = (REFERENCE / "options.md").read_text("utf-8")


def section(heading: str) -> str:
    """The text below a heading, up to the next one of its level or above."""
    level = heading.partition(" ")[0]
    text = OPTIONS.partition(f"\n{heading}\n")[2]
    return re.split(rf"\n#{{1,{len(level)}}} ", text)[0]


def named(text: str, column: int) -> set[str]:
    """Names in code in a column of the tables that people write, without ``kafka.*``."""
    written = re.sub(r"<!-- made from.*?<!-- end -->", "", text, flags=re.DOTALL)
    rows = [row.split("|")[1:-1] for row in written.splitlines() if row.startswith("|")]
    cells = " ".join(row[column] for row in rows if len(row) > column)
    return set(re.findall(r"`([\w.]+=?)[^`]*`", cells))


def given_by_name(text: str) -> set[str]:
    """The arguments ``name=`` in the second column of such tables."""
    return {name.rstrip("=") for name in named(text, 1) if name.endswith("=")}


def arguments_of(function: Callable[..., object]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}


def without_kafka(names: Collection[str]) -> set[str]:
    """The options of Spark's formats, without those of the clients."""
    return {name for name in names if not name.startswith("kafka.")}


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_a_page_is_as_the_code_is(path: Path) -> None:
    """Otherwise run ``python -m tools.reference``."""
    assert path.read_text("utf-8") == pages()[path]


def test_the_page_lists_each_option_of_the_source_and_no_others() -> None:
    assert without_kafka(named(section("## Kafka source"), 0)) == set(SOURCE_OPTIONS)


def test_the_page_lists_each_argument_of_the_source_and_no_others() -> None:
    assert given_by_name(section("## Kafka source")) == arguments_of(KafkaSource)


def test_the_page_lists_each_option_of_the_sink_and_no_others() -> None:
    of_writers = {"batchId", "checkpointLocation"}
    found = without_kafka(named(section("## Kafka sink"), 0)) - of_writers
    assert {name.lower() for name in found} == set(SINK_OPTIONS)


def test_the_page_lists_each_argument_of_the_sink_and_no_others() -> None:
    assert given_by_name(section("## Kafka sink")) == arguments_of(KafkaSink)


def test_the_page_lists_each_option_of_the_file_formats_and_no_others() -> None:
    table = section("### File sink as a drop-in").partition("| format option |")[2]
    listed = [row.split("|") for row in table.splitlines() if row.startswith("| `")]
    for form in FORMAT_OPTIONS:
        found = {
            name
            for cells in listed
            if form in re.findall(r"\w+", cells[2]) or cells[2].strip() == "all"
            for name in re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", cells[1]))
        }
        assert found == set(FORMAT_OPTIONS[form])


def test_the_page_has_the_defaults_of_the_file_formats() -> None:
    for form, codec in {"parquet": "snappy", "avro": "deflate"}.items():
        options = {"path": "/data/rows", "fileFormat": form}
        made = FileDropIn.from_options(options, session_zone="UTC").form
        assert made.codec.name == codec  # type: ignore[attr-defined]


def test_every_error_that_users_meet_is_on_its_page() -> None:
    page = errors_page()
    known = {
        each.__name__
        for each in StreamError.__subclasses__()
        if each.__module__ == StreamError.__module__
    }
    assert len(known) > 20
    assert [name for name in known if f"`{name}`" not in page] == []


def test_arguments_are_read_from_both_forms_of_docstrings() -> None:
    def made(first: int, second: int, third: int) -> None:
        """Do it.

        Args:
            first, second: of two
                lines.
            third: alone.
        Raises:
            ConfigError: never.
        """

    assert described_arguments(made) == {
        "first": "of two lines.",
        "second": "of two lines.",
        "third": "alone.",
    }


def test_every_argument_in_a_table_from_the_code_has_a_meaning() -> None:
    rows = re.findall(r"^\| `\w+` \| .*?\| (.*)\|$", OPTIONS, re.MULTILINE)
    assert rows
    assert [row for row in rows if not row.strip()] == []
