"""Arguments of another kind than they have to be: refused where they are given, by name."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import sluice
from sluice import HdfsSink, KafkaSink, KafkaSource, Roll
from sluice.connectors.kafka.client.client_tuning import HotPath
from sluice.connectors.kafka.sink.writer.kafka_writer import Guarantee
from sluice.runtime.coordinator.policy.balance import LoadBalancer
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.errors import ConfigError
from sluice.runtime.failover.restart_strategies import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
)
from sluice.runtime.graph.pipeline import Engine
from sluice.runtime.job.job import Job


def _job(**changes: Any) -> Job:
    name, spark = changes.pop("name", "j"), changes.pop("spark", None)
    return Job(name, spark, **{"checkpoint_dir": "d", **changes})


def _source(**changes: Any) -> KafkaSource:
    return KafkaSource(**{"bootstrap_servers": "b:1", "topics": ["in"], **changes})


def _sink(**changes: Any) -> KafkaSink:
    given = {"bootstrap_servers": "b:1", "topic": "out", "transactional_id_prefix": "p"}
    return KafkaSink(**{**given, **changes})


_WRONG: dict[str, list[Any]] = {
    "name": [None, "", b"j"],
    "checkpoint_dir": [None, "", 7, b"d"],
    "interval_s": ["1s", None, True, float("nan"), float("inf"), -1],
    "timeout_s": ["10", float("nan"), 0],
    "min_pause_s": ["0"],
    "outage_timeout_s": [None],
    "pressure_alarm_s": ["60"],
    "discovery_interval_s": [float("inf")],
    "coordinator_lost_timeout_s": ["60"],
    "tolerable_failures": ["3", 1.5, -1],
    "retained": ["3", None, 0],
    "regions": ["2", 2.0, True, 0],
    "max_dropped_records": ["10"],
    "restore_from": ["5", True],
    "task_memory_mib": ["256"],
    "host": [None, 5, "0.0.0.0", "::", "0", "::0"],
    "engine": [None, "continous"],
    "recovery": [None, "none"],
    "on_lost": [None, "ignore"],
    "on_region_failure": ["stop"],
    "checkpoint_handler": ["regional", RegionalCheckpointHandler, True],
    "restart_strategy": ["fixed-delay", FixedDelayRestart, 3],
    "load_balancer": [True, LoadBalancer],
    "listeners": [None, print, [print], "log"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in _WRONG.items() for value in values]
)
def test_a_job_refuses_an_argument_that_it_cannot_use(name: str, value: object) -> None:
    """With its name and what to write; in a thread of the coordinator it would be a riddle."""
    with pytest.raises(ConfigError, match=rf"\b{name}\b") as raised:
        _job(**{name: value})
    _, _, remedy = raised.value.args
    assert remedy


def test_drop_in_queries_refuse_an_address_at_which_nobody_is_reached() -> None:
    """Before anything is started, as a Job does."""
    with pytest.raises(ConfigError, match=r"host of sluice\.install given=0\.0\.0\.0"):
        sluice.install(cast(Any, None), host="0.0.0.0")


@pytest.mark.parametrize("given", [5, "log", SimpleNamespace(on_progress=print)])
def test_listeners_that_are_no_list_are_shown_as_they_were_given(given: object) -> None:
    """One by itself is none, either."""
    with pytest.raises(ConfigError, match="listeners") as raised:
        _job(listeners=given)
    assert repr(given) in str(raised.value)


def test_what_a_file_sink_can_use_is_taken(tmp_path: Path) -> None:
    """A path as `pathlib` has it, and one column for a list of one."""
    sink = HdfsSink(tmp_path / "out", roll=Roll(size="1m"), partition_by="day")
    assert sink.settings()["partition_by"] == "day"


def test_what_a_job_can_use_is_taken(tmp_path: Path) -> None:
    """Also a path for a directory, an enumeration for its text, and an integer for a number."""
    job = _job(
        checkpoint_dir=tmp_path,
        engine=Engine.AUTO,
        interval_s=1,
        regions=2,
        restore_from=0,
        checkpoint_handler=RegionalCheckpointHandler(),
        load_balancer=LoadBalancer(),
        listeners=[SimpleNamespace(on_progress=print)],
    )
    assert job.spec.checkpoint_dir == str(tmp_path)


def test_members_of_an_enumeration_are_taken_for_their_texts() -> None:
    """As a Job takes its engine."""
    sink = _sink(guarantee=Guarantee.AT_LEAST_ONCE, hot_path=HotPath.PLAIN)
    assert sink.settings() == _sink(guarantee="at-least-once", hot_path="plain").settings()
    assert not sink.is_exactly_once
    _source(hot_path=HotPath.NATIVE)


def test_topics_that_can_be_read_but_once_are_kept() -> None:
    """As those of a list."""
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

    _source(value_deserializer=Registered())


def test_listeners_that_can_be_read_but_once_are_kept() -> None:
    """A generator is read by whoever looks at it first."""
    listener = SimpleNamespace(on_progress=print)
    assert _job(listeners=(each for each in [listener])).spec.listeners == (listener,)


_BUILT: dict[str, Callable[[], object]] = {
    "attempts": lambda: FixedDelayRestart(attempts="3"),  # type: ignore[arg-type]
    "delay_s": lambda: FixedDelayRestart(delay_s="1"),  # type: ignore[arg-type]
    "initial_backoff_s": lambda: ExponentialDelayRestart(initial_backoff_s=float("nan")),
    "attempts_before_reset_backoff": lambda: ExponentialDelayRestart(
        attempts_before_reset_backoff=1.5  # type: ignore[arg-type]
    ),
    "max_failures_per_interval": lambda: FailureRateRestart(
        max_failures_per_interval=None  # type: ignore[arg-type]
    ),
    "max_failed_ratio": lambda: RegionalCheckpointHandler(
        max_failed_ratio="0.5"  # type: ignore[arg-type]
    ),
    "region_timeout_s": lambda: RegionalCheckpointHandler(
        region_timeout_s="5"  # type: ignore[arg-type]
    ),
    "source": lambda: _job().source("orders"),  # type: ignore[arg-type]
    "given=<class": lambda: _job().source(KafkaSource),  # type: ignore[arg-type]
    "argument=source given=KafkaSink": lambda: _job().source(_sink()),  # type: ignore[arg-type]
    "sink": lambda: _job().source(_source()).sink("out"),  # type: ignore[arg-type]
    "argument=sink given=<": lambda: _job().source(_source()).sink(_source()),  # type: ignore[arg-type]
    "map_batches": lambda: _job().source(_source()).map_batches("f"),  # type: ignore[arg-type]
    "transform": lambda: _job().source(_source()).transform(None),  # type: ignore[arg-type]
    "argument=deterministic given='false'": lambda: (
        _job().source(_source()).map_batches(print, deterministic="false")  # type: ignore[arg-type]
    ),
    "argument=force_rescale given='no'": lambda: (
        _job().source(_source()).transform(print, force_rescale="no")  # type: ignore[arg-type]
    ),
    "argument=uid given=0": lambda: (
        _job().source(_source()).transform(print, uid=0)  # type: ignore[arg-type]
    ),
    r".map_batches.*argument=name given=\[\]": lambda: (
        _job().source(_source()).map_batches(print, name=[])  # type: ignore[arg-type]
    ),
    r"argument=uid given=5\] *\..*uid='…'": lambda: (
        _job().source(_source()).transform(print, uid=5)  # type: ignore[arg-type]
    ),
    "argument=bounded given='false'": lambda: _source(bounded="false"),
    "argument=include_headers given=1": lambda: _source(include_headers=1),
    "argument=topics given=5": lambda: _source(topics=5),
    "argument=partitions given=5": lambda: _source(partitions=5),
    "argument=columns given=5": lambda: _source(columns=[5]),
    "argument=columns given={'value'}.*another order": lambda: _source(columns={"value"}),
    "argument=topics given=frozenset": lambda: _source(topics=frozenset(["in"])),
    "argument=rate_limit given='5'": lambda: _source(rate_limit="5"),
    "argument=rate_limit given=namespace": lambda: _source(
        rate_limit=SimpleNamespace(proportional=1.0, min_rate=100.0)
    ),
    "KafkaSource is not a function .argument=oauth_token given=<class 'str'>": lambda: _source(
        oauth_token="sasl.password"
    ),
    "argument=key_deserializer given='json'": lambda: _source(key_deserializer="json"),
    "argument=value_deserializer given=<class": lambda: _source(value_deserializer=dict),
    "KafkaSink is not a function .argument=oauth_token given=<class 'str'>": lambda: _sink(
        oauth_token="sasl.password"
    ),
    "argument=partition_by given=5": lambda: HdfsSink("/data/x", partition_by=5),  # type: ignore[arg-type]
    "argument=partition_commit": lambda: HdfsSink("/data/x", partition_commit="x"),  # type: ignore[arg-type]
    "argument=topics": lambda: _source(topics=[1]),
    "argument=bootstrap_servers given=\\['b:1'\\]": lambda: _source(bootstrap_servers=["b:1"]),
    "argument=options given=<class 'list'>": lambda: _source(options=["sasl.password=x"]),
    "argument=topic ": lambda: _sink(topic=["out"]),
    "guarantee=None": lambda: _sink(guarantee=None),
    "hotPath=7": lambda: _sink(hot_path=7),
    "hotPath=nativ": lambda: _source(hot_path="nativ"),
    "argument=transactional_id_prefix": lambda: _sink(transactional_id_prefix=7),
    "argument=transaction_timeout_s": lambda: _sink(transaction_timeout_s="60"),
    "argument=options given=<class 'str'>": lambda: _sink(options="sasl.password=x"),
    "argument=uid": lambda: _sink(uid=5),
    "KafkaSource .*argument=uid given=0": lambda: _source(uid=0),
    "argument=name given=False": lambda: _source(name=False),
    "argument=topic given=0": lambda: _sink(topic=0),
    "HdfsSink .*argument=name given=\\[\\]": lambda: HdfsSink("/data/x", name=[]),  # type: ignore[arg-type]
    "argument=path": lambda: HdfsSink(None),  # type: ignore[arg-type]
    "argument=format": lambda: HdfsSink("/data/x", format=None),  # type: ignore[arg-type]
    "argument=roll": lambda: HdfsSink("/data/x", roll="1h"),  # type: ignore[arg-type]
    "argument=partition_by": lambda: HdfsSink("/data/x", partition_by=[1]),  # type: ignore[list-item]
    "argument=partition_by given=None": lambda: HdfsSink("/data/x", partition_by=None),  # type: ignore[arg-type]
    "argument=partition_by given={'day'}": lambda: HdfsSink("/data/x", partition_by={"day"}),  # type: ignore[arg-type]
    "HdfsSink is not text .argument=columns given=5": lambda: HdfsSink("/data/x", columns=[5]),  # type: ignore[list-item]
}


@pytest.mark.parametrize(("says", "build"), _BUILT.items(), ids=list(_BUILT))
def test_what_a_job_is_made_of_refuses_it_too(says: str, build: Callable[[], object]) -> None:
    """By name, and without values that may be secret."""
    with pytest.raises(ConfigError, match=says) as raised:
        build()
    assert "sasl.password" not in str(raised.value)


# --- the run --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spark", [None, "local[2]", SimpleNamespace()])
def test_a_run_without_a_session_is_one_clear_sentence(spark: Any) -> None:
    """A job may be described without one."""
    job = _job(spark=spark)
    job.source(_source()).sink(_sink())
    with pytest.raises(ConfigError, match="runs in a SparkSession"):
        job.run()


def test_a_run_in_a_session_of_spark_connect_is_one_clear_sentence() -> None:
    """It is a SparkSession by name, so that must not be what is asked for."""
    job = _job(spark=type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})())
    job.source(_source()).sink(_sink())
    with pytest.raises(ConfigError, match=r"Spark Connect.* without \.remote"):
        job.run()


def test_a_run_in_a_session_that_has_been_stopped_is_one_clear_sentence() -> None:
    """Py4J would speak of None."""
    job = _job(spark=SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None)))
    job.source(_source()).sink(_sink())
    with pytest.raises(ConfigError, match="has been stopped"):
        job.run()


def test_a_run_of_nothing_is_one_clear_sentence() -> None:
    """Before Spark is asked for anything."""
    with pytest.raises(ConfigError, match=r"nothing to do.*job\.source"):
        _job().run()
