"""What a job sets in the user's Spark session, and what it refuses there."""

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

import sluice
from sluice.runtime.coordinator.policy.failure_policy import PERMANENT_ERRORS
from sluice.runtime.errors import ConfigError
from sluice.runtime.spark.session.spark_session import (
    own_workers,
    prepare,
    quick_python,
    require_running,
)
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
    """Py4J would speak of None."""
    known = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None, appName="shop"))
    with pytest.raises(ConfigError, match=r"has been stopped .*application=shop"):
        sluice.install(cast(SparkSession, known))


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
    """Spark asks its driver which one may, unless it is told not to ask."""
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
