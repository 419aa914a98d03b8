"""A batch that Spark runs once more tells how far it has come."""

import threading
from collections.abc import Iterator

from runtime.errors import FencedError
from runtime.spark.replays import ReplayTold
from tests.waiting import wait_for


def test_what_is_done_is_told_when_it_has_changed() -> None:
    """At once, and then each other number; what cannot be found out is none."""
    looks: Iterator[int | OSError] = iter([3, 3, OSError("the session is away"), 4])
    told: list[int] = []
    seen = threading.Event()

    def done() -> int:
        found = next(looks, None)
        if isinstance(found, OSError):
            raise found
        if found is None:
            seen.set()
            return 4
        return found

    with ReplayTold(done, told.append, look_s=0.001):
        wait_for(seen.is_set, poll_s=0.001)
    assert told == [3, 4]


def test_nothing_is_told_of_a_life_that_is_over() -> None:
    """It is refused once."""
    told: list[int] = []

    def refuse(done: int) -> None:
        told.append(done)
        raise FencedError("a newer life", {}, "Stop.")

    with ReplayTold(lambda: len(told), refuse, look_s=0.001) as replay:
        wait_for(lambda: not replay.is_telling, poll_s=0.001)
    assert told == [0]
