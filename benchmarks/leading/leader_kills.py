"""``python -m benchmarks leader-kills``: ``kill -9`` of a leading coordinator, again and again.

A paced job of two continuous regions runs in one driver. Two processes of
``sluice coordinator start`` elect a leader by leases, or with three ZooKeeper nodes. The leader is
killed, the standby takes over, and the killed one is started again as the next standby. A
``read_committed`` reader measures the gap of each kill: the longest time in which it sees no record
of a partition.

The kills are spread over sittings, each with a new broker and a new job. A sitting counts after its
records, attempts and leaders were verified. The command may end after ``--minutes``: repeat it to
continue. It logs the figures as soon as it has all kills.
"""

import argparse
import json
import math
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks.leading.coordinators import Coordinators
from benchmarks.measuring import machine, topics
from benchmarks.measuring.feeding import Feed
from benchmarks.measuring.figures import PARTS_RESULTS, Figure, command_line, log_figures, table
from benchmarks.measuring.rig import PARTITIONS, Rig, Running, open_rig, wait_until
from benchmarks.measuring.visibility import Paced, Seen, VisibleRecords
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.embedded.program import Program
from sluice.runtime.embedded.zookeeper.embedded_zookeeper import EmbeddedZooKeeper
from sluice.runtime.model.checkpoint_record import Verdict

__all__ = ["KilledLeader", "Sitting", "figures", "main", "read_sittings"]

_WAYS: Mapping[str, float] = {"zookeeper": 5.0, "lease": 12.0}
"""The goal of the gap beyond the interval, in seconds, by the way of the election."""
_INTERVAL_S = 1.0
_PER_S = 1_000.0
_PAUSE_S = 0.02
_REGIONS = 2
_BEHIND_S = 2.0  # an epoch, and the time until it is visible
_CALM_S = 3.0
_SPREAD_S = 2.0  # keeps kills independent of barriers and renewals
_START_S = 600.0
_KEPT = Path("build") / "bench" / "leader_kills.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledLeader:
    """One kill.

    Attributes:
        gap_s: the longest time without a visible record of a partition, around the kill.
        led_s: from the kill until the next coordinator leads.
    """

    gap_s: float
    led_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sitting:
    """Kills of the leaders of one job, and what was verified after them.

    Attributes:
        ha: way of the election.
        timeout_s: value of ``--ha-timeout``; None: the default.
        faults: records lost, doubled or misplaced.
        restarted: regions whose attempt is another one than before the first kill.
        stray_leaders: session ids with a second leader, and leaders without a kill before them.
        sent: records.
        at, load_before: see `benchmarks.measuring.figures.Measured`.
    """

    ha: str
    timeout_s: float | None
    kills: Sequence[KilledLeader]
    faults: int
    restarted: int
    stray_leaders: int
    sent: int
    at: str = ""
    load_before: float = 0.0
    machine: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Bed:
    """What a kill needs."""

    running: Running
    coordinators: Coordinators
    reader: VisibleRecords
    pace: Paced
    dice: random.Random = field(default_factory=random.Random)

    def await_caught_up(self) -> None:
        """Until nearly all records are visible."""
        wait_until(
            lambda: self.reader.total >= self.pace.sent - _BEHIND_S * _PER_S,
            program=self.running.program,
            timeout_s=_START_S,
        )

    def await_seen(self, moment_s: float) -> None:
        """Until a reader has seen later records of every partition."""

        def is_seen() -> bool:
            found = self.reader.by_partition().values()
            return len(found) == PARTITIONS and all(seen.made_s[-1] > moment_s for seen in found)

        wait_until(is_seen, program=self.running.program, timeout_s=_START_S)

    def kill(self, leader: Program, standby: Program) -> tuple[float, float, float]:
        """Kill the leader, and wait for the records after it; wall clock of the kill, of the next
        lead, and of the end of its effects."""
        time.sleep(_CALM_S + self.dice.uniform(0.0, _SPREAD_S))  # a random moment
        at_s = time.time()
        os.kill(leader.pid, signal.SIGKILL)
        self.coordinators.await_lead(standby)
        led_s = time.time()
        self.await_seen(at_s)
        self.await_caught_up()
        leader.kill()  # reaps the process
        return at_s, led_s, time.time()

    def attempts(self) -> dict[str, int]:
        """Attempt by region, by the newest decision."""
        store = open_store(str(self.running.directory / "checkpoint"))
        records = (store.read(slot) for slot in sorted(store.slots(), reverse=True))
        newest = next(r for r in records if r is not None and r.verdict is Verdict.DECIDED)
        return {region.region: region.attempt_id for region in newest.regions}


