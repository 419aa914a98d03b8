"""Runs of a continuous job, one after the other and beside one another, with all their threads.

Each driver is a process with the real coordinator, its start and its end, the real leases,
barrier service, committers and sweeps; its tasks outlive it (`tests.kit.threads.threaded_tasks`). Played are Spark, the
brokers, the checkpoint directory, and the ways between them.
"""

import itertools
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import sluice.runtime.continuous.barrier_service as patched_module
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_sink_coordinator import KafkaSinkCoordinator
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.sink.handles import TransactionalId
from sluice.connectors.kafka.sink.producers.id_owners import NewOwner
from sluice.connectors.kafka.sink.producers.producer_pool import ProducerPool
from sluice.connectors.kafka.sink.writer.producer_wait import ProducerWait
from sluice.runtime.checkpoint.run_record import RunRecord
from sluice.runtime.continuous.barrier_service import BarrierService
from sluice.runtime.continuous.native_commits import LostTimeout, NativeCommits, TasksFirst
from sluice.runtime.contracts import (
    MetadataStore,
    RegionAttempt,
    RegionHandle,
    RegisteredAttempt,
    SinkCoordinator,
    SplitEnumerator,
    TaskScope,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    OnRegionFailure,
    RegionPlan,
    StartedJob,
)
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.errors import StreamError
from sluice.runtime.model.checkpoint_record import OperatorNode
from sluice.runtime.ownership.lease import Lease, LeaseRecord
from sluice.runtime.service.hosted_region import HostedRegion
from sluice.runtime.spark.run.attempt_supervisor import RegionAttempts
from tests.kit.coordinator.random_moves import RandomMoves
from tests.kit.fakes import FakeSource
from tests.kit.kafka.fake_kafka import FakeBroker, Written
from tests.kit.threads.switched_threads import Process, Switched, Thread
from tests.kit.threads.threaded_attempts import Link, RunningAttempt
from tests.kit.threads.threaded_remotes import Directory, ReachedOwner, ReachedStore, ReachedWire
from tests.kit.threads.threaded_tasks import (
    OTHER,
    PREFIX,
    SILENCE_S,
    Faults,
    Life,
    PlayedLink,
    Worker,
    made_ready,
)

START_S = 30.0
"""What a start is given."""
_PARTITIONS = 4
_COMMITTED = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
_SWITCHED = (
    "sluice.connectors.kafka.sink.committer.kafka_sink_coordinator",
    "sluice.connectors.kafka.sink.producers.producer_pool",
    "sluice.connectors.kafka.sink.producers.transactional_producer",
    "sluice.runtime.coordinator.shell.restart_waits",
    "sluice.runtime.coordinator.shell.coordinator",
    "sluice.runtime.coordinator.shell.source_service",
    "sluice.runtime.coordinator.shell.run_threads",
    "sluice.runtime.coordinator.shell.core_loop",
    "sluice.runtime.ownership.lease_watch",
    "sluice.runtime.coordinator.shell.action_dispatcher",
    "sluice.runtime.coordinator.shell.region_watch",
    "sluice.runtime.coordinator.committing.sink_committer",
    "sluice.runtime.continuous.checkpoint_client",
    "sluice.runtime.continuous.barrier_service",
    "sluice.runtime.continuous.native_commits",
    "sluice.runtime.service.hosted_region",
)


