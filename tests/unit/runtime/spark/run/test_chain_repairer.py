"""Rule `two-phase-repair`: a lost transaction is written again, or nothing of the try stays
after."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest

from sluice.connectors.kafka.sink.producers.producer_slots import SlotEvent, SlotTable
from sluice.runtime.checkpoint.lost_work import LostCommittables
from sluice.runtime.contracts import AttemptRegistry, SinkWriter, TaskScope
from sluice.runtime.errors import DeliveryError, TransactionLostError
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.model.checkpoint_record import Redistribution, RegionRecord, StateEntry
from sluice.runtime.model.on_error import DeadLetters
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.spark.run.range_repair import ChainRepairer, ranges_to_replay
from tests.kit.source.source_rows import source_rows, values_of

SPLIT = SplitRange(
    source_id="s", topic="in", topic_id="t", partition=0, start_offset=5, end_offset=9
)
LOST = StateEntry(
    operator_id="o",
    state_name="committables",
    kind="test",
    version=1,
    redistribution=Redistribution.SPLIT,
    payload=b"lost",
)


class Writer:
    """A sink's writer whose broker refuses every record."""

    decide_by_s: float | None = None

    def __init__(self) -> None:
        self.aborted = False

    def write(self, batch: pa.RecordBatch) -> None:
        raise DeliveryError("refused", {}, "Make it smaller.")

    def pre_commit(self) -> list[StateEntry]:
        return [LOST]

    def abort(self) -> None:
        self.aborted = True


class OneRecord:
    """A source's reader."""

    def read(self, splits: Sequence[SplitRange]) -> Iterator[pa.RecordBatch]:
        assert tuple(splits) == (SPLIT,)
        yield pa.record_batch({"value": [b"v"]})


class Sink:
    """As far as a repair asks."""

    def __init__(self, writer: SinkWriter) -> None:
        self._writer = writer

    def source_ranges(self, committable: StateEntry) -> list[tuple[str, int, int, int]]:
        return [("in", 0, 5, 9)]

    def record_counts(self, committable: StateEntry) -> dict[str, int]:
        return {}

    def writer_factory(self) -> "Sink":
        return self

    def open(self, scope: TaskScope, registry: AttemptRegistry) -> SinkWriter:
        return self._writer


def repair(region: object) -> None:
    """Write the lost committable of ``region`` again."""
    record = RegionRecord(
        region="r", attempt_id=1, batch_id=3, splits=(SPLIT,), committables=(LOST,)
    )
    ChainRepairer(regions={"r": cast(Region, region)}, sinks={}, job_name="job").repair(
        7,
        LostCommittables(region=record, committables=(LOST,)),
        job_uid="j",
        attempt_id=2,
        timeout_s=5,
    )


def test_two_phase_repair_a_repair_that_fails_leaves_no_open_transaction() -> None:
    """The start fails with it, so no sweep would free the readers before the next one."""
    writer = Writer()
    region = SimpleNamespace(
        name="r",
        task_sinks={"o": Sink(writer)},
        functions=(),
        dead_letter_sink=None,
        pipeline=SimpleNamespace(source=SimpleNamespace(reader=OneRecord)),
    )
    with pytest.raises(DeliveryError):
        repair(region)
    assert writer.aborted


