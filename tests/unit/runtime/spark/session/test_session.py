"""The Spark session: settings, and hosts that it excludes."""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sluice
from sluice.runtime.contracts import Placement
from sluice.runtime.coordinator.policy.failure_policy import PERMANENT_ERRORS
from sluice.runtime.errors import ConfigError, MissingRequirementError, StreamError
from sluice.runtime.spark.session.hosts import Executor, HostExclusion, RunningTask
from sluice.runtime.spark.session.spark_session import (
    own_workers,
    prepare,
    query_settings,
    quick_python,
    require_query_settings,
    require_running,
    require_task_retries,
    require_version,
    task_attempts,
    warn_of_unbounded_rows,
)
from tests.kit.fakes import ManualClock
from tests.kit.waiting import join

_TIMEOUT_S = 300.0


@dataclass
class Context:
    """Spark's context: functions copy its environment."""

    environment: dict[str, str] = field(default_factory=lambda: {"PYTHONHASHSEED": "0"})
    settings: dict[str, str] = field(default_factory=dict)

    def getConf(self) -> dict[str, str]:
        return self.settings


@dataclass
class Session:
    """Spark's session, as far as it is asked."""

    sparkContext: Context = field(default_factory=Context)
    version: str = "4.3.0"


def test_ids_never_reused_two_regions_that_begin_a_batch_at_once_both_get_sink_workers() -> None:
    """Their callbacks run in threads of their own, and the environment is the session's."""
    session = Session()
    before = session.sparkContext.environment
    seen: list[dict[str, str]] = []
    barrier = threading.Barrier(4)

    def begin_batches() -> None:
        barrier.wait(_TIMEOUT_S)
        for _ in range(200):
            with own_workers(cast(SparkSession, session)):
                seen.append(session.sparkContext.environment)

    threads = [threading.Thread(target=begin_batches) for _ in range(4)]
    for thread in threads:
        thread.start()
    join(*threads)
    assert len(seen) == 800
    assert all(len(environment) == len(before) + 1 for environment in seen)
    assert session.sparkContext.environment is before, "and nobody else's functions"


@pytest.mark.parametrize(
    ("context", "is_refused"),
    [
        (None, True),  # by `SparkSession.stop`
        (SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: True)), True),
        (SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False)), False),
    ],
)
def test_nothing_is_begun_in_a_session_that_was_stopped(context: object, is_refused: bool) -> None:
    """For good: a region that failed with the session would begin again and again."""
    known = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=context, appName="shop"))
    session = cast(SparkSession, known)
    if not is_refused:
        require_running(session)
        return
    with pytest.raises(ConfigError, match="application=shop") as refused:
        require_running(session)
    assert isinstance(refused.value, PERMANENT_ERRORS)


def test_formats_are_not_installed_in_a_session_that_was_stopped() -> None:
    known = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None, appName="shop"))
    with pytest.raises(ConfigError, match=r"has been stopped .*application=shop"):
        sluice.install(cast(SparkSession, known))


def test_a_session_of_spark_connect_is_refused_by_name() -> None:
    """Its process has no JVM, and a missing attribute would be the error."""
    named = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    with pytest.raises(ConfigError, match=r"Spark Connect.*builder\.master"):
        sluice.install(cast(SparkSession, named()))


def test_a_source_gets_quick_processes_and_keeps_the_users_search_path() -> None:
    """In front of it, and only for functions that are made inside; with workers of its own, too."""
    session = Session()
    session.sparkContext.environment["PYTHONPATH"] = "/mine"
    before = session.sparkContext.environment
    spark = cast(SparkSession, session)
    with own_workers(spark), quick_python(spark):
        inside = session.sparkContext.environment
    ours, mine = inside["PYTHONPATH"].split(os.pathsep)
    assert (Path(ours) / "sitecustomize.py").is_file()
    assert mine == "/mine"
    assert len(inside) == len(before) + 1
    assert session.sparkContext.environment is before


def test_two_attempts_of_a_task_may_not_both_commit_their_files() -> None:
    """Spark asks its driver which one may, unless it is reported not to ask."""
    setting = "spark.hadoop.outputCommitCoordination.enabled"
    session = Session(sparkContext=Context(settings={setting: "False"}))
    with pytest.raises(ConfigError, match="outputCommitCoordination"):
        prepare(cast(SparkSession, session))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch", "false"),
        ("spark.shuffle.push.enabled", "true"),
    ],
)
def test_stateful_replay_a_shuffle_that_would_be_made_again_unseen_is_refused(
    setting: str, value: str
) -> None:
    """For drop-in queries it is the session's, and Spark reads the other one once."""
    session = Session(sparkContext=Context(settings={setting: value}))
    with pytest.raises(ConfigError, match=setting.replace(".", r"\.")):
        prepare(cast(SparkSession, session))


