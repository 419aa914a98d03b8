"""A drop-in query as the driver knows it: a real service and directory, and what Spark has of it.

Spark's execution, handle and session are as much of them as is asked for; the sink and its broker
are fakes.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from sluice.runtime.contracts import SinkCoordinator
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.service.drop_in_client import HANDLER_KEY, REGION, DropInClient, QueryRun
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_client import CoordinatorClient
from sluice.runtime.spark.drop_in import drop_in_queries as drop_in
from sluice.runtime.spark.drop_in.active_queries import ActiveQuery, find_query
from sluice.runtime.spark.drop_in.drop_in_queries import DropInQueries, DropInSinkMaker
from sluice.runtime.spark.session.spark_session import SHUFFLE_RETRY
from tests.kit.fakes import (
    FakeBroker,
    FakeSink,
    Transaction,
    attempt_of,
    entry_of,
    transactional_id,
)

__all__ = ["FORMAT", "Execution", "Query", "QueryProcess", "Session", "World", "looked_for"]

FORMAT = "sluice-any"


@dataclass(frozen=True)
class JavaName:
    """A Java object of which only its class's name is asked."""

    name: str

    def getClass(self) -> "JavaName":
        return self

    def getSimpleName(self) -> str:
        return self.name


@dataclass(frozen=True)
class Execution(JavaName):
    """Spark's execution of a query."""

    name: str = "MicroBatchExecution"
    mode: str = "ProcessingTimeTrigger"
    location: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    callback: str = "ForeachBatchSink"

    def sink(self) -> JavaName:
        return JavaName(self.callback)

    def trigger(self) -> JavaName:
        return JavaName(self.mode)

    def streamingQuery(self) -> "Execution":
        return self

    def sparkSessionForStream(self) -> "Execution":
        return self

    def resolvedCheckpointRoot(self) -> str:
        return self.location

    def conf(self) -> Mapping[str, str]:
        return {SHUFFLE_RETRY: "true", **self.settings}


@dataclass
class Query:
    """Spark's handle of one run."""

    id: str = "11111111-query"
    runId: str = "run-1"
    isActive: bool = True
    _jsq: Execution = field(default_factory=Execution)


class Session:
    """As much of a session as is asked for."""

    version = "4.3.0"
    _jvm = None

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.active: list[Query] = []
        self.streams = self
        self.sparkContext = self
        self.conf = dict(settings or {})

    def getConf(self) -> Mapping[str, str]:
        return self.conf


@dataclass(frozen=True)
class Sink:
    """Describes the fake sink."""

    made: Callable[[], SinkCoordinator]
    name: str = "out"
    uid: str | None = None
    place: str = "out"

    def coordinator(self) -> SinkCoordinator:
        return self.made()

    def settings(self) -> Mapping[str, str]:
        return {"place": self.place}

    def target(self) -> tuple[str, ...]:
        return (self.place,)

    def may_have_written(self, committable: StateEntry) -> bool:
        return True

    def may_share_output(self, settings: Mapping[str, str]) -> bool:
        return not self.place or settings["place"] in ("", self.place)

    def writer_factory(self) -> str:
        return "what tasks write with"


class QueryProcess:
    """The process that runs a query, with its service and a client of it: no Spark in it.

    Args:
        location: the query's checkpoint location; exists.
        sinks: as of `DropInQueries`.
    """

    def __init__(self, location: Path, sinks: Mapping[str, DropInSinkMaker]) -> None:
        self.location = str(location)
        self.session = Session()
        self.query = Query(_jsq=Execution(location=self.location))
        self.session.active.append(self.query)
        (location / "metadata").write_text(json.dumps({"id": self.query.id}))
        session = cast(SparkSession, self.session)
        self.service = CoordinatorService()
        self.queries = DropInQueries(session, sinks, self.service)
        self.service.mount(HANDLER_KEY, self.queries)
        self.service.start()
        self.client = DropInClient(address=self.service.coordinator_address)

    def close(self) -> None:
        """As `Installation.close`."""
        self.queries.close()
        self.service.stop()


class World(QueryProcess):
    """A query, and the broker that its sink writes to."""

    def __init__(self, location: Path) -> None:
        self.broker = FakeBroker()
        self.reachable = True
        sink = Sink(lambda: FakeSink(self.broker, may_reach=lambda: self.reachable))
        self.makes_a_sink = False
        self.may_start = threading.Event()
        self.may_start.set()

        def made(options: Mapping[str, str], _query: object) -> Any:
            self.makes_a_sink = True
            if "slow" in options:
                assert self.may_start.wait(300)
            return replace(sink, place=options.get("place", sink.place))

        super().__init__(location, {FORMAT: made})

    def begin(self, options: Mapping[str, str] | None = None) -> QueryRun:
        """What the constructor asks, at each of its three places."""
        return self.client.begin(FORMAT, self.location, options or {})

    def write(self, run: QueryRun, batch_id: int) -> Transaction:
        """A task's transaction with one record, pre-committed."""
        batch = BatchKey(region=REGION, attempt_id=run.attempt_id, batch_id=batch_id)
        transaction = self.broker.init(transactional_id(run.job_uid, batch, f"task-{batch_id}"))
        with CoordinatorClient(run.address) as client:
            client.register(attempt_of(transaction, batch, operator_id=run.operator_id))
        self.broker.append(transaction, 0, batch_id)
        return transaction

    def commit(
        self,
        run: QueryRun,
        batch_id: int,
        transaction: Transaction,
        *,
        decide_by_s: float | None = None,
    ) -> None:
        """Spark's call."""
        entries = [entry_of(transaction, operator_id=run.operator_id)]
        self.client.commit(self.location, run, batch_id, entries, decide_by_s=decide_by_s)

    def is_decided(self, run: QueryRun, batch_id: int) -> bool:
        """What the run's coordinator says."""
        batch = BatchKey(region=REGION, attempt_id=run.attempt_id, batch_id=batch_id)
        with CoordinatorClient(run.address) as client:
            return client.is_decided(batch)

    def abort(self, run: QueryRun, batch_id: int) -> None:
        """Spark's call."""
        self.client.abort(self.location, run, batch_id)


def looked_for(patch: pytest.MonkeyPatch) -> list[str]:
    """Spark's ids of the runs that are found from now on, each time that one is looked for."""
    looks: list[str] = []

    def look(*args: Any) -> ActiveQuery:
        found = find_query(*args)
        looks.append(found.run_id)
        return found

    patch.setattr(drop_in, "find_query", look)
    return looks
