"""The list of faults that a seed makes. Pure."""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sluice.runtime.errors import ConfigError

BROKERS = ("kafka-1", "kafka-2", "kafka-3")
HDFS = ("namenode", "datanode")
WORKERS = ("worker-1", "worker-2")
DRIVER = "driver"
HOSTS = ("driver-1", "driver-2")
"""The drivers of a job with coordinators of its own: both host regions."""
COORDINATORS = ("coordinator-1", "coordinator-2")
ZOOKEEPERS = ("zookeeper-1", "zookeeper-2", "zookeeper-3")
LEADER = "leader"
"""The coordinator that leads at the time of the fault."""
QUORUM = "quorum"
"""Two of the ZooKeeper servers."""
TRANSACTION_TIMEOUT_S = 20.0
"""The transaction timeout of jobs whose transactions may time out."""
_ABORTED_WITHIN_S = 15.0  # brokers search for expired transactions every 10 s
_MACHINES = (*BROKERS, *HDFS, *WORKERS, DRIVER, *HOSTS, *COORDINATORS, *ZOOKEEPERS)
_GROUPS = {LEADER: COORDINATORS, QUORUM: ZOOKEEPERS, "brokers": BROKERS}
"""Targets that are several machines, or one of several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault.

    Attributes:
        targets: containers, or parts of them, that it may strike.
        least_s, most_s: how long it lasts.
        weight: its relative frequency.
        says: its description in the report.
        is_alone: the job must continue before the fault is healed, so no other fault is active.
        outlasts: it lasts longer than the job's transactions, which brokers abort.
    """

    targets: tuple[str, ...]
    least_s: float
    most_s: float
    weight: int
    says: str
    is_alone: bool = False
    outlasts: bool = False


