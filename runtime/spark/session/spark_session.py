"""Settings of the user's Spark session that Sluice needs, sets, or refuses."""

import contextlib
import logging
import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluice.runtime.errors import ConfigError, MissingRequirementError, StreamError
from sluice.runtime.process.interpreter import PLAN_ONCE
from sluice.runtime.storage.file_system_opening import is_object_store
from sluice.runtime.storage.objects.object_location import hadoop_storage_options

__all__ = [
    "QUERY_SETTINGS",
    "SHUFFLE_RETRY",
    "active_session",
    "default_fs",
    "driver_address",
    "enter_session",
    "idle_worker_timeout",
    "is_fair",
    "is_local",
    "local_properties",
    "own_workers",
    "prepare",
    "query_setting",
    "query_settings",
    "quick_python",
    "require_query_settings",
    "require_running",
    "require_scheme",
    "require_setting",
    "require_task_retries",
    "require_version",
    "scheduler_pool",
    "spark_hindrance",
    "storage_options_of",
    "task_attempts",
    "task_slots",
    "user_settings",
    "warn_of_unbounded_rows",
]

log = logging.getLogger(__name__)

SHUFFLE_RETRY = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
"""Whether Spark fails a batch if its tasks have read different versions of a shuffle's rows."""

QUERY_SETTINGS: Mapping[str, str] = {
    # One barrier is one batch: Spark adds none of its own.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Sources by name in offset log v2; cannot be switched on later. Spark 4.2 needs both settings.
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
    # With this, Spark would require a name for each sink.
    "spark.sql.streaming.queryEvolution.enableSinkEvolution": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Without this check, Spark would read a changed transform's state by other types.
    "spark.sql.streaming.stateStore.stateSchemaCheck": "true",
    # A late attempt cannot replace a state version (`stateful-replay`).
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # If Spark recomputes a shuffle's lost output, it compares the rows with those that tasks have
    # already read. If they differ, Spark fails the batch; the epoch is read again (SPARK-53575).
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    SHUFFLE_RETRY: "true",
}

# Settings that Spark never takes from the log of an existing query.
_NEVER_LOGGED = (
    "spark.sql.streaming.noDataMicroBatches.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    SHUFFLE_RETRY,
)
_LOCAL = re.compile(r"local(\[[^,\]]+(,\s*(?P<attempts>\d+)\s*)?\])?")
_ATTEMPTS = "spark.task.maxFailures"
_WORKERS = "SLUICE_WORKERS"
_PYTHON_PATH = "PYTHONPATH"
_QUICK_PYTHON = Path(__file__).parents[1] / "fast_start" / "quick_python"
_BATCHES = "spark.sql.streaming.minBatchesToRetain"
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MOST_ROWS = str((1 << 31) - 1)
_POOL = "spark.scheduler.pool"
_POLL_S = 0.2
_MODE = "spark.scheduler.mode"
_ENDS_IDLE = "spark.python.worker.killOnIdleTimeout"
_IDLE_TIMEOUT = "spark.python.worker.idleTimeoutSeconds"

_OLDEST = (4, 2)

_environment_lock = threading.RLock()
_settings_lock = threading.Lock()

_REFUSED = {
    "spark.speculation": (
        "true",
        "Set spark.speculation=false: speculation runs a task twice on purpose.",
    ),
    "spark.hadoop.outputCommitCoordination.enabled": (
        "false",
        "Remove this setting: two attempts of a task could both commit their files.",
    ),
    SHUFFLE_RETRY: (
        "false",
        "Remove this setting: if Spark recomputes a shuffle's lost output, rows of a "
        "nondeterministic function could be lost or doubled.",
    ),
    "spark.shuffle.push.enabled": (
        "true",
        "Set spark.shuffle.push.enabled=false: with push, Spark does not notice that recomputed "
        "shuffle output has other rows.",
    ),
}


def prepare(spark: SparkSession) -> None:
    """Check the session and make its Python workers run this interpreter.

    Raises:
        MissingRequirementError: Spark is too old.
        ConfigError: a setting that breaks exactly-once is on; named.
    """
    require_version(spark.version)
    for key in _REFUSED:
        require_setting(key, spark.sparkContext.getConf().get(key))
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "false":
        raise ConfigError(
            "this process has a setting that Sluice refuses",
            {"setting": "PYSPARK_PIN_THREAD", "value": "false"},
            "Remove it: Spark would not pass the batch id to the tasks.",
        )
    if not spark.conf.get("spark.pyspark.python", None):
        # A session made before `use_this_interpreter` was called, e.g. in a notebook.
        spark.sparkContext.pythonExec = os.environ.get("PYSPARK_PYTHON", sys.executable)


