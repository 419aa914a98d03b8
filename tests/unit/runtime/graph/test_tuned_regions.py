"""How a job's sources and sinks are tuned before its first task."""

from collections.abc import Sequence
from typing import Any

import pytest

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.kafka_drop_in_source import KafkaSourceFormat
from sluice.connectors.kafka.sink.writer.kafka_writer import KafkaWriterFactory
from sluice.connectors.kafka.source.reader.range_reader import KafkaSplitReader
from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.job_graph import Region, regions_of
from sluice.runtime.graph.pipeline import Pipeline, Step
from sluice.runtime.job.job import Job
from sluice.runtime.spark.run.region_layout import tuned

SERVERS = {"bootstrap_servers": "b:9092"}


class Source(KafkaSource):
    """Says how it is compressed, and counts how often it was asked."""

    codec: str | None = "zstd"
    asked = 0

    def compression(self, *, timeout_s: float) -> str | None:
        type(self).asked += 1
        return type(self).codec


@pytest.fixture(autouse=True)
def _not_asked_yet() -> None:
    Source.asked, Source.codec = 0, "zstd"


def sink(topic: str = "out", **options: str) -> KafkaSink:
    return KafkaSink(**SERVERS, topic=topic, transactional_id_prefix=topic, options=options)


def regions(
    *sinks: KafkaSink, parts: int = 1, kind: str | None = None, **options: str
) -> tuple[Region, ...]:
    def same(rows: Any) -> Any:
        return rows

    steps = [] if kind is None else [Step(kind=kind, name="f", uid=None, function=same)]
    source = Source(**SERVERS, topics=["in"], options=options)
    pipeline = Pipeline(source, steps=steps, sinks=list(sinks))
    return tuned(regions_of([pipeline], [False], parts=parts)[1], memory_mib=256)


def reader(region: Region) -> KafkaSplitReader:
    made = region.pipeline.source.reader()
    assert isinstance(made, KafkaSplitReader)
    return made


def factories(region: Region) -> Sequence[KafkaWriterFactory]:
    made = [each.writer_factory() for each in region.task_sinks.values()]
    return [factory for factory in made if isinstance(factory, KafkaWriterFactory)]


def test_regions_of_one_source_are_compressed_as_it_is_and_ask_once() -> None:
    found = regions(sink(), sink("other"), parts=3)
    assert Source.asked == 1
    assert [f.settings.codec for r in found for f in factories(r)] == ["zstd"] * 6


@pytest.mark.parametrize("name", ["kafka.compression.type", "compression.codec"])
def test_what_the_user_says_wins_and_nobody_is_asked(name: str) -> None:
    (region,) = regions(sink(**{name: "lz4"}))
    assert Source.asked == 0
    assert [factory.settings.codec for factory in factories(region)] == [None]


def test_the_parts_of_a_chained_task_are_smaller_than_those_of_two_processes() -> None:
    """A transform reads in one process, and writes in another."""
    (chained,) = regions(sink(), kind="map_batches")
    (transform,) = regions(sink(), kind="transform")
    assert reader(transform).settings.queue_kib > reader(chained).settings.queue_kib
    for (apart,), (together,) in [(factories(transform), factories(chained))]:
        assert apart.settings.queue_kib > together.settings.queue_kib


def test_a_users_queue_is_kept_and_makes_the_others_smaller() -> None:
    (plain,) = regions(sink())
    (claiming,) = regions(sink(), **{"kafka.queued.max.messages.kbytes": "102400"})
    assert reader(claiming).settings.queue_kib == 102_400
    assert reader(claiming).settings.queue_records < reader(plain).settings.queue_records
    assert factories(claiming)[0].settings.queue_kib < factories(plain)[0].settings.queue_kib


def test_what_does_not_fit_is_refused() -> None:
    """A sink's queue alone, or the bound itself."""
    with pytest.raises(ConfigError, match="do not fit into a task's memory"):
        regions(sink(**{"kafka.buffer.memory": "134217728"}))
    with pytest.raises(ConfigError, match="so little memory"):
        Job("j", None, checkpoint_dir="/c", task_memory_mib=8)  # type: ignore[arg-type]


def test_a_drop_in_query_says_its_own_bound() -> None:
    def queue_kib(**more: str) -> int:
        options = {"kafka.bootstrap.servers": "b:9092", "subscribe": "in", **more}
        made = KafkaSourceFormat(options).streamReader(_Schema())  # type: ignore[arg-type]
        return int(made._split_reader.settings.queue_kib)  # type: ignore[attr-defined]  # noqa: SLF001

    assert queue_kib(taskMemoryMiB="512") > queue_kib() > queue_kib(taskmemorymib="96")
    assert queue_kib(**{"kafka.message.max.bytes": "30000000"}) > 0, "needs 256 MiB"
    with pytest.raises(ConfigError, match="too small for the largest fetch"):
        queue_kib(taskMemoryMiB="128", **{"kafka.message.max.bytes": "30000000"})
    base = {"kafka.bootstrap.servers": "b:9092", "topic": "o", "transactionalIdPrefix": "p"}
    usual, large, least = (
        KafkaSink.from_options({**base, **more}).writer_factory().settings.queue_kib
        for more in ({}, {"taskMemoryMiB": "256"}, {"kafka.message.max.bytes": "10000000"})
    )
    assert usual < large
    assert least > 9_000, "a queue takes the largest message"
    for wrong in ("8", "much"):
        with pytest.raises(ConfigError, match="taskMemoryMiB"):
            KafkaSink.from_options({**base, "taskMemoryMiB": wrong})
    with pytest.raises(ConfigError, match=r"Job\(task_memory_mib"):
        KafkaSource(**SERVERS, topics=["in"], options={"taskMemoryMiB": "64"})


class _Schema:
    names = ("value",)
