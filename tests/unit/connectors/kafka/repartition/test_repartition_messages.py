"""Messages of repartition topics: rows in, the same rows out, in order, in the right partition."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.kafka.records.columns import schema_of
from sluice.connectors.kafka.repartition.repartition_decoder import RepartitionDecoder
from sluice.connectors.kafka.repartition.repartition_messages import (
    COLUMNS_READ,
    HEADER,
    MessageOrigin,
    messages_of,
    partition_slices,
    records_of,
    with_keys,
)
from sluice.connectors.kafka.repartition.repartition_sink import RepartitionWriter
from sluice.runtime.contracts import SIDE_COLUMN, ContinuousWriter, JobTopic, KeyBy, TaskScope
from sluice.runtime.errors import ConfigError, SourceChangedError
from sluice.runtime.keyed.row_keys import RowKeys
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey, SplitRange
from sluice.runtime.model.state.batch_lineage import BatchLineage, Rewind
from sluice.runtime.model.state.key_groups import (
    default_max_parallelism,
    group_range,
    key_group,
)

BATCH = BatchKey(region="orders-1", attempt_id=4, batch_id=7)
KEYS = RowKeys(KeyBy(columns=("account",)), "by-account")


class Written(ContinuousWriter):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.decide_by_s: float | None = None
        self.records: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.records.append(batch)

    def pre_commit(self) -> list[StateEntry]:
        return []

    def abort(self) -> None: ...

    def end_epoch(self, ranges: Sequence[SplitRange], *, checkpoint_id: int) -> None: ...

    def commit(self, *, timeout_s: float) -> bool:
        return True

    def release(self) -> None: ...


def rows(accounts: Sequence[str | None], first: int = 0) -> pa.RecordBatch:
    numbers = range(first, first + len(accounts))
    return pa.RecordBatch.from_pydict(
        {"account": pa.array(accounts, pa.string()), "n": pa.array(numbers, pa.int64())}
    )


def written(*batches: pa.RecordBatch, partitions: int = 8, side: int = 0) -> list[pa.RecordBatch]:
    """The records of a topic that a task has written in one epoch."""
    inner = Written()
    scope = TaskScope(
        job_uid="j", operator_id="o", batch=BATCH, checkpoint_id=3, committed_through=2
    )
    topic = JobTopic(partitions=partitions, max_parallelism=default_max_parallelism(partitions))
    writer = RepartitionWriter(inner, scope, keys=KEYS, side=side, topic=topic)
    for batch in batches:
        writer.write(batch)
    writer.pre_commit()
    return inner.records


def read(records: Sequence[pa.RecordBatch], first_offset: int = 0) -> pa.RecordBatch:
    """The records as a source yields them."""
    table = pa.Table.from_batches(records).combine_chunks()
    table = table.append_column("offset", [list(range(first_offset, first_offset + len(table)))])
    return table.select(COLUMNS_READ).cast(schema_of(COLUMNS_READ)).to_batches()[0]


def decoder_of(*rewinds: Rewind, sides: int = 1, max_parallelism: int = 0) -> RepartitionDecoder:
    """Of the topic that `written` writes, as a run with these rewinds reads it."""
    run = JobTopic(
        partitions=8,
        max_parallelism=max_parallelism or default_max_parallelism(8),
        lineage=BatchLineage(rewinds),
    )
    return RepartitionDecoder(topic="t", run=run, sides=sides)


DECODER = decoder_of()


@given(st.lists(st.lists(st.sampled_from(["", "a", "b", "grün", "x" * 50, None]), max_size=30)))
def test_each_row_arrives_once_in_the_partition_of_its_key_and_in_order(
    epoch: list[list[str | None]],
) -> None:
    firsts = np.cumsum([0, *map(len, epoch)]).tolist()
    records = written(*(rows(each, first) for each, first in zip(epoch, firsts, strict=False)))
    sent = [(account, n) for n, account in enumerate(chain.from_iterable(epoch))]
    if not sent:
        assert not records
        return
    found: dict[int, list[tuple[str | None, int]]] = defaultdict(list)
    for part in DECODER(read(records)):
        places = part.partitions.tolist()
        for row, partition in zip(part.batch.to_pylist(), places, strict=True):
            found[partition].append((row["account"], row["n"]))
        keys, schema = KEYS(part.batch)
        assert part.keys.equals(keys)
        assert part.key_schema.equals(schema)
        most = default_max_parallelism(8)
        for key, partition in zip(keys.to_pylist(), places, strict=True):
            assert key_group(key, most) in group_range(
                partition, partitions=8, max_parallelism=most
            )
    assert sorted(chain.from_iterable(found.values()), key=lambda pair: pair[1]) == sent
    for mine in found.values():
        assert mine == sorted(mine, key=lambda pair: pair[1])


@given(st.integers(1, 400), st.integers(600, 4_000))
def test_a_message_stays_below_the_limit_unless_it_has_one_row(count: int, limit: int) -> None:
    batch = with_keys(rows(["k" * 20] * count), *KEYS(rows(["k" * 20] * count)))
    values = list(messages_of(batch, limit_bytes=limit))
    parts = [pa.ipc.open_stream(value).read_next_batch() for value in values]
    assert pa.concat_batches(parts).equals(batch)
    smallest = len(next(messages_of(batch.slice(0, 1), limit_bytes=1 << 30)))
    assert all(
        len(v) <= max(limit, smallest) or p.num_rows == 1
        for v, p in zip(values, parts, strict=True)
    )


def test_a_message_has_no_values_of_a_dictionary_that_other_rows_have() -> None:
    texts = [str(n) * 100 if n % 7 else None for n in range(1_000)]
    column = pa.array(texts).dictionary_encode()
    batch = pa.record_batch({"text": column, "account": pa.array(["k"] * len(texts))})
    batch = with_keys(batch, *KEYS(batch))
    values = list(messages_of(batch.slice(10, 300), limit_bytes=50_000))
    assert len(values) < 5
    parts = [pa.ipc.open_stream(value).read_next_batch() for value in values]
    assert {part.schema for part in parts} == {batch.schema}
    assert [t for part in parts for t in part["text"].to_pylist()] == texts[10:310]


@given(st.lists(st.integers(0, 5), max_size=50))
def test_slices_hold_every_row_of_their_partition_in_order(numbers: list[int]) -> None:
    batch = rows(["a"] * len(numbers))
    found = dict(partition_slices(batch, np.array(numbers, np.int32)))
    assert {p: part.column("n").to_pylist() for p, part in found.items()} == {
        p: [n for n, each in enumerate(numbers) if each == p] for p in set(numbers)
    }


def test_the_origin_of_a_message_is_read_as_it_was_written() -> None:
    origin = MessageOrigin(batch=BATCH, side=1)
    assert MessageOrigin.decode(origin.encode()) == origin
    assert origin.encode() == b'[1,"orders-1",4,7,1,0]'  # frozen: older messages have it


def test_rows_of_rewound_batches_are_left_out() -> None:
    rewind = Rewind(attempt_id=9, run_attempt_id=4, batches={"orders-1": (4, 6)})
    decoder = decoder_of(rewind)
    records = read(written(rows(["a"])))
    assert not list(decoder(records))
    kept = decoder_of(Rewind(attempt_id=9, run_attempt_id=4, batches={"orders-1": (4, 7)}))
    assert [part.batch.num_rows for part in kept(records)] == [1]


def test_rows_that_were_divided_by_another_number_of_key_groups_are_refused() -> None:
    """Else their keys would begin without the state that another partition has."""
    records = read(written(rows([f"account {n}" for n in range(100)])))
    assert sum(part.batch.num_rows for part in DECODER(records)) == 100
    with pytest.raises(SourceChangedError, match="outside of the partition of their key") as found:
        list(decoder_of(max_parallelism=2 * default_max_parallelism(8))(records))
    assert found.value.args[1]["key_groups"] == 2 * default_max_parallelism(8)


def test_sides_come_in_batches_of_their_own() -> None:
    decoder = decoder_of(sides=2)
    left, right = written(rows(["a", "b"]), side=0), written(rows(["a"], 10), side=1)
    parts = list(decoder(read([*right, *left])))
    assert [part.batch.column(SIDE_COLUMN).to_pylist() for part in parts] == [[0, 0], [1]]
    assert all(part.batch.schema.names == ["account", "n", SIDE_COLUMN] for part in parts)


def test_other_columns_in_one_epoch_make_other_batches() -> None:
    other = pa.RecordBatch.from_pydict({"account": ["a"], "m": [1.5]})
    parts = list(DECODER(read(written(rows(["a"]), other, rows(["a"], 5)))))
    assert [part.batch.schema.names[1] for part in parts] == ["n", "m", "n"]


def test_batches_with_other_dictionaries_go_together() -> None:
    """Indexes of 8 bits are too few for the values of several batches."""
    kind = pa.dictionary(pa.int8(), pa.string())
    batches = [
        rows(["a"] * 100, first).append_column(
            "name",
            pa.array([f"v{at}" for at in range(first, first + 100)]).dictionary_encode().cast(kind),
        )
        for first in (0, 100)
    ]
    records = [*written(*batches), *written(*batches)]
    (part,) = DECODER(read(records))
    assert part.batch.column("name").to_pylist() == [f"v{at}" for at in range(200)] * 2


def test_a_message_without_rows_yields_nothing() -> None:
    origin = MessageOrigin(batch=BATCH, is_copied=True)
    assert not list(DECODER(read([records_of([None], [3], origin)])))


@pytest.mark.parametrize("damage", ["value", "header", "version", "keys"])
def test_a_foreign_message_is_refused_with_its_place(damage: str) -> None:
    (records,) = written(rows(["a"]), partitions=1)
    if damage == "keys":
        with pa.BufferOutputStream() as out:
            with pa.ipc.new_stream(out, rows(["a"]).schema) as stream:
                stream.write_batch(rows(["a"]))
            value = out.getvalue().to_pybytes()
    else:
        value = b"no rows" if damage == "value" else records.column("value")[0].as_py()
    header = {"header": b"{}", "version": b"[9]"}.get(
        damage, records.column("headers")[0].as_py()[0]["value"]
    )
    record = pa.RecordBatch.from_pydict(
        {"value": [value], "partition": [0], "headers": [[{"key": HEADER, "value": header}]]},
        schema=records.schema,
    )
    with pytest.raises(SourceChangedError, match="not written") as caught:
        list(DECODER(read([record], first_offset=41)))
    where = caught.value.args[1]
    assert (where["topic"], where["partition"], where["offset"]) == ("t", 0, 41)


def test_reserved_columns_are_refused() -> None:
    with pytest.raises(ConfigError, match="repartition topics use"):
        written(rows(["a"]).append_column(SIDE_COLUMN, pa.array([1])))
