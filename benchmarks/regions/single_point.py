"""Kills single tasks of a job with a shuffle, and measures the delay of their epochs.

Spark retries only this task, and keeps the work of the other tasks and the rows of the shuffle. The
task dies after the flush and before its report: the moment with the largest loss of work.
"""

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import topics
from benchmarks.measuring.feeding import Feed
from benchmarks.measuring.figures import Figure
from benchmarks.measuring.rig import Rig, Running, wait_until
from benchmarks.measuring.visibility import Paced, VisibleRecords
from benchmarks.regions import region_deaths
from benchmarks.regions.mortal_sink import PRE_COMMITTED, Death, Doom
from benchmarks.regions.region_kills import await_warm

__all__ = ["measure"]

_PARTITIONS = 16
_PER_S = 2_000.0
_PAUSE_S = 0.02
_LINGER_MS = 10
_SPEED = 4_000.0  # of a task: with two of them, and epochs of a second, it works for 0.25 s
_CALM_EPOCHS = 20
_BETWEEN_EPOCHS = 3
_START_S = 240.0
_REGION = "in"


def measure(rig: Rig, *, kills: int) -> list[Figure]:
    """Kill so many tasks, one at a time, some epochs apart."""
    source = topics.create(rig.connection, "in", partitions=_PARTITIONS)
    output = topics.create(rig.connection, "out", partitions=_PARTITIONS)
    doom = Doom(Path(tempfile.mkdtemp(dir=rig.directory)))
    pace = Paced(_PARTITIONS, _PER_S)
    arguments = ["--shuffle", "--recovery", "single-point", "--master", "local[2,4]"]
    arguments += ["--doom", str(doom.directory), "--slow", str(_SPEED)]
    reader = VisibleRecords(rig.connection, output)
    with reader, rig.run("regional_pipeline", source, output, arguments) as running:
        with Feed(rig, source, pause_s=_PAUSE_S, burst=pace, linger_ms=_LINGER_MS):
            await_warm(running)
            began_s = time.time()
            _await_epochs(running, _CALM_EPOCHS)
            for _ in range(kills):
                doom.request(_REGION, PRE_COMMITTED)
                wait_until(
                    lambda: not doom.is_requested(_REGION), program=running.program, timeout_s=30
                )
                _await_epochs(running, _BETWEEN_EPOCHS)
        wait_until(lambda: reader.total >= pace.sent, program=running.program, timeout_s=_START_S)
        lines = running.progress()
    sent = {number: pace.sent_to(number) for number in range(_PARTITIONS)}
    seen = reader.by_partition()
    faults = sum(seen[n].faults(sent[n], ordered=False) if n in seen else sent[n] for n in sent)
    return _figures(lines, doom.deaths(), began_s, faults=faults, sent=pace.sent)


def _await_epochs(running: Running, count: int) -> None:
    await_warm(running, len(running.epochs_s()) + count)


def _figures(
    lines: Sequence[Mapping[str, Any]],
    deaths: Sequence[Death],
    began_s: float,
    *,
    faults: int,
    sent: int,
) -> list[Figure]:
    epochs = [line for line in lines if line["marked_s"] is not None and line["at_s"] > began_s]
    hurt = [_epoch_of(death, epochs) for death in deaths]
    calm_s = statistics.median(line["marked_s"] for line in epochs if line not in hurt)
    late_s = [line["marked_s"] - calm_s for line in hurt]
    beyond = [late - death.lived_s for late, death in zip(late_s, deaths, strict=True)]
    return [
        Figure(
            what=f"a shuffle, {len(deaths)} tasks killed, records lost or doubled",
            runs=[float(faults)],
            unit="records",
            goal="0",
            most=0,
            note=f"of {sent:,}; restarts without a kill: {region_deaths.extra_attempts(lines, ())}",
        ),
        Figure(
            what="  lateness of the epoch beyond the task's own time, the largest",
            runs=[max(beyond)],
            unit="s",
            goal="<= 1",
            most=1.0,
            note=f"an epoch takes {calm_s:.2f} s; late by {_range(late_s)} s, "
            f"tasks had lived for {_range([death.lived_s for death in deaths])} s",
        ),
    ]


def _epoch_of(death: Death, epochs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The epoch in whose time a task died."""
    return next(
        line for line in epochs if line["at_s"] - line["marked_s"] <= death.at_s <= line["at_s"]
    )


def _range(found: Sequence[float]) -> str:
    return f"{min(found):.2f} to {max(found):.2f}"
