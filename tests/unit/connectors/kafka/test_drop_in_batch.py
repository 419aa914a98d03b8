"""Loaded frames: each run resolves its ranges anew, and all tasks of a run have the same answer."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.kafka import kafka_drop_in_batch as batch
from sluice.connectors.kafka.kafka_drop_in_batch import (
    FrameRuns,
    KafkaBatchReader,
    range_of_task,
)
from sluice.connectors.kafka.source.reader.range_reader import KafkaSplitReader
from sluice.connectors.kafka.source.splits import key_of, split_evenly
from sluice.runtime.errors import ConfigError, FencedError, SourceChangedError
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.service.service_client import CoordinatorAddress
from tests.kit.source.fake_source_cluster import FakeLog, FakeSourceCluster

GIVEN = {"kafka.bootstrap.servers": "fake:9092", "subscribe": "orders"}


def split(topic: str, number: int, start: int, end: int) -> SplitRange:
    return SplitRange(
        source_id="s",
        topic=topic,
        topic_id="id",
        partition=number,
        start_offset=start,
        end_offset=end,
    )


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeSourceCluster:
    """Two partitions with 10 and 20 records."""
    made = FakeSourceCluster()
    made.create("orders", FakeLog(latest=10), FakeLog(latest=20))
    monkeypatch.setattr(batch, "KafkaCluster", lambda *_, **__: made)
    return made


class Frame:
    """A loaded frame whose calls reach the handler directly."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self.runs = FrameRuns()
        self.id = ""
        frame = self

        class _Client:
            def __init__(self, address: object) -> None:
                del address

            def __enter__(self) -> "_Client":
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def query(self, key: str, call: str, payload: Any, *, timeout_s: float) -> Any:
                assert key == FrameRuns.key
                assert timeout_s > 0
                frame.id = payload["frame"]
                return frame.runs.call(call, payload)

        monkeypatch.setattr(batch, "CoordinatorClient", _Client)
        address = CoordinatorAddress(address="", token="", leader_session_id="", job_uid="")
        self.reader = KafkaBatchReader({**GIVEN, **options}, ("value",), address)
        self.read: list[tuple[str, int, int]] = []
        monkeypatch.setattr(KafkaSplitReader, "read", lambda _, ranges: self._note(ranges))
        self.monkeypatch = monkeypatch
        self.tasks = self.reader.partitions()

    def _note(self, ranges: tuple[SplitRange, ...]) -> Iterator[Any]:
        self.read += [(each.name, each.start_offset, each.end_offset) for each in ranges]
        return iter(())

    def run(self, run: str) -> list[tuple[str, int, int]]:
        """What the tasks of a run read."""
        self.read = []
        self.monkeypatch.setattr(batch, "_run_id", lambda: run)
        for task in self.tasks:
            assert list(self.reader.read(task)) == []
        return sorted(self.read)