def sit(rig: Rig, args: argparse.Namespace, *, kills: int, until_s: float) -> Sitting:
    """One sitting of at most so many kills; none begins after ``until_s``, by the monotonic
    clock."""
    load_before = os.getloadavg()[0]
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    pace = Paced(PARTITIONS, _PER_S)
    arguments = [
        *("--engine", "continuous", "--coordinator", "process", "--regions", str(_REGIONS)),
        *("--interval", str(_INTERVAL_S), "--tasks", str(_REGIONS)),
    ]
    with ExitStack() as stack:
        options = _options(args, stack)
        reader = stack.enter_context(VisibleRecords(rig.connection, output))
        running = stack.enter_context(rig.run("pipeline", source, output, arguments))
        coordinators = stack.enter_context(Coordinators(running, options))
        bed = _Bed(running, coordinators, reader, pace)
        with Feed(rig, source, pause_s=_PAUSE_S, burst=pace):
            leader = coordinators.leader()
            bed.await_seen(time.time())
            bed.await_caught_up()
            before = bed.attempts()
            times: list[tuple[float, float, float]] = []
            while len(times) < kills and time.monotonic() < until_s:
                standby = coordinators.standby()
                times.append(bed.kill(leader, standby))
                leader = standby
        wait_until(lambda: reader.total >= pace.sent, program=running.program, timeout_s=_START_S)
        after, sessions = bed.attempts(), coordinators.sessions()
    seen = reader.by_partition()
    return Sitting(
        ha=args.ha,
        timeout_s=args.ha_timeout,
        kills=[_killed(seen, *each) for each in times],
        faults=sum(_faults(seen, pace, number) for number in range(PARTITIONS)),
        restarted=sum(after.get(region) != attempt for region, attempt in before.items()),
        stray_leaders=len(sessions) - len(set(sessions)) + abs(len(sessions) - len(times) - 1),
        sent=pace.sent,
        at=time.strftime("%Y-%m-%d %H:%M"),
        load_before=load_before,
        machine=dict(machine.describe()),
    )


def _options(args: argparse.Namespace, stack: ExitStack) -> list[str]:
    """Of each coordinator; starts ZooKeeper if the election needs it."""
    ha = args.ha
    if ha == "zookeeper":
        servers = stack.enter_context(EmbeddedZooKeeper(nodes=3))
        ha = f"zookeeper://{servers.hosts}/kills"
    timeout = [] if args.ha_timeout is None else ["--ha-timeout", str(args.ha_timeout)]
    return ["--ha", ha, *timeout]


def _killed(seen: Mapping[int, Seen], at_s: float, led_s: float, end_s: float) -> KilledLeader:
    return KilledLeader(
        gap_s=max(each.longest_pause_s(at_s, end_s) for each in seen.values()), led_s=led_s - at_s
    )


def _faults(seen: Mapping[int, Seen], pace: Paced, number: int) -> int:
    sent = pace.sent_to(number)
    return seen[number].faults(sent) if number in seen else sent


# --- the log of the sittings ----------------------------------------------------------------------


def read_sittings(path: Path, ha: str, timeout_s: float | None) -> list[Sitting]:
    """Earlier ones with the same settings; skips a line that a kill truncated."""
    text = path.read_text("utf-8") if path.exists() else ""
    found = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        fields = json.loads(line)
        kills = [KilledLeader(**each) for each in fields["kills"]]
        found.append(Sitting(**{**fields, "kills": kills}))
    return [each for each in found if (each.ha, each.timeout_s) == (ha, timeout_s)]


