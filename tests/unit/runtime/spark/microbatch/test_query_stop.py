"""A region's query is stopped, and waited for with a bound that is Sluice's own
(`callback-after-commit`)."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql.streaming.query import StreamingQuery

from sluice.runtime.errors import WaitedTooLongError
from sluice.runtime.spark.microbatch.query_end import stop_query
from tests.kit.waiting import PATIENCE_S


class JavaError:
    """As py4j has it; a class is asked for its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._target_id = "o1"
        self._gateway_client = None

    def getClass(self) -> "JavaError":
        return self

    def getSimpleName(self) -> str:
        return self.name


def raised(name: str) -> Py4JJavaError:
    return Py4JJavaError("An error occurred", JavaError(name))


@dataclass
class Query:
    """Spark's handle: each stop has the next answer, and the last one's from then on."""

    answers: list[Callable[[], None]]
    asked: int = field(default=0)

    def stop(self) -> None:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        answer()


def joined() -> None:
    """Its thread has ended."""


def too_short() -> None:
    """The user's own limit is over, and its thread continues."""
    raise raised("TimeoutException")


def stop(query: Query, *, timeout_s: float = PATIENCE_S) -> None:
    """As a region does."""
    stop_query(cast(StreamingQuery, query), region="orders", timeout_s=timeout_s)


@pytest.fixture
def never() -> Iterator[Callable[[], None]]:
    """A wait without a limit, as Spark's default is; over with the test."""
    over = threading.Event()
    yield lambda: cast(None, over.wait(PATIENCE_S))
    over.set()


def test_callback_after_commit_a_limit_of_the_users_is_not_the_end_of_the_wait() -> None:
    """A callback may take longer, and a next attempt beside it would write with it."""
    query = Query([too_short, too_short, joined])
    stop(query)
    assert query.asked == 3


def test_callback_after_commit_a_query_that_never_stops_is_reported_by_its_region(
    never: Callable[[], None],
) -> None:
    """Spark would wait for ever, and the job with it, without a word."""
    with pytest.raises(WaitedTooLongError, match=r"did not stop .*region=orders"):
        stop(Query([never]), timeout_s=0.01)


def test_callback_after_commit_so_is_one_of_which_spark_says_so_again_and_again() -> None:
    """Its limit is the shorter one."""
    with pytest.raises(WaitedTooLongError, match="did not stop"):
        stop(Query([too_short]), timeout_s=0.01)


def test_what_a_stop_fails_of_otherwise_is_raised_as_it_is() -> None:
    """As of a session that is gone: asking again would say the same."""
    query = Query([lambda: (_ for _ in ()).throw(raised("IllegalStateException"))])
    with pytest.raises(Py4JJavaError):
        stop(query)
    assert query.asked == 1
