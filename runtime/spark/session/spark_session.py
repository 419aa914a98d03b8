"""Settings of the user's Spark session that Sluice needs, sets, or refuses by name."""

import contextlib
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluice.runtime.errors import ConfigError, StreamError

__all__ = [
    "QUERY_SETTINGS",
    "SHUFFLE_RETRY",
    "active_session",
    "ends_quiet_workers",
    "is_fair",
    "is_local",
    "own_workers",
    "prepare",
    "query_setting",
    "query_settings",
    "quick_python",
    "require_query_settings",
    "require_running",
    "require_setting",
    "require_task_retries",
    "scheduler_pool",
    "task_attempts",
    "task_slots",
    "warn_of_unbounded_rows",
]

log = logging.getLogger(__name__)

SHUFFLE_RETRY = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
"""Whether Spark fails a batch of which some tasks have read other rows of a shuffle than others."""

QUERY_SETTINGS: Mapping[str, str] = {
    # One barrier is one batch: Spark adds none of its own.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Sources by name in offset log v2; cannot be switched on later.
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    # A region's query is known by its place; Spark asks each sink for a name where this is on.
    "spark.sql.streaming.queryEvolution.enableSinkEvolution": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # A late attempt cannot replace a state version (`stateful-replay`).
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # What a shuffle's lost output is made of again is compared with what tasks have read already;
    # where it differs Spark fails the batch, and its epoch is aborted and read again (SPARK-53575).
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    SHUFFLE_RETRY: "true",
}

# What Spark never takes from a query's own log, as far as it matters to a query that has one.
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
_EXECUTORS_S = 60.0
_LOOK_S = 0.2
_MODE = "spark.scheduler.mode"
_ENDS_QUIET = "spark.python.worker.killOnIdleTimeout"
_QUIET_TIMEOUT = "spark.python.worker.idleTimeoutSeconds"

_environment_lock = threading.RLock()
_settings_lock = threading.Lock()

_REFUSED = {
    "spark.speculation": (
        "true",
        "Speculation runs a task twice on purpose; set spark.speculation=false.",
    ),
    "spark.hadoop.outputCommitCoordination.enabled": (
        "false",
        "Two attempts of a task could both commit their files; leave it out.",
    ),
    SHUFFLE_RETRY: (
        "false",
        "Rows of a function that is not deterministic could be lost or doubled where a shuffle's "
        "output is lost and made again; leave it out.",
    ),
    "spark.shuffle.push.enabled": (
        "true",
        "With it Spark does not notice that a shuffle's output was made again with other rows; "
        "set spark.shuffle.push.enabled=false.",
    ),
}


def prepare(spark: SparkSession) -> None:
    """Check the session and make its Python workers run this interpreter.

    Raises:
        ConfigError: a setting that breaks exactly-once is on; named.
    """
    for key in _REFUSED:
        require_setting(key, spark.sparkContext.getConf().get(key))
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "false":
        raise ConfigError(
            "this process has a setting that Sluice refuses",
            {"setting": "PYSPARK_PIN_THREAD", "value": "false"},
            "A task would not be told which batch it works for; leave it out.",
        )
    if not spark.conf.get("spark.pyspark.python", None):
        # A session made before `use_this_interpreter` was called, e.g. in a notebook.
        spark.sparkContext.pythonExec = os.environ.get("PYSPARK_PYTHON", sys.executable)


def require_setting(key: str, value: str | None) -> None:
    """Refuse a setting by its name where its value breaks exactly-once; pure.

    Args:
        value: None where it is not set.
    Raises:
        ConfigError: it does.
    """
    bad, remedy = _REFUSED[key]
    if (value or "").strip().lower() == bad:
        raise ConfigError(
            "this Spark session has a setting that Sluice refuses",
            {"setting": key, "value": value},
            remedy,
        )


