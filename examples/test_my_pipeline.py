"""Kills a pipeline at a named step, starts it again, and proves that its output is exactly once."""

from pathlib import Path

import pytest

from sluice.testing import Record, TopicFactory, assert_exactly_once, kill_and_restart

PIPELINE = Path(__file__).with_name("kafka_to_kafka.py")


def shouted(order: Record) -> bytes:
    """An order as the pipeline writes it."""
    return (order.value or b"") + b"!"


@pytest.mark.parametrize("step", ["record", "decision", "commit"])
def test_orders_are_copied_once(step: str, sluice_topic: TopicFactory, tmp_path: Path) -> None:
    orders, copies = sluice_topic("orders", partitions=2), sluice_topic("copies", partitions=2)
    orders.send(f"order {number}" for number in range(10_000))
    places = f"--bootstrap {orders.bootstrap} --input {orders} --output {copies}"
    arguments = f"{places} --checkpoint {tmp_path} --until-end".split()
    kill_and_restart(PIPELINE, arguments, at=step)
    assert_exactly_once(orders, copies, expected=shouted)
