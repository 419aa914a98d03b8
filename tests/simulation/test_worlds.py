"""Whole jobs under random crashes, pauses, second coordinators and lost answers; and the proof
that the worlds would notice a broken rule.

``make simulate`` runs short ones by the million; ``SLUICE_SIMULATION_SEEDS=200`` runs more of the
long ones here; a failure prints the seed and the profile.
"""

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.runtime.contracts import AcceptedAs, FailureReason
from sluice.runtime.errors import (
    ConfigError,
    LeadershipLostError,
    RegionsSuspendedError,
    TransactionUnknownError,
)
from sluice.runtime.model.checkpoint_record import RegionStatus
from tests.simulation.mutations import MUTATIONS
from tests.simulation.process import Process
from tests.simulation.profile import Profile
from tests.simulation.profiles import PROFILES
from tests.simulation.shrink import find
from tests.simulation.world import World

SEEDS = int(os.environ.get("SLUICE_SIMULATION_SEEDS", "4"))
MUTANT_SEEDS = 400


@pytest.mark.parametrize("name", PROFILES)
def test_every_record_is_visible_exactly_once_in_order(name: str) -> None:
    """Whatever is killed, paused or lost: nothing lost, nothing doubled, order kept, and a
    read_committed reader sees a prefix at every moment."""
    for seed in range(SEEDS):
        World(seed, PROFILES[name]).run()


def test_worlds_are_rough() -> None:
    """The worlds do decide, kill, seal, fail over and repair, or the test above proves little."""
    worlds = [World(seed, PROFILES["transactions expire and are repaired"]) for seed in range(45)]
    for world in worlds:
        world.run()
    records = [record for world in worlds for record in world.history]
    requested_by = [record.requested_by for record in records]
    assert requested_by.count("fencing") > 60
    assert requested_by.count("interval") > 100
    assert requested_by.count("restart") > 1
    assert requested_by.count("end") > 20
    assert sum(world.repairs for world in worlds) > 10


def test_worlds_lose_elections() -> None:
    """Starts do lose their lead before their fencing record, or the worlds prove little."""
    worlds = [World(seed, PROFILES["elected leaders wake up"]) for seed in range(20)]
    for world in worlds:
        world.run()
    lost = [p for w in worlds for p in w.processes if isinstance(p.error, LeadershipLostError)]
    assert sum(not process.running for process in lost) > 20
    assert sum(process.running for process in lost) > 10


def test_worlds_carry_regions() -> None:
    """Decisions do leave regions out, for both reasons, or the worlds above prove little."""
    worlds = [World(seed, PROFILES["failed and late regions are skipped"]) for seed in range(30)]
    for world in worlds:
        world.run()
    regions = [region for w in worlds for record in w.history for region in record.regions]
    skipped = [region for region in regions if region.status is RegionStatus.SKIPPED]
    assert len(skipped) > 50
    assert all(region.snapshot_id is not None and not region.committables for region in skipped)
    reasons = [reason for w in worlds for p in w.processes for reason in p.left_out]
    assert reasons.count(FailureReason.ERROR) > 10
    assert reasons.count(FailureReason.EXPIRED) > 10


def test_worlds_bring_regions_back() -> None:
    """Delayed regions do fail, wait, come back and commit again, or those worlds prove little."""
    worlds = [World(seed, PROFILES["regions come back after delays"]) for seed in range(10)]
    attempts = []
    for world in worlds:
        world.run()
        for process in world.processes:
            if process.running:
                status = process.core.status(now_s=world.clock(), now_ms=0)
                attempts += [found for region in status.regions for found in region.attempts]
    away_s = [found.committed_after_s for found in attempts if found.committed_after_s is not None]
    assert len(away_s) > 8
    assert sum(seconds > 0.2 for seconds in away_s) > 4, "the shortest delay is 0.1 s"


