"""What the drop-in sink's calls do in the user's process, over a real directory and a fake sink.

Spark's ways are played as rule `drop-in-abort` has measured them: `abort` with all messages after
a `commit` that raised, `abort` with none on a stop, a constructor at three places of every batch.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.errors import ConfigError, FencedError, StreamError, UnreachableError
from sluice.runtime.service.drop_in_client import DropInClient, QueryRun
from sluice.runtime.service.service_client import CoordinatorAddress
from sluice.runtime.spark.drop_in import drop_in_queries as drop_in
from sluice.runtime.spark.drop_in import drop_in_run
from sluice.runtime.spark.drop_in.active_queries import ActiveQuery
from sluice.runtime.spark.drop_in.drop_in_writer import DropInStreamWriter
from sluice.runtime.spark.session.spark_session import SHUFFLE_RETRY, prepare
from tests.kit.drop_in_simulation import FORMAT, Execution, Query, Session, World, looked_for
from tests.kit.fakes import TransactionState
from tests.kit.waiting import join, wait_for


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_drop_in_abort_an_abort_after_a_commit_that_raised_leaves_the_decision_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decided, but not yet committed: Spark is told an error and aborts, and it still commits."""
    run = world.begin()
    transaction = world.write(run, 0)
    world.reachable = False
    with monkeypatch.context() as hasty:  # the commits below have their time
        hasty.setattr(drop_in_run, "_COMMIT_TIMEOUT_S", 0.3)
        with pytest.raises(UnreachableError, match="it may be decided"):
            world.commit(run, 0, transaction)
    wait_for(lambda: world.is_decided(run, 0), what="the decision")
    world.begin()
    world.abort(run, 0)
    assert transaction.state is TransactionState.ONGOING
    world.reachable = True
    wait_for(lambda: transaction.state is TransactionState.COMMITTED, what="the commit")
    assert world.broker.aborts_of_committed == 0
    world.abort(run, 0)  # of a process that is late
    world.commit(run, 1, world.write(run, 1))
    assert world.broker.read_committed(0) == [0, 1]


def test_a_query_of_another_session_is_found_once_that_session_is_known(world: World) -> None:
    """Each session lists its own queries only."""
    other = Session()
    other.active, world.session.active = world.session.active, []
    with pytest.raises(ConfigError, match="no query with this"):
        world.begin()
    world.queries.watch(cast(SparkSession, other))
    assert world.begin().run_id == world.query.runId


def another(world: World, location: Path) -> Query:
    """A second query of the session."""
    other = Query(id="22222222-query", runId="run-9")
    location.mkdir()
    (location / "metadata").write_text(json.dumps({"id": other.id}))
    world.session.active.append(other)
    return other


