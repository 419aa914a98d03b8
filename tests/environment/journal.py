"""The journal of the bed: one JSON line for each fault, and one for each round's verdict."""

import json
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_GIT_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultEntry:
    """A fault that the job recovered from.

    Attributes:
        seed, number: of the round, and of the fault in it, from 0.
        pipeline: a key of `tests.environment.pipeline.SHAPES`.
        kind, name: of the fault, and of its target.
        hold_s: from injection to healing, measured.
        outage_s: from the injection until each partition has shown a record that was sent after it.
        checkpoint_s: from the healing to the next committed checkpoint.
        visible_s: from the healing until each partition has shown a record that was sent after it.
        restarts: containers that ended meanwhile and were restarted, without the target.
        together: faults that were active at the same time, including this one. Then the healing
            is that of the last one, and the restarts are those of all.
    """

    seed: int
    number: int
    pipeline: str
    kind: str
    name: str
    hold_s: float
    outage_s: float
    checkpoint_s: float
    visible_s: float
    restarts: tuple[str, ...] = ()
    together: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEntry:
    """The end of a round.

    Attributes:
        seed, pipeline: as in `FaultEntry`.
        faults: that the job recovered from.
        planned: faults in the plan.
        records: that each output must have once.
        outputs: how many.
        repairs: decisions whose transactions a timeout aborted, and the job repaired.
        lost, doubled, reordered, foreign, torn: see `RoundVerdict.counts`.
        elapsed_s: since the first record.
        wrong: empty: nothing lost, doubled, reordered or foreign, and no reader saw other records.
        on: the day on which it ended, UTC; None: an entry of a version without days.
        commit: of the checkout, short, with ``+`` if files differ from it; None: as ``on``, or
            without Git.
    """

    seed: int
    pipeline: str
    faults: int
    planned: int
    records: int
    outputs: int
    elapsed_s: float
    repairs: int = 0
    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    foreign: int = 0
    torn: int = 0
    wrong: str = ""
    on: str | None = None
    commit: str | None = None

    @property
    def is_judged(self) -> bool:
        """The round reached its end, so the checker has compared its records."""
        return self.records > 0


Entry = FaultEntry | RoundEntry


class Journal:
    """A file of JSON lines that grows by appending; its lines outlive a killed run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, entry: Entry) -> None:
        """Append an entry at once."""
        with self._path.open("a", encoding="utf-8") as file:
            kind = "fault" if isinstance(entry, FaultEntry) else "round"
            file.write(json.dumps({"entry": kind, **asdict(entry)}) + "\n")


def commit_of(root: Path, *, besides: Iterable[str] = ()) -> str | None:
    """The checkout's commit, with ``+`` if files differ from it; None: Git fails.

    Args:
        besides: paths below ``root`` that may differ.
    """
    left_out = [f":(exclude){path}" for path in besides]
    head = _git(root, "rev-parse", "--short", "HEAD")
    changes = _git(root, "status", "--porcelain", "--", ".", *left_out)
    if head is None or changes is None:
        return None
    return f"{head}+" if changes else head


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words], cwd=root, capture_output=True, text=True, timeout=_GIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def read_journal(paths: Iterable[Path]) -> list[Entry]:
    """All entries of several journals, in their order."""
    found: list[Entry] = []
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            words: dict[str, Any] = json.loads(line)
            if words.pop("entry") == "fault":
                words["restarts"] = tuple(words["restarts"])
                found.append(FaultEntry(**words))
            else:
                found.append(RoundEntry(**words))
    return found