def test_each_run_of_a_loaded_frame_resolves_its_ends_anew(
    cluster: FakeSourceCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also its starts: retention is no loss to a run that begins at earliest. A task that runs
    again in its run reads the same."""
    frame = Frame(monkeypatch)
    assert frame.run("1") == [("orders-0", 0, 10), ("orders-1", 0, 20)]
    cluster.log("orders", 0).latest, cluster.log("orders", 1).earliest = 15, 7
    cluster.topics["orders"][1][2] = FakeLog(latest=3)
    assert frame.run("2") == [("orders-0", 0, 15), ("orders-1", 7, 20), ("orders-2", 0, 3)]
    assert frame.run("1") == [("orders-0", 0, 10), ("orders-1", 0, 20)]


def test_a_run_that_cannot_be_resolved_fails_and_a_later_try_may_succeed(
    cluster: FakeSourceCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = Frame(monkeypatch)
    topic = cluster.topics.pop("orders")
    with pytest.raises(SourceChangedError, match="orders"):
        frame.run("1")
    cluster.topics["orders"] = topic
    assert len(frame.run("1")) == 2


def test_tasks_of_a_run_that_ask_at_once_get_one_answer(
    cluster: FakeSourceCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = Frame(monkeypatch)
    both, resolved = threading.Barrier(2), []

    def slow(*_: object, **__: object) -> FakeSourceCluster:
        resolved.append(both.wait(10))
        cluster.log("orders", 0).latest += 1
        return cluster

    monkeypatch.setattr(batch, "KafkaCluster", slow)
    message = {"frame": frame.id, "run": "1", "task": 0}
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(frame.runs.call, "ranges", message) for _ in range(2)]
        both.wait(10)
        first, second = (call.result(10) for call in calls)
    assert first == second
    assert len(resolved) == 1


def test_other_frames_do_not_change_the_ranges_of_a_run(
    cluster: FakeSourceCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a frame that a query joins in each of its batches, while a long query runs."""
    monkeypatch.setattr(batch, "_MOST_RUNS", 5)
    frame = Frame(monkeypatch)
    first = frame.run("query-1")
    cluster.log("orders", 0).latest = 15
    joined = {"frame": "joined", "options": GIVEN, "tasks": [[]]}
    frame.runs.call("load", joined)
    for run in range(2, 20):
        frame.runs.call("ranges", {"frame": "joined", "run": f"query-{run}", "task": 0})
    assert frame.run("query-1") == first


def test_a_task_of_a_run_whose_ranges_are_no_longer_known_is_refused(
    cluster: FakeSourceCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run's first tasks had other ends: records would be lost or doubled."""
    monkeypatch.setattr(batch, "_MOST_RUNS", 5)
    frame = Frame(monkeypatch)
    frame.run("query-1")
    kept = frame.run("query-2")
    cluster.log("orders", 0).latest = 15
    for run in range(3, 7):
        frame.run(f"query-{run}")
    frame.run("stage-1")
    frame.runs.call("load", {"frame": frame.id, "options": GIVEN, "tasks": [[]]})
    with pytest.raises(FencedError, match=r"no longer known.*query-1"):
        frame.run("query-1")
    with pytest.raises(FencedError, match=r"no longer known.*query-2"):
        frame.run("query-2")
    assert frame.run("query-3") == frame.run("query-7") != kept
    assert len(frame.run("stage-1")) == 2


def test_messages_of_others_are_refused() -> None:
    runs = FrameRuns()
    for message in ({}, {"frame": 1}, {"frame": "f", "run": "1"}, {"frame": "f", "options": 3}):
        with pytest.raises(ConfigError, match="loaded frame"):
            runs.call("load", message)
    with pytest.raises(ConfigError, match="loaded frame"):
        runs.call("load", {"frame": "f", "options": GIVEN, "tasks": []})
    with pytest.raises(FencedError, match="does not know"):
        runs.call("ranges", {"frame": "f", "run": "1", "task": 0})
    assert runs.call("load", {"frame": "f", "options": GIVEN, "tasks": [[]]}) is None
    for task in ("x", 1, -1, True, 1e400):
        with pytest.raises(ConfigError, match="loaded frame"):
            runs.call("ranges", {"frame": "f", "run": "1", "task": task})


LOGS = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)),
    st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted),
    max_size=6,
)


@given(LOGS, LOGS, LOGS, st.none() | st.integers(1, 12), st.randoms())
def test_tasks_of_different_runs_together_read_no_record_twice_and_leave_none_out(
    planned: Any, first: Any, second: Any, min_partitions: int | None, chance: Any
) -> None:
    """Spark may recompute a part of a cached frame in a later run: every partition of the first
    run is whole up to the end that both runs have."""
    tasks = [
        (part,)
        for part in split_evenly(
            [split(*key, *bounds) for key, bounds in planned.items()],
            min_partitions=min_partitions,
        )
    ] or [()]
    runs = [[split(*key, *bounds) for key, bounds in logs.items()] for logs in (first, second)]
    read: dict[tuple[str, int], list[int]] = {}
    for index in range(len(tasks)):
        for part in range_of_task(index, tasks, chance.choice(runs)):
            offsets = range(part.start_offset, part.end_offset)
            read.setdefault(key_of(part), []).extend(offsets)
    for key, offsets in read.items():
        assert len(offsets) == len(set(offsets)), key
    for key, (start, end) in first.items():
        if key in second:
            both = range(max(start, second[key][0]), min(end, second[key][1]))
            assert set(both) <= set(read.get(key, [])), key
