"""Rounds of one bed, one after the other: each runs a job with faults, and gives a verdict."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.environment.cluster import Bed
from tests.environment.faults import RECOVERY_S, Fault, make_fault
from tests.environment.journal import FaultEntry, Journal, RoundEntry
from tests.environment.led import LedPipeline
from tests.environment.pipeline import SHAPES, BedFailureError, Pipeline
from tests.environment.plan import PlannedFault, bursts
from tests.environment.verdict import RoundVerdict

_START_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The settings of a round.

    Attributes:
        seed: of its plan.
        pipeline: a key of `tests.environment.pipeline.SHAPES`.
        faults: its plan.
        together: how many of them may be active at the same time.
        commit: see `RoundEntry`.
        until_s: on the monotonic clock: no fault starts later, and the round ends normally.
        pace: called with the pipeline between two faults, to wait and to measure.
    """

    seed: int
    pipeline: str
    faults: Sequence[PlannedFault]
    together: int = 1
    until_s: float = float("inf")
    commit: str | None = None
    pace: Callable[[Pipeline], None] | None = None


def run_round(
    bed: Bed, made: Round, journal: Journal, hadoop: Any, say: Callable[[str], None]
) -> None:
    """Run the job, inject faults, wait for each recovery, and judge the output at the end.

    Raises:
        BedFailureError: the job did not recover, or records are lost, doubled or out of order. The
            journal has the failure, too.
    """
    began_s = time.monotonic()
    done, verdict, wrong = 0, RoundVerdict(records=0, outputs=1), "ended from outside"
    repairs = 0
    try:
        shape = SHAPES[made.pipeline]
        with (LedPipeline if shape.ha else Pipeline)(bed, shape, hadoop) as pipeline:
            pipeline.await_progress(timeout_s=_START_S, what="a first checkpoint")
            say(f"round {made.seed} ({made.pipeline}): the job runs")
            number = 0
            for burst in bursts(made.faults, made.together):
                if time.monotonic() > made.until_s:
                    break
                entries = _strike(pipeline, made, number, burst)
                for entry in entries:
                    journal.write(entry)
                    say(_line(entry))
                if len(entries) < len(burst):
                    say(f"  of {len(burst)} from {number} on, {len(entries)} had a target")
                done, number = done + len(entries), number + len(burst)
                if made.pace is not None:
                    made.pace(pipeline)
            verdict = pipeline.finish(timeout_s=RECOVERY_S)
            repairs = pipeline.repairs
            wrong = "; ".join(verdict.faults)
    except Exception as error:
        wrong = str(error)
        raise
    finally:
        if wrong:
            _keep(bed.directory / f"failure-{made.seed}.txt", wrong)
        entry_of_round = RoundEntry(
            seed=made.seed,
            pipeline=made.pipeline,
            faults=done,
            planned=len(made.faults),
            records=verdict.records,
            outputs=verdict.outputs,
            repairs=repairs,
            **verdict.counts,
            elapsed_s=round(time.monotonic() - began_s, 1),
            wrong=wrong.partition("\n")[0],
            on=datetime.now(UTC).date().isoformat(),
            commit=made.commit,
        )
        journal.write(entry_of_round)
    if wrong:
        raise BedFailureError(f"round {made.seed}: {wrong}")
    say(f"round {made.seed}: {done} faults, {_good(verdict, repairs)}")


@dataclass(slots=True)
class _Struck:
    """An active or healed fault."""

    number: int
    planned: PlannedFault
    fault: Fault
    sent: int
    injected_s: float
    due_s: float
    healed_s: float = 0.0


def _strike(
    pipeline: Pipeline, made: Round, first: int, burst: Sequence[PlannedFault]
) -> list[FaultEntry]:
    """Faults from the first injection to the recovery, without those that had no target."""
    pipeline.restart_budget(faults=len(burst))
    before = len(pipeline.restarts)
    struck = [_inject(pipeline, first + at, planned) for at, planned in enumerate(burst)]
    for one in sorted(struck, key=lambda each: each.due_s):
        pipeline.rest(max(0.0, one.due_s - time.monotonic()))
        one.fault.heal()
        one.healed_s = time.monotonic()
    names = ", ".join(f"{one.planned.kind} of {one.fault.name}" for one in struck)
    what = f"recovery from {names}"
    checkpoint_s, visible_s = pipeline.await_progress(timeout_s=RECOVERY_S, what=what)
    seen_s = [pipeline.seen_at(one.sent) for one in struck]
    pipeline.wait(pipeline.bed.answers, timeout_s=RECOVERY_S, what="all servers")
    return [
        FaultEntry(
            seed=made.seed,
            number=one.number,
            pipeline=made.pipeline,
            kind=one.planned.kind,
            name=one.fault.name,
            hold_s=round(one.healed_s - one.injected_s, 3),
            outage_s=round(seen - one.injected_s, 3),
            checkpoint_s=round(checkpoint_s, 3),
            visible_s=round(visible_s, 3),
            restarts=tuple(pipeline.restarts[before:]),
            together=len(struck),
        )
        for one, seen in zip(struck, seen_s, strict=True)
        if one.fault.struck
    ]


def _inject(pipeline: Pipeline, number: int, planned: PlannedFault) -> _Struck:
    pipeline.rest(planned.after_s)
    pipeline.await_running(planned.target)
    fault = make_fault(pipeline, planned)
    sent, injected_s = pipeline.feeder.sent, time.monotonic()
    fault.inject()
    return _Struck(number, planned, fault, sent, injected_s, time.monotonic() + planned.hold_s)


def _line(entry: FaultEntry) -> str:
    more = f"; {'; '.join(entry.restarts)}" if entry.restarts else ""
    beside = f", one of {entry.together} at a time" if entry.together > 1 else ""
    return (
        f"  {entry.number}: {entry.kind} of {entry.name} for {entry.hold_s:.1f} s{beside}: outage "
        f"{entry.outage_s:.1f} s, healed to checkpoint {entry.checkpoint_s:.1f} s, to visible "
        f"{entry.visible_s:.1f} s{more}"
    )


def _good(verdict: RoundVerdict, repairs: int) -> str:
    again = f", {repairs} decisions written again" if repairs else ""
    return f"{verdict.records} records{again}, nothing lost, doubled or reordered"


def _keep(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
