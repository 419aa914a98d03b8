"""Results as JSON lines: each run is on disk before the next one begins."""

import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Log", "Result", "Setting", "read_results"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The setting of a run; runs of one setting and one contender make a row.

    Attributes:
        kind: ``throughput``, ``counts``, ``latency`` or ``steady``.
        records: of the input; of latency, records a second.
        value_bytes: of each.
        interval_s: between two commits.
        is_quick: a short run: never for the documentation.
    """

    kind: str
    records: int
    value_bytes: int
    interval_s: float
    is_quick: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run of one contender.

    Attributes:
        contender, label, guarantee: see `benchmarks.peers.roster.Contender`.
        turn: from 0.
        sitting: id of the broker's run; an interrupted and resumed benchmark has several.
        at: when, in local time.
        load_before: runnable processes, mean of the last minute.
        figures: by name; empty when it failed.
        failure: "" or why there are none.
        machine: see `benchmarks.measuring.machine.describe`.
    """

    setting: Setting
    contender: str
    label: str
    guarantee: str
    turn: int
    sitting: str
    at: str
    load_before: float
    figures: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""
    machine: Mapping[str, str] = field(default_factory=dict)


def read_results(paths: Iterable[Path]) -> list[Result]:
    """Every complete line of the files; skips a line that a kill truncated."""
    found = []
    for path in paths:
        text = path.read_text("utf-8") if path.exists() else ""
        for line in text[: text.rfind("\n") + 1].splitlines():
            fields = json.loads(line)
            found.append(Result(**{**fields, "setting": Setting(**fields["setting"])}))
    return found


class Log:
    """Appends to a file, and knows its runs."""

    def __init__(self, path: Path, machine: Mapping[str, str]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._machine = dict(machine)
        self._sitting = uuid.uuid4().hex[:8]
        self._done = {
            (one.setting, one.contender, one.turn)
            for one in read_results([path])
            if not one.failure
        }
        self._mend()

    def has(self, setting: Setting, contender: str, turn: int) -> bool:
        """Whether this run has figures already."""
        return (setting, contender, turn) in self._done

    def add(
        self,
        setting: Setting,
        contender: tuple[str, str, str],
        turn: int,
        *,
        load_before: float,
        figures: Mapping[str, Any] | None = None,
        failure: str = "",
    ) -> Result:
        """Write one run and sync the file; ``contender`` is name, label and guarantee."""
        name, label, guarantee = contender
        result = Result(
            setting=setting,
            contender=name,
            label=label,
            guarantee=guarantee,
            turn=turn,
            sitting=self._sitting,
            at=time.strftime("%Y-%m-%d %H:%M"),
            load_before=load_before,
            figures=figures or {},
            failure=failure,
            machine=self._machine,
        )
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return result

    def _mend(self) -> None:
        """End a truncated last line, so that the next one starts on a new line."""
        if self._path.exists():
            text = self._path.read_text("utf-8")
            if text and not text.endswith("\n"):
                self._path.write_text(text[: text.rfind("\n") + 1], "utf-8")
