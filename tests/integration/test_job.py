"""A Job on real Spark and a real broker: copied, transformed, counted, and its refusals."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_store import open_store, slot_name
from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.errors import ConfigError, DamagedCheckpointError, DeliveryError, WrongJobError
from sluice.runtime.job.job import Job
from sluice.runtime.model.checkpoint_record import Verdict
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique, values

pytestmark = pytest.mark.integration


def exclaim(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Append ``!`` to each value that is not null."""
    value = batch.column("value")
    shouted = pc.binary_join_element_wise(value, pa.scalar(b"!", value.type), b"")
    return batch.set_column(batch.schema.get_field_index("value"), "value", shouted)


def copy_job(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    source: str,
    sink: str,
    directory: Path,
    *,
    retained: int = 3,
    restore_from: int | None = None,
) -> Job:
    job = Job(
        "copy",
        spark,
        engine="micro-batch",
        checkpoint_dir=str(directory),
        interval_s=0.2,
        retained=retained,
        restore_from=restore_from,
    )
    job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    ).map_batches(exclaim).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=f"copy-{sink}"
        )
    )
    return job


def test_copy_keeps_key_headers_partition_and_null(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, sink = topic(partitions=2), topic(partitions=2)
    given = [
        Record(value=b"a", key=b"k", headers=(("h", b"1"), ("h", None)), partition=0),
        Record(value=None, key=b"", partition=1),
        Record(value=b"", key=None, partition=1),
    ]
    produce(kafka.bootstrap, source, given)
    copy_job(spark, kafka, source, sink, tmp_path).run()
    produce(kafka.bootstrap, source, [Record(value=b"late", partition=0)])
    result = copy_job(spark, kafka, source, sink, tmp_path).run()

    found = read(kafka.bootstrap, sink)
    assert [(r.value, r.key, r.headers) for r in found if r.partition == 0] == [
        (b"a!", b"k", (("h", b"1"), ("h", None))),
        (b"late!", None, ()),
    ]
    assert [(r.value, r.key) for r in found if r.partition == 1] == [(None, b""), (b"!", None)]
    assert result.restored_from is not None


@pytest.mark.extended
def test_retained_checkpoints_are_bounded(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """So many decided checkpoints stay as the job says, however many there were."""
    source, sink = topic(), topic()
    for number in range(4):
        produce(kafka.bootstrap, source, [str(number).encode()])
        copy_job(spark, kafka, source, sink, tmp_path, retained=1).run()
    store = open_store(str(tmp_path))
    records = [store.read(place) for place in store.slots()]
    decided = [r for r in records if r is not None and r.verdict is Verdict.DECIDED]
    assert values(kafka.bootstrap, sink) == [f"{n}!".encode() for n in range(4)]
    assert len(decided) <= 2  # 1, and checkpoint 0, the first record of the first session


@pytest.mark.extended
def test_a_job_starts_from_an_older_checkpoint_when_its_newest_is_damaged(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, sink = topic(), topic()
    produce(kafka.bootstrap, source, [b"1"])
    older = copy_job(spark, kafka, source, sink, tmp_path).run().last_checkpoint_id
    produce(kafka.bootstrap, source, [b"2"])
    newest = copy_job(spark, kafka, source, sink, tmp_path).run().last_checkpoint_id
    assert older is not None
    assert newest is not None
    file = tmp_path / slot_name(newest) / "_metadata"
    file.write_bytes(cut_off := file.read_bytes()[:-40])

    produce(kafka.bootstrap, source, [b"3"])
    with pytest.raises(DamagedCheckpointError, match=slot_name(newest)):
        copy_job(spark, kafka, source, sink, tmp_path).run()
    assert values(kafka.bootstrap, sink) == [b"1!", b"2!"]
    restored = copy_job(spark, kafka, source, sink, tmp_path, restore_from=older).run()
    assert restored.restored_from == older
    assert values(kafka.bootstrap, sink) == [b"1!", b"2!", b"2!", b"3!"]

    produce(kafka.bootstrap, source, [b"4"])
    last = copy_job(spark, kafka, source, sink, tmp_path).run()
    assert last.restored_from == restored.last_checkpoint_id
    assert values(kafka.bootstrap, sink) == [b"1!", b"2!", b"2!", b"3!", b"4!"]
    assert file.read_bytes() == cut_off


def test_transform_runs_any_frame_code(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """SQL between source and sink, through Spark's planner."""
    source, sink = topic(partitions=2), topic()
    produce(kafka.bootstrap, source, [str(n).encode() for n in range(100)])
    job = Job("even", spark, checkpoint_dir=str(tmp_path), interval_s=0.2)
    job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    ).transform(
        lambda frame: frame.where("cast(string(value) AS int) % 2 = 0").select("key", "value")
    ).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=unique("even")
        )
    )
    job.run()
    found = sorted(int(v or b"") for v in values(kafka.bootstrap, sink))
    assert found == list(range(0, 100, 2))


def count(records: DataFrame) -> DataFrame:
    return records.groupBy("key").count().selectExpr("key", "string(count) AS value")


@pytest.fixture
def default_hdfs(spark: SparkSession, hdfs: EmbeddedHdfs) -> Iterator[None]:
    """``hdfs:///path`` is there, as on the machines of a Hadoop cluster."""
    conf = cast(Any, spark.sparkContext)._jsc.hadoopConfiguration()  # noqa: SLF001 - no public way
    before = conf.get("fs.defaultFS")
    conf.set("fs.defaultFS", hdfs.uri)
    yield
    conf.set("fs.defaultFS", before)


@pytest.mark.extended
@pytest.mark.usefixtures("default_hdfs")
@pytest.mark.parametrize("is_default", [False, True])
def test_a_job_and_its_state_lie_on_hdfs(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    hdfs: EmbeddedHdfs,
    is_default: bool,
) -> None:
    """Checkpoints, Spark's logs and state; a second run finds and rewinds them there."""
    source, sink = topic(), topic()
    directory = f"{'hdfs://' if is_default else hdfs.uri}/jobs/{unique('count')}"
    for _ in range(2):
        produce(kafka.bootstrap, source, [Record(key=b"k", value=b"x") for _ in range(10)])
        count_job(spark, kafka, source, sink, directory).run()
    assert values(kafka.bootstrap, sink)[-1] == b"20"


def count_job(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    source: str,
    sink: str,
    directory: str,
    *,
    restore_from: int | None = None,
) -> Job:
    """A bounded running count that is ready to run."""
    job = Job(
        "count",
        spark,
        checkpoint_dir=directory,
        interval_s=0.2,
        retained=20,
        restore_from=restore_from,
    )
    job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    ).transform(count).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=f"count-{sink}"
        )
    )
    return job


