"""Readers find the newest leader: in ZooKeeper first, then in the store, and not too often."""

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path

import pytest

from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore, encode_run
from sluice.runtime.election import zookeeper_nodes
from sluice.runtime.election.leader_lookup import LeaderLookup, LookupTimes
from sluice.runtime.election.zookeeper_path import ZooKeeperPath
from sluice.runtime.election.zookeeper_presence import is_replaced_by
from sluice.runtime.errors import UnreachableError
from sluice.runtime.storage.local_fs import LocalFileSystem

_WHERE = ZooKeeperPath(hosts="zk:2181", path="/sluice/job")


def _run(attempt_id: int, job_uid: str = "u") -> RunRecord:
    return RunRecord(
        leader_session_id=f"s{attempt_id}",
        address=f"http://h:{attempt_id}",
        attempt_id=attempt_id,
        job_uid=job_uid,
    )


@dataclass(slots=True)
class _ZooKeeper:
    """What its node holds; None: it does not answer."""

    content: bytes | None = b""
    reads: int = 0


@pytest.fixture
def zookeeper(monkeypatch: pytest.MonkeyPatch) -> _ZooKeeper:
    """In place of the real one."""
    found = _ZooKeeper()

    @dataclass(slots=True)
    class Nodes:
        where: ZooKeeperPath
        session_timeout_s: float

        def connect(self) -> None:
            """See `ZooKeeperNodes.connect`."""
            if found.content is None:
                raise UnreachableError("ZooKeeper does not answer", {}, "Wait.")

        def read_leader(self) -> tuple[bytes, int | None]:
            """See `ZooKeeperNodes.read_leader`."""
            found.reads += 1
            assert found.content is not None
            return found.content, 0

        def close(self) -> None:
            """See `ZooKeeperNodes.close`."""

    monkeypatch.setattr(zookeeper_nodes, "ZooKeeperNodes", Nodes)
    return found


def _lookup(tmp_path: Path, *, known: int | None = 3) -> LeaderLookup:
    """Its first call begins the silence; the next read is due at once."""
    made = LeaderLookup(
        f"file://{tmp_path}",
        None,
        _WHERE,
        attempt_id=known,
        clock=count(step=10.0).__next__,
        draw=lambda: 0.0,
    )
    assert made.later_leader() is None
    return made


def _store(tmp_path: Path, run: RunRecord) -> None:
    RunRecordStore(LocalFileSystem(tmp_path)).announce(run)


class TestALookup:
    def test_takes_a_later_leader_from_zookeeper(
        self, tmp_path: Path, zookeeper: _ZooKeeper
    ) -> None:
        zookeeper.content = encode_run(_run(5), with_token=False)
        _store(tmp_path, _run(9))
        assert _lookup(tmp_path).later_leader() == _run(5)

    @pytest.mark.parametrize(
        "content",
        [
            None,
            b"",
            b"{damaged",
            encode_run(_run(3), with_token=False),
            encode_run(_run(2), with_token=False),
        ],
        ids=["away", "absent", "damaged", "known", "older"],
    )
    def test_reads_the_store_where_zookeeper_names_no_later_one(
        self, tmp_path: Path, zookeeper: _ZooKeeper, content: bytes | None
    ) -> None:
        zookeeper.content = content
        _store(tmp_path, _run(5))
        assert _lookup(tmp_path).later_leader() == _run(5)

    def test_finds_nothing_where_both_know_no_later_one(
        self, tmp_path: Path, zookeeper: _ZooKeeper
    ) -> None:
        zookeeper.content = None
        _store(tmp_path, _run(3))
        assert _lookup(tmp_path).later_leader() is None

    def test_of_an_unknown_run_reads_nothing(self, tmp_path: Path, zookeeper: _ZooKeeper) -> None:
        zookeeper.content = encode_run(_run(5), with_token=False)
        assert _lookup(tmp_path, known=None).later_leader() is None
        assert zookeeper.reads == 0