KINDS: Mapping[str, Kind] = {
    "kill": Kind(
        targets=(*_MACHINES, "master"),
        least_s=0.0,
        most_s=8.0,
        weight=4,
        says="`kill -9` of a container, started again on its disk",
    ),
    "kill-part": Kind(
        targets=("worker-1/executor", "worker-2/executor", "worker-1/python", "worker-2/python"),
        least_s=0.0,
        most_s=0.0,
        weight=3,
        says="`kill -9` of an executor's JVM or of all Python workers of a host",
    ),
    "pause": Kind(
        targets=_MACHINES,
        least_s=2.0,
        most_s=16.0,
        weight=4,
        says="frozen (cgroup freezer), then resumed: shorter and longer than the timeouts",
    ),
    "zombie": Kind(
        targets=(DRIVER,),
        least_s=0.0,
        most_s=0.0,
        weight=1,
        says="a frozen driver, a second one started instead, then the first resumed",
        is_alone=True,
    ),
    "failpoint": Kind(
        targets=(DRIVER, LEADER),
        least_s=0.0,
        most_s=0.0,
        weight=2,
        says="the driver, or a coordinator that has taken over, kills itself at a named step of the "
        "protocol",
        is_alone=True,
    ),
    "cut": Kind(
        targets=_MACHINES,
        least_s=2.0,
        most_s=14.0,
        weight=3,
        says="network partition, both directions: packets are dropped, connections stay open",
    ),
    "cut-in": Kind(
        targets=_MACHINES,
        least_s=2.0,
        most_s=14.0,
        weight=2,
        says="network partition, incoming packets only",
    ),
    "cut-out": Kind(
        targets=_MACHINES,
        least_s=2.0,
        most_s=14.0,
        weight=2,
        says="network partition, outgoing packets only",
    ),
    "slow": Kind(
        targets=_MACHINES,
        least_s=4.0,
        most_s=14.0,
        weight=2,
        says="delay, both directions: a link of 128 kbit/s with a queue of 10 s",
    ),
    "slow-in": Kind(
        targets=_MACHINES, least_s=4.0, most_s=14.0, weight=1, says="delay, incoming packets only"
    ),
    "slow-out": Kind(
        targets=_MACHINES, least_s=4.0, most_s=14.0, weight=1, says="delay, outgoing packets only"
    ),
    "disk-full": Kind(
        targets=(*BROKERS, "datanode"),
        least_s=3.0,
        most_s=10.0,
        weight=2,
        says="no byte of disk left, then space again",
    ),
    "clock": Kind(
        targets=_MACHINES,
        least_s=3.0,
        most_s=10.0,
        weight=3,
        says="the wall clock jumps by 10 minutes, ahead or back (a broker's: back), and returns",
    ),
    "rolling-restart": Kind(
        targets=("brokers",),
        least_s=0.0,
        most_s=0.0,
        weight=1,
        says="each broker in turn is stopped in good order and started again",
        is_alone=True,
    ),
    "outage": Kind(
        targets=("namenode",),
        least_s=20.0,
        most_s=45.0,
        weight=1,
        says="the NameNode is stopped in good order and stays down",
    ),
    "absence": Kind(
        targets=(DRIVER,),
        least_s=TRANSACTION_TIMEOUT_S + _ABORTED_WITHIN_S,
        most_s=TRANSACTION_TIMEOUT_S + _ABORTED_WITHIN_S + 10.0,
        weight=16,
        says="the driver is frozen or dead at a step for longer than the transaction timeout",
        is_alone=True,
        outlasts=True,
    ),
    "no-quorum": Kind(
        targets=(QUORUM,),
        least_s=4.0,
        most_s=30.0,
        weight=3,
        says="two of three ZooKeeper servers are killed, or frozen",
    ),
    "depose": Kind(
        targets=(LEADER,),
        least_s=0.0,
        most_s=0.0,
        weight=4,
        says="the leading coordinator is frozen until another one leads, and that one at once, too; "
        "resumed, each must end",
        is_alone=True,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault of a run.

    Attributes:
        kind: a key of `KINDS`.
        target: one of its targets.
        after_s: from the recovery of the previous fault to its injection.
        hold_s: from its injection to its healing.
        draw: in [0, 1): random number for further choices of a kind.
    """

    kind: str
    target: str
    after_s: float
    hold_s: float
    draw: float


def plan(
    seed: int,
    count: int,
    *,
    kinds: Collection[str] = (),
    without: Collection[str] = (),
    may_lapse: bool = False,
    gap_s: float = 2.0,
) -> Sequence[PlannedFault]:
    """The faults of a run. The same seed, kinds and targets make the same list, and a shorter list
    is the beginning of a longer one.

    Args:
        seed: any.
        count: how many.
        kinds: the only kinds; none: all.
        without: targets that this run does not have; excludes a kind without other targets.
        may_lapse: False: no fault outlasts the job's transactions.
        gap_s: the longest `PlannedFault.after_s`.
    Raises:
        ConfigError: a kind is unknown, or no kind is left.
    """
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise ConfigError(
            "there is no such kind of fault",
            {"kinds": ", ".join(unknown)},
            f"Choose from {', '.join(KINDS)}.",
        )
    allowed = [name for name, kind in KINDS.items() if may_lapse or not kind.outlasts]
    targets = {
        name: [target for target in KINDS[name].targets if target not in without]
        for name in allowed
        if not kinds or name in kinds
    }
    names = [name for name in targets if targets[name]]
    if not names:
        raise ConfigError(
            "no fault is left to inject",
            {"kinds": ", ".join(kinds), "without": ", ".join(without)},
            "Name a kind that has a target in this run.",
        )
    return _drawn(random.Random(seed), {name: targets[name] for name in names}, count, gap_s)


def _drawn(
    dice: random.Random, targets: Mapping[str, Sequence[str]], count: int, gap_s: float
) -> Sequence[PlannedFault]:
    names = list(targets)
    weights = [KINDS[name].weight for name in names]
    planned = []
    for _ in range(count):
        (name,) = dice.choices(names, weights)
        kind = KINDS[name]
        planned.append(
            PlannedFault(
                kind=name,
                target=dice.choice(targets[name]),
                after_s=round(dice.uniform(0.0, gap_s), 3),
                hold_s=round(dice.uniform(kind.least_s, kind.most_s), 3),
                draw=dice.random(),
            )
        )
    return planned


def bursts(planned: Sequence[PlannedFault], most: int) -> Iterator[Sequence[PlannedFault]]:
    """The same faults, in groups that are active at the same time.

    A fault that does not fit into a group waits for the next one, and later faults overtake it. So
    groups are as large as possible, and no fault waits forever.

    Args:
        planned: the result of `plan`.
        most: faults in a group; each strikes another machine. 1: in the plan's order.
    """
    left = list(planned)
    while left:
        burst: list[PlannedFault] = []
        waiting = []
        for fault in left:
            fits = not burst or (len(burst) < most and _goes_with(fault, burst))
            (burst if fits else waiting).append(fault)
        yield burst
        left = waiting


def _goes_with(fault: PlannedFault, others: Sequence[PlannedFault]) -> bool:
    if any(KINDS[each.kind].is_alone for each in (fault, *others)):
        return False
    # Kafka's controllers measure timeouts by the wall clock. If one clock jumps while another
    # controller is away, they may elect no leader for as long as the jump (seen: 600 s).
    brokers = [each.kind for each in (fault, *others) if each.target in BROKERS]
    if "clock" in brokers and len(brokers) > 1:
        return False
    return _machines(fault).isdisjoint(machine for each in others for machine in _machines(each))


def _machines(fault: PlannedFault) -> frozenset[str]:
    name = fault.target.partition("/")[0]
    return frozenset(_GROUPS.get(name, (name,)))