def test_state_continues_after_a_restart(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Counts continue where the last decided checkpoint left them; what a later Sluice needs to
    read the state stands in the record."""
    source, sink = topic(), topic()
    for _ in range(2):
        produce(kafka.bootstrap, source, [Record(key=b"k", value=b"x") for _ in range(10)])
        count_job(spark, kafka, source, sink, str(tmp_path)).run()
    found = [int(v or b"") for v in values(kafka.bootstrap, sink)]
    assert found[-1] == 20
    assert found == sorted(set(found))
    store = open_store(str(tmp_path))
    record = store.read(store.slots()[-1])
    (region,) = record.regions
    assert region.query_id
    assert region.batch_id
    assert region.offset_log_version == 2
    state = region.state
    assert state.provider.endswith("RocksDBStateStoreProvider")
    assert (state.state_version, state.state_partitions) == (region.batch_id + 1, 2)
    assert state.operators == ((0, "stateStoreSave"),)
    assert '"key"' in state.key_schema
    assert '"count"' in state.state_schema
    assert list((tmp_path / state.location).rglob("*.changelog")), "RocksDB with changelogs"


@pytest.mark.extended
def test_restore_by_attempt_state_goes_back_with_an_older_checkpoint(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, sink, directory = topic(), topic(), str(tmp_path)

    def run(restore_from: int | None = None) -> int:
        job = count_job(spark, kafka, source, sink, directory, restore_from=restore_from)
        last = job.run().last_checkpoint_id
        assert last is not None
        return last

    def more() -> None:
        produce(kafka.bootstrap, source, [Record(key=b"k", value=b"x") for _ in range(10)])

    decided = []
    for total in (10, 20, 30):
        more()
        decided.append(run())
        assert values(kafka.bootstrap, sink)[-1] == str(total).encode()
    run(restore_from=decided[0])
    assert values(kafka.bootstrap, sink)[-1] == b"30"
    more()
    run()
    assert values(kafka.bootstrap, sink)[-1] == b"40"
    with pytest.raises(ConfigError, match="not there"):
        run(restore_from=decided[1])


@pytest.mark.parametrize("other", ["rate", "itself"])
def test_transform_reads_its_own_stream_once(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, other: str
) -> None:
    """No checkpoint would hold the other position: it would be read again, or not at all."""

    def both(frame: DataFrame) -> DataFrame:
        one = frame.select("key", "value")
        if other == "itself":
            return one.union(one)
        rate = spark.readStream.format("rate").load()
        return one.union(rate.selectExpr("binary(string(value))", "binary(string(value))"))

    job = Job("mixed", spark, checkpoint_dir=str(tmp_path))
    job.source(KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[topic()])).transform(
        both
    ).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=topic(), transactional_id_prefix=unique("mix")
        )
    )
    with pytest.raises(ConfigError, match="others=" + ("none" if other == "itself" else other)):
        job.run()
    assert list(tmp_path.iterdir()) == []


def test_refused_record_stops_the_job_and_nothing_becomes_visible(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Rule `pre-commit-confirmed`: the error names topic, partition and source offset."""
    source = topic()
    sink = topic(config={"max.message.bytes": "1000"})
    produce(kafka.bootstrap, source, [b"small", b"x" * 5000, b"small"])
    with pytest.raises(DeliveryError) as caught:
        copy_job(spark, kafka, source, sink, tmp_path).run()
    text = str(caught.value)
    assert sink in text
    assert source in text
    assert "source_offset=1" in text
    assert read(kafka.bootstrap, sink) == []


def test_directory_of_another_job_is_refused(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """A typed error, and the directory stays as it was."""
    source, sink = topic(), topic()
    produce(kafka.bootstrap, source, [b"1"])
    copy_job(spark, kafka, source, sink, tmp_path).run()
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    other = Job("other", spark, checkpoint_dir=str(tmp_path))
    other.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    ).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=unique("other")
        )
    )
    with pytest.raises(WrongJobError):
        other.run()
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before


def test_a_job_without_a_source_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to do"):
        Job("empty", spark, checkpoint_dir=str(tmp_path)).run()
    assert list(tmp_path.iterdir()) == []


def test_a_chained_function_may_use_broadcast_variables_and_accumulators(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, sink = topic(), topic()
    produce(kafka.bootstrap, source, [b"a", b"b"])
    suffix = spark.sparkContext.broadcast(b"?")
    rows = spark.sparkContext.accumulator(0)

    def ask(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows.add(batch.num_rows)
        value = batch.column("value")
        asked = pc.binary_join_element_wise(value, pa.scalar(suffix.value, value.type), b"")
        return batch.set_column(batch.schema.get_field_index("value"), "value", asked)

    job = Job("broadcast", spark, checkpoint_dir=str(tmp_path), interval_s=0.2)
    job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    ).map_batches(ask).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=f"ask-{sink}"
        )
    )
    job.run()
    assert values(kafka.bootstrap, sink) == [b"a?", b"b?"]
    assert rows.value == 2