class Runs:
    """The world; `close` it.

    Attributes:
        runs: all that were begun, in their order.
        newest: attempt of the newest run whose start has ended well.
        leader_is_seen: whether tasks can read who leads.
    """

    def __init__(
        self,
        random: Random,
        faults: Faults,
        *,
        level: int,
        sinks: int,
        moves: bool,
        rescales: bool,
        suspends: bool,
        counts: bool,
    ) -> None:
        self.random = random
        self.switched = Switched(random.randrange)
        self.faults = faults
        self.sinks = ("sink", "other")[:sinks]
        self.moves, self.rescales, self.suspends, self.counts = moves, rescales, suspends, counts
        self.leader_is_seen = True
        self.broker = FakeBroker(level=level, on_end=self._ended)
        self.directory = Directory(require=self.switched.require)
        self.owners: dict[str, LeaseRecord | None] = {}
        self.logs = dict.fromkeys(range(_PARTITIONS), 0)
        self.people = Process("world")
        self.runs: list[Run] = []
        self.newest = -1
        self.workers = itertools.count(1)
        self._stack = ExitStack()
        self._stack.enter_context(self.switched.in_modules(*_SWITCHED))
        drawn = itertools.count(1)
        waiting = partial(ProducerWait, clock=self.switched.clock, sleep=self.switched.sleep)
        patches = {
            "sluice.connectors.kafka.sink.writer.kafka_writer.ProducerWait": waiting,
            "sluice.connectors.kafka.sink.committer.kafka_sink_coordinator.Lease": partial(
                Lease, slept=lambda: 0.0
            ),
            "sluice.runtime.coordinator.shell.coordinator.random": SimpleNamespace(
                random=random.random
            ),
            "sluice.runtime.coordinator.shell.coordinator.uuid": SimpleNamespace(
                uuid4=lambda: next(drawn)
            ),
            "sluice.runtime.coordinator.start.startup.uuid": SimpleNamespace(
                uuid4=lambda: next(drawn)
            ),
            "sluice.runtime.coordinator.committing.commit_steps.failpoint": self.switched.point,
            "sluice.runtime.continuous.checkpoint_client.failpoint": self.switched.point,
            "sluice.runtime.continuous.task_loop.failpoint": self.switched.point,
        }
        for name, played in patches.items():
            self._stack.enter_context(patch(name, played))
        self.begin()

    def begin(self, restore_from: int | None = None) -> "Run":
        """One more run of the job, whoever lives."""
        run = Run(self, len(self.runs) + 1, restore_from)
        self.runs.append(run)
        self.switched.spawn(run.live, process=run.driver, name="main")
        return run

    def close(self) -> None:
        """End all threads."""
        try:
            self.switched.end()
        finally:
            self._stack.close()

    @property
    def tasks(self) -> list[Thread]:
        """Threads of tasks: loops and checkpoint clients."""
        drivers = {self.people, *(run.driver for run in self.runs)}
        return [
            thread
            for thread in self.switched.living
            if thread.process not in drivers and "pool" not in thread.name
        ]

    # --- what must hold ---------------------------------------------------------------------------

    def _ended(self, written: Written) -> None:
        is_decided = written.identity in self.directory.decided
        if written.state not in _COMMITTED:
            self.switched.require(not is_decided, f"aborted and decided: {written}")
            self.directory.aborted.add(written.identity)
            return
        self.switched.require(is_decided, f"committed and not decided: {written}")
        name = TransactionalId.parse(written.identity.transactional_id)
        assert name is not None
        is_marked = written.state is TransactionState.COMPLETE_COMMIT  # whenever that comes
        is_in_time = is_marked or name.attempt_id >= self.newest
        self.switched.require(is_in_time, f"committed behind a recovery: {written}")

    def require_order(self) -> None:
        """Readers see each record once, in order."""
        for output, partition in self._outputs.items():
            seen = self._seen(output)
            expected = self.directory.expected(partition, self.logs[partition])
            assert seen == expected[: len(seen)], f"partition {output}: {seen}"

    @property
    def is_all_seen(self) -> bool:
        """Whether readers see every record."""
        return all(
            len(self._seen(output)) == len(self.directory.expected(partition, self.logs[partition]))
            for output, partition in self._outputs.items()
        )

    def _seen(self, output: int) -> list[int]:
        found = cast(list[tuple[int, int]], self.broker.read_committed(output))
        return [offset for _, offset in found]

    @property
    def _outputs(self) -> dict[int, int]:
        """By partition of the output, that of the input."""
        return {at * OTHER + p: p for at in range(len(self.sinks)) for p in self.logs}


