"""What is made of a region's life that is over, before its successor begins."""

import pytest

from sluice.runtime.contracts import RegionRegistration, SweepReport
from sluice.runtime.coordinator.shell.restart_waits import RequestedRestart
from sluice.runtime.errors import StorageUnreachableError, UnreachableError
from tests.kit.coordinator.region_queries import ThreadQuery
from tests.kit.fakes import FakeSink
from tests.kit.threads.watched_attempts import Watched
from tests.kit.waiting import wait_for


def end(watched: Watched) -> ThreadQuery:
    """Left's first attempt, by a failure of which the coordinator alone knows."""
    watched.begin("left")
    watched.run()
    query = watched.regions.queries["left"][0]
    error = UnreachableError("a broker went away", {}, "Wait.")
    watched.coordinator.fail("left", watched.regions.attempt_ids["left"][0], error)
    wait_for(lambda: not query.is_active, poll_s=0.005)
    return query


def test_why_an_attempt_ended_is_said_where_the_next_one_begins(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """In the words of what ended it, not of what its query has made of that."""
    end(watched)
    wait_for(lambda: watched.lives_of("left") == 2, poll_s=0.005)
    told = [line for each in caplog.records if "restarted" in (line := each.getMessage())]
    assert len(told) == 1
    assert told[0].startswith("region restarted: region=left attempt_id=")
    assert "cause=UnreachableError: a broker went away" in told[0]


def test_abort_before_skip_an_attempt_that_is_over_says_what_it_left_open(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers wait in front of it, and a sweep may be far off: here there is none."""
    monkeypatch.setattr(FakeSink, "sweep", lambda *_, **__: SweepReport(aborted=0))
    watched.begin("left")
    watched.fail_once("left")
    watched.job.source.ends |= {0: 5, 1: 5}
    told, registering = list[RegionRegistration](), watched.coordinator.register_region

    def register(registration: RegionRegistration) -> None:
        told.append(registration)
        registering(registration)

    monkeypatch.setattr(watched.coordinator, "register_region", register)
    watched.run()
    wait_for(lambda: watched.lives_of("left") == 2, poll_s=0.005)
    first = watched.regions.attempt_ids["left"][0]
    at_its_begin, at_its_end = [len(each.open) for each in told if each.attempt_id == first]
    assert at_its_begin <= at_its_end == 1  # it may have begun to write before it was known
    wait_for(lambda: watched.job.visible() == watched.job.expected(), poll_s=0.01)


def test_a_file_system_that_only_a_host_has_found_away_is_waited_for(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, asked, looks = end(watched), list[str](), list[ThreadQuery]()
    away = StorageUnreachableError("away", {"uri": "hdfs://n/"}, "Start it.")
    query.thread.error = query.hindrance = away
    asking, looking = watched.coordinator.request_restart, ThreadQuery.require_writable

    def ask(region: str) -> RequestedRestart:
        asked.append(region)
        return asking(region)

    def look(of: ThreadQuery) -> None:
        looks.append(of)
        looking(of)

    monkeypatch.setattr(watched.coordinator, "request_restart", ask)
    monkeypatch.setattr(ThreadQuery, "require_writable", look)
    wait_for(lambda: watched.lives_of("left") and (looks or asked), poll_s=0.005)
    assert not asked
    query.hindrance = None
    watched.clock.advance(10.0)
    wait_for(lambda: watched.lives_of("left") == 2, poll_s=0.005)
