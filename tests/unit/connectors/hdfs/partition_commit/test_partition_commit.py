"""When partitions are marked, and what becomes of late files: decided from records alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice import PartitionCommit
from sluice.connectors.hdfs.partition_commit.partition_state import (
    OpenPartition,
    PartitionState,
    decode_state,
    encode_state,
)
from sluice.connectors.hdfs.partition_commit.policies import MarkRefusedError
from sluice.connectors.hdfs.tools.file_kinds import OPEN_PARTITIONS
from sluice.runtime.coordinator.policy.failure_policy import PERMANENT_ERRORS
from sluice.runtime.errors import DamagedCheckpointError, LateRecordsError, UnsupportedFormatError
from tests.kit.files.partition_marks import HOUR_MS, MarkedSink, by_time, hour

VERSION_1 = Path(__file__).parents[4] / "data" / "open-partitions-v1.json"

REFUSED = MarkRefusedError("nobody listens", {}, "It is tried again.")


# --- partition time -----------------------------------------------------------------------------


def test_a_partition_is_marked_once_the_watermark_has_passed_it() -> None:
    """Not at its end but behind it, and once."""
    sink = MarkedSink(by_time())
    sink.epoch({"main": [hour(0), hour(1)]}, main=HOUR_MS)
    assert sink.told == []
    sink.epoch({"main": [hour(1)]}, main=HOUR_MS + 1)
    assert sink.told == [(hour(0), False)]
    sink.epoch({"main": [hour(2)]}, main=2 * HOUR_MS + 1)
    sink.epoch({"main": [hour(2)]}, main=2 * HOUR_MS + 2)
    assert sink.told == [(hour(0), False), (hour(1), False)]


def test_every_live_region_must_have_passed_it() -> None:
    """One that has no watermark yet holds all back, whether it has written into it or not."""
    sink = MarkedSink(by_time(), regions=("main", "other"))
    sink.epoch({"main": [hour(0)]}, main=9 * HOUR_MS)
    sink.epoch({"other": [hour(1)]}, other=HOUR_MS)
    assert sink.told == []
    sink.epoch({"other": [hour(1)]}, other=HOUR_MS + 1)
    assert sink.told == [(hour(0), False)]


def test_a_carried_region_holds_back_what_it_has_not_passed() -> None:
    """Its newer work is still to come, however old its last good checkpoint is."""
    sink = MarkedSink(by_time(idle_timeout_s=10.0), regions=("main", "other"))
    sink.epoch({"main": [hour(0)], "other": [hour(0)]}, main=HOUR_MS - 5, other=HOUR_MS - 5)
    sink.stage("main", hour(1))
    sink.watermarks["main"] = 5 * HOUR_MS
    sink.decide(skipped=["other"])
    sink.tell()
    sink.pass_s(1_000.0)
    assert sink.told == []
    sink.epoch({"other": [hour(4)]}, other=5 * HOUR_MS)
    assert sink.told == [(hour(0), False), (hour(1), False)]


def test_an_idle_region_holds_nothing_back_and_silence_alone_marks_nothing() -> None:
    """While nobody is live, time stands still."""
    sink = MarkedSink(by_time(idle_timeout_s=10.0), regions=("main", "other"))
    sink.epoch({"main": [hour(0), hour(1)]}, main=HOUR_MS + 1)
    sink.pass_s(10.0)
    sink.epoch({"main": [hour(1)]})
    assert sink.told == []
    sink.epoch({"main": [hour(1)]})
    assert sink.told == [(hour(0), False)]
    sink.pass_s(1_000.0)
    assert sink.told == [(hour(0), False)]


def test_a_region_is_silent_as_long_as_epochs_have_seen_no_records_of_it() -> None:
    """No epoch is decided for a while: then nobody has looked whether there are any."""
    sink = MarkedSink(by_time(idle_timeout_s=60.0), regions=("a", "b"))
    sink.epoch({"a": [hour(0)], "b": [hour(0)]}, a=HOUR_MS // 2, b=HOUR_MS // 2)
    sink.pass_s(50.0)
    sink.epoch({"b": [hour(1)]}, b=2 * HOUR_MS)
    sink.pass_s(11.0)
    assert sink.told == []
    sink.epoch({"a": [hour(0)]}, a=HOUR_MS // 2 + 1)
    sink.epoch({"b": [hour(1)]})
    assert sink.told == []


def test_a_long_batch_of_another_region_makes_none_silent() -> None:
    """Who had nothing at the cut is not asked again before the decision, told once or twice."""
    sink = MarkedSink(by_time(idle_timeout_s=60.0), regions=("a", "b"))
    sink.epoch({"a": [hour(0)], "b": [hour(0)]}, a=HOUR_MS // 2, b=HOUR_MS // 2)
    sink.stage("b", hour(1))
    sink.watermarks["b"] = 2 * HOUR_MS
    sink.pass_s(61.0)
    sink.decide()
    for _ in range(2):
        sink.tell()
        assert sink.told == []
    sink.epoch({"b": [hour(1)]})
    assert sink.told == [(hour(0), False)]


def test_a_region_without_splits_holds_nothing_back_until_it_has_one() -> None:
    """There are more regions than partitions of the topic: nobody waits for the others."""
    sink = MarkedSink(by_time(), regions=("main", "other"))
    sink.without_splits = {"other"}
    sink.epoch({"main": [hour(0)]}, main=HOUR_MS + 1)
    assert sink.told == [(hour(0), False)]
    sink.without_splits = ()
    sink.epoch({"main": [hour(1)]}, main=2 * HOUR_MS + 1, other=2 * HOUR_MS)
    assert sink.told == [(hour(0), False)]
    sink.epoch({}, other=2 * HOUR_MS + 1)
    assert sink.told == [(hour(0), False), (hour(1), False)]


def test_what_regions_that_are_no_more_had_open_is_marked_by_those_that_go_on() -> None:
    """Also behind a mark of the one that goes on: its own files alone were told of. And nobody
    waits for the watermark of one that is gone."""
    sink = MarkedSink(by_time(), regions=("main-0", "main-1"))
    sink.epoch({"main-0": [hour(0)], "main-1": [hour(0), hour(1)]}, **{"main-0": HOUR_MS + 1})
    sink.epoch({"main-1": [hour(0)]}, **{"main-1": HOUR_MS + 1})
    assert sink.told == [(hour(0), False)]
    sink.epoch({"main-1": [hour(0), hour(1)]})
    before = sink.records
    sink.marks.clear()
    sink.start()
    sink.tell()  # the new run settles the last decision, whose regions it has not
    sink.marks.clear()
    sink.regions = ("main-0",)
    sink.records = {"main-0": (*before["main-0"], *before["main-1"])}
    sink.watermarks = {"main-0": 2 * HOUR_MS + 1}
    sink.decide()
    sink.tell()
    assert {partition for partition, _ in sink.told} == {hour(0), hour(1)}
    sink.epoch({"main-0": [hour(2)]}, **{"main-0": 2 * HOUR_MS + 2})
    assert len(sink.records["main-0"]) == 1
    assert len(sink.told) == 2, "each is marked once"


def test_a_partition_with_staged_or_held_files_is_not_complete() -> None:
    """Whatever the watermark says: its files are not all there to be read."""
    sink = MarkedSink(by_time())
    sink.stage("main", hour(0), pending=[hour(0)])
    sink.watermarks["main"] = 5 * HOUR_MS
    sink.decide()
    sink.tell()
    assert sink.told == []
    sink.stage("main", hour(0))
    sink.marker.round()
    assert sink.told == []
    sink.decide()
    sink.tell()
    assert sink.told == [(hour(0), False)]


@pytest.mark.parametrize("held", [[hour(0)], []])
def test_a_partition_whose_files_came_since_it_was_due_is_not_begun(held: list[str]) -> None:
    """Another one's webhook hung meanwhile: these files are published, or held, by then."""
    sink = MarkedSink(by_time())
    sink.stage("main", hour(0))
    sink.watermarks["main"] = 2 * HOUR_MS
    sink.decide()
    sink.tell_ledger()
    (due,) = sink.ledger.due()
    sink.stage("main", hour(0), pending=held)
    assert not sink.ledger.begin(due)
    sink.decide()
    sink.tell_ledger()
    assert not sink.ledger.begin(due)
    assert [sink.ledger.begin(one) for one in sink.ledger.due()] == [True] * (not held)


