"""Rule 11: a lost transaction is written again, or nothing of the try stays behind."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest

from runtime.checkpoint.messages import LostCommittables
from runtime.contracts import AttemptRegistry, TaskScope
from runtime.errors import DeliveryError
from runtime.model import Redistribution, RegionRecord, SplitRange, StateEntry
from runtime.spark.job_graph import Region
from runtime.spark.repair import ChainRepairer

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

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def source_ranges(self, committable: StateEntry) -> list[tuple[str, int, int, int]]:
        return [("in", 0, 5, 9)]

    def writer_factory(self) -> "Sink":
        return self

    def open(self, scope: TaskScope, registry: AttemptRegistry) -> Writer:
        return self._writer


def test_rule_11_a_repair_that_fails_leaves_no_open_transaction() -> None:
    """The start fails with it, so no sweep would free the readers before the next one."""
    writer = Writer()
    source = SimpleNamespace(reader=OneRecord)
    region = SimpleNamespace(
        name="r",
        sinks={"o": Sink(writer)},
        functions=(),
        pipeline=SimpleNamespace(source=source),
    )
    record = RegionRecord(
        region="r", generation=1, batch_id=3, splits=(SPLIT,), committables=(LOST,)
    )
    with pytest.raises(DeliveryError):
        ChainRepairer(regions={"r": cast(Region, region)}).repair(
            7,
            LostCommittables(region=record, committables=(LOST,)),
            job_uid="j",
            generation=2,
            timeout_s=5,
        )
    assert writer.aborted
