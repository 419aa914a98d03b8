"""The failpoints by what reaches them, and how a program is killed there.

That a name stands here kills nothing: `tests.chaos.test_every_failpoint` looks at the tests.

Each start of a chain is killed at one of them; a clean run to the end follows. One Spark start per
kill is what a kill costs, so a chain shares topics, checkpoint directory and final check.
"""

from collections.abc import Mapping

from benchmarks.regions.mortal_sink import Doom
from tests.chaos.programs import MARKED_FILES, MORTAL_FILES, MORTAL_ROLLING, Subject
from tests.chaos.scenario import Kill, Setting
from tests.kit.coordinator.coordinator_failpoints import REGIONAL_FAILPOINTS

_AT_FIRST = frozenset({"before-first", "after-first"})
AT_START = _AT_FIRST | {
    *("before-fencing", "after-fencing", "before-state-sweep", "after-state-sweep"),
    *("before-sweep", "after-sweep"),
}
"""Reached once, at the start of a run; all other failpoints are reached in every epoch."""

CHAINS: Mapping[str, tuple[str, ...]] = {
    "start and cut": (
        *("before-first", "after-first"),
        *("before-fencing", "after-fencing", "before-state-sweep", "after-state-sweep"),
        *("before-sweep", "after-sweep"),
        *("before-trigger", "after-trigger", "before-cut", "after-cut"),
    ),
    "write and acknowledge": (
        *("before-begin", "after-begin", "mid-write", "before-flush", "after-flush"),
        *("after-pre-commit", "before-ack", "after-ack"),
    ),
    "decide": (
        *("before-decision", "before-publish", "after-temp-sync"),
        *("after-link", "after-publish", "after-decision"),
    ),
    "commit and mark": (
        *("before-commit", "mid-commit", "after-commit"),
        *("before-mark", "before-committed-mark", "after-committed-mark", "after-mark"),
    ),
    "return": (
        *("before-return", "after-return", "before-group-offsets", "after-group-offsets"),
        *("before-state-files", "during-state-files", "after-state-files"),
    ),
}
"""Failpoints by the step of the protocol they stand around (docs/internals/protocol.md)."""

DAILY = frozenset(
    {
        *("after-first", "before-sweep", "after-cut"),
        *("mid-write", "before-ack"),
        *("after-temp-sync", "after-link"),
        *("mid-commit", "before-committed-mark"),
    }
)
"""One after each thing that outlives the process.

These are the first record, the fencing record, the barrier offsets, an open transaction, a flushed
one, the temporary file, the decision, a part of the commits, and all commits. `make test-more` kills
from the decision on; the earlier ones are killed on demand, with all others."""

OF_STATE = (
    *("before-state-loaded", "after-state-loaded", "after-state-frozen"),
    *("before-state-written", "before-state-file", "after-state-file", "after-state-written"),
    *("before-state-merge", "before-merged-file", "after-merged-file"),
)
"""Reached in tasks with keyed state, at their begin and at the end of an epoch (`test_keyed`)."""

STATE_MOVES = ("before-state-adopted", "after-state-adopted")
"""Reached where a split comes to a running task with its state (`test_keyed`)."""

ELSEWHERE = frozenset(
    {
        *("before-begin", "after-begin", "mid-write", "before-flush", "after-flush"),
        *("after-pre-commit", "before-cut", "after-cut"),
        *("before-stage", "after-stage"),
        *("before-epoch-end", "after-epoch-begun", "after-epoch-ack", "after-epoch-rewound"),
        *("before-native-commit", "after-native-commit"),
        *OF_STATE,
        *STATE_MOVES,
    }
)
"""Reached in a task, or in the drop-in's source runner: such a process dies alone and is replaced
while the query runs, so all die here."""

TELLING = ("after-flush", "before-decision", "after-decision", "mid-commit", "before-mark")
"""One at each change of the durable state; for what cannot afford them all."""

DROP_IN_ABSENT = frozenset({"before-trigger", "after-trigger", "after-pre-commit"})
"""In the drop-in Spark's trigger is the barrier, and its own writer ends the task."""


