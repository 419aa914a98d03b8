"""The end of a streaming query: asked for, and waited for no longer than that is worth."""

import logging
import threading
import time

from py4j.protocol import Py4JJavaError
from pyspark.sql.streaming.query import StreamingQuery

from sluice.runtime.errors import WaitedTooLongError

__all__ = ["stop_query"]

log = logging.getLogger(__name__)

_TIMED_OUT = "TimeoutException"
_SOON_S = 60.0
_PAUSE_S = 0.1


def stop_query(query: StreamingQuery, *, region: str, timeout_s: float) -> None:
    """Stop a query; returns once nothing of it runs any more.

    Spark waits as long as ``spark.sql.streaming.stopTimeout`` says in the user's own session at
    that moment, and not in the clone that the query was begun with: for ever by default, and
    maybe for less than a batch callback, which it cannot interrupt, still takes.

    Args:
        region: whose query it is.
        timeout_s: the bound of the wait.
    Raises:
        WaitedTooLongError: it still runs; Spark has been told.
    """
    stop = _Stop(query, until_s=time.monotonic() + timeout_s)
    thread = threading.Thread(target=stop.run, name="sluice-query-stop", daemon=True)
    thread.start()
    thread.join(min(_SOON_S, timeout_s))
    if thread.is_alive() and timeout_s > _SOON_S:
        log.warning(
            "a region's query has not stopped yet, its batch may hang: region=%s waits_s=%.0f",
            region,
            timeout_s,
        )
        thread.join(timeout_s - _SOON_S)
    if stop.error is not None:
        raise stop.error
    if thread.is_alive() or not stop.is_joined:
        raise WaitedTooLongError(
            "a region's query did not stop",
            {"region": region, "waited_s": timeout_s},
            "Its batch may hang, in a file system or in a function; what it has open is aborted by "
            "the next start.",
        )


class _Stop:
    """Asks until it is answered, in a thread of its own.

    Attributes:
        is_joined: the query's thread has ended.
        error: what ended the asking, but for Spark's own limit of time.
    """

    def __init__(self, query: StreamingQuery, *, until_s: float) -> None:
        self._query = query
        self._until_s = until_s
        self.is_joined = False
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while time.monotonic() < self._until_s:
                if self._is_answered():
                    self.is_joined = True
                    return
                time.sleep(_PAUSE_S)  # Spark has no call that only waits for a query's thread
        except Exception as err:  # noqa: BLE001 - raised again by whoever waits
            self.error = err

    def _is_answered(self) -> bool:
        try:
            self._query.stop()
        except Py4JJavaError as err:
            if err.java_exception.getClass().getSimpleName() != _TIMED_OUT:
                raise
            return False
        return True