def test_a_query_that_can_never_be_asked_keeps_no_other_from_its_end(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its prefix, that is."""
    world.begin()
    location = tmp_path / "other"
    other = another(world, location)
    world.client.begin(FORMAT, str(location), {})

    def is_active(active: ActiveQuery) -> bool:
        if active.run_id != other.runId:
            raise ConnectionError("no answer")
        return False

    monkeypatch.setattr(ActiveQuery, "is_active", is_active)
    wait_for(lambda: list(world.queries._runs) == [world.location])  # noqa: SLF001


def test_a_jvm_that_is_gone_is_told_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked every second, and a program may outlive it by days."""
    asked: list[str] = []

    def is_active(active: ActiveQuery) -> bool:
        asked.append(active.run_id)
        raise ConnectionError("no answer")

    monkeypatch.setattr(drop_in, "_REAP_S", 0.001)
    monkeypatch.setattr(ActiveQuery, "is_active", is_active)
    world.begin()
    wait_for(lambda: len(asked) > 5, what="looks at the run")
    assert sum("state of a run is unknown" in said for said in caplog.messages) == 1


def test_a_run_that_cannot_be_stopped_leaves_no_other_one_running(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its tasks would go on writing, and nobody sweep behind them."""
    world.begin()
    location = tmp_path / "other"
    other = another(world, location)
    world.client.begin(FORMAT, str(location), {})
    stopped: list[str] = []

    def stop(active: ActiveQuery, *, timeout_s: float) -> None:
        stopped.append(active.run_id)
        if active.run_id != other.runId:
            raise ConnectionError("no answer")

    monkeypatch.setattr(ActiveQuery, "stop", stop)
    coordinators = [run.began.coordinator for run in world.queries._runs.values()]  # noqa: SLF001
    with pytest.raises(ConnectionError):
        world.queries.close()
    assert sorted(stopped) == sorted([world.query.runId, other.runId])
    assert all(coordinator.is_over for coordinator in coordinators)


def test_a_start_that_hangs_does_not_hold_up_the_end_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drop_in, "_START_TIMEOUT_S", 0.05)
    world.may_start.clear()
    begin = partial(world.client.begin, FORMAT, world.location, {"slow": "yes"})
    refused: list[BaseException | None] = []
    slow = threading.Thread(target=lambda: refused.append(_error_of(begin)))
    slow.start()
    wait_for(lambda: world.makes_a_sink, what="the start")
    world.queries.close()
    assert not refused
    world.may_start.set()
    join(slow)
    assert isinstance(refused[0], (FencedError, UnreachableError))


def _error_of(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except StreamError as err:
        return err
    return None


def test_a_start_that_takes_long_holds_up_no_other_query(world: World, tmp_path: Path) -> None:
    """A file system or a broker that does not answer is one query's: the others ask before each
    batch, and would fail with it."""
    location = tmp_path / "other"
    other = another(world, location)
    world.may_start.clear()
    begun: list[QueryRun] = []
    slow = threading.Thread(
        target=lambda: begun.append(world.client.begin(FORMAT, world.location, {"slow": "yes"}))
    )
    slow.start()
    wait_for(lambda: world.makes_a_sink, what="the start")
    try:
        assert world.client.begin(FORMAT, str(location), {}).run_id == other.runId
        assert not begun
    finally:
        world.may_start.set()
        join(slow)
    assert [run.run_id for run in begun] == [world.query.runId]


def test_a_run_that_begins_while_the_queries_are_stopped_is_stopped_too(world: World) -> None:
    """Nobody would end it, or sweep behind it, later."""
    world.may_start.clear()
    refused: list[FencedError] = []

    def begin() -> None:
        try:
            world.client.begin(FORMAT, world.location, {"slow": "yes"})
        except FencedError as err:
            refused.append(err)

    slow = threading.Thread(target=begin)
    closing = threading.Thread(target=world.queries.close)
    slow.start()
    wait_for(lambda: world.makes_a_sink, what="the start")
    closing.start()
    wait_for(lambda: world.queries.is_closed, what="the stop")
    world.may_start.set()
    join(slow)
    join(closing)
    assert "being stopped" in str(refused)


def test_a_start_that_was_given_up_does_not_decide_where_the_next_one_writes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its call waited for that of the one before; by then the query that runs is a third one."""
    looks = looked_for(monkeypatch)
    refused: dict[str, BaseException | None] = {}

    def begin(topic: str, **more: str) -> threading.Thread:
        call = partial(world.begin, {"topic": topic, **more})
        made = threading.Thread(target=lambda: refused.update({topic: _error_of(call)}))
        made.start()
        return made

    world.may_start.clear()
    first = begin("a", slow="yes")
    wait_for(lambda: world.makes_a_sink, what="the start")
    world.session.active[:] = [replace(world.query, runId="run-2")]
    second = begin("b")
    wait_for(lambda: "run-2" in looks, what="its call")
    world.session.active[:] = [replace(world.query, runId="run-3")]
    world.may_start.set()
    join(first, second)
    assert isinstance(refused["b"], FencedError)
    assert world.begin({"topic": "c"}).run_id == "run-3"


def test_of_two_starts_with_one_run_the_options_of_the_first_hold_and_the_other_is_refused(
    world: World,
) -> None:
    """Nobody can tell which one is the query's own."""
    run = world.begin({"topic": "a"})
    with pytest.raises(FencedError, match="uses other options"):
        world.begin({"topic": "b"})
    assert world.begin({"topic": "a"}) == run


def test_drop_in_abort_the_constructor_aborts_nothing(world: World) -> None:
    """It runs again right before `commit` and before `abort`, when the work is pre-committed."""
    run = world.begin()
    transaction = world.write(run, 0)
    assert world.begin() == run
    assert transaction.state is TransactionState.ONGOING
    world.commit(run, 0, transaction)
    assert world.broker.read_committed(0) == [0]


def test_drop_in_abort_an_undecided_batch_that_spark_aborts_is_thrown_away(world: World) -> None:
    """Its open transaction must not hold readers back until the next start."""
    run = world.begin()
    transaction = world.write(run, 0)
    world.abort(run, 0)
    wait_for(lambda: transaction.state is TransactionState.ABORTED, what="the abort")
    with pytest.raises(FencedError, match=rf"query_id={world.query.id} batch_id=0"):
        world.commit(run, 0, transaction)  # of a process that is late
    assert world.broker.read_committed(0) == []


@pytest.mark.parametrize(
    ("logged", "version"), [("v1\n{}\n{}", 1), ("v2\n{}\nours:{}", 2), (None, 0)]
)
def test_a_decision_tells_the_version_of_the_querys_own_log(
    world: World, logged: str | None, version: int
) -> None:
    """The session makes the log, not Sluice: Spark's default differs from what a Job sets."""
    if logged is not None:
        (Path(world.location) / "offsets").mkdir()
        (Path(world.location) / "offsets" / "0").write_text(logged)
    run = world.begin()
    world.commit(run, 0, world.write(run, 0))
    store = open_store(f"{world.location}/sluice")
    records = [store.read(place) for place in store.slots()]
    versions = [
        region.offset_log_version
        for record in records
        if record is not None
        for region in record.regions
        if region.batch_id == 0
    ]
    assert versions == [version]


def test_drop_in_abort_a_commit_may_be_repeated(world: World) -> None:
    """Its answer was lost: the second call finds the batch decided."""
    run = world.begin()
    transaction = world.write(run, 0)
    world.commit(run, 0, transaction)
    world.commit(run, 0, transaction)
    assert world.broker.read_committed(0) == [0]


def test_transaction_timeout_a_batch_that_grew_old_is_not_decided(world: World) -> None:
    """Its broker may have aborted a part of it; the next run reads it again."""
    run = world.begin()
    transaction = world.write(run, 0)
    with pytest.raises(FencedError, match=r"too old to decide.*Raise transactionTimeout"):
        world.commit(run, 0, transaction, decide_by_s=time.monotonic())
    wait_for(lambda: transaction.state is TransactionState.ABORTED, what="the abort")
    assert world.broker.read_committed(0) == []


def test_drop_in_abort_a_run_that_was_replaced_is_refused(world: World) -> None:
    """A late process of the run before decides nothing any more."""
    old = world.begin()
    transaction = world.write(old, 0)
    world.query.runId = "run-2"
    new = world.begin()
    assert new.attempt_id > old.attempt_id
    with pytest.raises(FencedError, match="no longer coordinated"):
        world.commit(old, 0, transaction)
    assert world.broker.read_committed(0) == []


def test_a_run_that_has_ended_gives_its_prefix_back(world: World) -> None:
    """Its coordinator stops with the query, and not with the process."""
    run = world.begin()
    world.query.isActive = False

    def is_gone() -> bool:
        try:
            world.abort(run, 0)
        except FencedError:
            return True
        return False

    wait_for(is_gone, what="the end of the run's coordinator")


def test_a_query_that_cannot_be_asked_once_gives_its_prefix_back_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when Py4J fails: what looks for ended queries goes on."""
    world.begin()
    asked: list[str] = []

    def is_active(_active: ActiveQuery) -> bool:
        asked.append("")
        if len(asked) == 1:
            raise ConnectionError("no answer")
        return False

    monkeypatch.setattr(ActiveQuery, "is_active", is_active)
    wait_for(lambda: not world.queries._runs, what="the end of the run")  # noqa: SLF001


@pytest.mark.parametrize(
    ("execution", "told"),
    [
        (Execution(name="ContinuousExecution"), "continuous"),
        (Execution(name="AsyncProgressTrackingMicroBatchExecution"), "asyncProgressTracking"),
        (Execution(mode="RealTimeTrigger"), "realTime"),
    ],
)
def test_refused_settings_an_execution_without_decided_batches_is_refused_by_name(
    world: World, execution: Execution, told: str
) -> None:
    """Also where Spark's own checks have been switched off; nothing is sealed or swept."""
    world.session.active[:] = [Query(_jsq=execution)]
    with pytest.raises(ConfigError, match=told):
        world.begin()
    assert not (Path(world.location) / "sluice").exists()


@pytest.mark.parametrize("value", ["false", " FALSE"])
def test_stateful_replay_a_shuffle_made_again_unseen_is_refused_also_where_the_query_alone_has_it(
    world: World, value: str
) -> None:
    """The application's settings do not tell what `spark.conf.set` has put into its session."""
    prepare(cast(SparkSession, world.session))
    execution = Execution(settings={SHUFFLE_RETRY: value})
    world.session.active[:] = [Query(_jsq=execution)]
    with pytest.raises(ConfigError, match=f"setting={SHUFFLE_RETRY}.* Remove this setting"):
        world.begin()
    assert not (Path(world.location) / "sluice").exists()


def test_refused_settings_speculation_is_refused_by_name() -> None:
    """It runs a task twice on purpose."""
    session = cast(SparkSession, Session({"spark.speculation": "true"}))
    with pytest.raises(ConfigError, match=r"setting=spark\.speculation"):
        prepare(session)


def test_coordinator_in_driver_the_sink_says_what_it_needs() -> None:
    """`install`, and the location as an option: a process of Spark's can find out neither."""
    located = {"checkpointLocation": "/c"}
    with pytest.raises(ConfigError, match=r"sluice\.install"):
        DropInStreamWriter(FORMAT, located, None)
    nowhere = CoordinatorAddress(
        address="http://127.0.0.1:1", token="t", leader_session_id="s", job_uid="u"
    )
    with pytest.raises(ConfigError, match="needs checkpointLocation"):
        DropInStreamWriter(FORMAT, {}, DropInClient(address=nowhere))
