"""Rule `two-phase-repair`: what is written again is what was lost, or nothing of it stays."""

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest

from sluice.connectors.kafka.kafka_sink import KafkaSink
from sluice.connectors.kafka.sink.handles import (
    OutputCount,
    SourceRange,
    TransactionHandle,
    decode_handle,
    encode_handle,
)
from sluice.connectors.kafka.sink.producers.producer_pool import ProducerPool
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.connectors.kafka.sink.writer.kafka_writer import TransactionalWriter
from sluice.runtime.checkpoint.lost_work import LostCommittables
from sluice.runtime.contracts import AttemptRegistry, CommitOutcome, CommitReport, TaskScope
from sluice.runtime.errors import TransactionLostError
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.model.checkpoint_record import RegionRecord, StateEntry
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.spark.run.range_repair import ChainRepairer
from tests.kit.kafka.fake_producer import FakeClient, FakeCluster

SPLIT = SplitRange(
    source_id="s", topic="in", topic_id="t", partition=0, start_offset=0, end_offset=5
)


def lost(number: int, *outputs: tuple[str, int]) -> StateEntry:
    """A committable that the brokers have aborted."""
    handle = TransactionHandle(
        transactional_id="p/j/r.1/owner/0",
        producer_id=number,
        producer_epoch=0,
        checkpoint_id=7,
        record_count=sum(records for _, records in outputs),
        outputs=tuple(OutputCount(topic=topic, records=records) for topic, records in outputs),
        sources=(SourceRange(topic="in", partition=0, start_offset=0, end_offset=5),),
    )
    return encode_handle(handle, operator_id="o")


class Log:
    """A source's reader: what is left of the range, one count for each time it is read."""

    def __init__(self, *left: int) -> None:
        self._left = list(left)

    def read(self, splits: Sequence[SplitRange]) -> Iterator[pa.RecordBatch]:
        assert [split.name for split in splits] == ["in-0"]
        if left := self._left.pop(0):
            yield pa.record_batch({"value": [b"v"] * left})


class Sink:
    """The writer and the handles of `KafkaSink` on a fake cluster; its committer, too."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        sink = KafkaSink(bootstrap_servers="b:1", topic="out", transactional_id_prefix="p")
        self.source_ranges = sink.source_ranges
        self.record_counts = sink.record_counts

    def writer_factory(self) -> "Sink":
        return self

    def open(self, scope: TaskScope, registry: AttemptRegistry) -> TransactionalWriter:
        def prepare(name: str) -> TransactionalProducer:
            producer = TransactionalProducer(
                lambda config: FakeClient(self._cluster, config), {}, name
            )
            producer.prepare(topic=None, timeout_s=1)
            return producer

        pool = ProducerPool(
            prefix="p",
            scope=scope,
            prepare=prepare,
            background=lambda prepares: prepares(),
            keep_alive_s=None,
        )
        pool.enter(scope)
        return TransactionalWriter(pool, scope, registry, "out")

    @property
    def committer(self) -> "Sink":
        return self

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        for entry in committables:
            name = decode_handle(entry).transactional_id
            for transaction in self._cluster.open_transactions(name):
                transaction.state = "aborted"
        return [CommitReport(outcome=CommitOutcome.ABORTED) for _ in committables]


def repaired(
    cluster: FakeCluster, log: Log, *committables: StateEntry
) -> Mapping[bytes, StateEntry]:
    """Write them again, from what ``log`` gives."""
    sink = Sink(cluster)
    region = SimpleNamespace(
        name="r",
        task_sinks={"o": sink},
        functions=(),
        dead_letter_sink=None,
        pipeline=SimpleNamespace(source=SimpleNamespace(reader=lambda: log)),
    )
    repairer = ChainRepairer(
        regions={"r": cast(Region, region)},
        sinks={"o": sink},  # type: ignore[dict-item]  # as far as a repair asks
        job_name="job",
    )
    record = RegionRecord(
        region="r", attempt_id=1, batch_id=3, splits=(SPLIT,), committables=committables
    )
    found = LostCommittables(region=record, committables=committables)
    return repairer.repair(7, found, job_uid="j", attempt_id=2, timeout_s=5)


def open_transactions(cluster: FakeCluster) -> list[str]:
    """Those with records, which hold back readers."""
    return [t.transactional_id for t in cluster.transactions if t.state == "open" and t.records]


def test_two_phase_repair_what_is_written_again_has_as_many_records_as_were_lost() -> None:
    cluster, gone = FakeCluster(), lost(1, ("out", 5))
    again = decode_handle(repaired(cluster, Log(5), gone)[gone.payload])
    assert (again.record_count, again.outputs) == (5, decode_handle(gone).outputs)
    assert open_transactions(cluster) == [again.transactional_id]


@pytest.mark.parametrize(
    ("outputs", "left", "told"),
    [
        ([("out", 5)], 3, r"ranges=in-0:\[0,5\) expected=out:5 replayed=out:3\]"),
        ([("out", 5)], 6, r"expected=out:5 replayed=out:6\]"),
        ([("out", 5)], 0, r"expected=out:5 replayed=nothing\]"),
        ([("dead", 1), ("out", 4)], 5, r"expected=dead:1,out:4 replayed=out:5\]"),
    ],
)
def test_two_phase_repair_a_repair_of_other_records_than_were_lost_is_refused(
    outputs: list[tuple[str, int]], left: int, told: str
) -> None:
    """Compaction and retention take records of a range, a function or the sink of the dead letters
    may be another one by now: it would be a loss, or a doubling, in silence."""
    cluster = FakeCluster()
    with pytest.raises(TransactionLostError, match=told):
        repaired(cluster, Log(left), lost(1, *outputs))
    assert open_transactions(cluster) == []


def test_two_phase_repair_what_was_written_again_is_aborted_if_the_rest_of_its_region_cannot_be() -> (
    None
):
    cluster = FakeCluster()
    with pytest.raises(TransactionLostError):
        repaired(cluster, Log(5, 3), lost(1, ("out", 5)), lost(2, ("out", 5)))
    assert len([t for t in cluster.transactions if t.records]) == 2
    assert open_transactions(cluster) == []
