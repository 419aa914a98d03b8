"""Writes the pages of ``docs/reference`` from the code: ``python -m tools.reference``.

Commands come from the Typer applications, metrics from their collectors, errors and arguments
from signatures and docstrings. ``options.md`` is written by people; only the tables between its
marks ``<!-- made from NAME -->`` and ``<!-- end -->`` are made here. With ``--check`` nothing is
written, and the exit code is 1 if a page would change.
"""

import argparse
import enum
import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import typer
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from sluice.connectors.kafka.client.client_options import (
    _OWNED,
    _REFUSED,
    _RENAMED,
    _WITHOUT_EFFECT,
)
from sluice.runtime import errors
from sluice.runtime.cli import build_app
from sluice.runtime.errors import StreamError
from sluice.runtime.service.metrics import CheckpointMetrics, StatusMetrics
from sluice.runtime.spark.drop_in.query_metrics import QueryMetrics
from tools.versions.cells import TESTS, read_runs, versions_table

__all__ = [
    "arguments_table",
    "commands_page",
    "errors_page",
    "main",
    "metric_families",
    "metrics_page",
    "pages",
    "query_metric_families",
    "versions_page",
]

Command = Any  # of click, which Typer brings under a name of its own
Parameter = Any

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"

_MADE = "Made by `python -m tools.reference`; do not edit."
_MARKED = re.compile(r"(<!-- made from ([\w.: -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_ENTRY = re.compile(r"^ {4}(\w[\w, ]*): (.*)$")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    args = parser.parse_args(arguments)
    changed = [
        path
        for path, text in pages().items()
        if not path.exists() or path.read_text("utf-8") != text
    ]
    for path in changed:
        if not args.check:
            path.write_text(pages()[path], "utf-8")
        state = "differs" if args.check else "written"
        sys.stdout.write(f"{state}: {path.relative_to(ROOT)}\n")
    if args.check and changed:
        sys.exit(1)


def pages() -> Mapping[Path, str]:
    """The text of each page that is made from the code, wholly or in part."""
    options = REFERENCE / "options.md"
    return {
        REFERENCE / "commands.md": commands_page(),
        REFERENCE / "metrics.md": metrics_page(),
        REFERENCE / "errors.md": errors_page(),
        REFERENCE / "versions.md": versions_page(),
        options: _MARKED.sub(_filled, options.read_text("utf-8")),
    }


# --- versions ---------------------------------------------------------------------------------


def versions_page() -> str:
    """The versions that were tried together, from the results of ``python -m tools.versions``."""
    head = ("Python", "Java", "PySpark", "Kafka", "system", "tests", "day")
    lines = ["# Versions", "", _MADE, "", *_VERSIONS, ""]
    lines += [*_table(head, versions_table(read_runs())), "", "Each run has these modules:", ""]
    return "\n".join([*lines, *(f"- `{path}`" for path in TESTS), ""])


_VERSIONS = (
    "Each row is one run of the same tests, with a broker and a Spark of these versions on one "
    "machine. `python -m tools.versions run NAME` runs a row again; `python -m tools.versions "
    "list` prints the names.",
    "",
    "- **PySpark 4.1 and 4.0** do not work: their Python data sources lack "
    "`latestOffset(start, limit)` and the module `pyspark.sql.streaming.datasource`, "
    "`DataStreamReader.name` and version 2 of the offset log. A start is refused with "
    "`MissingRequirementError`.",
    "- **Kafka 3.9** has no `transaction.version` 2 (KIP-890). Tests of that level are skipped "
    "there, and tests of level 0 run against the real broker.",
    "- The executors need the driver's versions of Python, PySpark and Sluice.",
)


# --- commands ---------------------------------------------------------------------------------


def commands_page() -> str:
    """Each command of ``sluice`` with its arguments and options."""
    made = typer.main.get_command(build_app(_registered()))
    head = f"{_MADE} An error exits with code 1, wrong usage with 2, Ctrl-C with 130."
    lines = ["# Commands", "", head]
    for words, command in _commands(made, ()):
        lines += ["", *_command_section(words, command)]
    return "\n".join([*lines, ""])


def _registered() -> Iterator[EntryPoint]:
    """The commands by ``pyproject.toml``: an installed distribution may be an older one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for name, value in project["entry-points"]["sluice.commands"].items():
        yield EntryPoint(name, value, "sluice.commands")


def _commands(
    command: Command, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Groups before their commands; the groups by name, their commands as the code has them."""
    if words:
        yield words, command
    below = getattr(command, "commands", {})
    for name in below if words else sorted(below):
        yield from _commands(below[name], (*words, name))


def _command_section(words: tuple[str, ...], command: Command) -> Iterator[str]:
    name = " ".join(("sluice", *words))
    yield f"{'#' * (1 + len(words))} {name}"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield from ("", " ".join(paragraph.split()))
    if getattr(command, "commands", None):
        return
    arguments = [_shown_name(each) for each in command.params if _is_argument(each)]
    yield from ("", "```sh", " ".join((name, *arguments, "[OPTIONS]")), "```")
    rows = [_parameter_row(each) for each in command.params]
    if rows:
        yield from ("", *_table(("argument or option", "default", "meaning"), rows))


def _is_argument(parameter: Parameter) -> bool:
    return bool(parameter.param_type_name == "argument")


def _shown_name(parameter: Parameter) -> str:
    if not _is_argument(parameter):
        return str(parameter.opts[0])
    name = f"{parameter.metavar or parameter.name.upper()}{'...' if parameter.nargs == -1 else ''}"
    return name if parameter.required else f"[{name}]"


def _parameter_row(parameter: Parameter) -> tuple[str, str, str]:
    shown = parameter.default if getattr(parameter, "show_default", True) else None
    default = "required" if parameter.required else _shown_default(shown)
    text = " ".join((parameter.help or "").split())
    return f"`{_shown_name(parameter)}`", default, _in_cell(text)


def _shown_default(value: object) -> str:
    if value is None or value is False or callable(value) or value in ((), []):
        return ""
    return f"`{value}`"


# --- metrics ----------------------------------------------------------------------------------


def metrics_page() -> str:
    """Each metric with its kind, its labels and its meaning."""
    header = ("metric", "kind", "labels", "meaning")
    jobs, queries = (
        _table(header, _metric_rows(each)) for each in (metric_families(), query_metric_families())
    )
    return "\n".join(
        [
            "# Metrics",
            "",
            f"{_MADE} `Job(metrics_port=…)` and `sluice.install(spark, metrics_port=…)` serve "
            "them at `/metrics` as Prometheus text: "
            "[scrape and alerts](../guide/operate.md#metrics). "
            "Names, kinds and labels do not change within a major version.",
            "",
            "Each start begins at zero. A counter of a job has a second series `…_created`: the "
            "time at which it began. Both ports also serve the `process_…` metrics of the driver's "
            "Python process.",
            "",
            "## Job",
            "",
            *jobs,
            "",
            "## Queries",
            "",
            *queries,
            "",
        ]
    )


def _metric_rows(families: Iterable[tuple[str, Metric, tuple[str, ...]]]) -> list[tuple[str, ...]]:
    return [
        (f"`{name}`", each.type, ", ".join(labels), _in_cell(each.documentation))
        for name, each, labels in families
    ]


def metric_families() -> Iterator[tuple[str, Metric, tuple[str, ...]]]:
    """Each metric of a job: its name as Prometheus shows it, and its labels."""
    registry = CollectorRegistry()
    metrics = CheckpointMetrics(registry)
    labels = {
        next(iter(each.describe())).name: each._labelnames  # noqa: SLF001 - it has no public name
        for each in vars(metrics).values()
        if isinstance(each, MetricWrapperBase)
    }
    status = StatusMetrics(cast(Any, SimpleNamespace(started=None))).describe()
    for family in (*registry.collect(), *status):
        known = labels.get(family.name)
        yield _exposed(family), family, _labels(family) if known is None else tuple(known)


def query_metric_families() -> Iterator[tuple[str, Metric, tuple[str, ...]]]:
    """Each metric of the queries of a session, as `metric_families`."""
    for family in QueryMetrics(lags=lambda _: [], statuses=list).describe():
        yield _exposed(family), family, _labels(family)


def _exposed(family: Metric) -> str:
    return family.name + ("_total" if family.type == "counter" else "")


def _labels(family: Metric) -> tuple[str, ...]:
    return tuple(cast(Any, family)._labelnames)  # noqa: SLF001 - it has no public name


# --- errors -----------------------------------------------------------------------------------


def errors_page() -> str:
    """Each error that a caller may see, by the order of the module."""
    names = [name for name, value in vars(errors).items() if _is_error(value)]
    rows = [
        (
            f"`{name}`",
            f"`{_parent(getattr(errors, name))}`",
            _in_cell(_first(getattr(errors, name))),
        )
        for name in names
    ]
    return "\n".join(
        [
            "# Errors",
            "",
            f"{_MADE} Every error of Sluice is a `StreamError`: its text says what happened, "
            "where (keys and values) and what to do. "
            "[Errors and recovery](../guide/errors-and-recovery.md) says which of them need you.",
            "",
            *_table(("error", "is a", "meaning"), rows),
            "",
        ]
    )


def _is_error(value: object) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, StreamError)
        and value.__module__ == errors.__name__
        and value is not StreamError
    )


