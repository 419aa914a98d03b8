"""Marks whose policies fail, and runs that die or are taken over: nothing is lost, or reported again."""

import logging
from dataclasses import replace
from functools import partial

import pytest

from sluice import PartitionCommit
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.succession import has_last_record
from sluice.runtime.errors import StorageUnreachableError
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.files.fake_file_system import Disk, FakeFileSystem
from tests.kit.files.partition_marks import HOUR_MS, MarkedSink, by_time, hour


def test_a_failed_policy_is_tried_again_with_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is seen in the log, and other partitions continue meanwhile."""
    sink = MarkedSink(by_time(), refuses=True)
    with caplog.at_level(logging.WARNING):
        sink.epoch({"main": [hour(0)]}, main=HOUR_MS + 1)
        for _ in range(10):
            sink.pass_s(1.0)
    tries = [record for record in caplog.records if "not marked yet" in record.message]
    assert 2 <= len(tries) <= 4
    sink.refuses = False
    sink.epoch({"main": [hour(1)]}, main=2 * HOUR_MS + 1)
    assert sink.told == [(hour(1), False)]
    sink.pass_s(60.0)
    assert sink.told == [(hour(1), False), (hour(0), False)]


def test_policies_that_have_run_are_not_run_again_by_a_retry() -> None:
    """The next one failed; the mark continues there."""
    sink = MarkedSink(by_time())
    ran: list[str] = []
    fails = [True]

    def second(mark: object) -> None:
        if fails.pop() if fails else False:
            raise OSError("not now")
        ran.append("second")

    sink.marker._policies = [("first", lambda mark: ran.append("first")), ("second", second)]  # noqa: SLF001 - no other way in
    sink.epoch({"main": [hour(0)]}, main=HOUR_MS + 1)
    sink.pass_s(5.0)
    assert ran == ["first", "second"]


def test_a_run_that_was_taken_over_marks_nothing() -> None:
    """It was stopped for long, and wakes up after the seal of the run that marks now."""
    disk = Disk()
    first, second = (MarkedSink(by_time(), regions=("main", "other")) for _ in range(2))
    for place, (sink, session) in enumerate([(first, "first"), (second, "second")]):
        store = CheckpointStore(FakeFileSystem(disk))
        store.publish(record(place, leader_session_id=session), timeout_s=1.0)
        sink.is_newest_run = partial(has_last_record, store, session=session)
        sink.stage("main", hour(0))
        sink.watermarks |= {"main": 2 * HOUR_MS, "other": 2 * HOUR_MS}
        sink.decide()
        sink.tell_ledger()
    for sink in (first, second):
        sink.pass_s(100.0)
    assert (first.told, second.told) == ([], [(hour(0), False)])


def test_marks_wait_for_a_store_that_does_not_tell_who_is_the_newest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[bool | Exception] = [True, StorageUnreachableError("no answer", {}, "Wait.")]
    sink = MarkedSink(by_time())

    def ask() -> bool:
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    sink.is_newest_run = ask
    sink.epoch({"main": [hour(0)]}, main=0)
    assert len(answers) == 2
    with caplog.at_level(logging.WARNING):
        sink.epoch({}, main=2 * HOUR_MS)
    assert (sink.told, len(answers)) == ([], 1)
    assert "no answer" in caplog.text
    sink.pass_s(0.5)
    assert len(answers) == 1
    sink.pass_s(60.0)
    assert sink.told == [(hour(0), False)]


def test_a_run_that_was_killed_before_a_mark_leaves_it_to_the_next() -> None:
    """The partition stands in the record as open until a later record says otherwise."""
    sink = MarkedSink(by_time(), refuses=True)
    sink.epoch({"main": [hour(0)]}, main=HOUR_MS + 1)
    sink.refuses = False
    sink.start()
    sink.tell()
    assert sink.told == [(hour(0), False)]


def test_a_mark_that_is_made_again_by_the_next_run_has_the_same_key() -> None:
    sink = MarkedSink(by_time())
    sink.epoch({"main": [hour(0)]}, main=HOUR_MS + 1)
    sink.start()
    sink.tell()
    first, again = sink.marks
    assert again == replace(first)
    sink.epoch({"main": [hour(1)]})
    sink.start()
    sink.tell()
    assert len(sink.marks) == 2


def test_a_staged_batch_that_is_never_decided_marks_nothing() -> None:
    """Its partition is no partition: the run was killed before the decision."""
    sink = MarkedSink(by_time())
    sink.epoch({"main": [hour(5)]}, main=2 * HOUR_MS)
    sink.stage("main", hour(0))
    sink.start()
    sink.tell()
    assert sink.told == []


def test_two_regions_that_write_one_partition_are_reported_apart() -> None:
    """A region that was late with its checkpoint may have a lower number than the mark."""
    sink = MarkedSink(PartitionCommit(delay_s=1.0), regions=("main", "other"))
    sink.stage("other", "country=it")
    sink.stage("main", "country=it")
    sink.decide(skipped=["other"])
    sink.ledger._staged.clear()  # noqa: SLF001 - as after a restart of the driver
    sink.skipped = ()
    sink.pass_s(1.0)
    sink.tell()
    assert sink.told == [("country=it", False)]
    sink.decide()
    sink.tell()
    assert sink.told == [("country=it", False), ("country=it", True)]


def test_a_partition_of_other_settings_that_has_no_time_holds_up_no_other() -> None:
    """A record may have some as open that were written when values needed to make none."""
    sink = MarkedSink(PartitionCommit(delay_s=1000.0))
    sink.epoch({"main": ["dt=soon/hour=1"]})
    sink.commit = by_time()
    sink.start()
    sink.epoch({"main": [hour(0)]}, main=2 * HOUR_MS)
    assert sink.told == [(hour(0), False)]


def test_partitions_of_another_directory_are_not_this_ones() -> None:
    sink = MarkedSink(PartitionCommit(policies=[print], on_late="error"))
    sink.epoch({"main": ["dt=1"]})
    sink.refuses = True
    sink.epoch({"main": ["dt=2"]})
    assert sink.told == [("dt=1", False)]
    sink.target, sink.refuses = "file:///lake/elsewhere", False
    sink.start()
    sink.tell()
    assert sink.told == [("dt=1", False)], "a directory without data was marked"
    sink.epoch({"main": ["dt=1"]})
    assert sink.told == [("dt=1", False)] * 2, "a first file was taken for a late one"