def test_tasks_that_could_not_know_their_batch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's local properties follow a Python thread only where threads are pinned."""
    monkeypatch.setenv("PYSPARK_PIN_THREAD", "false")
    with pytest.raises(ConfigError, match="PYSPARK_PIN_THREAD"):
        prepare(cast(SparkSession, Session()))


BATCHES = "spark.sql.streaming.minBatchesToRetain"
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
SINK_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSinkEvolution"
CHECKSUM = "spark.sql.shuffle.orderIndependentChecksum.enabled"
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
MOST_ROWS = str(2**31 - 1)
FULL_RETRY = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
USERS = {
    STATE_FORMAT: "1",
    NO_DATA: "true",
    EVOLUTION: "false",
    SINK_EVOLUTION: "true",
    BATCHES: "7",
    CHECKSUM: "false",
    FULL_RETRY: "false",
}


@dataclass
class Conf:
    """Spark's runtime configuration: text by key; one that is not set has no entry."""

    values: dict[str, str] = field(default_factory=dict)

    def get(self, key: str, default: str | None) -> str | None:
        return self.values.get(key, default)

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def unset(self, key: str) -> None:
        self.values.pop(key, None)


@dataclass
class SessionSettings:
    """Spark's session, as far as it is asked."""

    conf: Conf


def inside(users: dict[str, str], *, batches_to_retain: int = 100) -> dict[str, str]:
    """The configuration that a query is made under, where the user has set these."""
    conf = Conf(dict(users))
    session = cast(SparkSession, SessionSettings(conf))
    with query_settings(session, batches_to_retain=batches_to_retain):
        return dict(conf.values)


@pytest.mark.parametrize("users", [{}, USERS])
def test_a_query_is_made_under_the_settings_that_the_rules_need(users: dict[str, str]) -> None:
    """Whatever the user has set: no batch of Spark's own (`batch-identity`), sources by name,
    state versions that no late attempt replaces (`stateful-replay`), no shuffle of which some
    tasks have read other rows than the rest (`stateful-replay`)."""
    found = inside(users)
    assert found[NO_DATA] == "false"
    assert (found[EVOLUTION], found[SINK_EVOLUTION]) == ("true", "false")
    assert found[STATE_FORMAT] == "2"
    assert (found[CHECKSUM], found[FULL_RETRY]) == ("true", "true")


@pytest.mark.parametrize(
    ("users", "kept"), [({}, "150"), ({BATCHES: "149"}, "150"), ({BATCHES: "2000"}, "2000")]
)
def test_spark_keeps_the_larger_number_of_batches(users: dict[str, str], kept: str) -> None:
    assert inside(users, batches_to_retain=150)[BATCHES] == kept


@pytest.mark.parametrize(
    ("users", "found"),
    [({}, None), ({ROWS: "5000"}, "5000"), ({ROWS: "0"}, MOST_ROWS), ({ROWS: "-1"}, MOST_ROWS)],
)
def test_arrow_batches_without_a_bound_have_the_largest_that_there_is(
    users: dict[str, str], found: str | None
) -> None:
    """Spark plans no read of a Python data source without one: an assertion of its own fails."""
    assert inside(users).get(ROWS) == found


@pytest.mark.parametrize(("users", "warned"), [({}, 0), ({ROWS: "5000"}, 0), ({ROWS: "0"}, 1)])
def test_whoever_installs_the_formats_is_reported_that_there_is_no_bound(
    caplog: pytest.LogCaptureFixture, users: dict[str, str], warned: int
) -> None:
    """A drop-in query runs in the session as it is, and Spark does not name the setting."""
    warn_of_unbounded_rows(cast(SparkSession, SessionSettings(Conf(users))))
    assert len(caplog.messages) == warned
    assert all(f"{ROWS}={MOST_ROWS}" in said for said in caplog.messages)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("users", [{}, {"spark.sql.shuffle.partitions": "2", **USERS}])