def require_version(version: str) -> None:
    """Refuse a Spark whose Python data sources lack what a source needs; pure.

    Raises:
        MissingRequirementError: the version is below 4.2.
    """
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < _OLDEST:
        raise MissingRequirementError(
            "this version of Spark is too old for Sluice",
            {"spark": version, "oldest": "4.2"},
            "Install PySpark 4.2 or newer: before, Python data sources have no "
            "latestOffset(start, limit), and DataStreamReader has no name().",
        )


def require_setting(key: str, value: str | None) -> None:
    """Refuse a setting whose value breaks exactly-once; pure.

    Args:
        value: None if it is not set.
    Raises:
        ConfigError: with its name.
    """
    bad, remedy = _REFUSED[key]
    if (value or "").strip().lower() == bad:
        raise ConfigError(
            "this Spark session has a setting that Sluice refuses",
            {"setting": key, "value": value},
            remedy,
        )


def task_attempts(master: str, setting: str | None) -> int:
    """How often Spark tries a task before it fails the stage; pure.

    Args:
        master: of the session. In ``local[N]`` a task has one attempt, whatever is set.
        setting: ``spark.task.maxFailures``, None if it is not set.
    """
    local = _LOCAL.fullmatch(master.strip())
    if local is not None:
        return int(local["attempts"] or 1)
    return int(setting or 4)


def require_running(spark: SparkSession) -> None:
    """Refuse to start an attempt in a stopped session, or in one without a driver in this process:
    a retry would fail, too.

    Raises:
        ConfigError: the session has been stopped, or is one of Spark Connect.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        raise ConfigError(
            "Sluice does not run in a session of Spark Connect",
            {"session": type(spark).__module__},
            "Run the program on the driver, with SparkSession.builder.master(…): the coordinator "
            "needs the driver's JVM.",
        )
    context = spark.sparkContext._jsc  # noqa: SLF001 - not in Python
    if context is None or context.sc().isStopped():
        raise ConfigError(
            "the Spark session has been stopped",
            {"application": spark.sparkContext.appName},
            "Create a new session and start the job again: the program or a signal to Spark's JVM "
            "stopped this one.",
        )


def require_scheme(spark: SparkSession, directory: str) -> None:
    """Refuse a bare path for checkpoints where YARN chooses the driver's host.

    The next attempt on another host would not find it, and would begin without a checkpoint.

    Raises:
        ConfigError: in YARN's cluster mode, ``directory`` has no scheme.
    """
    conf = spark.sparkContext.getConf()
    placed = (conf.get("spark.master"), conf.get("spark.submit.deployMode"))
    if placed == ("yarn", "cluster") and not urlsplit(directory).scheme:
        raise ConfigError(
            "a checkpoint directory without a scheme may be lost with the driver's host",
            {"directory": directory, "spark.submit.deployMode": "cluster"},
            "Write hdfs:///path, or file:///path for a directory that every node mounts.",
        )


def default_fs(spark: SparkSession) -> str:
    """The file system in which Hadoop resolves a URI without one."""
    context: Any = spark.sparkContext
    return str(context._jsc.hadoopConfiguration().get("fs.defaultFS"))  # noqa: SLF001 - no public way


def require_task_retries(spark: SparkSession, *, recovery: str) -> None:
    """Refuse a session in which a failed task ends its region.

    Args:
        recovery: of the job, for the message.
    Raises:
        ConfigError: each task has one attempt.
    """
    context = spark.sparkContext
    setting = context.getConf().get(_ATTEMPTS)
    if task_attempts(context.master or "", setting) > 1:
        return
    raise ConfigError(
        f"recovery={recovery!r} needs a Spark session that retries failed tasks",
        {"master": context.master, _ATTEMPTS: setting or "not set"},
        "Use the master local[N,4] on one machine, for N cores and 4 attempts; on a cluster, keep "
        f"{_ATTEMPTS} at 4.",
    )


def storage_options_of(
    spark: SparkSession, given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Options of object stores: the session's ``spark.hadoop.fs.…``, then those that were given."""
    settings = dict(spark.sparkContext.getConf().getAll())
    return {**hadoop_storage_options(settings), **(given or {})}


def spark_hindrance(spark: SparkSession, directory: str) -> str | None:
    """Why Spark cannot write there: the session has no Hadoop client for this object store.

    Args:
        directory: URI as Spark gets it.
    """
    if not is_object_store(directory):
        return None
    context: Any = spark.sparkContext
    conf = context._jsc.hadoopConfiguration()  # noqa: SLF001 - no public way
    try:
        hadoop = context._jvm.org.apache.hadoop.fs  # noqa: SLF001 - no public way
        hadoop.FileSystem.getFileSystemClass(directory.partition(":")[0].lower(), conf)
    except Py4JJavaError as error:
        return str(error.java_exception.getMessage())
    return None