class TestAnAddressInZooKeeper:
    @pytest.mark.parametrize("content", [b"", b"{damaged", encode_run(_run(4), with_token=False)])
    def test_replaces_an_older_one(self, content: bytes) -> None:
        assert is_replaced_by(content, _run(5))

    def test_of_a_paused_leader_replaces_none_of_its_successors(self) -> None:
        assert not is_replaced_by(encode_run(_run(6), with_token=False), _run(5))
        assert not is_replaced_by(encode_run(_run(5), with_token=False), _run(5))

    def test_replaces_one_of_another_job(self) -> None:
        """A person has emptied the checkpoint directory: attempt ids begin again."""
        assert is_replaced_by(encode_run(_run(60, job_uid="old"), with_token=False), _run(1))


class TestTimes:
    def test_the_first_read_is_jittered_and_later_ones_become_rare(self) -> None:
        times = LookupTimes(lambda: 0.5)
        due = [at / 10 for at in range(3000) if times.is_due(at / 10)]
        assert due[0] == pytest.approx(7.0)
        gaps = [after - before for before, after in pairwise(due)]
        assert gaps[:4] == pytest.approx([6, 12, 24, 48])
        assert max(gaps) == pytest.approx(60)

    def test_an_answer_begins_again(self) -> None:
        times = LookupTimes(lambda: 0.5)
        assert [at for at in range(14) if times.is_due(float(at))] == [7, 13]
        times.end()
        assert not times.is_due(100.0)
        assert not times.is_due(106.0)
        assert times.is_due(107.0)

    @pytest.mark.parametrize("takeover_s", [4.0, 6.0, 8.0])
    def test_a_usual_takeover_is_found_soon(self, takeover_s: float) -> None:
        """From the announcement to the read that finds it, over many tasks."""
        random.seed(takeover_s)
        waits = sorted(_found_s(takeover_s) - takeover_s for _ in range(1_000))
        assert sum(waits) / len(waits) < 4.5
        assert waits[990] < 9.0


_JOBS, _TASKS = 1_000, 10
_OUTAGE_S, _TAKEOVER_S = 600.0, 10.0


def _read_times(*, until_s: float = math.inf) -> Iterator[float]:
    """When a task reads, in seconds after the death of its coordinator.

    It asks as often as its client tries: once a second.
    """
    times, now_s = LookupTimes(random.random), random.random()
    while now_s < until_s:
        if times.is_due(now_s):
            yield now_s
        now_s += 1.0


def _found_s(takeover_s: float) -> float:
    """The first read of a task after the successor is announced."""
    return next(at_s for at_s in _read_times() if at_s >= takeover_s)


def _reads(deaths: int, *, outage_s: float, seed: int) -> Counter[int]:
    """Reads of the store in each second, by all tasks whose coordinator died meanwhile.

    A task reads until the successor is announced.
    """
    random.seed(seed)
    reads: Counter[int] = Counter()
    for _ in range(deaths):
        died_s = random.uniform(0.0, outage_s)
        for _ in range(_TASKS):
            reads.update(int(died_s + at_s) for at_s in _read_times(until_s=_TAKEOVER_S))
    return reads


@pytest.mark.parametrize("deaths", [_JOBS // 2, _JOBS])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(1, 12))]
)
def test_a_thousand_jobs_of_ten_tasks_read_the_store_at_most_50_times_a_second(
    seed: int, deaths: int
) -> None:
    """ZooKeeper is away for ten minutes, and every second coordinator dies in this time, or all.

    The tasks of living coordinators read nothing: those answer.
    """
    reads = _reads(deaths, outage_s=_OUTAGE_S, seed=seed)
    assert sum(reads.values()) > deaths * _TASKS * 0.8
    assert max(reads.values()) <= 50


def test_a_thousand_coordinators_that_die_at_once_cause_few_reads_of_each_task() -> None:
    """The worst case: at most two reads of a task until its job has a leader again."""
    reads = _reads(_JOBS, outage_s=1.0, seed=1)
    assert sum(reads.values()) < 2 * _JOBS * _TASKS
    assert max(reads.values()) < _JOBS * _TASKS / 4