def test_the_users_settings_are_back_afterwards(users: dict[str, str], *, fails: bool) -> None:
    conf = Conf(dict(users))
    try:
        with query_settings(cast(SparkSession, SessionSettings(conf)), batches_to_retain=150):
            assert conf.values != users
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert fails
    assert conf.values == users


def test_what_another_thread_sets_meanwhile_is_the_users() -> None:
    conf = Conf({STATE_FORMAT: "1"})
    with query_settings(cast(SparkSession, SessionSettings(conf)), batches_to_retain=100):
        conf.set(NO_DATA, "true")
        conf.unset(CHECKSUM)
        conf.set("spark.sql.shuffle.partitions", "2")
    assert conf.values == {STATE_FORMAT: "1", NO_DATA: "true", "spark.sql.shuffle.partitions": "2"}


@pytest.mark.parametrize("name", [NO_DATA, CHECKSUM, FULL_RETRY, BATCHES])
def test_a_query_that_another_threads_settings_got_into_is_not_run(name: str) -> None:
    """It would run batches that no barrier asked for, mix rows of a shuffle, or delete what a
    record names."""
    conf = Conf()
    with query_settings(cast(SparkSession, SessionSettings(conf)), batches_to_retain=100):
        _require(conf)
        conf.set(name, USERS[name])
        with pytest.raises(StreamError, match=f"{name}={USERS[name]}"):
            _require(conf)


@pytest.mark.parametrize("name", sorted(USERS))
def test_stateful_replay_a_state_that_begins_is_of_the_form_that_the_rules_need(name: str) -> None:
    """Rule `stateful-replay`: Spark keeps to it in all later lives, and a late attempt could
    replace versions."""
    conf = Conf()
    with query_settings(cast(SparkSession, SessionSettings(conf)), batches_to_retain=100):
        _require(conf, begins_state=True)
        conf.set(name, USERS[name])
        with pytest.raises(StreamError, match=f"{name}={USERS[name]}"):
            _require(conf, begins_state=True)


def test_what_a_querys_own_log_says_of_its_state_is_no_change() -> None:
    """Spark continues with what the state was made with, also by an older program; and it may keep
    more than records need."""
    conf = Conf()
    with query_settings(cast(SparkSession, SessionSettings(conf)), batches_to_retain=100):
        conf.set(STATE_FORMAT, "1")
        conf.set(BATCHES, "200")  # more than is needed
        _require(conf)


def _require(conf: Conf, *, begins_state: bool = False) -> None:
    require_query_settings(_query(conf), batches_to_retain=100, begins_state=begins_state)


def _query(conf: Conf) -> StreamingQuery:
    """As much of Spark's handle as is asked: made of this session, just now."""
    execution = SimpleNamespace(
        sparkSessionForStream=lambda: SimpleNamespace(conf=lambda: dict(conf.values))
    )
    return cast(
        StreamingQuery, SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: execution))
    )


@pytest.mark.parametrize(
    ("master", "setting", "attempts"),
    [
        ("local", None, 1),
        ("local[2]", "8", 1),
        ("local[*]", None, 1),
        ("local[2,4]", None, 4),
        ("local[*, 3]", "1", 3),
        ("local[2,1]", "8", 1),
        ("local-cluster[2,1,1024]", None, 4),
        ("spark://host:7077", None, 4),
        ("spark://host:7077", "1", 1),
        ("yarn", "2", 2),
    ],
)
def test_how_often_spark_tries_a_task(master: str, setting: str | None, attempts: int) -> None:
    """As Spark reads the master: only the second number counts on one machine."""
    assert task_attempts(master, setting) == attempts


@pytest.mark.parametrize(("master", "is_refused"), [("local[2]", True), ("local[2,4]", False)])
def test_single_point_recovery_is_refused_where_a_task_has_one_attempt(
    master: str, is_refused: bool
) -> None:
    context = SimpleNamespace(master=master, getConf=dict)
    session = cast(SparkSession, SimpleNamespace(sparkContext=context))
    if is_refused:
        with pytest.raises(ConfigError, match=r"local\[N,4\]"):
            require_task_retries(session, recovery="single-point")
    else:
        require_task_retries(session, recovery="single-point")


