"""Restart strategies: whether and when a region starts again, and values that are out of range."""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice import HdfsSink, KafkaSink, KafkaSource, Roll
from sluice.connectors.kafka.client.client_tuning import HotPath
from sluice.connectors.kafka.sink.writer.kafka_writer import Guarantee
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.errors import ConfigError
from sluice.runtime.failover.attempt_history import AttemptHistory
from sluice.runtime.failover.restart_strategies import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    Restarts,
    RestartStrategy,
)
from sluice.runtime.job.job import Job


def delays(
    strategy: RestartStrategy, failures_s: Iterable[float], *, draw: float = 0.5
) -> list[float | None]:
    """Delay of each restart; None, the last one, where the region is given up."""
    past, found = Restarts(), list[float | None]()
    for at_s in failures_s:
        after = strategy.after_failure(past, at_s, draw=draw)
        if after is None or after.due_s is None:
            return [*found, None]
        found.append(round(after.due_s - at_s, 6))
        past = after
    return found


def test_exponential_delay_gives_up_after_so_many_attempts_in_a_row() -> None:
    """A time without a failure between them begins the count again."""
    strategy = ExponentialDelayRestart(
        attempts_before_reset_backoff=2, backoff_multiplier=1.0, reset_backoff_threshold_s=100.0
    )
    assert delays(strategy, [0.0, 10.0, 200.0, 210.0, 220.0]) == [1.0, 1.0, 1.0, 1.0, None]


def test_failure_rate_gives_up_at_one_failure_too_many_in_its_interval() -> None:
    strategy = FailureRateRestart(
        max_failures_per_interval=2, failure_rate_interval_s=60.0, delay_s=3.0
    )
    assert delays(strategy, [0.0, 50.0, 61.0, 111.0, 172.0]) == [3.0] * 5
    assert delays(strategy, [0.0, 30.0, 60.0]) == [3.0, 3.0, None]


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (FixedDelayRestart, {"attempts": -1}),
        (FixedDelayRestart, {"delay_s": -0.1}),
        (ExponentialDelayRestart, {"initial_backoff_s": 0.0}),
        (ExponentialDelayRestart, {"max_backoff_s": 0.5}),
        (ExponentialDelayRestart, {"backoff_multiplier": 0.9}),
        (ExponentialDelayRestart, {"reset_backoff_threshold_s": 0.0}),
        (ExponentialDelayRestart, {"jitter_factor": 1.1}),
        (ExponentialDelayRestart, {"attempts_before_reset_backoff": 0}),
        (FailureRateRestart, {"max_failures_per_interval": 0}),
        (FailureRateRestart, {"failure_rate_interval_s": 0.0}),
        (FailureRateRestart, {"delay_s": -1.0}),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(kind: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        kind(**wrong)


def test_a_history_keeps_its_newest_and_counts_all() -> None:
    history = AttemptHistory()
    for attempt_id in range(1_000):
        history.ended(attempt_id, RuntimeError("x" * 10_000), float(attempt_id))
    assert history.count == 1_000
    assert [attempt.attempt_id for attempt in history.attempts] == list(range(980, 1_000))
    assert all(len(attempt.why) <= 300 for attempt in history.attempts)


def _job(**changes: Any) -> Job:
    name, spark = changes.pop("name", "j"), changes.pop("spark", None)
    return Job(name, spark, **{"checkpoint_dir": "d", **changes})


def _source(**changes: Any) -> KafkaSource:
    return KafkaSource(**{"bootstrap_servers": "b:1", "topics": ["in"], **changes})


def _sink(**changes: Any) -> KafkaSink:
    given = {"bootstrap_servers": "b:1", "topic": "out", "transactional_id_prefix": "p"}
    return KafkaSink(**{**given, **changes})


_WRONG: dict[str, list[Any]] = {
    "name": ["", " "],
    "checkpoint_dir": [""],
    "interval_s": [float("nan"), float("inf"), -1],
    "timeout_s": [float("nan"), 0],
    "min_pause_s": [-1],
    "settle_timeout_s": [0],
    "pressure_alarm_s": [-1],
    "discovery_interval_s": [float("inf")],
    "coordinator_lost_timeout_s": [0, float("nan")],
    "resource_timeout_s": [0, float("nan"), float("inf")],
    "tolerable_failures": [-1],
    "retained": [0],
    "regions": [0],
    "task_memory_mib": [63],
    "host": ["", "0.0.0.0", "::", "0", "::0"],
    "engine": [None, "continous"],
    "recovery": [None, "none"],
    "on_lost": [None, "ignore"],
    "on_region_failure": ["stop"],
}


_ARGUMENT_OF = {"settle_timeout_s": "outage_timeout_s"}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in _WRONG.items() for value in values]
)
def test_a_job_refuses_a_value_that_is_out_of_range(name: str, value: object) -> None:
    """With its name and what to write, before a thread of the coordinator uses it."""
    with pytest.raises(ConfigError, match=rf"\b{name}\b") as raised:
        _job(**{_ARGUMENT_OF.get(name, name): value})
    _, _, remedy = raised.value.args
    assert remedy


