"""The drop-in sink's driver side: whose work is committed, and what a closed service answers."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    DataType,
    DayTimeIntervalType,
    IntegerType,
    StructType,
    VariantType,
)

from sluice.connectors.hdfs.file_drop_in_format import FilesFormat
from sluice.connectors.kafka.kafka_drop_in import KafkaFormat
from sluice.runtime.errors import ConfigError, FencedError, IllegalTransitionError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.service.drop_in_client import DropInClient, QueryRun
from sluice.runtime.service.service_client import CoordinatorAddress
from sluice.runtime.spark.drop_in.drop_in_queries import DropInQueries
from sluice.runtime.spark.drop_in.drop_in_writer import DropInStreamWriter, _PreCommitted
from tests.kit.coordinator.core_driver import committable

ADDRESS = CoordinatorAddress(address="http://x", token="t", leader_session_id="s", job_uid="j")


class FakeService:
    """The service in the user's process, whose query is in some run."""

    def __init__(self, attempt_id: int) -> None:
        self.attempt_id = attempt_id
        self.calls: list[tuple[str, int, int]] = []
        self.decide_by_s: float | None = None

    def begin(self, format_name: str, location: str, options: Mapping[str, str]) -> QueryRun:
        return QueryRun(
            run_id=f"run {self.attempt_id}",
            job_uid="j",
            attempt_id=self.attempt_id,
            operator_id="o",
            committed_through=0,
            address=ADDRESS,
            writer_factory=b"",
        )

    def commit(
        self,
        location: str,
        run: QueryRun,
        batch_id: int,
        entries: Sequence[StateEntry],
        *,
        decide_by_s: float | None,
    ) -> None:
        self.decide_by_s = decide_by_s
        self.calls.append(("commit", batch_id, len(entries)))

    def abort(self, location: str, run: QueryRun, batch_id: int) -> None:
        self.calls.append(("abort", batch_id, 0))


def told(
    attempt_id: int, committables: tuple[StateEntry, ...] = (), decide_by_s: float | None = None
) -> _PreCommitted:
    """By a task of a run."""
    return _PreCommitted(f"run {attempt_id}", attempt_id, committables, decide_by_s)


def writer(service: FakeService) -> DropInStreamWriter:
    """As Spark makes it, in a process of its own, before tasks, commit and abort."""
    options = {"checkpointLocation": "/at"}
    return DropInStreamWriter("sluice-kafka", options, cast(DropInClient, service))


def test_callback_after_commit_an_earlier_runs_batch_is_neither_committed_nor_aborted_as_this_ones() -> (
    None
):
    """A process that was slow to begin finds the query restarted, its transactions swept: deciding
    about them would lose them, and failing the new run for them would end it."""
    service = FakeService(attempt_id=8)
    late = [told(7, (committable("swept"),)), None]
    with pytest.raises(FencedError, match="restarted"):
        writer(service).commit(late, 3)
    writer(service).abort(late, 3)
    assert service.calls == []


def test_callback_after_commit_a_query_that_begins_where_another_one_was_deleted_takes_nothing_of_its() -> (
    None
):
    """Both begin with attempt 0: a batch of the first one that is late would be decided as the
    second one's own, whose records of that number would never be written."""
    service = FakeService(attempt_id=0)
    late = [_PreCommitted("run of before", 0, (committable("late"),))]
    with pytest.raises(FencedError, match="restarted"):
        writer(service).commit(late, 3)
    writer(service).abort(late, 3)
    assert service.calls == []


def test_a_batch_of_this_run_is_committed_and_an_aborted_one_told() -> None:
    """Tasks that wrote nothing, and those that Spark never heard of, count for nothing."""
    service = FakeService(attempt_id=8)
    writer(service).commit([told(8, (committable("a"),)), told(8)], 3)
    writer(service).abort([told(8), None], 4)
    assert service.calls == [("commit", 3, 1), ("abort", 4, 0)]


def test_callback_after_commit_an_abort_that_names_no_run_ends_none() -> None:
    """A stopped run's call may be late, and find that the query has begun again."""
    service = FakeService(attempt_id=8)
    writer(service).abort([None, None], 4)
    assert service.calls == []


def test_transaction_timeout_a_batch_is_decided_before_the_first_of_its_transactions_grows_old() -> (
    None
):
    """Tasks run in waves: the first wave's transactions are the oldest. Files keep."""
    service = FakeService(attempt_id=8)
    written = [
        told(8, (committable("first"),), 100.0),
        told(8, (committable("second"),), 900.0),
        told(8, (committable("file"),)),
    ]
    writer(service).commit(written, 3)
    assert service.decide_by_s == 100.0
    writer(service).commit([told(8)], 4)
    assert service.decide_by_s is None


def test_drop_in_abort_a_batch_is_not_decided_without_the_word_of_each_of_its_tasks() -> None:
    """What the silent one wrote would be aborted by the next sweep, and its range count as read."""
    service = FakeService(attempt_id=8)
    with pytest.raises(IllegalTransitionError, match="missing=1"):
        writer(service).commit([told(8, (committable("told"),)), None], 4)
    assert service.calls == []


def test_no_run_begins_once_the_queries_are_being_stopped() -> None:
    """Its transactions would stay open behind the last sweep of this process."""
    queries = DropInQueries(cast(Any, None), cast(Any, None), cast(Any, None))
    queries.close()
    with pytest.raises(FencedError, match="being stopped"):
        queries.call("begin", {"format_name": "any", "location": "/at", "options": {}})


@pytest.mark.parametrize("named", [KafkaFormat, FilesFormat])
def test_a_frame_that_spark_writes_itself_is_refused_with_what_to_do(
    named: type[DataSource],
) -> None:
    """As by ``writeTo``, or in a process without `sluice.install`."""
    with pytest.raises(ConfigError, match=r"save\(\) only") as refused:
        named({}).writer(StructType(), overwrite=False)
    assert "df.write.format" in str(refused.value)


def test_who_reads_the_format_of_files_is_told_how() -> None:
    with pytest.raises(ConfigError, match=r"only writes .*spark\.read\.parquet"):
        FilesFormat({"path": "/lake/orders"}).schema()


def test_files_of_whole_results_are_refused() -> None:
    """Output mode complete would add them all again with each batch; Spark's files refuse it."""
    given = FilesFormat({"path": "/lake/orders", "checkpointLocation": "/at"})
    with pytest.raises(ConfigError, match="complete"):
        given.streamWriter(StructType(), overwrite=True)


@pytest.mark.parametrize("kind", [VariantType(), DayTimeIntervalType()])
def test_types_that_tasks_cannot_write_are_refused_by_name(kind: DataType) -> None:
    """A variant reaches them as a struct of bytes, and would become one in the files."""
    given = FilesFormat({"path": "/lake/orders", "checkpointLocation": "/at"})
    with pytest.raises(ConfigError, match=r"cannot write a column of this type .*column=v "):
        given.streamWriter(StructType().add("n", IntegerType()).add("v", kind), overwrite=False)
