"""Finds the running query of a checkpoint location, and refuses unsafe modes."""

import itertools
import json
import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluice.runtime.errors import ConfigError
from sluice.runtime.spark.session.spark_session import SHUFFLE_RETRY, query_setting, require_setting
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["ActiveQuery", "active_query", "find_query", "require_micro_batches"]

log = logging.getLogger(__name__)

_CALLBACK = "ForeachBatchSink"  # Spark's class
_ASYNC = "asyncProgressTrackingEnabled"
_REFUSED = {  # part of the name of Spark's execution or trigger
    "Continuous": "trigger(continuous=…)",
    "RealTime": "trigger(realTime=…)",
    "AsyncProgressTracking": _ASYNC,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveQuery:
    """A running query: Spark's ids, and the handle."""

    query_id: str
    run_id: str
    query: StreamingQuery

    @property
    def _execution(self) -> Any:  # noqa: ANN401 - py4j's view
        return self.query._jsq.streamingQuery()  # noqa: SLF001 - not public

    def is_active(self) -> bool:
        """Whether this run is still active."""
        return bool(self.query.isActive)

    def setting(self, name: str) -> str:
        """The value of a setting in the session when the query was started."""
        return query_setting(self.query, name)

    @property
    def session(self) -> object:
        """Spark's session for its batches, in the JVM."""
        return self._execution.sparkSessionForStream()

    @property
    def location(self) -> str:
        """URI of its checkpoint location."""
        return str(self._execution.resolvedCheckpointRoot())

    @property
    def has_callback(self) -> bool:
        """Whether its sink is a ``foreachBatch`` function."""
        return bool(self._execution.sink().getClass().getSimpleName() == _CALLBACK)

    def stop(self, *, timeout_s: float) -> None:
        """Stop the query, with a bound: Spark itself would wait for as long as its batch runs."""

        def stop() -> None:
            try:
                self.query.stop()
            except Exception:  # the session may be gone already, and its queries with it
                log.debug("query was not stopped: query_id=%s", self.query_id, exc_info=True)

        thread = threading.Thread(target=stop, name="sluice-query-stop", daemon=True)
        thread.start()
        thread.join(timeout_s)

    def require_micro_batches(self) -> None:
        """Refuse execution modes that do not commit batch by batch (`refused-settings`)."""
        names = (self._execution, self._execution.trigger())
        _require_micro_batches(*(each.getClass().getSimpleName() for each in names))

    def require_settings(self) -> None:
        """Refuse unsafe settings of the query's own session. `prepare` sees neither
        `spark.conf.set` nor settings of a builder that got an existing session
        (`stateful-replay`)."""
        require_setting(SHUFFLE_RETRY, self.setting(SHUFFLE_RETRY))


def require_micro_batches(trigger: str, options: Mapping[str, str]) -> None:
    """Refuse, before a query starts, what `ActiveQuery.require_micro_batches` refuses; pure.

    Args:
        trigger: simple name of the trigger's class.
        options: of the stream.
    Raises:
        ConfigError: with the name of the mode.
    """
    given = {name.lower(): value.strip().lower() for name, value in options.items()}
    is_async = given.get(_ASYNC.lower()) == "true"
    _require_micro_batches(trigger, "AsyncProgressTracking" if is_async else "")


def _require_micro_batches(*names: str) -> None:
    for part, refused in _REFUSED.items():
        if any(part in name for name in names):
            raise ConfigError(
                f"a drop-in sink cannot be exactly-once with {refused}",
                {"option": refused},
                "Use trigger(processingTime=…) or trigger(availableNow=True).",
            )


def active_query(query: StreamingQuery) -> ActiveQuery:
    """Spark's handle with its ids."""
    return ActiveQuery(query_id=query.id, run_id=query.runId, query=query)


def find_query(sessions: Iterable[SparkSession], fs: FileSystem) -> ActiveQuery:
    """The active query of these sessions whose checkpoint location ``fs`` is rooted at.

    Raises:
        ConfigError: the location is not that of a running query of this process.
    """
    content = fs.read("metadata")
    query_id = json.loads(content)["id"] if content else None
    for query in itertools.chain.from_iterable(spark.streams.active for spark in sessions):
        if query.id == query_id:
            return active_query(query)
    raise ConfigError(
        "no query with this checkpointLocation runs in this process",
        {"location": fs.uri, "query_id": query_id},
        "Set writeStream's own checkpointLocation as an option of the sink, with hdfs:// or "
        "file:// before it, and call sluice.install(spark) in the process that starts the query.",
    )