def test_worlds_suspend_regions() -> None:
    """Decisions do leave suspended regions out, commands bring them back, bounded runs end without
    them, and with an error; or those worlds prove little."""
    worlds = [World(seed, PROFILES["regions are suspended"]) for seed in range(40)]
    for world in worlds:
        world.run()
    processes = [process for world in worlds for process in world.processes]
    reasons = [reason for process in processes for reason in process.left_out]
    assert reasons.count(FailureReason.SUSPENDED) > 20
    assert sum(len(process.suspended) for process in processes) > 20
    assert sum(isinstance(process.error, RegionsSuspendedError) for process in processes) > 2


def test_restore_by_attempt_worlds_move_splits() -> None:
    """Splits do change their regions, also beside skipped ones, and every record is read once."""
    for name in ("splits move, many kills", "splits move beside skipped regions"):
        worlds = [World(seed, PROFILES[name]) for seed in range(10)]
        for world in worlds:
            world.run()
        assert sum(world.watch.moves for world in worlds) > 30


def test_restore_by_attempt_worlds_continue_with_other_numbers_of_regions() -> None:
    """Runs that have decided do follow one another with other regions, or these prove little."""
    for name in ("other numbers of regions", "other numbers of regions beside skipped ones"):
        worlds = [World(seed, PROFILES[name]) for seed in range(10)]
        for world in worlds:
            world.run()
        assert sum(world.watch.rescales for world in worlds) > 6


def test_worlds_tear_commits_and_repairs() -> None:
    worlds = [World(seed, PROFILES["repairs fail half-way"]) for seed in range(30)]
    for world in worlds:
        world.run()
    records = [record for world in worlds for record in world.history]
    assert sum(len(record.committables) > 2 for record in records) > 20
    faults = sum((world.faults for world in worlds), Counter[str]())
    assert faults["a coordinator dies in the middle of its commits"] > 10
    assert faults["a repair fails half-way"] > 5
    assert faults["a coordinator dies in its repair"] > 1
    assert sum(world.repairs for world in worlds) > 20


def test_outcome_from_broker_worlds_forget_what_a_person_then_tells() -> None:
    name = "ids and transactions expire, what is lost is reported, on a file system"
    worlds = [World(seed, PROFILES[name]) for seed in range(30)]
    for world in worlds:
        world.run()
    errors = [process.error for world in worlds for process in world.processes]
    assert sum(isinstance(error, TransactionUnknownError) for error in errors) > 10
    words = sum((world.people.words for world in worlds), Counter[AcceptedAs]())
    assert min(words[AcceptedAs.COMMITTED], words[AcceptedAs.LOST]) > 5


def test_abort_by_endtxn_worlds_have_people_who_end_transactions() -> None:
    """Commands of `sluice txn` do commit, abort and refuse, or these worlds prove little."""
    worlds = [World(s, PROFILES["people end transactions of several tasks"]) for s in range(30)]
    for world in worlds:
        world.run()
    done = sum((world.people.done for world in worlds), Counter[str]())
    assert done["committed"] > 5
    assert done["aborted"] > 2
    assert done["FencedError"] > 5, "the job runs"
    assert done["ConfigError"] > 5, "a decision names it, or none does"


def test_worlds_go_back_to_older_checkpoints() -> None:
    """Starts do go back, also to what a start before had left, beside others that live and
    again by the same program; or those worlds prove little."""
    worlds = [World(s, PROFILES["restores, few checkpoints are kept"]) for s in range(30)]
    for world in worlds:
        world.run()
    processes = [process for world in worlds for process in world.processes]
    assert sum(world.watch.lineages.turns for world in worlds) > 30
    assert sum(world.watch.lineages.turns > 1 for world in worlds) > 5
    assert sum(isinstance(process.error, ConfigError) for process in processes) > 0, "retired"
    assert sum(len(offsets) for w in worlds for offsets in w.watch.seen.values()) > sum(
        end for world in worlds for end in world.ends.values()
    ), "some are read once more"


