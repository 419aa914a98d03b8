"""How a region's streaming query ends: its stop, and the reason why Spark ended it."""

import logging
import re
import threading
import time

from py4j.protocol import Py4JJavaError
from pyspark.sql.streaming.query import StreamingQuery

from sluice.runtime.errors import (
    StorageError,
    StorageUnreachableError,
    WaitedTooLongError,
    WrongJobError,
)
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import is_object_store, needs_jvm
from sluice.runtime.storage.hadoop_errors import FailureKind, causes_of, exception_of, failure_kind

__all__ = ["await_commit_log", "logs_outage", "state_mismatch", "stop_query"]

log = logging.getLogger(__name__)

_TIMED_OUT = "TimeoutException"
_WARN_AFTER_S = 60.0
_PAUSE_S = 0.1
_LOG_TIMEOUT_S = 5.0
_LOG_POLL_S = 0.01
_MISMATCH = re.compile(
    r"\[(?P<condition>STATE_STORE_(?:KEY|VALUE)_SCHEMA_NOT_COMPATIBLE"
    r"|STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE"
    r"|STATE_STORE_INVALID_(?:VALUE_SCHEMA_EVOLUTION|VARIABLE_TYPE_CHANGE|CONFIG_AFTER_RESTART)"
    r"|STREAMING_STATEFUL_OPERATOR_(?:NOT_MATCH_IN_STATE_METADATA|MISSING_STATE_DIRECTORY))\]"
    r"\s*(?P<text>.*?)(?:\s+If you want to force|\s*SQLSTATE|\n\s*at |$)",
    re.DOTALL,
)
_LONGEST_TEXT = 4_000  # it has two schemas


def await_commit_log(query: StreamingQuery, fs: FileSystem, entry: str) -> None:
    """Wait a few seconds until Spark has written its commit log: a stop would interrupt it, and
    Spark would log a long error.

    Args:
        entry: path of the last batch's entry.
    """
    deadline_s = time.monotonic() + _LOG_TIMEOUT_S
    while query.isActive and time.monotonic() < deadline_s:
        try:
            if fs.exists(entry):
                return
        except StorageError:  # Spark cannot write there either
            return
        time.sleep(_LOG_POLL_S)  # Spark does not announce that it has written its commit log


def logs_outage(query: StreamingQuery, uri: str) -> StorageUnreachableError | None:
    """The error if a query ended because Spark could not write its logs; they lie next to the
    checkpoints.

    Args:
        uri: of the checkpoint directory.
    """
    if not (needs_jvm(uri) or is_object_store(uri)):
        return None
    found = query._jsq.exception()  # noqa: SLF001 - the chain of causes in Java
    if not found.isDefined():
        return None
    causes = [exception_of(cause) for cause in causes_of(found.get())]
    if failure_kind(causes) is not FailureKind.UNREACHABLE:
        return None
    return StorageUnreachableError(
        "Spark could not write its logs in the checkpoint directory",
        {"uri": uri, "error": causes[-1].text},
        "Check that the store, or NameNode and DataNodes, are up, reachable and not in safe mode.",
    )


def state_mismatch(err: BaseException, *, region: str) -> WrongJobError | None:
    """The error if Spark refused the state of a changed transform.

    Spark compares operators and schemas when it plans the first batch of a query, before a task
    reads a record.
    """
    found = _MISMATCH.search(str(err))
    if found is None:
        return None
    return WrongJobError(
        "the state of a region does not fit its transform",
        {
            "region": region,
            "condition": found["condition"],
            "spark": " ".join(found["text"].split())[:_LONGEST_TEXT],
        },
        "Start with the old transform. To begin without the state, restore into an empty directory "
        "with another uid of the transform and allow_non_restored_state=True.",
    )


def stop_query(query: StreamingQuery, *, region: str, timeout_s: float) -> None:
    """Stop a query; returns when no thread of it runs any more.

    Spark waits as long as ``spark.sql.streaming.stopTimeout`` says. It reads that from the user's
    own session at the moment of the stop, not from the clone that the query was started with. The
    default is forever; a user's own value may be too short for a running batch callback, which
    Spark cannot interrupt.

    Args:
        region: name of the query's region.
        timeout_s: the bound of the wait.
    Raises:
        WaitedTooLongError: it still runs, although Spark was asked to stop it.
    """
    stop = _Stop(query, until_s=time.monotonic() + timeout_s)
    thread = threading.Thread(target=stop.run, name="sluice-query-stop", daemon=True)
    thread.start()
    thread.join(min(_WARN_AFTER_S, timeout_s))
    if thread.is_alive() and timeout_s > _WARN_AFTER_S:
        log.warning(
            "a region's query has not stopped yet, its batch may hang: region=%s timeout_s=%.0f",
            region,
            timeout_s,
        )
        thread.join(timeout_s - _WARN_AFTER_S)
    if stop.error is not None:
        raise stop.error
    if thread.is_alive() or not stop.is_joined:
        raise WaitedTooLongError(
            "a region's query did not stop",
            {"region": region, "waited_s": timeout_s},
            "Restart the job: the next start aborts its open work. A file system or a function "
            "may hang.",
        )


class _Stop:
    """Calls ``stop`` until the query's thread has ended, in a thread of its own.

    Attributes:
        is_joined: the query's thread has ended.
        error: of the call, except for Spark's own time limit.
    """

    def __init__(self, query: StreamingQuery, *, until_s: float) -> None:
        self._query = query
        self._until_s = until_s
        self.is_joined = False
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while time.monotonic() < self._until_s:
                if self._is_stopped():
                    self.is_joined = True
                    return
                time.sleep(_PAUSE_S)  # Spark has no call that only waits for a query's thread
        except Exception as err:  # noqa: BLE001 - `stop_query` raises it
            self.error = err

    def _is_stopped(self) -> bool:
        try:
            self._query.stop()
        except Py4JJavaError as err:
            if err.java_exception.getClass().getSimpleName() != _TIMED_OUT:
                raise
            return False
        return True
