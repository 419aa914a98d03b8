"""A region host waits for the next leader: with short pauses, and its tasks with it."""

import random
import threading
import time
from collections import Counter

import pytest

from sluice.runtime.checkpoint.run_record import RunRecord
from sluice.runtime.errors import UnreachableError
from sluice.runtime.service.hosting import leader_link
from sluice.runtime.service.hosting.host_messages import HostAnswer, Join
from sluice.runtime.service.hosting.leader_link import FindPauses, LeaderLink, LeaderSession
from tests.kit.waiting import PATIENCE_S, join

_JOBS, _OUTAGE_S, _TAKEOVER_S = 1_000, 600.0, 10.0
_RUN = RunRecord(leader_session_id="s", address="http://127.0.0.1:1", attempt_id=3, job_uid="u")


def test_pauses_are_short_in_the_time_of_a_usual_takeover() -> None:
    pauses = FindPauses(100.0)
    assert [pauses.next_s(100.0, 0.5) for _ in range(5)] == [0.25, 0.5, 0.8, 0.8, 0.8]
    assert pauses.next_s(114.9, 0.0) == 0.4
    assert pauses.next_s(115.0, 0.5) == 2.0


@pytest.mark.parametrize("seed", range(3))
def test_hosts_of_a_thousand_coordinators_that_die_read_the_store_at_most_50_times_a_second(
    seed: int,
) -> None:
    """All die within ten minutes, and each job has one host."""
    random.seed(seed)
    reads: Counter[int] = Counter()
    for _ in range(_JOBS):
        died_s = now_s = random.uniform(0.0, _OUTAGE_S)
        pauses = FindPauses(died_s)
        while now_s < died_s + _TAKEOVER_S:
            reads[int(now_s)] += 1
            now_s += pauses.next_s(now_s, random.random())
    assert max(reads.values()) <= 50


class _Link(LeaderLink):
    """Its thread does not run; a test says which leader it has."""

    def __init__(self) -> None:
        own = Join(host_id="h", address="", token="", ca="", digest="")
        super().__init__(lambda: None, own, list, lambda _: None)

    def lead(self, *, job_uid: str) -> None:
        """From now on it has this leader; without a uid, one that has not started."""
        answer = HostAnswer(is_known=True, clock_s=0.0, job_uid=job_uid)
        with self._changed:
            self._session = LeaderSession(record=_RUN, ahead_s=0.0, answer=answer)
            self._changed.notify_all()


class TestACall:
    def test_waits_for_a_leader_that_has_started(self) -> None:
        """Without an answer in between, after which a task would pause."""
        link, found = _Link(), list[str]()
        caller = threading.Thread(
            target=lambda: found.append(link.call(lambda session: session.answer.job_uid))
        )
        caller.start()
        link.lead(job_uid="")
        link.lead(job_uid="u")
        join(caller)
        assert found == ["u"]

    def test_ends_without_an_answer_if_no_leader_comes(self) -> None:
        began_s = time.monotonic()
        with pytest.raises(UnreachableError, match="no coordinator leads"):
            _Link().call(lambda session: session)
        assert time.monotonic() - began_s >= 0.9


def test_a_link_outlives_an_answer_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread would end, and the host would find no leader again."""
    asked = threading.Semaphore(0)

    def query(*_: object, **__: object) -> object:
        asked.release()
        return {"is_known": True, "unknown": 1}

    monkeypatch.setattr(leader_link.CoordinatorClient, "query", query)
    own = Join(host_id="h", address="", token="", ca="", digest="")
    with LeaderLink(lambda: _RUN, own, list, lambda _: None) as link:
        for _ in range(3):
            assert asked.acquire(timeout=PATIENCE_S)
        assert link.error is None