def test_the_end_of_a_run_is_of_partitions_that_nobody_has_found_yet() -> None:
    """Else a job ends in the calm without one that was added right before it, and no rule is broken
    by that: a real source that is bounded has known its end from its start."""
    world = World(0, Profile(partitions=1))
    source = world.start_process().source
    start = source.resolve_start(timeout_s=1)
    source.bounded = True
    assert source.is_finished(start)
    world.ends[1] = 0
    assert not source.is_finished(start)
    assert source.is_finished((*start, *source.discover(timeout_s=1)))


@pytest.mark.parametrize("name", MUTATIONS)
def test_worlds_notice_a_broken_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule is broken on purpose; some seed must break the very promise that it keeps. An error
    of the simulator's own is no such thing, nor is a coordinator that merely stops."""
    mutation, rough, what = MUTATIONS[name]
    mutation(monkeypatch)
    profile = Profile(**{"processes": 8, **rough})
    found = (find(seed, profile) for seed in range(MUTANT_SEEDS))
    assert any(failure is not None and failure.what == what for failure in found)


def test_ids_never_reused_two_workers_with_one_owner_are_seen_when_the_id_changes_hands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutation, rough, what = MUTATIONS["one owner for all workers"]
    mutation(monkeypatch)
    profile = Profile(**{"processes": 8, **rough})
    found = [find(seed, profile) for seed in range(60)]
    assert {failure.what for failure in found if failure} == {what}


class JobMachine(RuleBasedStateMachine):
    """Hypothesis chooses who moves, who dies and who starts; it shrinks what fails."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World

    @initialize(
        seed=st.integers(0, 2**16),
        external=st.booleans(),
        stateful=st.booleans(),
        expire=st.booleans(),
        delayed=st.booleans(),
        kind=st.sampled_from(["batches", "files", "tasks"]),
    )
    def begin(
        self, seed: int, *, external: bool, stateful: bool, expire: bool, delayed: bool, kind: str
    ) -> None:
        profile = Profile(
            external=external,
            stateful=stateful,
            expire=0.02 if expire else 0.0,
            delayed=delayed,
            fail_region=0.03 if delayed else 0.004,
            files=kind == "files",
            roll=kind == "files" and not external,
            continuous=kind == "tasks" and not external and not stateful,
            processes=10**6,
        )
        self.world = World(seed, profile)

    def _chosen(self, number: int) -> Process | None:
        living = [process for process in self.world.processes if not process.is_stuck()]
        return living[number % len(living)] if living else None

    @rule(count=st.integers(1, 6), partition=st.integers(0, 2))
    def records_arrive(self, count: int, partition: int) -> None:
        self.world.ends[partition] += count

    @rule()
    @precondition(lambda self: len(self.world.processes) < 8)
    def a_coordinator_starts(self) -> None:
        self.world.start_process()

    @rule(number=st.integers(0, 7), steps=st.integers(1, 40))
    def a_coordinator_moves(self, number: int, steps: int) -> None:
        process = self._chosen(number)
        for _ in range(steps if process else 0):
            if process is not None and not process.dead:
                process.step()
                self.world.clock.advance(0.01)

    @rule(number=st.integers(0, 7))
    def a_coordinator_is_killed(self, number: int) -> None:
        process = self._chosen(number)
        if process is not None:
            self.world.kill(process)

    @rule()
    @precondition(lambda self: bool(self.world.zombies))
    def an_orphaned_task_writes(self) -> None:
        """It does not know that its driver is gone."""
        self.world.move_zombie()

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        """Intervals become due, checkpoints expire."""
        self.world.clock.advance(seconds)

    @invariant()
    def readers_see_a_prefix(self) -> None:
        if hasattr(self, "world"):
            self.world.ending.check_readers()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.ending.settle()


JobMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestJobMachine = JobMachine.TestCase