# --- process time -------------------------------------------------------------------------------


def test_process_time_counts_from_the_first_file_and_needs_no_further_records() -> None:
    """The clock passes by itself; later files do not move the beginning."""
    sink = MarkedSink(PartitionCommit(delay_s=60.0))
    sink.epoch({"main": ["country=it"]})
    sink.pass_s(59.0)
    sink.epoch({"main": ["country=it"]})
    assert sink.told == []
    sink.pass_s(1.0)
    assert sink.told == [("country=it", False)]


def test_a_clock_that_is_set_back_delays_a_mark_by_no_more_than_its_time() -> None:
    """The partition's next files count from then."""
    sink = MarkedSink(PartitionCommit(delay_s=60.0), now_ms=24 * HOUR_MS)
    sink.epoch({"main": ["country=it"]})
    sink.now_ms = 0
    sink.epoch({"main": ["country=it"]})
    sink.pass_s(60.0)
    assert sink.told == [("country=it", False)]


def test_process_time_waits_for_a_carried_region() -> None:
    """Files of it may be on their way into the partition."""
    sink = MarkedSink(PartitionCommit(), regions=("main", "other"))
    sink.stage("main", "country=it")
    sink.decide(skipped=["other"])
    sink.tell()
    assert sink.told == []
    sink.decide()
    sink.tell()
    assert sink.told == [("country=it", False)]


