"""How runs of drop-in queries begin and end in the user's process: one at a time, with no rest."""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
import urllib3

from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.errors import ConfigError, FencedError, StreamError
from sluice.runtime.service.drop_in_client import QueryRun
from sluice.runtime.spark.drop_in import drop_in_queries as drop_in
from sluice.runtime.spark.drop_in.active_queries import ActiveQuery
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.drop_in_simulation import FORMAT, World, looked_for
from tests.kit.waiting import PATIENCE_S, join, wait_for


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def _answers(address: str) -> bool:
    """Whether that run is served there; an ended one is refused, also without a token."""
    status = urllib3.request("GET", f"{address}/v1/status", timeout=60).status
    assert status in (401, 409)
    return status == 401


def test_the_run_before_has_ended_when_the_next_one_of_its_query_has_begun(world: World) -> None:
    """Whatever was left of it, as threads, would last as long as the process, and its sweep go on
    beside the new one's."""
    old = world.begin()
    assert _answers(old.address.address)
    world.query.runId = "run-2"
    new = world.begin()
    assert not _answers(old.address.address)
    assert _answers(new.address.address)


def test_a_run_that_has_ended_is_refused(world: World) -> None:
    """A program may start queries for as long as it lives."""
    run = world.begin()
    world.query.isActive = False
    wait_for(lambda: not _answers(run.address.address), what="the end of the run's service")


def test_queries_are_closed_though_a_jvm_does_not_say_whether_its_query_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JVM that stands still never answers; the program ends all the same."""
    asked, says = threading.Event(), threading.Event()

    def is_active(_query: ActiveQuery) -> bool:
        asked.set()
        return says.wait(PATIENCE_S)

    monkeypatch.setattr(ActiveQuery, "is_active", is_active)
    run = world.begin()
    assert asked.wait(PATIENCE_S)
    closing = threading.Thread(target=world.queries.close)
    closing.start()
    try:
        join(closing)
    finally:
        says.set()
    assert not _answers(run.address.address)


def test_a_start_that_fails_behind_its_seal_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that slept, and finds that a later one has announced itself; Spark tries again."""
    told: list[str] = []

    def announce(_store: RunRecordStore, leader: RunRecord, *, is_newest: object) -> None:
        assert _answers(leader.address)
        told.append(leader.address)
        raise FencedError("a later run leads", {}, "Leave it to that one.")

    monkeypatch.setattr(RunRecordStore, "announce", announce)
    with pytest.raises(FencedError, match="a later run leads"):
        world.begin()
    (address,) = told
    assert not _answers(address)


def test_a_run_announces_itself_beside_its_checkpoints(world: World) -> None:
    """`sluice checkpoint` names the last leader; an earlier run that wakes up finds it there."""
    run = world.begin()
    leader = RunRecordStore(open_store(f"{world.location}/sluice").fs).current()
    assert leader is not None
    assert leader == RunRecord(
        leader_session_id=run.address.leader_session_id,
        address=run.address.address,
        attempt_id=run.attempt_id,
        job_uid=run.job_uid,
    )


def test_a_sink_that_this_process_does_not_have_is_refused_by_name(world: World) -> None:
    """Spark's processes import another Sluice than the one that was installed, for example."""
    with pytest.raises(ConfigError, match=rf"format=sluice-new known={FORMAT}.*install"):
        world.client.begin("sluice-new", world.location, {})


def test_a_start_with_another_sink_is_not_given_the_run_of_the_first(world: World) -> None:
    """Files would be written by what writes to Kafka, to whatever its options name."""
    world.begin({"path": "/a"})
    with pytest.raises(FencedError, match="uses other options"):
        world.client.begin("sluice-files", world.location, {"path": "/a"})


def test_a_call_that_is_made_again_while_the_first_one_waits_is_given_its_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose connection broke asks once more; both are the one query that runs."""
    looks = looked_for(monkeypatch)
    begun: list[QueryRun] = []
    begin = partial(world.begin, {"slow": "yes"})
    threads = [threading.Thread(target=lambda: begun.append(begin())) for _ in range(2)]
    world.may_start.clear()
    for thread in threads:
        thread.start()
    wait_for(lambda: len(looks) == 2, what="the second call")
    world.may_start.set()
    join(*threads)
    assert begun[0] == begun[1]


def test_queries_are_closed_only_once_no_start_is_under_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends behind it: a start would be cut off with its seal written, and nobody left
    to stop what it has made."""
    stopped: list[str] = []
    stop = BarrierCoordinator.stop

    def told(coordinator: BarrierCoordinator) -> None:
        stop(coordinator)
        stopped.append(coordinator.session)

    def begin() -> None:
        with contextlib.suppress(StreamError):  # whatever it is told, and when
            world.begin({"slow": "yes"})

    monkeypatch.setattr(BarrierCoordinator, "stop", told)
    monkeypatch.setattr(drop_in, "_START_TIMEOUT_S", PATIENCE_S)
    world.may_start.clear()
    slow = threading.Thread(target=begin)
    slow.start()
    wait_for(lambda: world.makes_a_sink, what="the start")
    threading.Timer(0.2, world.may_start.set).start()  # a close that does not wait is over by then
    world.queries.close()
    assert len(stopped) == 1
    join(slow)


def test_a_file_system_is_opened_once_for_all_batches_of_a_query(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On HDFS each one has a client with its own connections; a batch asks at three places."""
    opened: list[str] = []

    def open_one(uri: str, jvm: object, options: Mapping[str, str] | None) -> FileSystem:
        opened.append(uri)
        return open_file_system(uri, jvm, options)

    monkeypatch.setattr(drop_in, "open_file_system", open_one)
    for _ in range(3):
        world.begin()
    assert sorted(opened) == [world.location, f"{world.location}/sluice"]
