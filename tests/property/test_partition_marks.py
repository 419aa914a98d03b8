"""Partition commit under any order of batches, decisions, failures and kills."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice import PartitionCommit
from sluice.connectors.hdfs.partition_commit.partition_state import decode_state
from sluice.runtime.errors import LateRecordsError
from tests.kit.files.partition_marks import HOUR_MS, MarkedSink, hour

_REGIONS = ("a", "b", "c")
_HOURS = st.sets(st.integers(0, 5), max_size=3)
_region = st.sampled_from(_REGIONS)


class Marks(RuleBasedStateMachine):
    """Three regions write hourly partitions; watermarks go on, regions are carried, runs die."""

    sink: MarkedSink

    @initialize(
        trigger=st.sampled_from(["partition-time", "process-time"]),
        on_late=st.sampled_from(["re-mark", "error"]),
        success_file=st.booleans(),
    )
    def begin(self, trigger: str, on_late: str, success_file: bool) -> None:
        """A new job."""
        self.sink = MarkedSink(
            PartitionCommit(
                trigger=trigger,
                delay_s=3600.0,
                timestamp_pattern="$dt $hour:00:00",
                policies=["success-file"] if success_file else [lambda mark: None],
                on_late=on_late,
            ),
            regions=_REGIONS,
        )
        self.sink.watermarks = dict.fromkeys(_REGIONS, 0)
        self.reached: dict[str, int] = dict.fromkeys(_REGIONS, 0)
        self.published: dict[str, int] = {}  # how many marks there were at the newest file
        self.waiting: dict[str, set[str]] = {}
        self.cuts: dict[str, int] = {}
        self.decisions = 0

    @rule(region=_region, hours=_HOURS, passed=st.integers(0, 2))
    def write(self, region: str, hours: set[int], passed: int) -> None:
        """A batch is staged; nothing of it is stopped unless it is late, and that an error."""
        paths = {hour(number) for number in hours}
        try:
            self.sink.stage(region, *paths, checkpoint_id=self.cuts.pop(region, None))
        except LateRecordsError:
            assert self.sink.commit.stops_at_late
            assert self.sink.tried & paths
            self.kill()
            return
        self.waiting[region] = paths
        self.reached[region] += passed * HOUR_MS // 2

    @rule(region=_region, other=_region, hours=_HOURS, passed=st.integers(0, 4))
    def overtake(self, region: str, other: str, hours: set[int], passed: int) -> None:
        """A batch takes long: others are decided, and marked, between its cut and its staging."""
        self.cuts[region] = self.sink.cut()
        self.write(other, hours, passed)
        self.decide(set())
        self.wait(3600.0)
        self.write(region, hours, passed)

    @rule(skipped=st.sets(_region))
    def decide(self, skipped: set[str]) -> None:
        """A checkpoint without the regions that are carried; their batches wait."""
        self.sink.decide(skipped=skipped)
        self.decisions += 1
        for region in set(self.waiting) - skipped:
            for path in self.waiting.pop(region):
                self.published[path] = len(self.sink.marks)
            self.sink.watermarks[region] = self.reached[region]
        self.look(self.sink.tell)

    @rule(seconds=st.sampled_from([1.0, 60.0, 3600.0]))
    def wait(self, seconds: float) -> None:
        """The clock goes on."""
        self.look(lambda: self.sink.pass_s(seconds))

    @rule(fails=st.sampled_from(["before its work", "behind its work", "never"]))
    def fail(self, fails: str) -> None:
        """Policies do from here on."""
        self.sink.refuses = fails == "before its work"
        self.sink.loses_answers = fails == "behind its work"

    @rule()
    def kill(self) -> None:
        """The next run begins with the records, and the store."""
        self.waiting.clear()
        self.cuts.clear()
        for region in _REGIONS:
            self.reached[region] = self.sink.watermarks[region] or 0
        self.sink.start()
        self.sink.skipped = ()

    @precondition(lambda self: self.decisions > 0)
    @rule()
    def told_again(self) -> None:
        """The coordinator repeats what it told."""
        self.look(self.sink.tell)

    def look(self, step: Any) -> None:
        """Each mark that a step makes is right at that moment."""
        before = len(self.sink.marks)
        step()
        for mark in self.sink.marks[before:]:
            assert mark.partition in self.published
            assert not any(mark.partition in paths for paths in self.waiting.values())
            if self.sink.commit.is_by_partition_time:
                begins_ms = self.sink.commit.times.begins_ms(mark.partition)
                assert begins_ms is not None
                least_ms = min(ms or 0 for ms in self.sink.watermarks.values())
                assert least_ms > begins_ms + HOUR_MS
            else:
                assert not self.sink.skipped

    @invariant()
    def the_states_are_small(self) -> None:
        """What is marked and recorded as such is open no more."""
        for entries in getattr(self, "sink", MarkedSink(PartitionCommit())).records.values():
            for entry in entries:
                assert len(decode_state(entry).opened) <= 6

    def teardown(self) -> None:
        """Once nothing fails any more, each published partition is marked behind its last file."""
        if not hasattr(self, "published"):
            return
        sink = self.sink
        sink.refuses = sink.loses_answers = False
        for region in _REGIONS:
            sink.stage(region)
            sink.watermarks[region] = 100 * HOUR_MS
        sink.decide()
        sink.tell()
        sink.pass_s(3_700.0)
        for path, before in self.published.items():
            known = [mark for mark in sink.marks[:before] if mark.partition == path]
            since = [mark for mark in sink.marks[before:] if mark.partition == path]
            assert since, path
            sequences = {mark.key: mark.sequence for mark in known + since}
            assert all(sequences[mark.key] == mark.sequence for mark in known + since)
            assert list(sequences.values()) == sorted(set(sequences.values()))
            assert not {mark.key for mark in since} & {mark.key for mark in known}
            assert all(mark.is_late for mark in since if known and sink.commit.has_success_file)


Marks.TestCase.settings = settings(max_examples=75, stateful_step_count=30, deadline=None)
TestMarks = Marks.TestCase
