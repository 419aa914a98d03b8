"""What the documents say of names and defaults is what the code has: tests, settings, options,
commands, fields."""

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import typer

from sluice import HdfsSink, KafkaSink, KafkaSource, PartitionCommit, Roll
from sluice.connectors.kafka.records.serde.avro_records import AvroDeserializer
from sluice.connectors.kafka.records.serde.json_records import JsonDeserializer
from sluice.runtime.cli import ENTRY_POINT_GROUP, build_app
from sluice.runtime.coordinator.core.core import CheckpointStatus, JobStatus, RegionStatusView
from sluice.runtime.coordinator.policy.balance import LoadBalancer
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.failover.restart_strategies import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
)
from sluice.runtime.job.job import Job
from sluice.runtime.model.on_error import DeadLetters, Skip
from sluice.runtime.model.rate_limit import PidRateLimit
from tests.mutants.patches import load_all

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# What was true when it was written stays in the list of changes.
PAGES = sorted({*ROOT.glob("*.md"), *DOCS.rglob("*.md")} - {ROOT / "CHANGELOG.md"})

_TREES = r"(?:benchmarks|connectors|docker|examples|runtime|tests)"
_PATH = re.compile(rf"`({_TREES}/[\w./-]+\.\w+)((?:::\w+)*)")
_COMMAND = re.compile(r"(?:^|[`\s(/])sluice ((?:[a-z][a-z-]* ?)+)([^`\n]*)")
_FENCE = re.compile(r"```.*?```", re.DOTALL)
_OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]*")


def rows(page: str, *, below: str) -> Iterator[list[str]]:
    """Cells of the first table behind a heading, or any other text."""
    lines = iter((DOCS / page).read_text("utf-8").partition(below)[2].splitlines())
    for line in lines:
        if line.startswith("| ---"):
            break
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


def names_in(cell: str) -> list[str]:
    """What is set as code in it."""
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_test_that_a_page_names_exists(page: Path) -> None:
    """Also where a test was renamed, or a module was moved."""
    for path, below in _PATH.findall(page.read_text("utf-8")):
        file = ROOT / path
        assert file.is_file(), path
        names = below.split("::")[1:]
        if names:
            tree = ast.parse(file.read_text("utf-8"))
            found = {
                node.name
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.ClassDef)
            }
            assert set(names) <= found, path


def commands() -> Mapping[tuple[str, ...], frozenset[str]]:
    """Options of each command and group of ``sluice``, by its words."""
    found: dict[tuple[str, ...], frozenset[str]] = {}
    waiting: list[tuple[tuple[str, ...], Any]]
    waiting = [((), typer.main.get_command(build_app(entry_points(group=ENTRY_POINT_GROUP))))]
    while waiting:
        words, command = waiting.pop()
        options = {name for each in command.params for name in each.opts}
        found[words] = frozenset({*options, "--help"})
        below = getattr(command, "commands", {})
        waiting += [((*words, name), each) for name, each in below.items()]
    return found


COMMANDS = commands()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_a_page_names_has_its_options(page: Path) -> None:
    """Where ``sluice`` is followed by a command of it."""
    for said, rest in _COMMAND.findall(page.read_text("utf-8").replace("\\\n", " ")):
        words: tuple[str, ...] = ()
        for word in said.split():
            if (*words, word) not in COMMANDS:
                break
            words = (*words, word)
        if words:
            assert set(_OPTION.findall(rest)) <= COMMANDS[words], f"sluice {said}{rest}"


DESCRIBED: Mapping[Callable[..., object], str] = {
    LoadBalancer: "architecture.md",
    RegionalCheckpointHandler: "architecture.md",
    HdfsSink: "hdfs-sink.md",
    PartitionCommit: "hdfs-sink.md",
    Roll: "hdfs-sink.md",
    ExponentialDelayRestart: "architecture.md",
    FailureRateRestart: "architecture.md",
    FixedDelayRestart: "architecture.md",
    Job: "job.md",
    KafkaSink: "kafka-sink.md",
    AvroDeserializer: "kafka-source.md",
    JsonDeserializer: "kafka-source.md",
    KafkaSource: "kafka-source.md",
    PidRateLimit: "kafka-source.md",
    DeadLetters: "poison-records.md",
    Skip: "poison-records.md",
}


