"""``df.write``: which batches are written, and what the next write does with an earlier one."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast

import pytest
from pyspark.sql import DataFrame

from sluice.runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    UnreachableError,
    WrongJobError,
)
from sluice.runtime.spark.drop_in import drop_in_run
from sluice.runtime.spark.drop_in.drop_in_run import DropInRun, PreCommitted
from sluice.runtime.spark.drop_in.frame_writes import FrameWrite, FrameWrites
from sluice.runtime.spark.session.spark_session import SHUFFLE_RETRY
from tests.kit.drop_in_simulation import FORMAT, Execution, Query, World
from tests.kit.fakes import TransactionState, attempt_of, entry_of, transactional_id


@dataclass
class Frame:
    """A frame of one row, in a callback of a query or outside."""

    row: int
    batch: int | None = None
    _jsparkSession: object = None
    replays: int = 0
    query_id: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def sparkSession(self) -> Self:
        return self

    sparkContext = conf = write = sparkSession

    def getConf(self) -> Self:
        return self

    def getLocalProperty(self, name: str) -> str | None:
        if name == "sql.streaming.queryId":
            return self.query_id
        assert name == "streaming.sql.batchId"
        return None if self.batch is None else str(self.batch)

    def get(self, name: str, default: str | None = None) -> str | None:
        return self.settings.get(name, default)

    def format(self, name: str) -> Self:
        assert name == "noop"
        return self

    def mode(self, _name: str) -> Self:
        return self

    def save(self) -> None:
        self.replays += 1


class Frames(World):
    """Writes frames of rows to the fake broker."""

    def __init__(self, location: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(location)
        self.frames = FrameWrites(self.queries)
        self.fails = False
        self.written: list[int] = []
        world = self

        def write(self: DropInRun, frame: Any, batch_id: int) -> PreCommitted:
            batch = self.batch(batch_id)
            world.written.append(frame.row)
            name = transactional_id(self.job_uid, batch, f"task-{len(world.written)}")
            transaction = world.broker.init(name)
            self.coordinator.register(attempt_of(transaction, batch, operator_id=self.operator_id))
            world.broker.append(transaction, 0, frame.row)
            if world.fails:
                raise ValueError("a task failed")
            entry = entry_of(transaction, operator_id=self.operator_id)
            return PreCommitted(committables=[entry], decide_by_s=None)

        patch.setattr(DropInRun, "_write", write)

    def close(self) -> None:
        super().close()
        self.frames.close()

    def restart(self) -> None:
        """Another process, which has written nothing yet."""
        self.frames.close()
        self.frames = FrameWrites(self.queries)

    def save(
        self, frame: Frame, batch_id: int | None, location: str | None = None, **options: str
    ) -> None:
        """As the user's call."""
        self.frames.save(
            FrameWrite(
                frame=cast(DataFrame, frame),
                format_name=FORMAT,
                options=options,
                batch_id=batch_id,
                location=location or self.location,
            )
        )

    def visible(self) -> list[int]:
        """Rows that readers see."""
        return list(self.broker.read_committed(0))

    def in_callback(self, row: int, batch_id: int) -> Frame:
        """A frame of the query's batch."""
        return Frame(row, batch_id, self.query._jsq)  # noqa: SLF001


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Frames]:
    made = Frames(tmp_path, monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize("in_query", [False, True])
def test_batch_identity_a_repeated_batch_is_not_written_again(
    world: Frames, *, in_query: bool
) -> None:
    """It is run: a stateful operator upstream commits its state after its last row."""
    frame = world.in_callback(7, 3) if in_query else Frame(7)
    world.save(frame, 3)
    world.save(frame, 3)
    assert world.visible() == [7]
    assert frame.replays == 1


def test_batch_identity_a_repeated_batch_of_a_restarted_query_is_not_written_again(
    world: Frames,
) -> None:
    """Its frame is another one to Spark, though its rows are the same."""
    world.save(world.in_callback(7, 3), 3)
    world.query.runId = "run-2"
    world.save(world.in_callback(8, 3), 3)
    assert world.visible() == [7]
    assert world.written == [7]


def test_a_decided_batch_is_committed_by_the_next_write(
    world: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers did not answer: the caller does not know, and asks again."""
    frame = Frame(7)
    with monkeypatch.context() as hasty:
        hasty.setattr(drop_in_run, "_COMMIT_TIMEOUT_S", 0.3)
        lose_the_brokers_after_the_decision(world, hasty)
        with pytest.raises(UnreachableError, match="it may be decided"):
            world.save(frame, 3)
    assert world.visible() == []
    world.reachable = True
    world.save(frame, 3)
    assert world.visible() == [7]
    assert world.written == [7]


@pytest.mark.parametrize("in_query", [False, True])
def test_batch_identity_other_rows_after_a_write_that_may_be_decided_are_refused(
    world: Frames, monkeypatch: pytest.MonkeyPatch, *, in_query: bool
) -> None:
    """The callback goes on after the error: a success would say that these rows are written."""
    made = world.in_callback if in_query else Frame
    with monkeypatch.context() as hasty:
        hasty.setattr(drop_in_run, "_COMMIT_TIMEOUT_S", 0.3)
        lose_the_brokers_after_the_decision(world, hasty)
        with pytest.raises(UnreachableError, match="it may be decided"):
            world.save(made(7, 3), 3)
    world.reachable = True
    with pytest.raises(ConfigError, match="two writes of a batch"):
        world.save(made(8, 3), 3)
    world.query.runId = "run-2"
    world.save(made(7, 3), 3)
    assert world.visible() == [7]


def lose_the_brokers_after_the_decision(world: Frames, patch: pytest.MonkeyPatch) -> None:
    commit: Callable[..., None] = DropInRun.commit

    def lossy(self: DropInRun, *args: Any, **options: Any) -> None:
        world.reachable = False
        commit(self, *args, **options)

    patch.setattr(DropInRun, "commit", lossy)


def test_a_batch_without_a_decision_is_aborted_and_written_again(world: Frames) -> None:
    """No row of the first try is ever visible."""
    world.fails = True
    with pytest.raises(ValueError, match="a task failed"):
        world.save(world.in_callback(7, 3), 3)
    assert not world.broker.ongoing()
    world.fails = False
    world.save(world.in_callback(7, 3), 3)
    assert world.visible() == [7]
    assert world.written == [7, 7]


def test_frames_without_an_id_are_all_written(world: Frames) -> None:
    """Their own numbers never meet those of a callback's batches."""
    for row in (1, 2):
        world.save(Frame(row), None)
    world.save(world.in_callback(3, 1), 1)
    assert sorted(world.visible()) == [1, 2, 3]


@pytest.mark.parametrize("batch_id", [0, 2])
def test_a_batch_below_the_newest_one_is_refused(world: Frames, batch_id: int) -> None:
    """Spark never repeats it: it is another query's, and its rows would be left out."""
    world.save(Frame(7), 3)
    with pytest.raises(ConfigError, match="below the last one"):
        world.save(Frame(8), batch_id)


def test_a_batch_of_another_query_is_refused(world: Frames) -> None:
    """Also the same number."""
    world.save(world.in_callback(7, 0), 0)
    jsq = Execution(name="another", location=world.location)
    other = Query(id="22222222-query", runId="run-9", _jsq=jsq)
    world.session.active.append(other)
    with pytest.raises(WrongJobError, match="another query has written"):
        world.save(Frame(8, 0, other._jsq), 0)  # noqa: SLF001


def test_a_frame_of_another_session_belongs_to_the_query_of_its_thread(world: Frames) -> None:
    """Such as rows that the callback has got from pandas: nothing else tells that another query
    has written here, or that these are two writes of one batch."""
    world.save(Frame(7, 0, query_id=world.query.id), 0)
    with pytest.raises(ConfigError, match="two writes of a batch"):
        world.save(Frame(8, 0, query_id=world.query.id), 0)
    jsq = Execution(name="another", location=world.location)
    world.session.active.append(Query(id="22222222-query", runId="run-9", _jsq=jsq))
    with pytest.raises(WrongJobError, match="another query has written"):
        world.save(Frame(9, 0, query_id="22222222-query"), 0)
    assert world.visible() == [7]


@pytest.mark.parametrize("in_query", [False, True])
def test_batch_identity_a_write_outside_of_the_query_is_no_batch_of_it(
    world: Frames, *, in_query: bool
) -> None:
    """Nothing tells whether a thread of the user wrote this query's batch, or that of another."""
    frames = [world.in_callback(7, 0), Frame(8)]
    first, second = frames if in_query else reversed(frames)
    world.save(first, 0)
    world.restart()
    with pytest.raises(WrongJobError, match=r"a query and a write outside.*inheritable_thread"):
        world.save(second, 0)
    assert world.visible() == [first.row]


def test_batch_identity_two_writes_of_threads_without_a_query(world: Frames) -> None:
    """The callback saves frames of the user's own session in a pool."""
    world.save(Frame(7), 0)
    with pytest.raises(ConfigError, match="two writes of a batch"):
        world.save(Frame(8), 0)
    world.query.runId = "run-2"
    world.save(Frame(7), 0)  # Spark repeats the batch
    with pytest.raises(ConfigError, match="two writes of a batch"):
        world.save(Frame(8), 0)
    other = Execution(name="another", location=world.location)
    world.session.active.append(Query(id="22222222-query", runId="run-8", _jsq=other))
    world.query.runId = "run-3"
    with pytest.raises(ConfigError, match="two writes of a batch"):
        world.save(Frame(8), 0)  # it may belong to either query
    assert world.visible() == [7]


def test_batch_identity_a_failed_batch_does_not_hide_the_one_before(world: Frames) -> None:
    """The newest decided batch is not the last that was tried."""
    world.save(Frame(7), 0)
    world.fails = True
    with pytest.raises(ValueError, match="a task failed"):
        world.save(Frame(8), 1)
    with pytest.raises(ConfigError, match="two writes of a batch"):
        world.save(Frame(9), 0)


def test_batch_identity_a_thread_of_another_query_repeats_no_batch(world: Frames) -> None:
    """The first query's checkpoint was deleted: its batch 0 had other rows."""
    world.save(Frame(7), 0)
    world.query.id, world.query.runId = "22222222-query", "run-9"
    world.restart()
    with pytest.raises(WrongJobError, match="another query has written"):
        world.save(Frame(8), 0)
    assert world.visible() == [7]


@pytest.mark.parametrize("callbacks", [(True, True), (True, False), (False, True), (False, False)])
def test_batch_identity_a_restarted_script_repeats_its_newest_batch(
    world: Frames, callbacks: tuple[bool, bool]
) -> None:
    """Also if queries run beside it, before or after."""
    for row, has_callback in zip((7, 8), callbacks, strict=True):
        world.query._jsq = replace(  # noqa: SLF001
            world.query._jsq,  # noqa: SLF001
            callback="ForeachBatchSink" if has_callback else "NoopTable",
        )
        world.save(Frame(row), 0)
        world.restart()
    assert world.visible() == [7]


def test_batch_identity_a_location_is_known_however_it_is_spelled(world: Frames) -> None:
    """By its directory, as the decisions are."""
    world.save(world.in_callback(7, 0), 0)
    with pytest.raises(ConfigError, match="two writes of a batch"):
        world.save(
            world.in_callback(8, 0), 0, f"file:{world.location}/../{Path(world.location).name}/"
        )


def test_a_location_on_the_drivers_own_disk_is_refused_where_yarn_chooses_its_host(
    world: Frames,
) -> None:
    """The next driver would find no decision, and write the newest batch again."""
    settings = {"spark.master": "yarn", "spark.submit.deployMode": "cluster"}
    with pytest.raises(ConfigError, match="may be lost with the driver's host"):
        world.save(Frame(7, settings=settings), 0)
    world.save(Frame(7, settings=settings), 0, f"file://{world.location}")
    assert world.visible() == [7]


@pytest.mark.parametrize("other", ['v1\n{}\n{"rows":9}', 'v1\n{}\n{"rows":5}\n{}'])
def test_batch_identity_a_batch_that_spark_planned_anew_is_not_left_out(
    world: Frames, other: str
) -> None:
    """Spark does not sync its offset log: a crash of the host may lose a plan, but no decision.
    The batch has other rows then, under the same id."""
    plan = Path(world.location) / "offsets" / "3"
    plan.parent.mkdir()
    plan.write_text('v1\n{}\n{"rows":5}')
    world.save(world.in_callback(7, 3), 3)
    world.query.runId = "run-2"
    world.save(world.in_callback(7, 3), 3)
    world.query.runId = "run-3"
    plan.write_text(other)
    with pytest.raises(DamagedCheckpointError, match="contradicts the last decided"):
        world.save(world.in_callback(8, 3), 3)
    assert world.visible() == [7]
    plan.write_text('v1\n{}\n{"rows":5}')
    plan.with_name("4").write_text('v1\n{}\n{"rows":6}')
    plan.unlink()  # Spark keeps the newest 100, and a callback may write rarely
    world.save(world.in_callback(9, 4), 4)
    assert world.visible() == [7, 9]


def test_a_query_whose_plans_are_logged_late_has_no_batch_ids(world: Frames) -> None:
    """A repeated batch may have another plan, and nothing would show it."""
    jsq = Execution(name="AsyncProgressTrackingMicroBatchExecution", location=world.location)
    world.session.active.append(Query(id="22222222-query", runId="run-9", _jsq=jsq))
    with pytest.raises(ConfigError, match="asyncProgressTrackingEnabled"):
        world.save(Frame(7, 0, jsq), 0)
    world.save(Frame(8, 0, jsq), None)
    assert world.visible() == [8]


def test_a_session_that_reads_two_versions_of_a_shuffle_writes_no_frame(world: Frames) -> None:
    """As for a query: rows could be lost or doubled."""
    with pytest.raises(ConfigError, match="setting that Sluice refuses"):
        world.save(Frame(7, settings={SHUFFLE_RETRY: "false"}), None)


def test_a_second_write_of_one_batch_is_refused(world: Frames) -> None:
    """Its rows would be taken for those of the first one, and left out. Two frames of one plan may
    have other rows."""
    first = world.in_callback(7, 0)
    world.save(first, 0)
    for row in (7, 8):
        with pytest.raises(ConfigError, match="two writes of a batch"):
            world.save(world.in_callback(row, 0), 0)
    with pytest.raises(ConfigError, match="two writes of a batch"):
        world.save(first, 0, topic="other")
    world.save(first, 0)
    world.save(world.in_callback(9, 1), 1, topic="other")
    assert world.visible() == [7, 9]


@pytest.mark.parametrize("in_query", [False, True])
def test_two_targets_of_one_format_and_location_get_each_batch_once(
    world: Frames, *, in_query: bool
) -> None:
    """The second target once took the batch of the first one for its own, and got nothing."""
    made = world.in_callback if in_query else Frame
    frames = {"a": made(7, 3), "b": made(8, 3)}
    for place, frame in (*frames.items(), *frames.items()):
        world.save(frame, 3, place=place)
    assert world.visible() == [7, 8]


def test_a_second_write_of_one_batch_is_refused_also_in_the_run_that_repeats_it(
    world: Frames,
) -> None:
    """The first run ended with that error; without it, the second write's rows would be lost."""
    world.save(world.in_callback(7, 0), 0)
    world.query.runId = "run-2"
    world.save(world.in_callback(70, 0), 0)
    with pytest.raises(ConfigError, match="two writes of a batch"):
        world.save(world.in_callback(80, 0), 0)
    assert world.written == [7]


def test_batch_identity_a_batch_that_the_querys_own_sink_has_decided_is_refused(
    world: Frames, caplog: pytest.LogCaptureFixture
) -> None:
    """The program had ``writeStream`` before, and Spark has not logged the end of the batch."""
    run = world.begin()
    world.commit(run, 3, world.write(run, 3))
    world.query.runId = "run-2"
    with pytest.raises(ConfigError, match=r"another writer.*/sluice .*its former writer"):
        world.save(world.in_callback(8, 3), 3)
    assert world.visible() == [3]
    assert not caplog.records
    world.save(world.in_callback(9, 3), 3, f"{world.location}/own")
    assert "its records are doubled: batch_id=3" in caplog.text
    world.save(world.in_callback(4, 4), 4)
    assert world.visible() == [3, 9, 4]


@pytest.mark.parametrize(("before", "after"), [("a", ""), ("", "a"), ("", "b")])
def test_batch_identity_a_batch_that_a_former_sink_of_the_callback_has_decided_is_refused(
    world: Frames, before: str, after: str
) -> None:
    """One of both takes the topic from a column. The former sink completes the batch."""
    world.save(world.in_callback(7, 3), 3, place=before)
    world.query.runId = "run-2"
    world.restart()
    with pytest.raises(ConfigError, match="another writer of this query has decided the batch"):
        world.save(world.in_callback(8, 3), 3, place=after)
    world.query.runId = "run-3"
    world.save(world.in_callback(7, 3), 3, place=before)
    world.query.runId = "run-4"
    world.save(world.in_callback(9, 4), 4, place=after)
    assert world.visible() == [7, 9]


def test_a_decided_batch_is_also_written_by_a_new_sink_with_another_output(world: Frames) -> None:
    """That one does not have its rows yet."""
    world.save(world.in_callback(7, 3), 3, place="a")
    world.query.runId = "run-2"
    world.restart()
    world.save(world.in_callback(8, 3), 3, place="b")
    assert world.visible() == [7, 8]


def test_two_sinks_of_a_callback_may_share_an_output(
    world: Frames, caplog: pytest.LogCaptureFixture
) -> None:
    """The query is killed between their writes of a batch. In the next run, the callback's threads
    may begin with the other sink: that is reported only."""
    frames = {place: world.in_callback(row, 3) for place, row in (("a", 1), ("", 2))}
    world.save(frames["a"], 3, place="a")
    world.query.runId = "run-2"
    world.restart()
    for place, frame in frames.items():
        world.save(frame, 3, place=place)
    world.query.runId = "run-3"  # the fake broker has one lease: a run uses each sink once
    world.restart()
    world.save(world.in_callback(3, 4), 4, place="a")
    assert "decided the batch already" not in caplog.text
    world.query.runId = "run-4"
    world.restart()
    world.save(world.in_callback(4, 4), 4, place="")
    world.save(world.in_callback(3, 4), 4, place="a")
    assert "its records are doubled: batch_id=4" in caplog.text
    assert world.visible() == [1, 2, 3, 4]


def test_the_batch_id_of_a_callback_is_that_of_its_batch(world: Frames) -> None:
    """Another number would be known to no later run."""
    with pytest.raises(ConfigError, match=r"batchId=4 batch=3.*second argument"):
        world.save(world.in_callback(7, 3), 4)


def test_transactions_of_a_frame_are_never_left_open(world: Frames) -> None:
    """Readers would wait for them."""
    world.fails = True
    with pytest.raises(ValueError, match="a task failed"):
        world.save(Frame(7), None)
    states = {each.state for each in world.broker.transactions.values()}
    assert states == {TransactionState.ABORTED}