class Keeping:
    """A sink's writer that keeps what it is given, dead letters apart."""

    decide_by_s: float | None = None

    def __init__(self) -> None:
        self.written: list[bytes | None] = []
        self.dead: list[tuple[str, bytes | None]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.written += values_of([batch])

    def write_dead_letters(self, topic: str, records: pa.RecordBatch) -> None:
        self.dead += [(topic, value) for value in values_of([records])]

    def pre_commit(self) -> list[StateEntry]:
        return [LOST]

    def abort(self) -> None:
        raise AssertionError("nothing failed")


class Poisoned:
    """A source's reader; one of its records is poison."""

    def read(self, splits: Sequence[SplitRange]) -> Iterator[pa.RecordBatch]:
        yield source_rows(b"1", b"x", b"2", first_offset=5)


def numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch.column("value").cast(pa.string()).cast(pa.int64())
    return batch


@pytest.mark.parametrize(("holder", "dead"), [("o", [("dead", b"x")]), ("other", [])])
def test_two_phase_repair_a_repair_writes_the_dead_letters_that_were_lost(
    holder: str, dead: list[tuple[str, bytes]]
) -> None:
    """Those of this transaction, once; another sink's are in that one's own."""
    writer = Keeping()
    function = ChainedFunction(
        name="f", operator_id="f", function=numbers, policy=DeadLetters(topic="dead")
    )
    repair(
        SimpleNamespace(
            name="r",
            task_sinks={"o": Sink(writer)},
            functions=(function,),
            dead_letter_sink=holder,
            pipeline=SimpleNamespace(source=SimpleNamespace(reader=Poisoned)),
        )
    )
    assert writer.written == [b"1", b"2"]
    assert writer.dead == dead


@pytest.mark.parametrize(
    ("end", "known_end", "expected"), [(8, None, None), (8, 8, None), (9, 8, 8), (9, None, None)]
)
def test_two_phase_repair_a_repair_knows_the_leader_of_what_it_reads_again(
    end: int, known_end: int | None, expected: int | None
) -> None:
    read = replace(SPLIT, leader_epoch=3, leader_epoch_end=known_end)
    (again,) = ranges_to_replay([read], [("in", 0, 6, end)])
    assert (again.leader_epoch, again.leader_epoch_end) == (3, expected)


@pytest.mark.parametrize(
    "recorded",
    [
        pytest.param([], id="nothing"),
        pytest.param([("in", 0, 5, 10)], id="more than was read"),
        pytest.param([("in", 0, 5, 9), ("in", 1, 0, 1)], id="another partition, too"),
        pytest.param([("another", 0, 5, 9)], id="another topic"),
    ],
)
def test_two_phase_repair_what_does_not_tell_all_that_it_held_is_not_written_again_in_part(
    recorded: list[tuple[str, int, int, int]],
) -> None:
    """The rest of it would be lost without a word."""
    assert ranges_to_replay([SPLIT], [("in", 0, 5, 9)])
    with pytest.raises(TransactionLostError, match="does not name its source ranges"):
        ranges_to_replay([SPLIT], recorded)


class Noting(Sink):
    """Keeps what its writers were opened for."""

    def __init__(self) -> None:
        super().__init__(Keeping())
        self.scopes: list[TaskScope] = []

    def open(self, scope: TaskScope, registry: AttemptRegistry) -> SinkWriter:
        self.scopes.append(scope)
        return super().open(scope, registry)


def test_one_heir_has_an_id_for_each_lost_transaction_of_many_regions() -> None:
    """A pool has a few transactional ids for each task, and none of these is committed yet."""
    sink = Noting()
    heir = SimpleNamespace(
        name="heir",
        source_id="s",
        task_sinks={"o": sink},
        functions=(),
        dead_letter_sink=None,
        pipeline=SimpleNamespace(source=SimpleNamespace(reader=OneRecord)),
    )
    repairer = ChainRepairer(regions={"heir": cast(Region, heir)}, sinks={}, job_name="job")
    for number in range(8):
        gone = RegionRecord(
            region=f"in.{number}",
            attempt_id=1,
            batch_id=number,
            splits=(SPLIT,),
            committables=(LOST,),
        )
        lost = LostCommittables(region=gone, committables=(LOST,))
        repairer.repair(7, lost, job_uid="j", attempt_id=2, timeout_s=5)
        other = replace(SPLIT, partition=1)  # that the lost transaction did not read
        both = replace(lost, region=replace(gone, splits=(SPLIT, other)))
        assert repairer.ranges(both) == (SPLIT,)
    book = SlotTable()
    for scope in sink.scopes:
        book.enter(scope)
        for slot in book.to_prepare(at_least=1):
            book.record(slot, SlotEvent.PREPARED)
        taken = book.take(scope)
        assert taken is not None
        book.record(taken, SlotEvent.SPEND)
