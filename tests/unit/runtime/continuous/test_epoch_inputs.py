"""Operator state and broadcast tables over the epochs of a continuous task."""

from dataclasses import dataclass, field

import pyarrow as pa

from sluice.runtime.continuous.checkpoint_client import EndedEpoch
from sluice.runtime.continuous.task_loop import EpochScope, TaskLoop
from sluice.runtime.functions.broadcasts import Broadcast
from sluice.runtime.functions.function_context import FunctionContext
from sluice.runtime.functions.function_run import ChainedFunction, FunctionRun
from sluice.runtime.functions.function_states import FunctionStates
from sluice.runtime.functions.operator_state import OperatorState, decoded
from sluice.runtime.functions.task_writers import TaskWriters
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import Barrier
from sluice.runtime.model.state.broadcast_version import BroadcastVersion
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import KeyedState, SplitState, StatePart
from tests.kit.continuous_parts import LogFollower, RecordingWriter
from tests.kit.coordinator.core_driver import split
from tests.kit.fakes import ManualClock


def version(name: str) -> BroadcastVersion:
    """Of the rules; its table has its name."""
    part = StatePart(file=0, offset=0, length=1)
    file = FileReference(path=f"state/rules/{name}", length_bytes=1, sha256="0" * 64)
    state = KeyedState(
        files=(file,),
        splits=(SplitState(source_id="r", topic="rules", partition=0, parts=(part,)),),
    )
    return BroadcastVersion(operator_id="rules", state=state)


def table_of(found: BroadcastVersion) -> pa.Table:
    assert found.state is not None
    return pa.table({"name": [found.state.files[0].path.rpartition("/")[2]]})


@dataclass
class Courier:
    """A checkpoint client whose barriers the test gives."""

    barrier: Barrier | None = None
    ended: list[EndedEpoch] = field(default_factory=list)
    committed_batch: int = -1
    has_read: bool = False

    def take_barrier(self) -> Barrier | None:
        barrier, self.barrier = self.barrier, None
        return barrier

    def submit_epoch(self, ended: EndedEpoch) -> None:
        self.ended.append(ended)


class Task:
    """A loop whose function counts its records in its state and notes the tables that it sees."""

    def __init__(self, records: int, *, waits: bool = False) -> None:
        self.client = Courier()
        self.seen: list[str] = []
        self.loaded: list[BroadcastVersion] = []
        self.writers: list[RecordingWriter] = []
        function = ChainedFunction(
            name="f",
            operator_id="f",
            function=self._counting,
            takes_context=True,
            state=OperatorState(pa.schema([("n", pa.int64())])),
            broadcasts=(Broadcast(name="", operator_id="rules", waits=waits),),
        )
        self.states = FunctionStates([function], (), self._load)
        self.follower = LogFollower([split(0, 0, 0)], {0: records})
        self.loop = TaskLoop(
            "main",
            7,
            stream=self.follower,
            client=self.client,  # type: ignore[arg-type]  # what the loop uses of it
            open_writers=self._open,
            functions=lambda: FunctionRun(self.states.functions),
            states=self.states,
            begins_after=3,
            clock=ManualClock(),
        )

    def _open(self, scope: EpochScope) -> TaskWriters[RecordingWriter]:
        self.writers.append(RecordingWriter(scope))
        return TaskWriters({"sink": self.writers[-1]}, dead_letter_sink=None)

    def _load(self, found: BroadcastVersion) -> pa.Table:
        self.loaded.append(found)
        return table_of(found)

    def _counting(self, batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
        assert isinstance(ctx.broadcast, pa.Table)
        self.seen += ctx.broadcast["name"].to_pylist() if ctx.broadcast.num_columns else ["none"]
        n = ctx.state[0]["n"] if ctx.state else 0
        ctx.state.replace([{"n": n + batch.num_rows}])
        return batch

    def give(
        self, checkpoint_id: int, start: int, end: int, *, uses: str = "", then: str = ""
    ) -> None:
        self.client.barrier = Barrier(
            checkpoint_id=checkpoint_id,
            region="main",
            attempt_id=7,
            splits=(split(0, start, end),),
            broadcasts=(version(uses),) if uses else (),
            next_broadcasts=(version(then),) if then else (),
        )

    def ended(self) -> tuple[StateEntry, ...]:
        return self.client.ended.pop().pre_commit().operator_states


def counts(states: tuple[StateEntry, ...]) -> list[int]:
    return [row["n"] for entry in states for row in decoded(entry).to_pylist()]


def test_an_acknowledgement_has_the_state_at_the_end_of_its_epoch() -> None:
    task = Task(30)
    task.loop.step()
    task.give(4, 0, 10)
    task.loop.step()
    assert counts(task.ended()) == [20]
    task.loop.step()
    task.give(5, 20, 30)
    task.loop.step()
    assert counts(task.ended()) == [30]


def test_an_epoch_that_is_read_again_counts_its_records_once() -> None:
    task = Task(10)
    task.loop.step()
    task.give(4, 5, 10)  # the coordinator has another position
    task.loop.step()
    assert counts(task.ended()) == [5]


def test_the_next_epoch_sees_the_version_that_the_barrier_names_for_it() -> None:
    task = Task(40)
    task.loop.step()
    task.give(4, 0, 10, then="v1")
    task.loop.step()
    task.loop.step()
    task.give(5, 20, 30, uses="v1", then="v1")
    task.loop.step()
    assert task.seen == ["none", "none", "v1", "v1"]
    assert task.loaded == [version("v1")], "a table is loaded once"
    assert len(task.writers) == 3


def test_an_epoch_that_began_with_another_version_is_read_again() -> None:
    """Output and state are those of the barrier's version alone."""
    task = Task(20)
    task.loop.step()
    task.give(4, 0, 20, uses="v1", then="v1")
    task.loop.step()
    assert task.writers[0].events[-1] == "abort"
    assert task.seen == ["none", "v1"]
    assert counts(task.ended()) == [10], "the read-again epoch alone"


def test_a_version_that_comes_before_the_first_record_costs_nothing() -> None:
    task = Task(0)
    task.loop.step()
    task.follower.logs[0] = 10
    task.give(4, 0, 10, uses="v1", then="v1")
    task.loop.step()
    assert task.seen == ["v1"]
    assert len(task.writers) == 2, "no epoch was begun again"


def test_a_task_that_waits_reads_nothing_before_the_first_version() -> None:
    task = Task(10, waits=True)
    for _ in range(3):
        task.loop.step()
    assert task.seen == []
    assert task.follower.positions() == {("source", "input", 0): 0}
    task.give(4, 0, 10, uses="v1", then="v1")
    task.loop.step()
    assert task.seen == ["v1"]
