"""The arguments of a `Job`, and of what is done with it: their kinds, before any is used. Pure."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sluice.runtime.coordinator.shell.progress import ProgressListener
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.arguments import (
    check_kinds,
    require_able,
    require_function,
    require_host,
    require_number,
    require_text,
    require_whole,
)

__all__ = [
    "check_job",
    "check_session",
    "check_sink",
    "check_source",
    "check_step",
    "checked_listeners",
]

_OF = "Job"
_Check = Callable[..., None]
_KINDS: Mapping[_Check, tuple[str, ...]] = {
    require_text: ("name",),
    require_host: ("host",),
    require_number: ("interval_s", "timeout_s", "min_pause_s", "outage_timeout_s"),
    require_whole: ("retained", "task_memory_mib"),
}
_KINDS_OR_NONE: Mapping[_Check, tuple[str, ...]] = {
    require_number: ("pressure_alarm_s", "discovery_interval_s", "coordinator_lost_timeout_s"),
    require_whole: (
        "tolerable_failures",
        "regions",
        "max_dropped_records",
        "max_dropped_in_all",
        "restore_from",
    ),
}
_ABLE: Mapping[str, tuple[tuple[str, ...], str]] = {
    "checkpoint_handler": (("rule", "deadlines_s", "is_regional"), "RegionalCheckpointHandler()"),
    "restart_strategy": (("after_failure",), "FixedDelayRestart(attempts=3)"),
    "load_balancer": (("choose",), "LoadBalancer()"),
}
_LISTENERS = "[MyListener()]"
_CONNECT = "pyspark.sql.connect."


def check_job(given: Mapping[str, object]) -> str:
    """The directory of the checkpoints, as text.

    Args:
        given: to ``Job``, by name.
    Raises:
        ConfigError: one of them is of another kind than it has to be; its name, and what it has to
            be, are told.
    """
    for check, names in _KINDS.items():
        for name in names:
            check(given[name], name, of=_OF)
    for check, names in _KINDS_OR_NONE.items():
        for name in names:
            if given[name] is not None:
                check(given[name], name, of=_OF)
    for name, (methods, example) in _ABLE.items():
        if given[name] is not None:
            require_able(given[name], name, methods, of=_OF, example=example)
    directory = given["checkpoint_dir"]
    found: object = os.fspath(directory) if isinstance(directory, os.PathLike) else directory
    if not found:
        raise ConfigError(
            "a job needs a directory for its checkpoints",
            {"job": given["name"], "setting": "checkpoint_dir"},
            "Give a directory of its own, or an hdfs: URI.",
        )
    require_text(found, "checkpoint_dir", of=_OF)
    return str(found)


def checked_listeners(given: Iterable[ProgressListener]) -> tuple[ProgressListener, ...]:
    """The listeners of a ``Job``, in whatever can be read, and be it once; ConfigError."""
    require_able(given, "listeners", ("__iter__",), of=_OF, example=_LISTENERS)
    # A text can be read, too, letter by letter.
    listeners: tuple[Any, ...] = (given,) if isinstance(given, str) else tuple(given)
    for listener in listeners:
        require_able(listener, "listeners", ("on_progress",), of=_OF, example=_LISTENERS)
    return listeners


def check_source(source: object) -> None:
    """What ``job.source(…)`` was given; ConfigError."""
    require_able(
        source,
        "source",
        ("enumerator", "reader", "schema_ddl"),
        of="job.source(…)",
        example="KafkaSource(bootstrap_servers=…, topics=[…])",
    )


def check_sink(sink: object) -> None:
    """What ``.sink(…)`` was given; ConfigError."""
    require_able(
        sink,
        "sink",
        ("coordinator",),
        of=".sink(…)",
        example="KafkaSink(bootstrap_servers=…, topic=…, transactional_id_prefix=…)",
    )


def check_step(kind: str, given: Mapping[str, object]) -> None:
    """What ``.map_batches(…)`` or ``.transform(…)`` was given, by name; ConfigError."""
    of = f".{kind}(…)"
    require_function(given["function"], "function", of=of)
    check_kinds(
        of,
        optional_texts={name: given[name] for name in ("name", "uid")},
        flags={name: given[name] for name in ("deterministic", "force_rescale")},
    )


def check_session(spark: object, *, pipelines: int) -> None:
    """What a run needs of the job: a session that lives, and something to do.

    Raises:
        ConfigError: there is none.
    """
    if not pipelines:
        raise ConfigError(
            "a job has nothing to do",
            {"pipelines": 0},
            "Describe it first: job.source(KafkaSource(…)).sink(KafkaSink(…)).",
        )
    context = getattr(spark, "sparkContext", None)
    if context is None and type(spark).__module__.startswith(_CONNECT):
        raise ConfigError(
            "a job runs in the process of Spark's driver, and this session is a client of another",
            {"argument": "spark", "given": "a session of Spark Connect"},
            "Make it without .remote(…), and without SPARK_REMOTE in the environment: "
            "SparkSession.builder.master('local[2]').getOrCreate().",
        )
    if context is None:
        raise ConfigError(
            "a job runs in a SparkSession, and was given something else",
            {"argument": "spark", "given": type(spark).__name__},
            "Write Job(name, SparkSession.builder.master('local[2]').getOrCreate(), …).",
        )
    if getattr(context, "_jsc", True) is None:
        raise ConfigError(
            "the SparkSession of the job has been stopped",
            {"argument": "spark"},
            "Make another one, and a job with it: SparkSession.builder.getOrCreate().",
        )