@dataclass
class Cluster:
    """`sluice.runtime.spark.session.hosts.Executors` in memory.

    Attributes:
        hosts: of executors by id, "-" in front of those that have ended.
        wanted: how many the session wants.
        looks: how often somebody asked.
        running: hosts of tasks by the group of their job.
        driver_host: of the driver.
        ends_at_once: the report to end is not active any more.
        reported: to end.
    """

    hosts: dict[str, str] = field(default_factory=dict)
    refusal: str | None = None
    wanted: int | None = None
    looks: int = 0
    ends_at_once: bool = True
    told: list[str] = field(default_factory=list)
    running: dict[str, str] = field(default_factory=dict)
    driver_host: str = "driver-1"

    def tasks(self) -> Sequence[RunningTask]:
        return [RunningTask(job_group=group, host=host) for group, host in self.running.items()]

    def known(self) -> Sequence[Executor]:
        self.looks += 1
        return [
            Executor(executor_id=key, host=host.lstrip("-"), is_active=not host.startswith("-"))
            for key, host in self.hosts.items()
        ]

    def end(self, executor_ids: Sequence[str], *, keep: int) -> None:
        self.wanted = keep
        self.told += executor_ids
        if not self.ends_at_once:
            return
        self.hosts |= {key: f"-{self.hosts[key]}" for key in executor_ids}


def test_executors_there_are_ended_and_not_replaced() -> None:
    """Those elsewhere stay, and the session wants no others."""
    cluster = Cluster({"0": "bad", "1": "good", "2": "bad", "3": "-gone"})
    exclusion = HostExclusion(cluster)
    exclusion.require(["bad"])
    assert exclusion.exclude(["bad"]) == 2
    assert cluster.wanted == 1
    assert [found.host for found in cluster.known() if found.is_active] == ["good"]


def test_the_placement_names_the_host_of_each_continuous_task_of_this_job() -> None:
    """Jobs may share a session, and other tasks have groups of their own."""
    running = {"orders 2.0.7 uid-1": "good", "orders.0 uid-2": "bad", "a query": "bad"}
    cluster = Cluster({"0": "bad", "1": "good", "2": "bad", "3": "-gone"}, running=running)
    exclusion = HostExclusion(cluster)
    exclusion.exclude(["bad"])
    assert exclusion.placement("uid-1") == Placement(
        driver="driver-1",
        executors={"good": 1},
        excluded=("bad",),
        regions={"orders 2.0": "good"},
    )


def test_one_that_is_started_there_later_is_ended_too() -> None:
    """In place of one that died elsewhere; looked for about once a second, and only if needed."""
    cluster, clock = Cluster({"0": "bad", "1": "good"}), ManualClock()
    exclusion = HostExclusion(cluster, clock=clock)
    exclusion.enforce()
    assert cluster.looks == 0
    exclusion.exclude(["bad"])
    cluster.hosts |= {"1": "-good", "2": "bad", "3": "good"}
    exclusion.enforce()
    assert cluster.hosts["2"] == "-bad"
    cluster.hosts["4"] = "bad"
    exclusion.enforce()
    assert cluster.hosts["4"] == "bad"
    clock.advance(1.0)
    exclusion.enforce()
    assert cluster.hosts["4"] == "-bad"


@pytest.mark.parametrize(
    ("cluster", "hosts", "why"),
    [
        (Cluster({}, refusal="its master is local[2]"), ["bad"], r"session.*local\[2\]"),
        (Cluster({"0": "good"}), ["god"], "hosts=god known=good"),
        (Cluster({"0": "bad", "1": "-good"}), ["bad"], "no executor would be left"),
        (Cluster({"0": "bad", "1": "good"}), ["bad", "good"], "no executor would be left"),
    ],
    ids=["local", "unknown", "the last one alive", "all"],
)
def test_what_cannot_be_done_is_refused_by_name(
    cluster: Cluster, hosts: list[str], why: str
) -> None:
    exclusion = HostExclusion(cluster)
    with pytest.raises(ConfigError, match=why):
        exclusion.require(hosts)
    assert cluster.wanted is None


def test_a_host_that_was_lost_may_be_excluded() -> None:
    cluster = Cluster({"0": "-bad", "1": "good"})
    exclusion = HostExclusion(cluster)
    exclusion.require(["bad"])
    assert exclusion.exclude(["bad"]) == 0
    assert cluster.wanted is None


def test_a_spark_whose_python_sources_lack_a_call_is_refused() -> None:
    for version in ("4.2.0", "4.3.0-SNAPSHOT", "5.0.0"):
        require_version(version)
    for version in ("4.1.4", "3.5.9"):
        with pytest.raises(MissingRequirementError, match=r"latestOffset\(start, limit\)"):
            require_version(version)
