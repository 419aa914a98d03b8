"""A chained task in micro-batches, and what Spark is reported when a function of it fails."""

import traceback
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from pyspark import TaskContext

from sluice.runtime.contracts import TaskScope, WriterFactory
from sluice.runtime.errors import DeliveryError, FunctionFailedError, StreamError
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.on_error import Policy, Skip
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.service.service_client import CoordinatorAddress
from sluice.runtime.spark.tasks.region_tasks import Chain, RegionTasks, results_of
from tests.kit.source.source_rows import source_rows

_ADDRESS = CoordinatorAddress(
    address="http://127.0.0.1:1", token="t", leader_session_id="s", job_uid="j"
)


class _Reader:
    """One record, whatever is asked for."""

    def read(self, splits: Sequence[SplitRange]) -> Iterator[pa.RecordBatch]:
        yield source_rows(b"a")


class _Sink:
    """Its own factory; what it was asked to do."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def open(self, scope: TaskScope, registry: object) -> "_Sink":
        return self

    def abort(self) -> None:
        self.asked.append("abort")


def _chain(
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    *,
    policy: Policy | None = None,
    sinks: Mapping[str, object] = MappingProxyType({}),
) -> Chain:
    """One whose function raises this, in a task."""
    context = SimpleNamespace(
        partitionId=lambda: 0, attemptNumber=lambda: 0, getLocalProperty=lambda _name: "7"
    )
    monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: context))

    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise error

    factories = cast(Mapping[str, WriterFactory], sinks)
    tasks = RegionTasks(
        address=_ADDRESS, job_uid="j", region="main", attempt_id=1, factories=factories
    )
    function = ChainedFunction(name="f", operator_id="f", function=fail, policy=policy)
    return Chain(tasks=tasks, reader=_Reader(), functions=(function,), job_name="j")


def _failing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> Exception:
    chain = _chain(error, monkeypatch)
    with pytest.raises((LookupError, FunctionFailedError)) as caught:
        list(chain.copy_ranges(3, ()))
    return caught.value


def test_a_task_reports_of_how_many_rows_its_functions_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (row,) = _chain(ValueError("no"), monkeypatch, policy=Skip()).copy_ranges(3, ())
    (result,) = results_of([[row.column("result")[0].as_py()]])
    assert result.counts == {"f": RecordCounts(read=1, skipped=1)}
    assert result.failed_rows == {"f": 1}


@pytest.mark.parametrize(
    "error", [DeliveryError("refused", {}, "Look at the topic."), LookupError("not this time")]
)
def test_a_task_that_fails_aborts_in_all_its_sinks_what_it_has_open(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers wait after it until the next sweep. A typed error is the task's answer: Spark, which
    would try the task again, is not reported."""
    sinks = {"one": _Sink(), "two": _Sink()}
    chain = _chain(error, monkeypatch, sinks=sinks)
    if isinstance(error, StreamError):
        (row,) = chain.copy_ranges(3, ())
        with pytest.raises(DeliveryError, match="refused"):
            results_of([[row.column("result")[0].as_py()]])
    else:
        with pytest.raises(LookupError):
            list(chain.copy_ranges(3, ()))
    assert [sink.asked for sink in sinks.values()] == [["abort"], ["abort"]]


def test_an_error_of_a_function_goes_to_spark_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which tries the task again, and shows it."""
    error = LookupError("not this time")
    assert _failing(error, monkeypatch) is error


def test_an_error_that_has_no_utf8_goes_to_spark_in_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's worker cannot encode it: the JVM would wait for it until the checkpoint expires."""
    found = _failing(ValueError("not a name: \ud800!"), monkeypatch)
    assert isinstance(found, FunctionFailedError)
    said = "".join(traceback.format_exception(found))
    assert b"ValueError: not a name: ?!" in said.encode()