# --- late files ---------------------------------------------------------------------------------


def test_late_files_are_published_and_the_partition_is_marked_again() -> None:
    """With a higher number, as late, and only behind their publication."""
    sink = MarkedSink(by_time())
    sink.epoch({"main": [hour(0)]}, main=2 * HOUR_MS)
    sink.stage("main", hour(0))
    sink.marker.round()
    assert len(sink.marks) == 1
    sink.decide()
    sink.tell()
    first, second = sink.marks
    assert (first.is_late, second.is_late) == (False, True)
    assert second.sequence > first.sequence
    assert second.key != first.key


def test_the_number_of_a_mark_grows_though_its_batch_was_cut_for_an_older_checkpoint() -> None:
    """Which was decided without that region, and so were others, whose files were told of."""
    sink = MarkedSink(by_time(), regions=("a", "b"))
    sink.epoch({"a": [hour(0)]}, a=2 * HOUR_MS, b=2 * HOUR_MS)
    cut = sink.cut()
    sink.epoch({"a": [hour(0)]})
    sink.stage("b", hour(0), checkpoint_id=cut)
    sink.decide()
    sink.tell()
    sequences = [mark.sequence for mark in sink.marks]
    assert len(sequences) == 3
    assert sequences == sorted(set(sequences))


@pytest.mark.parametrize("policies", [["success-file"], [lambda mark: None]])
def test_late_rows_stop_the_job_before_their_epoch_is_acknowledged(policies: Any) -> None:
    """Where late files are an error; also after a restart, and it would come again each time."""
    sink = MarkedSink(by_time(on_late="error", policies=policies))
    sink.epoch({"main": [hour(0)]}, main=2 * HOUR_MS)
    sink.epoch({"main": [hour(3)]})
    for _ in range(2):
        with pytest.raises(LateRecordsError, match="hour=0") as caught:
            sink.stage("main", hour(3), hour(0))
        assert isinstance(caught.value, PERMANENT_ERRORS)
        sink.start()
    sink.epoch({"main": [hour(3)]})
    assert sink.told == [(hour(0), False)]


def test_a_mark_that_no_record_has_is_known_by_its_success_file() -> None:
    """The run that made it was killed at once; its late file is late all the same."""
    sink = MarkedSink(by_time())
    sink.epoch({"main": [hour(0)]}, main=2 * HOUR_MS)
    sink.start()
    sink.epoch({"main": [hour(0)]})
    assert sink.told == [(hour(0), False), (hour(0), True)]


def test_a_partition_whose_mark_is_forgotten_is_late_by_its_time() -> None:
    """Records hold the newest marks only; what is older than those is past."""
    sink = MarkedSink(by_time(policies=[lambda mark: None]))
    for number in range(200):
        path = f"dt=1970-01-{1 + number // 24:02d}/hour={number % 24}"
        sink.epoch({"main": [path]}, main=(number + 2) * HOUR_MS)
    assert len(sink.marks) == 200
    (entry,) = sink.records["main"]
    assert len(decode_state(entry).marked) <= 66
    sink.start()
    sink.epoch({"main": [hour(3)]})
    assert (hour(3), True) in sink.told


