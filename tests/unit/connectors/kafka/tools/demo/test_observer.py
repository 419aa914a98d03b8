"""A reader that runs beside the pipeline, where it cannot continue."""

import threading
import time

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.demo import observer
from sluice.connectors.kafka.tools.demo.observer import Observer
from sluice.runtime.errors import UnreachableError
from tests.kit.waiting import PATIENCE_S

AWAY = UnreachableError("no broker answers", {}, "Start one.")


def test_who_waits_for_a_reader_is_reported_at_once_what_has_ended_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_waited_for = threading.Event()

    class Wanted(int):
        """So many records. Who waits for them compares, and holds the lock until it waits."""

        def __le__(self, seen: int) -> bool:
            is_waited_for.set()
            return super().__le__(seen)

    def no_ends(*_: object) -> None:
        assert is_waited_for.wait(PATIENCE_S)
        raise AWAY

    monkeypatch.setattr(observer, "topic_ends", no_ends)
    reader = Observer(KafkaConnection(bootstrap_servers="h:1"), "orders")
    reader.__enter__()
    began_s = time.monotonic()
    with pytest.raises(UnreachableError, match="no broker answers"):
        reader.await_total(Wanted(1), timeout_s=PATIENCE_S)
    assert time.monotonic() - began_s < PATIENCE_S / 2
    with pytest.raises(UnreachableError, match="no broker answers"):
        reader.close()
