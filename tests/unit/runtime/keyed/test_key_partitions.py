"""`key_by(…, partitioned=True)`: a key in two partitions is found."""

import numpy as np
import pyarrow as pa
import pytest

from sluice.runtime.contracts.keyed import KeyBy, KeyedRows
from sluice.runtime.coordinator.region.key_samples import KeySamples
from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.keyed.key_partitions import KeyPartitions
from sluice.runtime.model.state.key_sample import KeySample

SPLITS = {0: ("source", "orders", 0), 1: ("source", "orders", 1)}
BY_A = ChainedFunction(name="by-a", operator_id="op", keyed=KeyBy(columns=("a",)))
EPOCHS = 64


def rows(*found: tuple[bytes, int]) -> KeyedRows:
    keys = [key for key, _ in found]
    return KeyedRows(
        batch=pa.RecordBatch.from_pydict({"key": keys}),
        splits=np.array([split for _, split in found], np.int16),
        keys=pa.array(keys, pa.large_binary()),
        key_schema=pa.schema([]),
    )


def many(keys: range, split: int) -> KeyedRows:
    return rows(*((b"%d" % key, split) for key in keys))


def test_a_key_in_two_partitions_is_refused_with_both() -> None:
    seen = KeyPartitions()
    seen.require_one_each(rows((b"a", 0), (b"b", 1), (b"a", 0)), SPLITS, BY_A)
    with pytest.raises(ConfigError, match="orders-1,orders-0"):
        seen.require_one_each(rows((b"b", 0)), SPLITS, BY_A)


def test_another_number_of_the_same_partition_is_no_other_partition() -> None:
    """A task numbers its splits anew after they have moved."""
    seen = KeyPartitions()
    seen.require_one_each(rows((b"a", 0)), SPLITS, BY_A)
    seen.require_one_each(rows((b"a", 3)), {3: SPLITS[0]}, BY_A)


def test_no_rows_are_no_error() -> None:
    KeyPartitions().require_one_each(rows(), {}, BY_A)


def test_the_same_bytes_are_other_keys_in_another_function() -> None:
    seen = KeyPartitions()
    seen.require_one_each(rows((b"a", 0)), SPLITS, BY_A)
    by_b = ChainedFunction(name="by-b", operator_id="other", keyed=KeyBy(columns=("b",)))
    seen.require_one_each(rows((b"a", 1)), SPLITS, by_b)


def _all_of(task: KeyPartitions) -> tuple[KeySample, ...]:
    """A report that is repeated."""
    return next(found for _ in range(2 * EPOCHS) if (found := task.samples()))


class TestTasks:
    """Each reads another partition."""

    def compared(self, first: KeyPartitions, second: KeyPartitions) -> ConfigError | None:
        known = KeySamples()
        return known.add(_all_of(first)) or known.add(_all_of(second))

    def test_a_key_that_two_tasks_read_is_found(self) -> None:
        """Each has read other rows of most keys, in another order."""
        first, second = KeyPartitions(), KeyPartitions()
        first.require_one_each(many(range(30_000), 0), SPLITS, BY_A)
        second.require_one_each(many(range(30_000, -1, -1), 1), SPLITS, BY_A)
        for _ in range(40):
            first.samples()  # the end of an epoch
            second.samples()
            first.require_one_each(many(range(30_000), 0), SPLITS, BY_A)
            second.require_one_each(many(range(30_000, -1, -1), 1), SPLITS, BY_A)
        error = self.compared(first, second)
        assert error is not None
        assert "partitions=orders-0,orders-1" in str(error)
        assert "key_by=by-a" in str(error)

    def test_other_keys_are_no_error(self) -> None:
        first, second = KeyPartitions(), KeyPartitions()
        first.require_one_each(many(range(0, 1_000, 2), 0), SPLITS, BY_A)
        second.require_one_each(many(range(1, 1_000, 2), 1), SPLITS, BY_A)
        assert self.compared(first, second) is None

    def test_a_report_is_small_and_is_repeated_only_now_and_then(self) -> None:
        """A new coordinator needs it."""
        seen = KeyPartitions()
        seen.require_one_each(many(range(10_000), 0), SPLITS, BY_A)
        (first,) = seen.samples()
        assert len(first.hashes) == 64
        later = [seen.samples() for _ in range(2 * EPOCHS)]
        assert later.count((first,)) == 2
        assert later.count(()) == len(later) - 2

    def test_a_partition_that_moved_is_the_same_partition(self) -> None:
        first, second = KeyPartitions(), KeyPartitions()
        first.require_one_each(many(range(100), 0), SPLITS, BY_A)
        second.require_one_each(many(range(100), 5), {5: SPLITS[0]}, BY_A)
        assert self.compared(first, second) is None


def test_topics_of_two_sources_may_have_the_same_keys() -> None:
    known = KeySamples()
    samples = [
        KeySample(operator_id="op", name="by-a", split=("source", topic, 0), hashes=(1, 2))
        for topic in ("orders", "payments")
    ]
    assert known.add(samples) is None


def test_topics_of_one_name_in_two_sources_may_have_the_same_keys() -> None:
    known = KeySamples()
    samples = [
        KeySample(operator_id="op", name="by-a", split=(source, "orders", number), hashes=(1,))
        for number, source in enumerate(("east", "west"))
    ]
    assert known.add(samples) is None