def test_what_a_file_sink_can_use_is_taken(tmp_path: Path) -> None:
    """A path as `pathlib` has it, and one column for a list of one."""
    sink = HdfsSink(tmp_path / "out", roll=Roll(size="1m"), partition_by="day")
    assert sink.settings()["partition_by"] == "day"


def test_members_of_an_enumeration_are_taken_for_their_texts() -> None:
    sink = _sink(guarantee=Guarantee.AT_LEAST_ONCE, hot_path=HotPath.PLAIN)
    assert sink.settings() == _sink(guarantee="at-least-once", hot_path="plain").settings()
    assert not sink.is_exactly_once
    _source(hot_path=HotPath.NATIVE)


def test_topics_that_can_be_read_but_once_are_kept() -> None:
    assert _source(topics=(each for each in ["a", "b"])).name == _source(topics=["a", "b"]).name


def test_columns_that_can_be_read_but_once_are_kept() -> None:
    """Those to partition by, too: an unpartitioned table would be another one."""
    sink = HdfsSink("/d/x", partition_by=iter(["day"]), columns=iter(["day", "value"]))  # type: ignore[arg-type]
    shown = sink.settings()
    assert (shown["partition_by"], shown["columns"]) == ("day", "day,value")
    assert _source(columns=iter([])).schema_ddl() == _source().schema_ddl()


def test_the_type_of_a_users_deserializer_is_left_to_the_executors() -> None:
    """It may be looked up where the driver cannot, and a source reaches nothing before its job."""

    class Registered:
        @property
        def type(self) -> Any:
            raise ConnectionError("asked on the driver")

        def deserialize(self, payloads: Any) -> Any:
            return payloads

    class WithHeaders(Registered):
        needs_headers = False

    _source(value_deserializer=Registered())
    _source(value_deserializer=WithHeaders())


def test_listeners_that_can_be_read_but_once_are_kept() -> None:
    listener = SimpleNamespace(on_progress=print)
    assert _job(listeners=(each for each in [listener])).spec.listeners == (listener,)


_BUILT: dict[str, Callable[[], object]] = {
    "settings=attempts": lambda: FixedDelayRestart(attempts=-1),
    "settings=delay_s": lambda: FixedDelayRestart(delay_s=float("nan")),
    "settings=initial_backoff_s": lambda: ExponentialDelayRestart(initial_backoff_s=float("nan")),
    "settings=attempts_before_reset_backoff": lambda: ExponentialDelayRestart(
        attempts_before_reset_backoff=0
    ),
    "settings=max_failures_per_interval": lambda: FailureRateRestart(max_failures_per_interval=0),
    "failure_rate_interval_s,delay_s": lambda: FailureRateRestart(
        failure_rate_interval_s=float("inf"), delay_s=float("inf")
    ),
    "max_failed_ratio=nan": lambda: RegionalCheckpointHandler(max_failed_ratio=float("nan")),
    "region_timeout_s=inf": lambda: RegionalCheckpointHandler(region_timeout_s=float("inf")),
    "topics must be a list": lambda: _source(topics="in"),
    "guarantee=None": lambda: _sink(guarantee=None),
    "hotPath=7": lambda: _sink(hot_path=7),
    "hotPath=nativ": lambda: _source(hot_path="nativ"),
    "transaction_timeout_s=nan": lambda: _sink(transaction_timeout_s=float("nan")),
    "argument=partition_by": lambda: HdfsSink("/data/x", partition_by={"day"}),  # type: ignore[arg-type]
    "argument=columns": lambda: HdfsSink("/data/x", columns={"day"}),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("says", "build"), _BUILT.items(), ids=list(_BUILT))
def test_parts_of_a_job_refuse_values_that_are_out_of_range(
    says: str, build: Callable[[], object]
) -> None:
    with pytest.raises(ConfigError, match=says):
        build()


# --- the run --------------------------------------------------------------------------------------


_CONNECT = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})


@pytest.mark.parametrize("spark", [None, "local[2]", SimpleNamespace(), _CONNECT()])
def test_a_run_without_a_session_is_one_clear_sentence(spark: Any) -> None:
    """A job may be described without one. A session of Spark Connect cannot run it."""
    job = _job(spark=spark)
    job.source(_source()).sink(_sink())
    with pytest.raises(ConfigError, match=r"runs in a SparkSession.*without \.remote"):
        job.run()


def test_a_run_in_a_session_that_has_been_stopped_is_one_clear_sentence() -> None:
    job = _job(spark=SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None)))
    job.source(_source()).sink(_sink())
    with pytest.raises(ConfigError, match="has been stopped"):
        job.run()


def test_a_run_of_nothing_is_one_clear_sentence() -> None:
    with pytest.raises(ConfigError, match=r"nothing to do.*job\.source"):
        _job().run()
