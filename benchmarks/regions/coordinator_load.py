"""``python -m benchmarks coordinator-load``: how many tasks the coordinator's core supports.

The pure core runs in one process, without threads, network or disk. Every task is a region of its
own, as in the continuous engine. In each checkpoint a task polls for its barrier, reports its
barrier offsets, and acknowledges with one committable. Remote calls return at once. The figure is
acknowledgements per second of processor time of the whole checkpoint with polls, offsets and the
decision. Ten thousand tasks that acknowledge each second need 10,000.
"""

import argparse
import cProfile
import os
import pstats
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.measuring import machine
from benchmarks.measuring.figures import PARTS_RESULTS, Figure, command_line, log_figures, table
from sluice.runtime.contracts import CommitOutcome, CommitReport, PublishOutcome
from sluice.runtime.coordinator.core.core import CoordinatorCore
from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    Action,
    BarrierPolled,
    Commit,
    CommitReported,
    CoreEvent,
    FetchBarrierOffsets,
    GiveBarrier,
    MarkCommitted,
    Marked,
    Publish,
    Published,
    RegionBarrierOffsets,
    Tick,
)
from sluice.runtime.coordinator.policy.assignment import assignment_of
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, RegionPlan
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import Redistribution, RegionRecord, StateEntry
from sluice.runtime.model.splits import Barrier, BatchKey, SplitRange

__all__ = ["main"]

_LEAST_PER_S = 10_000.0
_RECORDS = 100
_HANDLE = bytes(200)  # a transaction's handle is about as long


class _Tasks:
    """A core and its tasks; remote calls return at once."""

    def __init__(self, count: int) -> None:
        plans = [RegionPlan(name=f"task-{n}", source_ids=("source",)) for n in range(count)]
        records = {
            plan.name: RegionRecord(region=plan.name, attempt_id=0, splits=(_split(n, 0, 0),))
            for n, plan in enumerate(plans)
        }
        self._core = CoordinatorCore(
            CheckpointSettings(interval_s=1.0, handler=RegionalCheckpointHandler()),
            plans,
            records,
            assignment=assignment_of(records.values()),
            attempt_id=0,
            last_decided=0,
            draw=lambda: 0.5,
        )
        self._now_s = 0.0
        self._count = count
        self.committed = 0

    def checkpoint(self) -> None:
        """One second: all tasks poll, then all tasks acknowledge."""
        self._now_s += 1.0
        self._deliver(Tick())
        barriers = [self._poll(number) for number in range(self._count)]
        for number, barrier in enumerate(barriers):
            self._deliver(Acknowledged(ack=self._acknowledgement(number, barrier)))
        if self._core.last_committed <= self.committed:
            raise RuntimeError("the checkpoint was not committed")
        self.committed = self._core.last_committed

    def _poll(self, number: int) -> Barrier:
        name = f"task-{number}"
        answer = self._deliver(BarrierPolled(region=name, attempt_id=0))
        if not isinstance(answer, FetchBarrierOffsets):
            raise TypeError(f"no barrier was due: {answer}")
        start = answer.positions[0].end_offset
        given = self._deliver(
            RegionBarrierOffsets(
                checkpoint_id=answer.checkpoint_id,
                region=name,
                attempt_id=0,
                splits=(_split(number, start, start + _RECORDS),),
                finished=False,
            )
        )
        if not isinstance(given, GiveBarrier):
            raise TypeError(f"no barrier was given: {given}")
        return given.barrier

    def _acknowledgement(self, number: int, barrier: Barrier) -> Acknowledgement:
        name, batch_id = f"task-{number}", barrier.checkpoint_id
        entry = StateEntry(
            operator_id="sink",
            state_name="committables",
            kind="fake",
            version=1,
            redistribution=Redistribution.SPLIT,
            payload=_HANDLE + f"{number}/{batch_id}".encode(),
        )
        return Acknowledgement(
            batch=BatchKey(region=name, attempt_id=0, batch_id=batch_id),
            checkpoint_id=barrier.checkpoint_id,
            region=RegionRecord(
                region=name,
                attempt_id=0,
                batch_id=batch_id,
                splits=barrier.splits,
                committables=(entry,),
            ),
        )

    def _deliver(self, event: CoreEvent) -> Action | None:
        """Deliver an event as the loop does, and read the next deadline; the first answer."""
        actions = self._core.step(event, self._now_s)
        self._core.deadline_s()
        for action in actions:
            answer = _answer(action)
            if answer is not None:
                self._deliver(answer)
        return next((a for a in actions if isinstance(a, FetchBarrierOffsets | GiveBarrier)), None)


def _answer(action: Action) -> CoreEvent | None:
    if isinstance(action, Publish):
        return Published(checkpoint_id=action.checkpoint_id, outcome=PublishOutcome.OURS)
    if isinstance(action, Commit):
        return CommitReported(
            checkpoint_id=action.checkpoint_id,
            committables=action.committables,
            reports=(CommitReport(outcome=CommitOutcome.COMMITTED, detail=""),)
            * len(action.committables),
        )
    if isinstance(action, MarkCommitted):
        return Marked(checkpoint_id=action.checkpoint_id, durable=True)
    return None


def _split(partition: int, start: int, end: int) -> SplitRange:
    return SplitRange(
        source_id="source",
        topic="input",
        topic_id="uuid",
        partition=partition,
        start_offset=start,
        end_offset=end,
    )


def measure(tasks: int, *, checkpoints: int, repeat: int) -> Figure:
    """Acknowledgements per second of processor time; the first checkpoint does not count."""
    rates, worst_s = [], 0.0
    for _ in range(repeat):
        driven = _Tasks(tasks)
        driven.checkpoint()
        spent = []
        for _ in range(checkpoints):
            began_s = time.process_time()
            driven.checkpoint()
            spent.append(time.process_time() - began_s)
        rates.append(tasks * checkpoints / sum(spent))
        worst_s = max(worst_s, *spent)
    return Figure(
        what=f"{tasks:,} tasks, each acknowledging each second",
        runs=rates,
        unit="acks per CPU-s",
        goal=f">= {_LEAST_PER_S:,.0f}",
        least=_LEAST_PER_S,
        note=f"the slowest of {checkpoints} checkpoints took {worst_s:.2f} CPU-s",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, or with ``--profile`` the time by function."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks coordinator-load")
    parser.add_argument("--tasks", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--checkpoints", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="of one run of the last --tasks")
    parser.add_argument(
        "--results", type=Path, default=PARTS_RESULTS, help="JSON lines, appended to"
    )
    args = parser.parse_args(arguments)
    if args.profile:
        with cProfile.Profile() as profile:
            measure(args.tasks[-1], checkpoints=args.checkpoints, repeat=1)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    measured_on, load_before = machine.describe(), os.getloadavg()[0]
    figures = [
        measure(tasks, checkpoints=args.checkpoints, repeat=args.repeat) for tasks in args.tasks
    ]
    log_figures(
        args.results,
        figures,
        part="coordinator-load",
        engine="",
        command=command_line(sys.argv[1:]),
        load_before=load_before,
        machine=dict(measured_on),
    )
    for part in table(figures, measured_on):
        Console(highlight=False, width=140).print(part)


if __name__ == "__main__":
    main()
