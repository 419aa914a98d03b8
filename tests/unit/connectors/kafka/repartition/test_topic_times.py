"""Watermarks through a repartition topic: no row that is read later is earlier than they say."""

import pickle
from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sluice import EventTime, Monotonic
from sluice.connectors.kafka.repartition.repartition_decoder import RepartitionDecoder
from sluice.connectors.kafka.repartition.repartition_sink import RepartitionWriter
from sluice.connectors.kafka.repartition.topic_times import TopicTimes
from sluice.runtime.contracts import JobTopic, KeyBy, TaskScope
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.functions.split_clocks import clocks_of
from sluice.runtime.functions.task_writers import TaskWriters
from sluice.runtime.model.batch_lineage import BatchLineage, Rewind
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.model.state.key_groups import default_max_parallelism
from tests.unit.connectors.kafka.repartition.test_repartition_messages import (
    BATCH,
    KEYS,
    Written,
    read,
    rows,
)

PARTITIONS = 8
TIME = EventTime("n", strategy=Monotonic())


def split(partition: int, watermark_ms: int | None = None) -> SplitRange:
    return SplitRange(
        source_id="s",
        topic="t",
        topic_id="id",
        partition=partition,
        start_offset=0,
        end_offset=9,
        watermark_ms=watermark_ms,
    )


def epoch(
    *batches: pa.RecordBatch, watermark_ms: int | None = None, side: int = 0
) -> list[pa.RecordBatch]:
    """The records of a topic that a task has written in one epoch."""
    inner = Written()
    scope = TaskScope(
        job_uid="j", operator_id="o", batch=BATCH, checkpoint_id=3, committed_through=2
    )
    topic = JobTopic(partitions=PARTITIONS, max_parallelism=default_max_parallelism(PARTITIONS))
    writer = RepartitionWriter(inner, scope, keys=KEYS, side=side, topic=topic)
    writers = TaskWriters({"sink": writer}, dead_letter_sink=None)
    for batch in batches:
        writers.write(batch)
    writers.note_watermark(watermark_ms)
    writers.pre_commit()
    return inner.records


def decoder(*, sides: int = 1, lineage: BatchLineage | None = None) -> RepartitionDecoder:
    return RepartitionDecoder(
        topic="t",
        lineage=lineage or BatchLineage(),
        sides=sides,
        times=TopicTimes(TIME, sides),
    )


def observe(made: RepartitionDecoder, *records: pa.RecordBatch) -> TopicTimes:
    list(made(read(records)))
    assert made.times is not None
    return made.times


def marks(times: TopicTimes) -> Sequence[int | None]:
    return [times.ended(split(number)).watermark_ms for number in range(PARTITIONS)]


def test_each_partition_gets_a_watermark_that_has_advanced() -> None:
    """In the last rows of a partition, or in a message of its own; else there is none."""
    records = epoch(rows(["a", "b"]), watermark_ms=70)
    assert sum(batch.num_rows for batch in records) == PARTITIONS
    assert marks(observe(decoder(), *records)) == [70] * PARTITIONS
    assert marks(observe(decoder(), *epoch(rows(["a"])))) == [None] * PARTITIONS
    assert epoch() == []


def test_a_watermark_is_never_lowered() -> None:
    made = decoder()
    times = observe(made, *epoch(watermark_ms=70), *epoch(watermark_ms=50))
    assert marks(times) == [70] * PARTITIONS
    assert times.ended(split(0, watermark_ms=90)).watermark_ms == 90


def test_two_sides_are_as_far_as_the_slower_one() -> None:
    made = decoder(sides=2)
    assert marks(observe(made, *epoch(watermark_ms=70, side=1))) == [None] * PARTITIONS
    assert marks(observe(made, *epoch(watermark_ms=50, side=0))) == [50] * PARTITIONS
    assert marks(observe(made, *epoch(watermark_ms=60, side=0))) == [60] * PARTITIONS


def test_a_rewound_batch_says_nothing() -> None:
    """Rows that it had passed are read again after it."""
    rewind = Rewind(attempt_id=9, run_attempt_id=4, batches={"orders-1": (4, 6)})
    made = decoder(lineage=BatchLineage((rewind,)))
    assert marks(observe(made, *epoch(rows(["a"]), watermark_ms=70))) == [None] * PARTITIONS


def test_a_task_finds_the_times_of_its_topic_after_its_functions_were_sent() -> None:
    key_by = KeyBy(columns=("account",), decode=decoder())
    sent = pickle.loads(pickle.dumps(ChainedFunction(name="k", operator_id="k", keyed=key_by)))
    times = clocks_of((sent,))
    assert isinstance(times, TopicTimes)
    list(sent.keyed.decode(read(epoch(watermark_ms=7))))
    assert times.watermark_ms(split(3).key) == 7
    times.keep([split(2).key])
    assert times.watermark_ms(split(3).key) is None
    times.forget()
    assert times.watermark_ms(split(2).key) is None
    times.note_time(5)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 5), st.booleans()),
        max_size=8,
    )
)
def test_no_row_that_is_read_later_is_earlier_than_the_watermark(
    epochs: list[tuple[list[int], int, bool]],
) -> None:
    """Rows of an epoch are at the watermark of its barrier or later, for that is what it promises.
    Whatever is then read of a partition, its watermark never passes a row that is still to come."""
    watermark_ms, records, made = 0, [], decoder()
    for ahead, step, advances in epochs:
        batch = pa.RecordBatch.from_pydict(
            {
                "account": pa.array([f"k{n}" for n in range(len(ahead))], pa.string()),
                "n": pa.array([watermark_ms + step + each for each in ahead], pa.int64()),
            }
        )
        watermark_ms += step if advances else 0
        records += epoch(batch, watermark_ms=watermark_ms if advances else None)
    for record in records:
        for one in range(record.num_rows):
            before = marks(made.times) if made.times is not None else []
            for part in made(read([record.slice(one, 1)])):
                for partition, at in zip(
                    part.partitions.tolist(), part.batch.column("n").to_pylist(), strict=True
                ):
                    passed = before[partition]
                    assert passed is None or at >= passed
