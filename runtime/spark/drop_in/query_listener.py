"""Spark's events of streaming queries, with one call into the JVM for each."""

import logging
from collections.abc import Callable
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import StreamingQueryListener

__all__ = ["QueryListener"]

log = logging.getLogger(__name__)


class QueryListener(StreamingQueryListener):
    """Passes events on; ``spark.streams.addListener`` takes it. A thread of py4j calls it.

    PySpark's own listener makes about a hundred calls into the JVM for each batch. Spark's JSON has
    the same values.

    Args:
        started: called with the id and the name of a query.
        progressed: called with the progress of a batch as JSON.
        terminated: called with an id, and whether the query ended with an error.
    """

    def __init__(
        self,
        *,
        started: Callable[[str, str | None], None],
        progressed: Callable[[str], None],
        terminated: Callable[[str, bool], None],
    ) -> None:
        self._events = _JavaEvents(started, progressed, terminated)

    @property
    def _jlistener(self) -> Any:  # noqa: ANN401 - py4j's view
        if not hasattr(self, "_made"):
            jvm: Any = SparkContext._jvm  # noqa: SLF001 - as PySpark's own listener
            self._made = jvm.PythonStreamingQueryListenerWrapper(self._events)
        return self._made

    def onQueryStarted(self, event: object) -> None:
        """Not called: `_JavaEvents` gets the events."""

    def onQueryProgress(self, event: object) -> None:
        """Not called."""

    def onQueryTerminated(self, event: object) -> None:
        """Not called."""


class _JavaEvents:
    """The Java interface; an error here must not reach Spark's bus, which would log it."""

    def __init__(
        self,
        started: Callable[[str, str | None], None],
        progressed: Callable[[str], None],
        terminated: Callable[[str, bool], None],
    ) -> None:
        self._started = started
        self._progressed = progressed
        self._terminated = terminated

    def onQueryStarted(self, event: Any) -> None:  # noqa: ANN401 - py4j's view, Spark's name
        _logged(lambda: self._started(event.id().toString(), event.name()))

    def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401 - as above
        _logged(lambda: self._progressed(event.progress().json()))

    def onQueryIdle(self, event: object) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: ANN401 - as above
        _logged(lambda: self._terminated(event.id().toString(), event.exception().isDefined()))

    class Java:
        """py4j reads it."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def _logged(report: Callable[[], None]) -> None:
    """Metrics decide nothing: an error in them is logged, and the query continues."""
    try:
        report()
    except Exception:  # metrics must not end the thread of Spark's events
        log.exception("an event of a query was not counted")