FILES = ("before-stage", "mid-stage", "after-stage")
FILES += ("before-rename", "mid-rename", "after-rename")
"""Reached where files are written, and where they are published (`test_files`)."""

ROLLING = ("before-merge", "mid-merge", "after-merge")
"""Reached where files are held over epochs (`test_files`)."""

MARKS = ("before-partition-mark", "after-partition-mark")
"""Reached where readers are reported partitions (`test_files`)."""

OF_FILES: tuple[tuple[Subject, str], ...] = (
    *((MORTAL_FILES, name) for name in FILES),
    *((MORTAL_ROLLING, name) for name in ROLLING),
    *((MARKED_FILES, name) for name in MARKS),
)
"""Each step of files with a program that reaches it, and writes a topic, too."""

REPAIR = ("after-rewrite", "before-repair", "after-repair")
"""Reached only after a broker has aborted a decided transaction (`test_lost_transactions`)."""

LOSSES = ("before-unsettled", "after-unsettled")
"""Reached only when what a broker has aborted is not written again (`test_lost_transactions`)."""

ACCEPTANCE = ("before-acceptance", "after-acceptance")
"""Reached in a command; killed in `tests/integration/test_local_checkpoints.py`."""

REGIONAL = REGIONAL_FAILPOINTS
"""Reached only where regions fail, are late, or exchange splits (`test_regional`)."""

_BETWEEN_TASKS = ("after-epoch-rewound", "after-carry", "after-release", "mid-move")

OF_REGIONS: tuple[tuple[str, str], ...] = (
    *(("micro-batch", name) for name in REGIONAL),
    *(("continuous", name) for name in _BETWEEN_TASKS),
)
"""Engine and step of restless regions: every step in micro-batches. The continuous engine has two
steps of its own: a running task loses a split, or its region is skipped."""

CONTINUOUS = (
    *("before-epoch-end", "after-epoch-begun", "after-epoch-ack"),
    *("after-tasks-asked", "before-native-commit", "after-native-commit", "after-tasks-answered"),
)
"""Reached in continuous tasks, or where they are asked to commit (`test_continuous`)."""

IN_BATCHES = tuple(name for chain in CHAINS.values() for name in chain)
"""Every failpoint that a chained copy of several partitions reaches in micro-batches."""

CONTINUOUSLY = tuple(
    name
    for name in (*IN_BATCHES, *CONTINUOUS)
    if name != "mid-commit"  # an epoch is one transaction
)
"""The same for a continuous copy in one region, of which no split moves."""

RETRIES = ("publish-retry", "settle-retry")
"""Reached when a start gets no answer (`tests.chaos.obstacles`)."""


def kills(failpoints: tuple[str, ...], *, hit: int = 2) -> list[Kill]:
    """A kill at each: at its first hit where there is one only, else in a later epoch.

    The very first run has no seal: its first record is checkpoint 0. So a run comes before.
    """
    needs_a_run = failpoints[0] in AT_START - _AT_FIRST
    before = [Kill(failpoint="after-mark", hit=hit)] if needs_a_run else []
    return before + [_kill(name, 1 if name in AT_START else hit) for name in failpoints]


def twice(failpoint: str, *, hit: int = 2) -> list[Kill]:
    """Killed in the middle of the work, and again as soon as the next run gets there."""
    again = (
        "before-fencing" if failpoint == "after-first" else failpoint
    )  # there is one first record
    return [*kills((failpoint,), hit=hit), _kill(again, 1)]


def restless(doom: Doom, *, engine: str) -> Setting:
    """Settings of `RESTLESS_REGIONS`: four regions, and a core for each long task."""
    return Setting(
        partitions=8,
        environment={"DOOM": str(doom.directory), "ENGINE": engine},
        master="local[4]" if engine == "continuous" else "local[2]",
    )


def _kill(failpoint: str, hit: int) -> Kill:
    action = "kill-session" if failpoint in ELSEWHERE else "kill"
    return Kill(failpoint=failpoint, hit=hit, action=action)