def arguments_of(function: Callable[..., object]) -> set[str]:
    """That it may be given."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}


@pytest.mark.parametrize("function", DESCRIBED, ids=lambda each: each.__name__)
def test_a_page_names_each_argument_of_what_it_describes(function: Callable[..., object]) -> None:
    """As code, somewhere on it."""
    text = (DOCS / DESCRIBED[function]).read_text("utf-8")
    codes = " ".join([*_FENCE.findall(text), *names_in(_FENCE.sub("", text))])
    assert arguments_of(function) - set(re.findall(r"\w+", codes)) == set()


def test_the_page_on_monitoring_names_each_path_of_the_service() -> None:
    """People's in its table, and those of tasks beside it: a firewall's rules are made of them."""
    server = (ROOT / "runtime" / "service" / "server.py").read_text("utf-8")
    served = {
        path.partition("/{")[0]
        for path in re.findall(r"\(\"(/[^\"]+)\", (?:self|answering)", server)
    }
    assert len(served) > 5
    told = set(
        re.findall(r"`(?:GET |POST )?(/[\w/]+)`", (DOCS / "monitoring.md").read_text("utf-8"))
    )
    assert {each for each in served if not any(each.startswith(path) for path in told)} == set()
    assert {path for path in told if not any(each.startswith(path) for each in served)} == set()


def test_the_page_on_monitoring_names_each_field_of_the_status() -> None:
    """What scripts read."""
    page = list(rows("monitoring.md", below="| field of `job` |"))
    told = {name for row in page for name in names_in(row[0])}
    pending = next(row for row in page if row[0] == "`pending`")
    regions = next(row for row in page if row[0] == "`regions`")
    assert told == {each.name for each in fields(JobStatus)}
    assert {each.name for each in fields(CheckpointStatus)} == set(names_in(pending[1]))
    assert {each.name for each in fields(RegionStatusView)} <= set(names_in(regions[1]))


def test_mutated_modules_that_need_no_full_coverage_are_named() -> None:
    """And counted: the page on reliability says of which modules less is asked than mutants do."""
    make = (ROOT / "Makefile").read_text("utf-8")
    asked = ",".join(re.findall(r"^PROTOCOL := (?:\$\(PROTOCOL\),)?(.*)$", make, re.MULTILINE))
    mutated = {edit.path for mutant in load_all() for edit in mutant.edits}
    others = {
        path for path in mutated if not any(Path(path).match(each) for each in asked.split(","))
    }
    text = (DOCS / "reliability.md").read_text("utf-8")
    said = re.search(r"break rules in (\d+) modules besides(.*?)\n\n", text, re.DOTALL)
    assert said is not None
    named = set(names_in(said[2]))
    assert {path for path in others if not any(path.endswith(each) for each in named)} == set()
    assert int(said[1]) == len(others)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_imports_can_be_imported(page: Path) -> None:
    """From Sluice: somebody will copy it."""
    for code in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        for module, names in re.findall(
            r"^from ((?:connectors|runtime)[\w.]*) import (.+)$", code, re.M
        ):
            found = importlib.import_module(module)
            assert [name for name in names.split(", ") if not hasattr(found, name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_of_a_page_gives_only_arguments_that_exist(page: Path) -> None:
    """To what this project has under that name; ``…`` stands for others."""
    text = page.read_text("utf-8")
    codes = [*_FENCE.findall(text), *names_in(_FENCE.sub("", text))]
    for function in DESCRIBED:
        called = rf"\b{function.__name__}\(((?:[^()]|\([^()]*\))*)\)"
        for given in re.findall(called, " ".join(codes)):
            outer = re.sub(r"\([^()]*\)", "", given)
            assert set(re.findall(r"(\w+)=", outer)) <= arguments_of(function), given