def test_rows_for_a_partition_whose_mark_may_have_been_made_stop_the_job() -> None:
    """Its policy failed behind its work, as where the answer alone is lost."""
    sink = MarkedSink(by_time(on_late="error"), loses_answers=True)
    sink.epoch({"main": [hour(0)]}, main=2 * HOUR_MS)
    assert sink.told == [(hour(0), False)]
    with pytest.raises(LateRecordsError, match="hour=0"):
        sink.stage("main", hour(0))
    sink.start()
    with pytest.raises(LateRecordsError, match="hour=0"):
        sink.stage("main", hour(0))


def test_rows_for_a_partition_whose_mark_was_refused_are_taken() -> None:
    """Nobody has been told; until one of several tries may have told somebody."""
    sink = MarkedSink(by_time(on_late="error"), refuses=True, refusal=REFUSED)
    sink.epoch({"main": [hour(0)]}, main=2 * HOUR_MS)
    sink.epoch({"main": [hour(0)]})
    sink.refusal = OSError("no answer")
    sink.pass_s(60.0)
    sink.refusal = REFUSED
    sink.pass_s(60.0)
    with pytest.raises(LateRecordsError, match="hour=0"):
        sink.stage("main", hour(0))


def test_who_may_have_been_told_is_remembered_while_the_partition_is_not_due() -> None:
    """As where another region is carried between two tries, of which the second is refused."""
    sink = MarkedSink(
        PartitionCommit(delay_s=0.0, policies=[print], on_late="error"),
        regions=("main", "other"),
        loses_answers=True,
        refusal=REFUSED,
    )
    sink.epoch({"main": ["dt=1"]})
    assert sink.told == [("dt=1", False)]
    sink.decide(skipped=["other"])
    sink.tell()
    assert not sink.ledger.due()
    sink.loses_answers, sink.refuses, sink.skipped = False, True, ()
    sink.pass_s(60.0)
    sink.decide()
    sink.tell()
    sink.pass_s(60.0)
    with pytest.raises(LateRecordsError, match="dt=1"):
        sink.stage("main", "dt=1")


def test_a_mark_whose_answer_was_lost_is_made_again_as_late_where_rows_came() -> None:
    """Under another key; without such rows it is the same mark."""
    sink = MarkedSink(by_time(), loses_answers=True)
    sink.epoch({"main": [hour(0)]}, main=2 * HOUR_MS)
    sink.pass_s(60.0)
    assert len({mark.key for mark in sink.marks}) == 1 < len(sink.marks)
    before, sink.loses_answers = len(sink.marks), False
    sink.epoch({"main": [hour(0)]})
    assert sink.told[before:] == [(hour(0), True)]
    assert sink.marks[-1].key != sink.marks[0].key


# --- the record ---------------------------------------------------------------------------------


def test_version_1_of_the_state_is_read_for_ever() -> None:
    """Byte for byte what a checkpoint of that version holds."""
    payload = VERSION_1.read_bytes().rstrip(b"\n")
    entry = encode_state(PartitionState(checkpoint_id=1), operator_id="op")
    found = decode_state(replace(entry, payload=payload))
    assert found.opened[hour(7).replace("1970-01-01", "2026-03-01")] == OpenPartition(
        path="dt=2026-03-01/hour=7", first_seen_ms=1_772_000_000_000, checkpoint_id=42
    )
    assert found.opened["dt=2026-03-01/hour=6"].is_pending
    assert found.marked == {"dt=2026-03-01/hour=6": {"main": 31, "other": 30}}
    assert encode_state(found, operator_id="op").payload == payload


@pytest.mark.parametrize("payload", [b"", b"{}", b"[]", b'{"checkpoint_id": "1"}'])
def test_a_damaged_state_is_an_error(payload: bytes) -> None:
    """A partition that is forgotten would never be marked."""
    entry = encode_state(PartitionState(checkpoint_id=1), operator_id="op")
    with pytest.raises(DamagedCheckpointError):
        decode_state(replace(entry, payload=payload))
    with pytest.raises(UnsupportedFormatError):
        decode_state(replace(entry, version=2))


def test_people_see_what_waits_for_its_mark() -> None:
    """In `sluice checkpoint inspect`."""
    sink = MarkedSink(by_time())
    sink.epoch({"main": [hour(0)]}, main=0)
    (entry,) = sink.records["main"]
    assert OPEN_PARTITIONS.kind == entry.kind
    assert list(OPEN_PARTITIONS.describe(entry)["open"]) == [hour(0)]  # type: ignore[call-overload]