def task_attempts(master: str, setting: str | None) -> int:
    """How often Spark tries a task before it gives up its stage; pure.

    Args:
        master: of the session. In ``local[N]`` a task has one attempt, whatever is set.
        setting: ``spark.task.maxFailures``, None where it is not set.
    """
    local = _LOCAL.fullmatch(master.strip())
    if local is not None:
        return int(local["attempts"] or 1)
    return int(setting or 4)


def require_running(spark: SparkSession) -> None:
    """Refuse to begin anything in a session that has been stopped: trying again is in vain.

    Raises:
        ConfigError: it has been.
    """
    context = spark.sparkContext._jsc  # noqa: SLF001 - Python's own has no word for it
    if context is None or context.sc().isStopped():
        raise ConfigError(
            "the Spark session has been stopped",
            {"application": spark.sparkContext.appName},
            "Whoever stopped it also ended what ran in it: make a session, and start that again.",
        )


def require_task_retries(spark: SparkSession, *, recovery: str) -> None:
    """Refuse a session in which a failed task ends its region.

    Args:
        recovery: what the job asks for, for the message.
    Raises:
        ConfigError: it gives each task one attempt.
    """
    context = spark.sparkContext
    setting = context.getConf().get(_ATTEMPTS)
    if task_attempts(context.master or "", setting) > 1:
        return
    raise ConfigError(
        f"recovery={recovery!r} needs a Spark that tries a failed task again",
        {"master": context.master, _ATTEMPTS: setting or "not set"},
        "On one machine, start the session with the master local[N,4], for N cores and 4 attempts; "
        f"on a cluster, leave {_ATTEMPTS} at 4.",
    )


def task_slots(spark: SparkSession, *, wanted: int, timeout_s: float = _EXECUTORS_S) -> int:
    """Tasks that the session can run at once: its cores, by ``spark.task.cpus``.

    The executors of a cluster come one by one: fewer than ``wanted`` are the answer only when time
    has run out.
    """
    context = spark.sparkContext._jsc.sc()  # noqa: SLF001 - not in Python
    profile = context.resourceProfileManager().defaultResourceProfile()
    deadline_s = time.monotonic() + (0.0 if context.isLocal() else timeout_s)
    while True:
        slots = int(context.maxNumConcurrentTasks(profile))
        if slots >= wanted or time.monotonic() >= deadline_s:
            return slots
        time.sleep(_LOOK_S)  # Spark tells nobody when an executor has come


