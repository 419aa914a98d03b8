"""What a region's query is made under, and that the user's session is as it was afterwards."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluice.runtime.errors import ConfigError, StreamError
from sluice.runtime.spark.session.spark_session import (
    query_settings,
    require_query_settings,
    require_task_retries,
    task_attempts,
    warn_of_unbounded_rows,
)

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
class Session:
    """Spark's session, as far as it is asked."""

    conf: Conf


def inside(users: dict[str, str], *, batches_to_retain: int = 100) -> dict[str, str]:
    """The configuration that a query is made under, where the user has set these."""
    conf = Conf(dict(users))
    session = cast(SparkSession, Session(conf))
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
    warn_of_unbounded_rows(cast(SparkSession, Session(Conf(users))))
    assert len(caplog.messages) == warned
    assert all(f"{ROWS}={MOST_ROWS}" in said for said in caplog.messages)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("users", [{}, {"spark.sql.shuffle.partitions": "2", **USERS}])
def test_the_users_settings_are_back_afterwards(users: dict[str, str], *, fails: bool) -> None:
    conf = Conf(dict(users))
    try:
        with query_settings(cast(SparkSession, Session(conf)), batches_to_retain=150):
            assert conf.values != users
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert fails
    assert conf.values == users


def test_what_another_thread_sets_meanwhile_is_the_users() -> None:
    conf = Conf({STATE_FORMAT: "1"})
    with query_settings(cast(SparkSession, Session(conf)), batches_to_retain=100):
        conf.set(NO_DATA, "true")
        conf.unset(CHECKSUM)
        conf.set("spark.sql.shuffle.partitions", "2")
    assert conf.values == {STATE_FORMAT: "1", NO_DATA: "true", "spark.sql.shuffle.partitions": "2"}


@pytest.mark.parametrize("name", [NO_DATA, CHECKSUM, FULL_RETRY, BATCHES])
def test_a_query_that_another_threads_settings_got_into_is_not_run(name: str) -> None:
    """It would run batches that no barrier asked for, mix rows of a shuffle, or delete what a
    record names."""
    conf = Conf()
    with query_settings(cast(SparkSession, Session(conf)), batches_to_retain=100):
        _require(conf)
        conf.set(name, USERS[name])
        with pytest.raises(StreamError, match=f"{name}={USERS[name]}"):
            _require(conf)


@pytest.mark.parametrize("name", sorted(USERS))
def test_stateful_replay_a_state_that_begins_is_of_the_form_that_the_rules_need(name: str) -> None:
    """Rule `stateful-replay`: Spark keeps to it in all later lives, and a late attempt could
    replace versions."""
    conf = Conf()
    with query_settings(cast(SparkSession, Session(conf)), batches_to_retain=100):
        _require(conf, begins_state=True)
        conf.set(name, USERS[name])
        with pytest.raises(StreamError, match=f"{name}={USERS[name]}"):
            _require(conf, begins_state=True)


def test_what_a_querys_own_log_says_of_its_state_is_no_change() -> None:
    """Spark continues with what the state was made with, also by an older program; and it may keep
    more than records need."""
    conf = Conf()
    with query_settings(cast(SparkSession, Session(conf)), batches_to_retain=100):
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
    """By name, with the master to use instead."""
    context = SimpleNamespace(master=master, getConf=dict)
    session = cast(SparkSession, SimpleNamespace(sparkContext=context))
    if is_refused:
        with pytest.raises(ConfigError, match=r"local\[N,4\]"):
            require_task_retries(session, recovery="single-point")
    else:
        require_task_retries(session, recovery="single-point")