def _log_sitting(path: Path, sitting: Sitting) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(sitting)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def figures(sittings: Sequence[Sitting]) -> list[Figure]:
    """Of all kills together."""
    kills = [kill for each in sittings for kill in each.kills]
    gaps, led = [kill.gap_s for kill in kills], [kill.led_s for kill in kills]
    ha = sittings[0].ha
    most_s = _INTERVAL_S + _WAYS[ha]
    sent = sum(each.sent for each in sittings)
    return [
        Figure(
            what="records lost, doubled or misplaced",
            runs=[float(sum(each.faults for each in sittings))],
            unit="records",
            goal="0",
            most=0,
            note=f"of {sent:,}; {len(kills)} kills, {_PER_S:,.0f} records/s",
        ),
        Figure(
            what="attempts of healthy tasks that restarted",
            runs=[float(sum(each.restarted for each in sittings))],
            unit="attempts",
            goal="0",
            most=0,
            note=f"of {_REGIONS} regions in each of {len(sittings)} jobs",
        ),
        Figure(
            what="second leaders of a session, or leaders without a kill",
            runs=[float(sum(each.stray_leaders for each in sittings))],
            unit="leaders",
            goal="0",
            most=0,
        ),
        Figure(
            what="gap in the output that a reader sees, 99 of 100",
            runs=[_percentile(gaps, 0.99)],
            unit="s",
            goal=f"<= {most_s:g}",
            most=most_s,
            note=f"epochs of {_INTERVAL_S:g} s; median {statistics.median(gaps):.1f} s, "
            f"longest {max(gaps):.1f} s",
        ),
        Figure(
            what="from a kill until the next coordinator leads, 99 of 100",
            runs=[_percentile(led, 0.99)],
            unit="s",
            note=f"median {statistics.median(led):.1f} s, longest {max(led):.1f} s",
        ),
    ]


def _percentile(found: Sequence[float], share: float) -> float:
    return sorted(found)[math.ceil(len(found) * share) - 1]


# --- the command ----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Kill until there are enough kills, or the time is over."""
    args = _parser().parse_args(arguments)
    began_s = time.monotonic()
    until_s = began_s + 60.0 * args.minutes if args.minutes else float("inf")
    console = Console(highlight=False, width=140)
    load_before = os.getloadavg()[0]
    with open_rig() as rig:
        while (done := _done(args)) < args.kills and time.monotonic() < until_s:
            sitting = sit(rig, args, kills=min(args.each, args.kills - done), until_s=until_s)
            _log_sitting(args.kept, sitting)
            longest_s = max((kill.gap_s for kill in sitting.kills), default=0.0)
            console.print(f"{len(sitting.kills)} kills more, the longest gap {longest_s:.1f} s")
    sittings = read_sittings(args.kept, args.ha, args.ha_timeout)
    if not any(each.kills for each in sittings):
        sys.exit("no kill was measured in this time")
    found = figures(sittings)
    if _done(args) < args.kills:
        console.print(f"{_done(args)} of {args.kills} kills: repeat the command to continue")
    else:
        log_figures(
            args.results,
            found,
            part="leader-kills",
            engine=args.ha,
            command=command_line(["leader-kills", "--ha", args.ha, "--kills", str(args.kills)]),
            load_before=load_before,
            machine=dict(machine.describe()),
        )
    for part in table(found, machine.describe()):
        console.print(part)


def _done(args: argparse.Namespace) -> int:
    return sum(len(each.kills) for each in read_sittings(args.kept, args.ha, args.ha_timeout))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks leader-kills", description=__doc__)
    parser.add_argument("--ha", choices=tuple(_WAYS), default="zookeeper", help="of coordinators")
    parser.add_argument("--ha-timeout", type=float, help="of coordinators; default: theirs")
    parser.add_argument("--kills", type=int, default=100, help="with those of earlier calls")
    parser.add_argument("--each", type=int, default=25, help="kills of one job, then a new one")
    parser.add_argument("--minutes", type=float, help="begin no kill after this time")
    parser.add_argument(
        "--kept", type=Path, default=_KEPT, help="JSON lines: sittings of earlier calls count"
    )
    parser.add_argument(
        "--results", type=Path, default=PARTS_RESULTS, help="JSON lines of the figures"
    )
    return parser


if __name__ == "__main__":
    main()