class Run:
    """One driver; see `tests.kit.threads.threaded_tasks.World`.

    Attributes:
        restore_from: it is reported to go back to.
        began_s: when.
        started_s: when its start had ended.
        has_ended: its process has, by itself.
        error: by what.
        is_stopping: somebody has reported it to end.
        is_cut_off: from its tasks.
        has_store, has_brokers: see `tests.kit.threads.threaded_remotes.Reach`.
        is_disturbed: something of that happened to it.
    """

    def __init__(self, world: Runs, number: int, restore_from: int | None) -> None:
        self.world = world
        self.restore_from = restore_from
        self.number = number
        self.switched, self.faults = world.switched, world.faults
        self.broker, self.logs, self.sinks = world.broker, world.logs, world.sinks
        self.driver = Process(f"driver-{number}")
        self.began_s = self.switched.now_s
        self.started_s: float | None = None
        self.started: StartedJob | None = None
        self.has_ended = self.is_stopping = self.is_cut_off = self.is_disturbed = False
        self.has_store = self.has_brokers = True
        self.counts = world.counts
        self.listens = False
        self.error: StreamError | None = None
        self.job_uid = ""
        self.attempts: dict[str, Life] = {}
        self._barrier_service: BarrierService | None = None
        self._coordinator: BarrierCoordinator | None = None
        self._store = ReachedStore(self, world.directory)
        self._names = ("main", "side")
        if world.rescales:
            self._names = (("main", "side"), ("main",), ("main", "third", "side"))[number % 3]

    @property
    def is_over(self) -> bool:
        """Whether it decides nothing any more."""
        return self.has_ended or self.driver.is_killed

    # --- its main thread --------------------------------------------------------------------------

    def live(self) -> None:
        """As `sluice.runtime.spark.run.spark_engine.run_job`."""
        try:
            self._run()
        except StreamError as err:
            self.error = err
        # A remote step, or an attempt's stop, may hang for longer than it is waited for.
        names = [thread.name.partition("/")[2] for thread in self.driver.alive]
        left = [n for n in names if n.startswith("sluice-") and "-st" not in n]
        is_calm = self.faults.are_off and not self.is_disturbed
        self.switched.require(not (is_calm and left), f"it has ended, and goes on: {left}")
        self.has_ended = self.driver.is_killed = True  # other threads are daemons

    def _run(self) -> None:
        commits = NativeCommits()
        coordinator = self._coordinator = BarrierCoordinator(
            self._plan(),
            cast(MetadataStore, self._store),
            sinks={name: self._sink() for name in self.sinks},
            tasks_first=self._tasks_first(commits),
            sources={"source": cast(SplitEnumerator, FakeSource("source", self.logs))},
            settings=self._settings(),
            clock=self.switched.clock,
            slept=lambda: 0.0,
        )
        try:
            started = coordinator.start(START_S, restore_from=self.restore_from)
            self.started, self.started_s = started, self.switched.now_s
            self.job_uid = started.job_uid
            self.world.newest = max(self.world.newest, started.attempt_id)
            self._barrier_service = BarrierService(coordinator, commits)
            self._serve(coordinator, started)
        finally:
            self.listens = False
            coordinator.stop()

    def _serve(self, coordinator: BarrierCoordinator, started: StartedJob) -> None:
        self.listens = True
        self._store.announce(
            RunRecord(
                leader_session_id=started.session,
                address=self.driver.name,
                attempt_id=started.attempt_id,
                job_uid=started.job_uid,
            )
        )
        handles: Mapping[str, RegionHandle] = {
            name: HostedRegion(name, self._begin_life) for name in self._names
        }
        attempts = RegionAttempts(
            coordinator, handles, outage_limit_s=900.0, clock=self.switched.clock
        )
        try:
            for name in self._names:
                attempt = RegionAttempt(
                    attempt_id=started.attempt_id,
                    restored=started.regions[name],
                    after=started.restored_from or 0,
                )
                attempts.begin(attempt)
            while not self.is_stopping and not coordinator.wait(0.1):
                attempts.watch()
        finally:
            attempts.stop()

    def resume(self) -> None:
        """A person has its suspended regions begin again, if there are any."""

        def commands() -> None:
            with suppress(StreamError):
                self.coordinator.restart_regions()

        self.switched.spawn(commands, process=self.driver, name="service")

    def _begin_life(self, attempt: RegionAttempt) -> "RunningAttempt":
        before = self.attempts.get(attempt.region)
        is_left = before is not None and before.has_ended and not before.worker.is_killed
        if before is not None and is_left and self.faults.choose(2):
            worker = before.worker
        else:
            worker = Worker(f"worker-{next(self.world.workers)}")
        begun = Life(self, attempt.restored, attempt.attempt_id, worker)
        self.attempts[attempt.region] = begun
        return RunningAttempt(self, begun)

    # --- what it is made of -----------------------------------------------------------------------

    def _plan(self) -> JobPlan:
        graph = (
            OperatorNode(operator_id="source", name="orders", kind="source", upstream=()),
            OperatorNode(operator_id="f", name="f", kind="function", upstream=("source",)),
            *(
                OperatorNode(operator_id=name, name=name, kind="sink", upstream=("f",))
                for name in self.sinks
            ),
        )
        regions = tuple(
            RegionPlan(
                name=name,
                source_ids=("source",),
                sink_ids=self.sinks,
                stateful_sink_ids=(),
                chained=True,
                follows=True,
            )
            for name in self._names
        )
        return JobPlan(name="job", regions=regions, graph=graph)

    def _settings(self) -> CheckpointSettings:
        return CheckpointSettings(
            interval_s=0.2,
            timeout_s=SILENCE_S,
            tolerable_failures=1 if self.world.suspends else 10**6,
            on_region_failure=OnRegionFailure.SUSPEND
            if self.world.suspends
            else OnRegionFailure.FAIL,
            handler=RegionalCheckpointHandler(region_timeout_s=6.0, max_skipped_in_a_row=3),
            balancer=RandomMoves(self.world.random) if self.world.moves else None,
            discovery_interval_s=2.0,
            sweep_interval_s=5.0,
        )

    def _tasks_first(self, commits: NativeCommits) -> Mapping[str, TasksFirst]:
        tasks = TasksFirst(commits, LostTimeout(None), clock=self.switched.clock)
        return dict.fromkeys(self.sinks, tasks)

    def _sink(self) -> SinkCoordinator:
        clock, sleep = self.switched.clock, self.switched.sleep
        return KafkaSinkCoordinator(
            KafkaConnection(bootstrap_servers="played:9092", options={}),
            transactional_id_prefix=PREFIX,
            transaction_timeout_s=None,
            topics=("out",),
            connect=cast(Any, lambda _: ReachedWire(self, self.broker)),
            open_lease_store=cast(Any, lambda *_, timeout_s: ReachedOwner(self, self.world.owners)),
            clock=clock,
            sleep=sleep,
        )

    # --- as its tasks see it ----------------------------------------------------------------------

    @property
    def barrier_service(self) -> BarrierService:
        """See `World.barrier_service`."""
        assert self._barrier_service is not None
        return self._barrier_service

    @property
    def coordinator(self) -> BarrierCoordinator:
        """Of the run, once it has one."""
        assert self._coordinator is not None
        return self._coordinator

    @property
    def last_committed(self) -> int:
        """See `World.last_committed`."""
        return self.coordinator.last_committed

    def link(self) -> PlayedLink:
        """See `World.link`."""
        return Link(self)

    def lock(self) -> Any:
        """See `World.lock`."""
        return patched_module.threading.Lock()

    def register(self, attempt: RegisteredAttempt) -> float:
        """See `World.register`."""
        return self.coordinator.register(attempt)

    def pool(self, scope: TaskScope) -> ProducerPool:
        """See `World.pool`."""
        owner = f"w{next(self.world.workers)}"
        return ProducerPool(
            prefix=PREFIX,
            scope=scope,
            prepare=partial(made_ready, self, OTHER * self.sinks.index(scope.operator_id)),
            background=lambda body: cast(None, self.switched.spawn_here(body, "pool")),
            clock=self.switched.clock,
            ages=self.switched.clock,
            owner=NewOwner(owner),
        )
