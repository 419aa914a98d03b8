"""``sluice verify``: checks that each input record is in the output once, whole and in order."""

import dataclasses
import math
import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from sluice.connectors.kafka.tools.connection_options import (
    BOOTSTRAP_NAMES,
    Config,
    ConfigFile,
    connection_of,
    read_options,
)
from sluice.connectors.kafka.tools.verify.places import are_files, opened_place
from sluice.connectors.kafka.tools.verify.verification import (
    Comparison,
    Plan,
    findings_file,
    name_function,
    transactions_of,
    verify,
    why_nothing_expected,
)
from sluice.runtime.checker import Identity, Kind, Location, Record
from sluice.runtime.checker.files import is_read
from sluice.runtime.checker.records.user_mapping import Stopped, load_mapping
from sluice.runtime.cli_output import AsJson, open_console, print_json, print_table
from sluice.runtime.errors import ConfigError

__all__ = ["verify_command"]

_FAULTY = 3
_REPORT_EVERY_S = 10.0


_Source = Annotated[
    str,
    typer.Option(
        "--input", metavar="PLACE", help="A topic, or a path or URI of files such as ./in."
    ),
]
_Output = Annotated[str, typer.Option("--output", metavar="PLACE", help="The same for the output.")]
_Bootstrap = Annotated[
    str | None,
    typer.Option(*BOOTSTRAP_NAMES, help="Kafka servers."),
]
_Map = Annotated[
    str | None,
    typer.Option(
        "--map",
        metavar="MODULE:FUNCTION",
        help="Function from an input Record to the expected Record, Records or None; left out: "
        "the Record itself. A result with another topic than the input's and the output's is "
        "expected elsewhere.",
    ),
]
_NameBy = Annotated[
    str | None,
    typer.Option(
        help="Unique name of a record: key, header:NAME, json:FIELD, or origin (of generated "
        "loads). Separates corrupted records from lost ones."
    ),
]
_Checkpoint = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="The job's checkpoint directory, to find torn transactions."),
]
_IgnorePartition = Annotated[
    bool, typer.Option("--ignore-partition", help="Accept a record in any partition.")
]
_IgnoreHeaders = Annotated[bool, typer.Option("--ignore-headers", help="Do not compare headers.")]
_Timestamps = Annotated[bool, typer.Option("--timestamps", help="Also compare timestamps.")]
_Findings = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write every finding to this file, as JSON lines."),
]
_Memory = Annotated[
    int, typer.Option(min=1, max=1 << 24, help="Memory for the comparison, in MiB.")
]
_Scratch = Annotated[
    Path | None,
    typer.Option(
        help="Directory for records that do not fit into memory: 100 bytes each.", file_okay=False
    ),
]
_Timeout = Annotated[
    float, typer.Option("--timeout", min=0, help="Seconds to wait for open transactions.")
]


