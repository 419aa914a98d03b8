"""Topics that change under a running program, each way to run one: nothing is skipped unseen.

A Job by long tasks, a Job by batches, and a drop-in query read the same topics: compacted, with
aborted transactions, with partitions added, records deleted past the position, made again under
the same name, and with the broker away while it is asked for partitions. Each component by itself:
`tests/integration/test_kafka_source_changes.py`, `tests/integration/test_kafka_following.py`,
`tests/unit/connectors/kafka/source/test_source_changes.py`, `tests/unit/runtime/test_source_discovery.py`.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest
from pyspark.sql import SparkSession

import sluice
from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.job.job import Job
from tests.integration.test_kafka_source_changes import delete_records
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import (
    Record,
    add_partitions,
    await_stable,
    create_topic,
    delete_topic,
    end_offsets,
    produce,
    produce_transaction,
    read,
    unique,
    values,
)
from tests.kit.source.kafka_source_reading import all_rows, source, start
from tests.kit.waiting import PATIENCE_S, join, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(2400)]

_LOOKS_S = 0.2  # from look to look for new partitions
_IN_VAIN = "discovery was not answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy from one topic to another that may be run again and again.

    Each partition of the input gets numbers that grow.

    Attributes:
        others: numbers that are not of the input's partition 0, with their partition.
    """

    session: SparkSession
    kafka: EmbeddedKafka
    directory: Path
    source: str
    output: str
    prefix: str = field(default_factory=lambda: unique("source-chaos"))
    others: dict[int, int] = field(default_factory=dict)

    def found(self) -> list[int]:
        """What readers see. In each partition of the output, what is from one of the input is in
        its order."""
        flows: dict[tuple[int | None, int], list[int]] = defaultdict(list)
        for record in read(self.kafka.bootstrap, self.output):
            number = int(record.value or b"")
            flows[record.partition, self.others.get(number, 0)].append(number)
        assert all(numbers == sorted(numbers) for numbers in flows.values()), flows
        return sorted(number for numbers in flows.values() for number in numbers)

    def settled(self) -> list[int]:
        """The same behind a run, whose markers may follow its end."""
        await_stable(self.kafka.bootstrap, self.output)
        return self.found()


class Way(Protocol):
    """Runs a copy: to the end of what is there, or until it fails."""

    def __call__(self, copy: Copy, *, bounded: bool) -> None: ...


def by_job(engine: str) -> Way:
    """A Job."""

    def run(copy: Copy, *, bounded: bool) -> None:
        job = Job(
            "source-chaos",
            copy.session,
            checkpoint_dir=str(copy.directory),
            interval_s=0.2,
            discovery_interval_s=_LOOKS_S,
            engine=engine,
        )
        job.source(
            KafkaSource(
                bootstrap_servers=copy.kafka.bootstrap,
                topics=[copy.source],
                bounded=bounded,
            )
        ).map_batches(lambda batch: batch).sink(
            KafkaSink(
                bootstrap_servers=copy.kafka.bootstrap,
                topic=copy.output,
                transactional_id_prefix=copy.prefix,
            )
        )
        job.run()

    return run


def by_query(copy: Copy, *, bounded: bool) -> None:
    """A drop-in query."""
    servers = {"kafka.bootstrap.servers": copy.kafka.bootstrap}
    looks = {"partitionDiscoveryIntervalMs": str(round(_LOOKS_S * 1000))}
    query = (
        copy.session.readStream.format("sluice-kafka")
        .options(subscribe=copy.source, startingOffsets="earliest", **servers, **looks)
        .load()
        .select("key", "value")
        .writeStream.format("sluice-kafka")
        .options(topic=copy.output, transactionalIdPrefix=copy.prefix, **servers)
        .option("checkpointLocation", str(copy.directory))
        .trigger(**({"availableNow": True} if bounded else {"processingTime": "200 milliseconds"}))
        .start()
    )
    try:
        assert query.awaitTermination(PATIENCE_S), "the query did not end by itself"
    finally:
        query.stop()