def task_slots(spark: SparkSession, *, wanted: int, timeout_s: float | None) -> int:
    """Tasks that the session can run at once: its cores, by ``spark.task.cpus``.

    The executors of a cluster start one by one, so this waits until there are ``wanted`` slots or
    time is up; ``timeout_s=None``: without a limit.
    """
    context = spark.sparkContext._jsc.sc()  # noqa: SLF001 - not in Python
    profile = context.resourceProfileManager().defaultResourceProfile()
    limit_s = math.inf if timeout_s is None else timeout_s
    deadline_s = time.monotonic() + (0.0 if context.isLocal() else limit_s)
    is_logged = False
    while True:
        slots = int(context.maxNumConcurrentTasks(profile))
        if slots >= wanted or time.monotonic() >= deadline_s:
            return slots
        if not is_logged:
            is_logged = True
            log.warning(
                "job state WAITING_FOR_RESOURCES: needed=%d present=%d timeout_s=%s",
                wanted,
                slots,
                timeout_s,
            )
        time.sleep(_POLL_S)  # Spark has no notification for a new executor


@contextlib.contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make this the active session of the thread: Spark looks up there whether a format's name is
    taken, and another session may have an older registration."""
    sessions = SparkSession._get_j_spark_session_class(spark._jvm)  # noqa: SLF001 - not public
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - not public
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def local_properties(spark: SparkSession) -> Any:  # noqa: ANN401 - py4j's view
    """Of the calling thread: scheduler pool, job group and others; for `enter_session`."""
    return spark.sparkContext._jsc.sc().getLocalProperties().clone()  # noqa: SLF001 - not in Python


def enter_session(spark: SparkSession, properties: Any) -> None:  # noqa: ANN401 - py4j's view
    """Give a thread of ours the session, and the local properties of the thread that began it, as
    PySpark's `InheritableThread` does."""
    spark.sparkContext._jsc.sc().setLocalProperties(properties)  # noqa: SLF001 - not in Python
    sessions = SparkSession._get_j_spark_session_class(spark._jvm)  # noqa: SLF001 - not public
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - not public


@contextlib.contextmanager
def query_settings(spark: SparkSession, *, batches_to_retain: int) -> Iterator[None]:
    """Set what a region's query needs while it is made, then restore the user's settings.

    The frame is made and the query started inside, because a query keeps a clone of the session.
    Only one thread of this process at a time can be inside, because settings and names of data
    sources belong to the session. Sluice does not clone the session for it: a function may create
    or use a view of the program's session.
    """
    with _settings_lock:
        users = int(spark.conf.get(_BATCHES, None) or 0)
        settings = {**QUERY_SETTINGS, _BATCHES: str(max(batches_to_retain, users))}
        if _is_unbounded(spark.conf.get(_ROWS, None)):
            settings[_ROWS] = _MOST_ROWS
        before = {key: spark.conf.get(key, None) for key in settings}
        try:
            _set(spark, settings)
            yield
        finally:
            # A value that another thread has set meanwhile is the user's, and stays.
            ours = {key for key in settings if spark.conf.get(key, None) == settings[key]}
            _set(spark, {key: value for key, value in before.items() if key in ours})


@contextlib.contextmanager
def user_settings() -> Iterator[None]:
    """Keep the user's settings while frames are analysed: another job of the session may be about
    to start a query, with settings that refuse a frame without names of sources."""
    with _settings_lock:
        yield


def query_setting(query: StreamingQuery, name: str) -> str:
    """A setting of a running query: Spark plans its batches with a clone of the session."""
    execution = query._jsq.streamingQuery()  # noqa: SLF001 - the clone is not public
    return str(execution.sparkSessionForStream().conf().get(name))


def require_query_settings(
    query: StreamingQuery, *, batches_to_retain: int, begins_state: bool
) -> None:
    """Refuse a region's query if another thread changed the session while it was made.

    Args:
        batches_to_retain: the minimum, as for `query_settings`.
        begins_state: it has a state and no log yet. Then these settings fix the format of its state
            for all later attempts (`stateful-replay`).
    Raises:
        StreamError: the settings differ; a restart makes the query again.
    """
    required = QUERY_SETTINGS if begins_state else _NEVER_LOGGED
    found = {name: query_setting(query, name) for name in required}
    changed = {name: value for name, value in found.items() if value != QUERY_SETTINGS[name]}
    kept = query_setting(query, _BATCHES)
    if int(kept) < batches_to_retain:
        changed[_BATCHES] = kept
    if changed:
        raise StreamError(
            "the session's settings changed while a region's query started",
            changed,
            "Restart the region or the job. Change these settings before the job runs, or in "
            "another session, spark.newSession().",
        )


