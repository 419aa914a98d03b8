"""Whatever a task's memory is and a user has set: queues, fetches and batches keep to the bound."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.connectors.kafka.client.client_tuning import (
    batch_settings,
    claimed_by_reader,
    claimed_by_writer,
    read_settings,
    write_settings,
)
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.task_memory import TaskMemory

MIB = st.integers(64, 65_536)
KEPT_BYTES = 48 << 20
_COPIES_IN_FLIGHT = 16

READING = st.fixed_dictionaries(
    {},
    optional={
        "queued.max.messages.kbytes": st.integers(1, 200_000),
        "queued.min.messages": st.integers(1, 1_000_000),
        "fetch.max.bytes": st.integers(1_000_000, 200_000_000),
        "max.partition.fetch.bytes": st.integers(1, 50_000_000),
        "message.max.bytes": st.integers(1_000, 50_000_000),
    },
)
WRITING = st.fixed_dictionaries(
    {},
    optional={
        "queue.buffering.max.kbytes": st.integers(1, 500_000),
        "queue.buffering.max.messages": st.integers(1, 1_000_000),
        "message.max.bytes": st.integers(1_000, 50_000_000),
    },
)


@example(mib=64, sinks=1, reading={"message.max.bytes": 1_392_056}, writing={})
@example(mib=256, sinks=1, reading={"message.max.bytes": 18_173_453}, writing={})
@example(mib=128, sinks=0, reading={"message.max.bytes": 12_229_604}, writing={})
@given(mib=MIB, sinks=st.integers(0, 4), reading=READING, writing=WRITING)
def test_everything_together_fits_or_is_refused_by_name(
    mib: int, sinks: int, reading: dict[str, Any], writing: dict[str, Any]
) -> None:
    """A consumer, a producer for each sink, and the copies of a batch: below the bound, with the
    user's own settings counted; these themselves are never changed."""
    claimed = claimed_by_reader(reading) + sinks * claimed_by_writer(writing)
    try:
        memory = TaskMemory.of_mib(mib, claimed_bytes=claimed, sinks=sinks)
        source = read_settings(memory, reading)
        sink = write_settings(memory, writing) if sinks else None
    except ConfigError:
        largest = max(
            int(reading.get("message.max.bytes", 1_000_000)),
            int(writing.get("message.max.bytes", 1_048_576)),
        )
        queue_kib = writing.get("queue.buffering.max.kbytes", 500_000)
        if sinks and queue_kib < writing.get("message.max.bytes", 0) // 1024:
            return  # a queue for less than one message
        # Only where there is no room: a sixteenth of what is left takes no message.
        assert max(0, (mib << 20) - KEPT_BYTES - claimed) // 16 < max(1, sinks) * 2 * largest
        return
    least = 1_000 * (400 + sinks * 256)  # the smallest queues there are, where next to none is left
    held = source.most_bytes + (sink.most_bytes * sinks if sink else 0)
    assert held + source.batch_bytes * _COPIES_IN_FLIGHT <= (mib << 20) - KEPT_BYTES + least
    own = source.librdkafka() | (dict(sink.librdkafka()) if sink else {})
    for name, value in {**reading, **(writing if sinks else {})}.items():
        if name in own:
            assert own[name] == value


@given(
    mib=MIB,
    partitions=st.integers(1, 100),
    batch_bytes=st.integers(1, 2_000_000),
    writing=WRITING,
    batches=st.fixed_dictionaries(
        {},
        optional={
            "batch.size": st.integers(1, 5_000_000),
            "batch.num.messages": st.integers(1, 1_000_000),
        },
    ),
)
def test_no_queue_is_full_before_a_batch_that_is_waited_for(
    mib: int, partitions: int, batch_bytes: int, writing: dict[str, Any], batches: dict[str, Any]
) -> None:
    """It would take no record until the linger is over. As full as partitions can be of which none
    wakes the client, which it does at the number of records and beyond the number of bytes, it
    takes the largest one."""
    try:
        memory = TaskMemory.of_mib(mib, claimed_bytes=claimed_by_writer(writing))
        queue = write_settings(memory, writing)
    except ConfigError:
        return
    options = {**writing, **batches}
    found = batch_settings(
        queue, options, batch_bytes=batch_bytes, partitions=partitions, is_seen_at_once=False
    )
    if found["linger.ms"] <= 20:
        return
    in_hand = int(options.get("message.max.bytes", 1_048_576))
    assert partitions * found["batch.size"] + in_hand <= queue.queue_kib * 1024
    assert partitions * (found["batch.num.messages"] - 1) + 1 <= queue.queue_records


@given(mib=st.integers(96, 65_536), more=st.integers(1, 1_000), sinks=st.integers(1, 2))
def test_more_memory_never_makes_a_queue_smaller(mib: int, more: int, sinks: int) -> None:
    small, large = (
        TaskMemory.of_mib(size, claimed_bytes=0, sinks=sinks) for size in (mib, mib + more)
    )
    for before, after in (
        (read_settings(small, {}), read_settings(large, {})),
        (write_settings(small, {}), write_settings(large, {})),
    ):
        for name, value in before.librdkafka().items():
            assert after.librdkafka()[name] >= value  # type: ignore[operator]  # all are numbers
    crowded = TaskMemory.of_mib(mib, claimed_bytes=0, sinks=sinks + 1)
    assert write_settings(crowded, {}).queue_kib <= write_settings(small, {}).queue_kib


@given(options=READING)
def test_a_fetch_is_never_smaller_than_a_message(options: dict[str, Any]) -> None:
    memory = TaskMemory.of_mib(65_536, claimed_bytes=claimed_by_reader(options))
    found = read_settings(memory, options)
    if "fetch.max.bytes" not in options:
        assert found.fetch_bytes >= int(options.get("message.max.bytes", 1_000_000))
    if "max.partition.fetch.bytes" not in options:
        assert found.partition_bytes <= found.fetch_bytes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queued.max.messages.kbytes": "2000000"}, "do not fit into a task's memory"),
        ({"message.max.bytes": "20000000"}, "too small for the largest fetch"),
        ({"queued.min.messages": "many"}, "queued.min.messages"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_settings(TaskMemory.of_mib(256, claimed_bytes=claimed_by_reader(options)), options)


def test_a_batch_never_outgrows_the_offsets_of_an_arrow_column() -> None:
    """They have 32 bits; where records grow, a batch may be larger than it was meant to be."""
    memory = TaskMemory.of_mib(1 << 20)
    assert read_settings(memory, {}).batch_bytes == 1 << 30
    assert read_settings(TaskMemory.of_mib(16_384), {}).batch_bytes == (
        TaskMemory.of_mib(16_384).batch_bytes // _COPIES_IN_FLIGHT
    )


def test_a_sink_that_may_send_larger_messages_than_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="sink's largest message"):
        write_settings(TaskMemory(), {"message.max.bytes": "100000000"})
