"""The continuous engine on real Spark and a real broker: regions that fail, splits that move,
records that a function fails for, and what is refused."""

import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from sluice import FunctionContext, KafkaSink, KafkaSource
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.sink.handles import decode_handle
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.record_counts import COUNTS_KIND, decode_totals
from sluice.runtime.job.job import Job
from sluice.runtime.model.on_error import DeadLetters
from tests.integration.test_job_failures import took_turn
from tests.integration.test_split_moves import Restless
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique

pytestmark = pytest.mark.integration

PARTITIONS = 4
RECORDS = 60_000
SICK = 1


def slowly_failing(directory: Path, times: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Lets several epochs pass, and fails ``times`` attempts that read one partition."""

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        slowly(batch)
        if SICK in batch.column("partition").to_pylist() and took_turn(directory, times):
            raise ValueError("not this time")
        return batch

    return run


def test_restore_by_attempt_splits_move_between_running_tasks_that_fail(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, sink = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
    numbers = [Record(value=b"%d" % n, partition=n % PARTITIONS) for n in range(RECORDS)]
    produce(kafka.bootstrap, source, numbers)
    turns = tmp_path / "turns"
    turns.mkdir()
    job = Job(
        "continuous-moves",
        spark,
        checkpoint_dir=str(tmp_path / "checkpoint"),
        interval_s=0.1,
        regions=2,
        retained=1_000,
        engine="continuous",
        checkpoint_handler=RegionalCheckpointHandler(),
        load_balancer=Restless(),
    )
    job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    ).map_batches(slowly_failing(turns, times=2)).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=unique("moves")
        )
    )
    job.run()

    written: dict[int | None, list[int]] = {number: [] for number in range(PARTITIONS)}
    for record in read(kafka.bootstrap, sink):
        written[record.partition].append(int(record.value or b""))
    assert written == {p: list(range(p, RECORDS, PARTITIONS)) for p in range(PARTITIONS)}
    store = open_store(str(tmp_path / "checkpoint"))
    records = [found for place in store.slots() if (found := store.read(place)) is not None]
    versions = {found.assignment.version for found in records if found.assignment}
    assert len(versions) > 2, "splits moved"
    assert len(list(turns.iterdir())) == 2, "tasks failed"


def test_outcome_from_broker_tasks_commit_their_own_epochs_of_every_sink(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """On a machine that is too busy to answer in time the driver ends some, too; not all."""
    source, sinks = topic(partitions=2), [topic(partitions=2) for _ in range(2)]
    produce(
        kafka.bootstrap, source, [Record(value=b"%d" % n, partition=n % 2) for n in range(5_000)]
    )
    job = Job(
        "continuous-commits",
        spark,
        checkpoint_dir=str(tmp_path),
        interval_s=0.1,
        regions=2,
        retained=1_000,
        engine="continuous",
    )
    stream = job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    ).map_batches(slowly)
    for each in sinks:
        stream.sink(
            KafkaSink(
                bootstrap_servers=kafka.bootstrap, topic=each, transactional_id_prefix=unique(each)
            )
        )
    job.run()

    for each in sinks:
        assert len(read(kafka.bootstrap, each)) == 5_000
    store = open_store(str(tmp_path))
    records = [found for place in store.slots() if (found := store.read(place)) is not None]
    handles = {  # the last of each id
        handle.transactional_id: handle
        for record in records
        for handle in map(decode_handle, record.committables)
    }
    wire = TransactionWire(KafkaConnection(bootstrap_servers=kafka.bootstrap))
    try:
        described = wire.describe(list(handles), timeout_s=60)
    finally:
        wire.close()
    natively = {(TransactionState.COMPLETE_COMMIT, 0), (TransactionState.EMPTY, 1)}
    ended = {
        name: (found.state, found.producer_epoch - handles[name].producer_epoch)
        for name, found in described.items()
        if found is not None
    }
    by_tasks = {name.split("/")[0] for name, how in ended.items() if how in natively}
    assert len(by_tasks) == len(sinks), ended


def dying(turns: Path) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Lets epochs pass, and kills its process once, in the task that reads one partition."""

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        if SICK in batch.column("partition").to_pylist() and took_turn(turns, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        return slowly(batch)

    return run


@pytest.mark.parametrize(
    "recovery", [pytest.param("region", marks=pytest.mark.extended), "single-point"]
)
def test_a_task_that_dies_comes_back_alone_whatever_the_recovery_is(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, recovery: str
) -> None:
    """The second attempt that this session gives it is refused, and its region begins a new attempt;
    the other one lives in one task from the first record of the run to the last."""
    source, sink = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
    checkpoint, turns, prefix = tmp_path / "checkpoint", tmp_path / "turns", unique("dying")
    turns.mkdir()

    def run(first: int, function: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        numbers = range(first, first + RECORDS)
        new = [Record(value=b"%d" % n, partition=n % PARTITIONS) for n in numbers]
        produce(kafka.bootstrap, source, new)
        job = Job(
            "continuous-dying",
            spark,
            checkpoint_dir=str(checkpoint),
            interval_s=0.1,
            regions=2,
            retained=1_000,
            engine="continuous",
            recovery=recovery,
            checkpoint_handler=RegionalCheckpointHandler(),
        )
        job.source(
            KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
        ).map_batches(function, name="step").sink(
            KafkaSink(bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=prefix)
        )
        job.run()

    run(0, slowly)  # a region that has no snapshot yet would take the other one with it
    run(RECORDS, dying(turns))

    assert len(list(turns.iterdir())) == 1, "a task has died"
    written: dict[int | None, list[int]] = {number: [] for number in range(PARTITIONS)}
    for record in read(kafka.bootstrap, sink):
        written[record.partition].append(int(record.value or b""))
    assert written == {p: list(range(p, 2 * RECORDS, PARTITIONS)) for p in range(PARTITIONS)}
    attempts = lives_of(checkpoint)
    assert len(attempts[False]) == 2, "one attempt in each run"
    assert max(attempts[True]) > max(attempts[False]), "a later life, of the region that died alone"


def lives_of(checkpoint: Path) -> dict[bool, set[int]]:
    store = open_store(str(checkpoint))
    records = [found for place in store.slots() if (found := store.read(place)) is not None]
    attempts: dict[bool, set[int]] = defaultdict(set)
    for region in (region for record in records for region in record.regions):
        if region.batch is not None:
            is_sick = SICK in {split.partition for split in region.splits}
            attempts[is_sick].add(region.attempt_id)
    return attempts


def telling_the_task(directory: Path) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Leaves the number of its Spark task there, and lets several epochs pass."""

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        context = TaskContext.get()
        (directory / str(context.taskAttemptId())).touch()
        return slowly(batch)

    return run


def test_a_job_that_says_nothing_has_one_long_task_for_each_core(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Two cores and four partitions: two regions, and each is one task for all epochs."""
    source, sink = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
    numbers = [Record(value=b"%d" % n, partition=n % PARTITIONS) for n in range(RECORDS)]
    produce(kafka.bootstrap, source, numbers)
    (tasks := tmp_path / "tasks").mkdir()
    checkpoint = str(tmp_path / "checkpoint")
    job = Job("usual", spark, checkpoint_dir=checkpoint, interval_s=0.1, retained=1_000)
    job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    ).map_batches(telling_the_task(tasks)).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=unique("usual")
        )
    )
    job.run()

    assert Counter(found.value for found in read(kafka.bootstrap, sink)) == Counter(
        record.value for record in numbers
    )
    store = open_store(checkpoint)
    records = [found for place in store.slots() if (found := store.read(place)) is not None]
    assignment = records[-1].assignment
    assert sorted(map(len, assignment.regions.values())) == [2, 2]
    assert len(records) > 3, "several epochs"
    assert len(list(tasks.iterdir())) == 2, "a task for each region"


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Lets several epochs pass, also where the machine was so slow that one batch holds all."""
    # A function does not learn that epochs have ended.
    time.sleep(max(0.02, batch.num_rows / 20_000))
    return batch


def parse(batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
    ctx.counter("parsed").inc(batch.num_rows)
    batch.column("value").cast(pa.string()).cast(pa.int64())
    return batch


def test_dead_letters_are_in_the_transaction_of_their_epoch_and_counted_once(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, sink, letters = topic(partitions=2), topic(partitions=2), topic()
    poison = {3, 4, 9_999}
    values = [b"no" if n in poison else b"%d" % n for n in range(10_000)]
    produce(
        kafka.bootstrap, source, [Record(value=v, partition=n % 2) for n, v in enumerate(values)]
    )
    job = Job(
        "continuous-letters",
        spark,
        checkpoint_dir=str(tmp_path),
        interval_s=0.1,
        engine="continuous",
    )
    job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    ).map_batches(parse, name="parse", on_error=DeadLetters(topic=letters)).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=unique("letters")
        )
    )
    result = job.run()

    good = Counter(record.value for record in read(kafka.bootstrap, sink))
    assert good == Counter(value for value in values if value != b"no")
    assert len(read(kafka.bootstrap, letters)) == len(poison)
    last = open_store(str(tmp_path)).read(result.last_checkpoint_id or 0)
    totals = [
        decode_totals(entry)
        for region in last.regions
        for entry in region.operator_states
        if entry.kind == COUNTS_KIND
    ]
    assert sum(found.dead_lettered for found in totals) == len(poison)
    assert sum(found.counters["parsed"] for found in totals) == len(values) - len(poison)


def test_a_transform_cannot_be_continuous_and_says_so(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, sink = topic(), topic()
    job = Job("refused", spark, checkpoint_dir=str(tmp_path / "c"), engine="continuous")
    job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    ).transform(lambda frame: frame).sink(
        KafkaSink(bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix="refused")
    )
    with pytest.raises(ConfigError, match="transform"):
        job.run()
    assert not (tmp_path / "c").exists()