def verify_command(
    *,
    source: _Source,
    output: _Output,
    bootstrap: _Bootstrap = None,
    mapping: _Map = None,
    name_by: _NameBy = None,
    checkpoint: _Checkpoint = None,
    ignore_partition: _IgnorePartition = False,
    ignore_headers: _IgnoreHeaders = False,
    timestamps: _Timestamps = False,
    findings: _Findings = None,
    config: Config = None,
    config_file: ConfigFile = None,
    memory_mib: _Memory = 512,
    scratch: _Scratch = None,
    timeout_s: _Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Compare an input with the output that a read_committed reader finds.

    Lists lost, duplicated, unexpected, reordered, corrupted, aborted and torn records with their
    positions.
    Run it after the job has written everything: missing records count as lost. If both sides are
    empty, that is an error.
    Exit code: 0 exactly once, 3 not so, 1 an error, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM.
    """
    signal.signal(signal.SIGTERM, _leave)  # deletes temporary files, as after Ctrl-C
    _require_two_sides(source, output, findings)
    if not math.isfinite(timeout_s):
        raise typer.BadParameter("must be a number of seconds", param_hint="--timeout")
    files = are_files(source) or are_files(output)
    if files and timestamps:
        raise _no_timestamps(source, output)
    connection = connection_of(bootstrap, read_options(config, config_file))
    with (
        opened_place(source, connection) as wanted,
        opened_place(output, connection) as found,
        findings_file(findings) as sink,
    ):
        plan = Plan(
            source=wanted,
            output=found,
            mapping=_same if mapping is None else load_mapping(mapping),
            identity=Identity(
                partition=not (ignore_partition or files),
                headers=not ignore_headers,
                timestamp=timestamps,
                name_of=name_function(name_by),
            ),
            transactions=None
            if checkpoint is None
            else transactions_of(checkpoint, source, output),
            memory_bytes=memory_mib << 20,
            scratch=scratch,
            settle_s=timeout_s,
        )
        compared = verify(plan, progress=_Progress(), sink=sink)
        order_within = "file" if are_files(output) else "partition"
        if as_json:
            print_json(_as_json(compared, order_within))
        else:
            _print(compared, plan, order_within)
    if not compared.verdict.is_clean:
        raise typer.Exit(_FAULTY)


class _Progress:
    """Prints progress on standard error: in one line of a terminal, else every 10 s."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._reported_s = time.monotonic()
        self._step = ""

    def __call__(self, step: str, records: int) -> None:
        text = f"{step}: {records:,} records"
        now_s = time.monotonic()
        if self._console.is_terminal:
            self._console.print(f"\r{text}", end="\n" if step == "comparing" else "")
        elif step != self._step or now_s - self._reported_s > _REPORT_EVERY_S:
            self._reported_s = now_s
            self._console.print(text)
        self._step = step


def _leave(number: int, _: FrameType | None) -> None:
    raise Stopped(128 + number)


def _same(record: Record) -> tuple[Record]:
    return (record,)


def _no_timestamps(source: str, output: str) -> ConfigError:
    return ConfigError(
        "records of files have no timestamps to compare",
        {"input": source, "output": output},
        "Leave out --timestamps, or name two topics.",
    )


def _require_two_sides(source: str, output: str, findings: Path | None) -> None:
    """Refuse sides that overlap, and a file of findings inside the data that is compared."""
    for option, side in (("--input", source), ("--output", output)):
        if not side:
            raise typer.BadParameter("must name a topic, a file or a directory", param_hint=option)
    if _whole(source) == _whole(output):
        raise ConfigError(
            "input and output are the same",
            {"input": source, "output": output},
            "Name the input of the job, and its output.",
        )
    if are_files(source) and are_files(output) and _is_nested(_whole(source), _whole(output)):
        raise ConfigError(
            "input and output overlap: one directory contains the other",
            {"input": source, "output": output},
            "Name directories of which neither contains the other.",
        )
    for side in (source, output):
        written = "" if findings is None else f"{os.path.realpath(findings)}/"
        if are_files(side) and written.startswith(_whole(side)):
            raise ConfigError(
                "the file of findings lies inside the compared data",
                {"findings": findings, "place": side},
                "Name another path for --findings.",
            )


def _is_nested(one: str, other: str) -> bool:
    """Whether a reader of one path also reads the other, which lies below it."""
    outer, inner = sorted((one, other), key=len)
    below = inner.removeprefix(outer)
    return below != inner and all(map(is_read, below.split("/")))


def _whole(side: str) -> str:
    """A topic unchanged; a path in absolute form with a slash at its end."""
    if not are_files(side):
        return side
    local = side.removeprefix("file://")
    # Not Path.resolve(): a link to itself is a better error from the reader of the files.
    return f"{os.path.realpath(local)}/" if "://" not in local else f"{side.rstrip('/')}/"


def _print(compared: Comparison, plan: Plan, order_within: str) -> None:
    verdict = compared.verdict
    rows = [("expected", f"{verdict.expected:,}", ""), ("found", f"{verdict.found:,}", "")]
    for kind in Kind:
        count = getattr(verdict, kind.value)
        locations = ", ".join(map(_shown, getattr(verdict.examples, kind.value)))
        rows.append((kind.value, f"{count:,}", locations or _reason_unknown(kind, plan)))
    print_table(("", "records", ""), rows)
    console = open_console()
    if not verdict.is_reordered_exact:
        console.print("reordered: an upper bound; raise --memory-mib for the exact number")
    if verdict.unordered:
        console.print(f"order not judged: {verdict.unordered:,} records with equal contents")
    if 0 < verdict.expected == verdict.lost and 0 < verdict.found == verdict.unexpected:
        console.print(
            "no found record was expected: is --map missing, or does it differ (spaces, base64, "
            "key, partition)?",
            style="yellow",
        )
    if not plan.identity.partition:
        line = f"order is judged within each {order_within} of the output, not across them"
        console.print(line, style="yellow", markup=False)
    for line in compared.limits():
        console.print(line, style="yellow", markup=False)
    if not verdict.expected:
        reason = why_nothing_expected(compared.records_read, compared.elsewhere)
        console.print(f"{reason}: {_hint(compared)}", style="yellow")
    if verdict.is_clean:
        console.print("[bold green]exactly once")
    else:
        console.print("[bold red]NOT exactly once")


def _hint(compared: Comparison) -> str:
    if compared.elsewhere:
        return "is this the output?"
    if compared.records_read:
        return "does the mapping lack a return?"
    return "is this the input, and does it have records?"


def _shown(location: Location) -> str:
    """A position for people; the name of a file may be no valid Unicode."""
    return str(location).encode(errors="backslashreplace").decode()


def _reason_unknown(kind: Kind, plan: Plan) -> str:
    if kind is Kind.CORRUPTED and plan.identity.name_of is None:
        return "not distinguished: give --name-by"
    if kind is Kind.TORN and plan.transactions is None:
        return "not distinguished: give --checkpoint"
    return ""


def _as_json(compared: Comparison, order_within: str) -> dict[str, object]:
    facts = dataclasses.asdict(compared.verdict)
    examples = facts.pop("examples")
    return {
        "exactly_once": compared.verdict.is_clean,
        **facts,
        "examples": {kind: list(map(str, locations)) for kind, locations in examples.items()},
        "input_starts": compared.starts,
        "input_held_back": compared.held_back,
        "output_starts": compared.output_starts,
        "order_within": order_within,
        "not_compared": sorted(compared.columns),
        "expected_elsewhere": compared.elsewhere,
    }