@pytest.fixture(
    params=[
        pytest.param(by_job("continuous"), id="continuous"),
        pytest.param(by_job("micro-batch"), id="micro-batch", marks=pytest.mark.extended),
        pytest.param(by_query, id="drop-in", marks=pytest.mark.extended),
    ]
)
def run(request: pytest.FixtureRequest) -> Way:
    way: Way = request.param
    return way


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with the drop-in formats."""
    installation = sluice.install(spark)
    yield spark
    installation.close()


@pytest.fixture
def copy(session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path) -> Copy:
    """Between two fresh topics."""
    return Copy(
        session=session,
        kafka=kafka,
        directory=tmp_path / "checkpoint",
        source=topic(),
        output=topic(partitions=3),
    )


class Running:
    """A copy without an end, in a thread of its own; whatever ends it is kept."""

    def __init__(self, run: Way, copy: Copy) -> None:
        self._copy = copy
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(run,), daemon=True)
        self._thread.start()

    def _run(self, run: Way) -> None:
        session = self._copy.session
        # Spark looks a format up in the thread's session, which is another one in a new thread.
        session._jvm.SparkSession.setActiveSession(session._jsparkSession)  # noqa: SLF001
        try:
            run(self._copy, bounded=False)
        except BaseException as err:  # noqa: BLE001 - the test looks at it
            self._failure = err

    def await_output(self, wanted: list[int]) -> None:
        """Until readers see exactly this; the copy must live."""

        def seen() -> bool:
            assert self._thread.is_alive(), self._failure
            return self._copy.found() == wanted

        wait_for(seen, what=f"{len(wanted)} records", poll_s=0.3)

    def failure(self) -> str:
        """What it ends with."""
        join(self._thread)
        return f"{type(self._failure).__name__}: {self._failure}"


def said(act: Callable[[], None]) -> str:
    """The error of a run that must fail."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - Spark wraps a query's
        act()
    return f"{type(raised.value).__name__}: {raised.value}"


@pytest.fixture(scope="module")
def holed(kafka: EmbeddedKafka) -> str:
    """Compacted, and with aborted transactions before, between and behind what is left."""
    name = create_topic(
        kafka.bootstrap,
        unique("holed"),
        config={
            "cleanup.policy": "compact",
            "segment.bytes": "1048576",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.001",
            "max.compaction.lag.ms": "100",
        },
    )
    produce_transaction(kafka.bootstrap, name, [Record(key=b"a", value=b"-1")], commit=False)
    for number in range(10):
        produce(kafka.bootstrap, name, [Record(key=b"same", value=b"%d" % number)])
    produce_transaction(kafka.bootstrap, name, [Record(key=b"b", value=b"10")])

    def is_compacted() -> bool:
        # A new segment makes the old one cleanable. Of this key some more records are always left:
        # those since the last cleaning, which comes as often as this.
        produce(kafka.bootstrap, name, [Record(key=b"other", value=b"11")])
        return sum(row["key"] == b"same" for row in all_rows(source(kafka, name))) == 1

    wait_for(is_compacted, poll_s=1.0, what="compaction")
    produce_transaction(kafka.bootstrap, name, [Record(key=b"c", value=b"-1")], commit=False)
    return name


def test_read_committed_end_gaps_of_compaction_and_aborted_records_are_passed(
    run: Way, copy: Copy, holed: str
) -> None:
    """A run ends behind the last marker, where no record will tell it, with what readers find."""
    copy = Copy(
        session=copy.session,
        kafka=copy.kafka,
        directory=copy.directory,
        source=holed,
        output=copy.output,
    )
    before = Counter(values(copy.kafka.bootstrap, holed))
    run(copy, bounded=True)
    assert {9, 10, 11} <= set(copy.settled()) <= set(range(12))
    found = Counter(b"%d" % number for number in copy.found())
    # Compaction may go on meanwhile: what is left of a key is always its newest record.
    assert Counter(values(copy.kafka.bootstrap, holed)) <= found <= before


