"""The demo's verdict and its reader."""

import threading
import time

import pytest
from rich.console import Console

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.demo import observer
from sluice.connectors.kafka.tools.demo.demo_view import Outcome
from sluice.connectors.kafka.tools.demo.observer import Observer
from sluice.runtime.checker import History, Record
from sluice.runtime.errors import UnreachableError
from tests.kit.memory_checker import check, check_prefix
from tests.kit.waiting import PATIENCE_S


def record(offset: int) -> Record:
    return Record("orders", 0, offset, None, b"order %d" % offset, (), 0)


def history(offsets: list[int]) -> History:
    found = History()
    for offset in offsets:
        found.append(record(offset))
    return found


def outcome(there: list[int], *, seen: list[int]) -> Outcome:
    return Outcome(
        verdict=check(history([0, 1, 2]), history(there)),
        prefix=check_prefix(history(seen), history(there)),
        sent=3,
        visible_at_kill=1,
        elapsed_s=1.0,
        peak_rate=3,
        recovery_s=1.0,
        spark_start_s=0.5,
    )


def shown(found: Outcome) -> str:
    console = Console(width=200, highlight=False)
    with console.capture() as capture:
        console.print(found.title())
        console.print(found.table())
    return capture.get()


def test_a_clean_run_says_so() -> None:
    text = shown(outcome([0, 1, 2], seen=[0, 1]))
    assert text.startswith("exactly once")
    assert "orders" not in text


@pytest.mark.parametrize(
    ("there", "seen", "fault", "place"),
    [
        ([0, 2], [0], "lost", "orders-0@1"),
        ([0, 1, 2], [1], "readers saw only a prefix, nothing torn", "orders-0@"),
    ],
)
def test_a_fault_is_shown_with_its_place(
    there: list[int], seen: list[int], fault: str, place: str
) -> None:
    text = shown(outcome(there, seen=seen))
    assert text.startswith("NOT exactly once")
    (line,) = [line for line in text.splitlines() if fault in line]
    assert place in line


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
