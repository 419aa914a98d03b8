"""How the client of a task that reads is set up: what Sluice relies on no option changes."""

import gc
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError

from sluice.connectors.kafka.client.client_tuning import HotPath, read_settings
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.source.reader import consumers
from sluice.connectors.kafka.source.reader.consumers import ConsumerPool, PooledConsumer
from sluice.runtime.model.task_memory import TaskMemory

_REFUSED: int = getattr(KafkaError, "_AUTHENTICATION")  # noqa: B009 - public, underscored


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """The configurations of the clients that were made."""
    found: list[Mapping[str, Any]] = []

    def make(config: Mapping[str, Any]) -> object:
        found.append(config)
        return _Client()

    monkeypatch.setattr(consumers, "make_consumer", make)
    return found


class _Client:
    """A consumer that is idle."""

    is_closed = False
    is_sound = True

    def serve(self, timeout: int) -> bool:
        """Nothing was reported."""
        return False

    def unassign(self) -> None:
        """It has nothing."""

    def close(self) -> None:
        """For good."""
        self.is_closed = True


def _borrowed(
    *,
    pool: ConsumerPool | None = None,
    read_committed: bool = True,
    follows: bool = False,
    **options: str,
) -> PooledConsumer:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return (pool or ConsumerPool()).borrow(
        KafkaConnection(bootstrap_servers="fake:9092", options=given),
        read_committed=read_committed,
        settings=read_settings(TaskMemory(), {}),
        follows=follows,
        hot_path=HotPath.PLAIN,
    )


@pytest.mark.parametrize("read_committed", [True, False])
def test_a_reader_sees_what_its_isolation_level_lets_it_see(
    made: list[Mapping[str, Any]], *, read_committed: bool
) -> None:
    _borrowed(read_committed=read_committed)
    level = "read_committed" if read_committed else "read_uncommitted"
    assert made[0]["isolation.level"] == level


def test_a_reader_commits_nothing_and_takes_no_other_place_for_one_that_is_gone(
    made: list[Mapping[str, Any]],
) -> None:
    """Whatever the user's options say; an end is told, or a range would not be known as read."""
    _borrowed(auto_offset_reset="earliest", enable_auto_commit="true", enable_partition_eof="false")
    wanted = {
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "group.id": "sluice-reader",
    }
    assert {name: made[0][name] for name in wanted} == wanted


def test_what_a_user_sets_wins_over_what_is_only_faster(made: list[Mapping[str, Any]]) -> None:
    """A reader of ranges waits for no record; one that follows lets the broker wait for some."""
    _borrowed()
    _borrowed(follows=True)
    _borrowed(follows=True, fetch_wait_max_ms="7")
    assert [str(config["fetch.wait.max.ms"]) for config in made] == ["5", "500", "7"]
    assert all(config["check.crcs"] is True for config in made)
    day_ms = 86_400_000
    assert all(config["max.poll.interval.ms"] >= day_ms for config in made), "sinks may be slow"


def test_only_a_client_that_is_never_idle_reports_statistics(
    made: list[Mapping[str, Any]],
) -> None:
    """Nothing takes the reports of an idle one, and they would fill its memory."""
    pool = ConsumerPool()
    for follows in (False, True):
        pool.give_back(_borrowed(pool=pool, follows=follows))
        _borrowed(pool=pool, follows=follows)
    assert ["stats_cb" in config for config in made] == [False, True, True]


def test_what_a_client_says_of_a_refused_log_in_is_kept_beside_it(
    made: list[Mapping[str, Any]],
) -> None:
    """Its calls only run out of time."""
    pooled = _borrowed()
    assert pooled.refusals.last is None
    made[0]["error_cb"](KafkaError(_REFUSED, "no such user"))
    assert "no such user" in str(pooled.refusals.last)
    assert "fake:9092" in str(pooled.refusals.last)


def test_a_process_keeps_few_clients_those_that_were_used_last() -> None:
    """Each has connections and threads; tasks of many jobs may come to one worker."""
    pool = ConsumerPool()
    borrowed = [_borrowed(client_id=f"of-{number}") for number in range(6)]
    for pooled in borrowed:
        pool.give_back(pooled)
    clients: list[Any] = [pooled.consumer for pooled in borrowed]
    assert [client.is_closed for client in clients] == [True, True, False, False, False, False]


def test_what_a_client_said_while_it_was_idle_is_of_the_past() -> None:
    """A token that had run out has been renewed since, or the next reader hears of it."""
    pool = ConsumerPool()
    lent = _borrowed(pool=pool)
    pool.give_back(lent)
    lent.refusals.note(KafkaError(_REFUSED, "the token has expired"))
    assert _borrowed(pool=pool).refusals.last is None


def test_a_client_is_lent_to_one_reader_at_a_time() -> None:
    """Two that shared one would take each other's records."""
    pool = ConsumerPool()
    first = _borrowed(pool=pool)
    pool.give_back(first)
    assert _borrowed(pool=pool) is first
    assert _borrowed(pool=pool) is not first


def test_a_forked_process_leaves_its_parents_clients_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no threads there: to use one, or even to free it, would hang."""
    pool = ConsumerPool()
    lent = _borrowed(pool=pool)
    pool.give_back(lent)
    client: weakref.ref[Any] = weakref.ref(lent.consumer)
    del lent
    monkeypatch.setattr("os.getpid", lambda: -1)
    mine = _borrowed(pool=pool)
    gc.collect()
    kept = client()
    assert kept is not None
    assert mine.consumer is not kept
    assert not kept.is_closed


def test_a_client_that_has_not_got_all_records_back_is_lent_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it still holds would come to the next reader."""
    monkeypatch.setattr(consumers, "NativeConsumer", _Client)
    pool = ConsumerPool()
    pooled = _borrowed(pool=pool)
    client: Any = pooled.consumer
    client.is_sound = False
    pool.give_back(pooled)
    assert client.is_closed
    assert _borrowed(pool=pool) is not pooled


def test_a_client_that_does_not_close_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its task has an error to report."""
    monkeypatch.setattr(consumers, "_CLOSE_S", 0.05)
    pool, release = ConsumerPool(), threading.Event()
    hanging = _borrowed(pool=pool, follows=True)
    monkeypatch.setattr(hanging.consumer, "close", release.wait)
    pool.give_back(hanging)
    assert "consumer does not close" in caplog.text
    release.set()