@contextlib.contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make this the active session of the thread: Spark asks that one whether a format's name is
    taken, and finds there what an earlier call registered with another session."""
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


@contextlib.contextmanager
def query_settings(spark: SparkSession, *, batches_to_retain: int) -> Iterator[None]:
    """Set what a region's query needs while it is made, then put the user's settings back.

    Its frame is made and its query started inside: a query keeps a clone of the session. One at a
    time in this process, for the settings and the names of data sources are the session's. It is
    not cloned for that: a function may make a view, or name one, by the session of its program.
    """
    with _settings_lock:
        asked = int(spark.conf.get(_BATCHES, None) or 0)
        settings = {**QUERY_SETTINGS, _BATCHES: str(max(batches_to_retain, asked))}
        if _is_unbounded(spark.conf.get(_ROWS, None)):
            settings[_ROWS] = _MOST_ROWS
        before = {key: spark.conf.get(key, None) for key in settings}
        try:
            _set(spark, settings)
            yield
        finally:
            # What another thread has set meanwhile is the user's, and stays.
            ours = {key for key in settings if spark.conf.get(key, None) == settings[key]}
            _set(spark, {key: value for key, value in before.items() if key in ours})


def query_setting(query: StreamingQuery, name: str) -> str:
    """What a query was started with: Spark plans its batches with a clone of the session."""
    execution = query._jsq.streamingQuery()  # noqa: SLF001 - the clone is not public
    return str(execution.sparkSessionForStream().conf().get(name))


def require_query_settings(
    query: StreamingQuery, *, batches_to_retain: int, begins_state: bool
) -> None:
    """Refuse a region's query that was made while another thread set the session otherwise.

    Args:
        batches_to_retain: as `query_settings` was given; more are no harm.
        begins_state: it has one, and no log yet, from which Spark would take what its form is: it
            is now that this is settled, for all later lives (`stateful-replay`).
    Raises:
        StreamError: it was; another one may be made as it should be.
    """
    asked = QUERY_SETTINGS if begins_state else _NEVER_LOGGED
    found = {name: query_setting(query, name) for name in asked}
    changed = {name: value for name, value in found.items() if value != QUERY_SETTINGS[name]}
    kept = query_setting(query, _BATCHES)
    if int(kept) < batches_to_retain:
        changed[_BATCHES] = kept
    if changed:
        raise StreamError(
            "the session's settings were changed while a region's query was made",
            changed,
            "Let the region, or the job, begin again. Set these before the job runs, or in another "
            "session, spark.newSession().",
        )


def _is_unbounded(rows: str | None) -> bool:
    """Whether the rows of an Arrow batch have no bound, with which Spark reads everything but
    Python data sources: there it asserts that there is one; pure."""
    return rows is not None and int(rows) < 1


def warn_of_unbounded_rows(spark: SparkSession) -> None:
    """Say what a query will fail of that has a source of ours, and is not a Job's."""
    rows = spark.conf.get(_ROWS, None)
    if _is_unbounded(rows):
        log.warning(
            "Spark cannot read Python data sources, such as sluice-kafka, in this session: set "
            "%s=%s, for example, in place of %s",
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
    """Give the query that is started inside a pool of its own, unless this thread has one.

    With ``spark.scheduler.mode=FAIR`` the pools of a session share its cores evenly, so a region
    with a backlog does not hold back the others' tasks. In Spark's default mode a pool is only a
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
    """Whether tasks run in the driver's JVM, so that its cores are those there are."""
    return bool(spark.sparkContext._jsc.sc().isLocal())  # noqa: SLF001 - not in Python


def ends_quiet_workers(spark: SparkSession) -> str | None:
    """The setting by which Spark ends a Python worker from which nothing has come for a while;
    None: it does not. A continuous task sends nothing before its end."""
    conf = spark.sparkContext.getConf()
    timeout = conf.get(_QUIET_TIMEOUT, "0")
    if conf.get(_ENDS_QUIET, "false").strip().lower() != "true" or timeout.strip(" s") == "0":
        return None
    return f"{_ENDS_QUIET}=true with {_QUIET_TIMEOUT}={timeout}, which would end its task"


def is_fair(spark: SparkSession) -> bool:
    """Whether the session's pools share its cores evenly."""
    return spark.sparkContext.getConf().get(_MODE, "FIFO") == "FAIR"


@contextlib.contextmanager
def quick_python(spark: SparkSession) -> Iterator[None]:
    """Let Spark's Python processes for the source that is made inside start in less time: see
    `sluice.runtime.spark.fast_start.python_daemon`. Each life of a region has new ones."""
    before = spark.sparkContext.environment.get(_PYTHON_PATH)
    path = os.pathsep.join(filter(None, (str(_QUICK_PYTHON), before)))
    with _environment(spark, {_PYTHON_PATH: path}):
        yield


@contextlib.contextmanager
def own_workers(spark: SparkSession) -> Iterator[None]:
    """Let the Python functions that are made inside run in workers that only sink tasks are run in.

    Spark lends any idle worker that has the function's environment, one after the other, and each
    that has ever had a sink task keeps transactional ids: without this, a few for every reader,
    too. Regions begin their batches at once, each in a thread of its own.
    """
    with _environment(spark, {_WORKERS: "sink"}):
        yield


@contextlib.contextmanager
def _environment(spark: SparkSession, more: Mapping[str, str]) -> Iterator[None]:
    """Of the Python functions that are made inside."""
    context = spark.sparkContext
    with _environment_lock:
        before = context.environment
        # Another thread may be reading the one that is there.
        context.environment = {**before, **more}
        try:
            yield
        finally:
            context.environment = before