def _is_unbounded(rows: str | None) -> bool:
    """Whether Arrow batches have no row limit; Spark's Python data sources require one; pure."""
    return rows is not None and int(rows) < 1


def warn_of_unbounded_rows(spark: SparkSession) -> None:
    """Warn that Spark cannot read a drop-in source in this session."""
    rows = spark.conf.get(_ROWS, None)
    if _is_unbounded(rows):
        log.warning(
            "Spark cannot read Python data sources, such as sluice-kafka, in this session: set "
            "%s=%s, for example, instead of %s",
            _ROWS,
            _MOST_ROWS,
            rows,
        )


def _set(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    for key, value in settings.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


@contextlib.contextmanager
def scheduler_pool(spark: SparkSession, name: str) -> Iterator[None]:
    """Start the query inside in a pool of its own, unless this thread has a pool.

    With ``spark.scheduler.mode=FAIR`` the pools of a session share its cores evenly, so a region
    with a backlog does not delay tasks of other regions. In Spark's default mode a pool is only a
    name.
    """
    context = spark.sparkContext
    given = context.getLocalProperty(_POOL)
    if given is None:
        context.setLocalProperty(_POOL, name)
    try:
        yield
    finally:
        if given is None:
            context.setLocalProperty(_POOL, None)  # type: ignore[arg-type]  # removes it


def is_local(spark: SparkSession) -> bool:
    """Whether tasks run in the driver's JVM, so that the number of cores is known."""
    return bool(spark.sparkContext._jsc.sc().isLocal())  # noqa: SLF001 - not in Python


def driver_address(spark: SparkSession) -> str:
    """Address at which executors reach this process, unless the user sets another one: loopback for
    a local master, and Spark's own address of the driver on a cluster: in YARN's cluster mode no
    program knows its host before it runs."""
    if is_local(spark):
        return "127.0.0.1"
    return (spark.sparkContext.getConf().get("spark.driver.host") or "").strip("[]")


def idle_worker_timeout(spark: SparkSession) -> str | None:
    """The setting with which Spark ends an idle Python worker; None: it ends none. A continuous
    task sends no output before its end, so Spark would take it for idle."""
    conf = spark.sparkContext.getConf()
    timeout = conf.get(_IDLE_TIMEOUT, "0")
    if conf.get(_ENDS_IDLE, "false").strip().lower() != "true" or timeout.strip(" s") == "0":
        return None
    return f"{_ENDS_IDLE}=true with {_IDLE_TIMEOUT}={timeout}, which would end its task"


def is_fair(spark: SparkSession) -> bool:
    """Whether the session's pools share its cores evenly."""
    return spark.sparkContext.getConf().get(_MODE, "FIFO") == "FAIR"


@contextlib.contextmanager
def quick_python(spark: SparkSession, *, plans_once: bool = False) -> Iterator[None]:
    """Make Spark's Python processes for a source that is created inside start faster; see
    `sluice.runtime.spark.fast_start.python_daemon`.

    Args:
        spark: the session.
        plans_once: end the processes that plan the source after their answer. Each attempt of a
            region plans again.
    """
    before = spark.sparkContext.environment.get(_PYTHON_PATH)
    path = os.pathsep.join(filter(None, (str(_QUICK_PYTHON), before)))
    once = {PLAN_ONCE: "1"} if plans_once else {}
    with _environment(spark, {_PYTHON_PATH: path, **once}):
        yield


@contextlib.contextmanager
def own_workers(spark: SparkSession) -> Iterator[None]:
    """Run the Python functions that are created inside in workers that run only sink tasks.

    Spark assigns any idle worker with the function's environment, in turn. Each worker that ever
    ran a sink task keeps transactional ids. Without this, the workers of readers would keep some,
    too. Regions begin their batches at the same time, each in a thread of its own.
    """
    with _environment(spark, {_WORKERS: "sink"}):
        yield


@contextlib.contextmanager
def _environment(spark: SparkSession, more: Mapping[str, str]) -> Iterator[None]:
    """Add to the environment of Python functions that are created inside."""
    context = spark.sparkContext
    with _environment_lock:
        before = context.environment
        # A new dict, because another thread may be reading the current one.
        context.environment = {**before, **more}
        try:
            yield
        finally:
            context.environment = before