def _parent(error: type) -> str:
    return error.__bases__[0].__name__


def _first(described: object) -> str:
    return " ".join((inspect.getdoc(described) or "").split("\n\n")[0].split())


# --- options ----------------------------------------------------------------------------------


def _filled(found: re.Match[str]) -> str:
    before, source, after = found[1], found[2], found[3]
    kind, _, name = source.partition(":")
    lines = _OPTION_TABLES[kind]() if kind in _OPTION_TABLES else arguments_table(kind, name)
    return f"{before}{chr(10).join(lines)}\n{after}"


def arguments_table(module: str, name: str) -> list[str]:
    """The arguments of ``module:name``: defaults by its signature, meanings by its docstring."""
    function = getattr(importlib.import_module(module), name)
    meanings = described_arguments(function)
    parameters = inspect.signature(function).parameters.values()
    rows = [
        (f"`{each.name}`", _python_default(each), _in_cell(meanings.get(each.name, "")))
        for each in parameters
        if each.kind is not each.VAR_KEYWORD
    ]
    return _table(("argument", "default", "meaning"), rows)


def described_arguments(function: Callable[..., object]) -> dict[str, str]:
    """What a docstring says of each argument, in its section ``Args`` or ``Attributes``."""
    found: dict[str, str] = {}
    names: list[str] = []
    is_within = False
    for line in (inspect.getdoc(function) or "").splitlines():
        if not line.startswith(" "):
            is_within = line in ("Args:", "Attributes:") or (is_within and not line)
            continue
        if not is_within:
            continue
        entry = _ENTRY.match(line)
        names = entry[1].split(", ") if entry else names
        for each in names:
            found[each] = f"{found.get(each, '')} {entry[2] if entry else line.strip()}".strip()
    return found


def _python_default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is parameter.empty or value == "":
        return "required"
    if isinstance(value, enum.Enum):
        value = value.value
    if repr(value) == "<factory>":
        return "`{}`"
    return f"`{value!r}`".replace("'", '"')


def _renamed_rows() -> list[str]:
    rows = [(f"`kafka.{java}`", f"`kafka.{name}`") for java, name in _RENAMED.items()]
    return _table(("Java's name", "librdkafka's name"), sorted(rows))


def _reason_rows(reasons: Mapping[str, str]) -> list[str]:
    rows = [(f"`kafka.{name}`", _in_cell(reason)) for name, reason in reasons.items()]
    return _table(("option", "what to do"), sorted(rows))


_OPTION_TABLES: Mapping[str, Callable[[], list[str]]] = {
    "renamed options": _renamed_rows,
    "refused options": lambda: _reason_rows(_REFUSED),
    "owned options": lambda: _reason_rows(_OWNED),
    "options without effect": lambda: [
        ", ".join(f"`kafka.{name}`" for name in sorted(_WITHOUT_EFFECT)) + "."
    ],
}


# --- Markdown ---------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines]


def _in_cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    main()