def test_records_deleted_past_the_position_stop_a_run_with_their_range(
    run: Way, copy: Copy
) -> None:
    """Nothing behind the gap is written: somebody must decide about it."""
    produce(copy.kafka.bootstrap, copy.source, [b"%d" % n for n in range(5)])
    run(copy, bounded=True)
    produce(copy.kafka.bootstrap, copy.source, [b"%d" % n for n in range(5, 12)])
    delete_records(copy.kafka, copy.source, 8)
    error = said(lambda: run(copy, bounded=True))
    assert "DataLostError" in error
    assert f"{copy.source}-0[5,8)" in error
    assert copy.settled() == list(range(5))


def test_added_partitions_are_read_from_the_first_record_and_a_topic_made_again_is_not(
    run: Way, copy: Copy
) -> None:
    """The new topic holds more than the old one did, so the position lies within it: going on
    there would skip what stands before, and look like success."""
    servers, name = copy.kafka.bootstrap, copy.source
    produce(servers, name, [b"0", b"1"])
    running = Running(run, copy)
    running.await_output([0, 1])
    add_partitions(servers, name, total=2)
    copy.others[2] = 1
    produce_transaction(servers, name, [Record(value=b"-1", partition=1)], commit=False)
    produce(servers, name, [Record(value=b"2", partition=1), Record(value=b"3", partition=0)])
    running.await_output([0, 1, 2, 3])
    old_id = start(source(copy.kafka, name))[1][0].topic_id

    delete_topic(servers, name)
    create_topic(servers, name, partitions=2)
    new = [Record(value=b"%d" % n, partition=n % 2) for n in range(100, 120)]
    produce(servers, name, new)
    new_id = start(source(copy.kafka, name))[1][0].topic_id

    assert "SourceChangedError" in running.failure()
    again = said(lambda: run(copy, bounded=True))
    assert "SourceChangedError" in again
    assert old_id in again
    assert new_id in again
    assert copy.settled() == [0, 1, 2, 3]


def _copy_on(broker: EmbeddedKafka, session: SparkSession, directory: Path) -> Copy:
    """Of a record that is there, on a broker that may go away."""
    copy = Copy(
        session=session,
        kafka=broker,
        directory=directory / "checkpoint",
        source=create_topic(broker.bootstrap, unique("away")),
        output=create_topic(broker.bootstrap, unique("away-out"), partitions=3),
    )
    produce(broker.bootstrap, copy.source, [b"0"])
    return copy


@pytest.mark.extended
@pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
def test_a_broker_that_is_away_while_partitions_are_looked_for_costs_time_alone(
    session: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, engine: str
) -> None:
    """It stays away until the job has looked in vain. The job lives on, and what was added then is
    read from its first record."""
    with EmbeddedKafka() as broker:
        copy = _copy_on(broker, session, tmp_path)
        running = Running(by_job(engine), copy)
        running.await_output([0])
        broker.kill()
        before = caplog.text.count(_IN_VAIN)  # before it, on a busy machine
        wait_for(lambda: caplog.text.count(_IN_VAIN) > before, what="a look in vain")
        broker.restart()
        add_partitions(broker.bootstrap, copy.source, total=3)
        copy.others[1] = 2
        produce(broker.bootstrap, copy.source, [Record(value=b"1", partition=2)])
        running.await_output([0, 1])
        assert end_offsets(broker.bootstrap, copy.source)[2] == 1
        delete_topic(broker.bootstrap, copy.source)
        assert "SourceChangedError" in running.failure()


@pytest.mark.extended
def test_a_query_whose_broker_stays_away_ends_and_goes_on_where_it_was(
    session: SparkSession, tmp_path: Path
) -> None:
    """Nobody is told of a barrier in vain there: the query ends with what it has waited for. What
    was added meanwhile is read from its first record."""
    with EmbeddedKafka() as broker:
        copy = _copy_on(broker, session, tmp_path)
        running = Running(by_query, copy)
        running.await_output([0])
        broker.kill()
        assert "UnreachableError" in running.failure()
        broker.restart()
        add_partitions(broker.bootstrap, copy.source, total=3)
        copy.others[1] = 2
        produce(broker.bootstrap, copy.source, [Record(value=b"1", partition=2), b"2"])
        by_query(copy, bounded=True)
        assert copy.settled() == [0, 1, 2]
