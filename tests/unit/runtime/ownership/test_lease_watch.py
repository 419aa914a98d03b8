"""Rule `lease-guards-outputs`: whose prefix it is, is asked before a decision, and not only every
few seconds."""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from time import monotonic
from typing import cast
from unittest.mock import patch

import pytest

from sluice.runtime.contracts import Clock, PublishOutcome, SinkCoordinator, SweepReport, SweepView
from sluice.runtime.coordinator.committing.commit_steps import drive
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.core.events import Publish, Published
from sluice.runtime.errors import FencedError, StreamError, UnreachableError
from sluice.runtime.model.checkpoint_record import CheckpointKind, Verdict
from sluice.runtime.ownership.lease_watch import _RETRY_FOR_S, LeaseWatch
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.run_io_executor import hands_of
from tests.kit.waiting import PATIENCE_S, join, wait_for

FENCED = FencedError("another job uses this prefix", {}, "Stop one of them.")
INTERVAL_S = 600.0


class Sink:
    """Counts its renewals; the next one may find what it is reported to find."""

    def __init__(self) -> None:
        self.renewals = 0
        self.finds: StreamError | None = None

    def renew(self) -> None:
        self.renewals += 1
        if self.finds is not None:
            raise self.finds


class Time:
    """Seconds that a test owns."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@contextlib.contextmanager
def watch(sink: Sink, time: Clock, *others: Sink) -> Iterator[LeaseWatch]:
    named = {f"sink{number}": each for number, each in enumerate([sink, *others])}
    sinks = cast(Mapping[str, SinkCoordinator], named)
    owners = LeaseWatch(sinks, interval_s=INTERVAL_S, age_clock=time)
    owners.start()
    try:
        yield owners
    finally:
        owners.stop(timeout_s=PATIENCE_S)


def test_lease_guards_outputs_a_record_that_was_not_looked_at_lately_is_looked_at_first() -> None:
    sink, time = Sink(), Time()
    with watch(sink, time) as owners:
        owners.require()
        time.now_s = 2 * INTERVAL_S
        owners.require()
        assert sink.renewals == 1, "the first one"
        time.now_s += 0.1
        owners.require()
        owners.require()
        assert sink.renewals == 2
        time.now_s, sink.finds = 6 * INTERVAL_S, FENCED
        for _ in range(2):  # once lost it is lost, whatever the next answer is
            with pytest.raises(FencedError):
                owners.require()
            sink.finds = None


def test_lease_guards_outputs_a_run_looks_before_its_first_decision() -> None:
    """Two starts at one moment both found no record; the one that wrote last has it."""
    sink, time = Sink(), Time()
    sink.finds = FENCED
    with watch(sink, time) as owners, pytest.raises(FencedError):
        owners.require()


def test_lease_guards_outputs_a_renewal_that_is_not_answered_fences_nobody() -> None:
    sink, time = Sink(), Time()
    sink.finds = UnreachableError("no broker answers", {}, "Start one.")
    with watch(sink, time) as owners:
        owners.require()
    assert sink.renewals == 1


def renewing(sinks: object, *, interval_s: float) -> LeaseWatch:
    owners = LeaseWatch(
        cast(Mapping[str, SinkCoordinator], sinks), interval_s=interval_s, age_clock=monotonic
    )
    owners.start()
    return owners


def test_lease_guards_outputs_renewals_continue_whatever_one_of_them_meets() -> None:
    broken, away, sink = Sink(), Sink(), Sink()
    broken.finds = cast(StreamError, ValueError("a client's own bug"))
    away.finds = UnreachableError("no broker answers", {}, "Start one.")
    owners = renewing({"broken": broken, "away": away, "sink": sink}, interval_s=0.002)
    try:
        wait_for(lambda: sink.renewals >= 3, poll_s=0.002)
        owners.require()
    finally:
        owners.stop(timeout_s=PATIENCE_S)


def test_lease_guards_outputs_who_is_reported_later_is_reported_what_was_found_before() -> None:
    """A start found out, in its repair: its run ends before its first decision."""
    sink, told = Sink(), list[FencedError]()
    sink.finds = FENCED
    owners = renewing({"sink": sink}, interval_s=0.002)
    wait_for(lambda: sink.renewals == 1, poll_s=0.002)
    with pytest.raises(FencedError):
        wait_for(owners.require, poll_s=0.002)
    owners.report_loss(told.append)
    assert told == [FENCED]
    owners.stop(timeout_s=PATIENCE_S)
    assert sink.renewals == 1


def test_lease_guards_outputs_a_running_job_is_reported_at_once() -> None:
    sink, told = Sink(), list[FencedError]()
    owners = renewing({"sink": sink}, interval_s=0.002)
    owners.report_loss(told.append)
    sink.finds = FENCED
    wait_for(lambda: bool(told), poll_s=0.002)
    owners.stop(timeout_s=PATIENCE_S)
    assert told == [FENCED]


@pytest.mark.parametrize(
    ("now_s", "renewals"),
    [
        pytest.param(0.1, 1, id="a look that was under way is enough"),
        pytest.param(6 * INTERVAL_S, 2, id="unless the process stopped meanwhile"),
    ],
)
def test_lease_guards_outputs_a_look_from_before_a_pause_is_not_believed(
    now_s: float, renewals: int
) -> None:
    """The thread's renewal had read the record when the process stopped: it is read once more."""
    sink, time = Sink(), Time()
    at_renewal, go_on = threading.Event(), threading.Event()

    def renew() -> None:
        sink.renewals += 1
        if sink.renewals == 1:
            at_renewal.set()
            assert go_on.wait(PATIENCE_S)

    with patch.object(sink, "renew", renew), watch(sink, time) as owners:
        slow = threading.Thread(target=owners.require)
        slow.start()
        assert at_renewal.wait(PATIENCE_S)
        time.now_s = now_s
        behind = threading.Thread(target=owners.require)
        behind.start()
        wait_for(lambda: behind.native_id is not None)
        go_on.set()
        join(slow, behind)
    assert sink.renewals == renewals


class HangingSink(Sink):
    """Its cluster is away: each renewal waits as long as it may."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waiting, self.is_back = threading.Event(), threading.Event()

    def renew(self) -> None:
        self.is_waiting.set()
        assert self.is_back.wait(PATIENCE_S)


def decided(owners: LeaseWatch) -> tuple[threading.Thread, list[FencedError]]:
    """A decision that is under way, and what refuses it."""
    refused = list[FencedError]()

    def decide() -> None:
        try:
            owners.require()
        except FencedError as err:
            refused.append(err)

    thread = threading.Thread(target=decide)
    thread.start()
    return thread, refused


def test_lease_guards_outputs_all_records_are_known_at_the_moment_of_a_decision() -> None:
    """The process stopped while it waited for the second one: the first may be another's since."""
    first, second, time = Sink(), HangingSink(), Time()
    with watch(first, time, second) as owners:
        try:
            decision, refused = decided(owners)
            assert second.is_waiting.wait(PATIENCE_S)
            wait_for(lambda: first.renewals == 1)
            time.now_s, first.finds = 6 * INTERVAL_S, FENCED
        finally:
            second.is_back.set()
        join(decision)
    assert refused == [FENCED]


def test_lease_guards_outputs_a_renewal_that_is_not_answered_holds_up_no_other_record() -> None:
    """Three renewals missed, and another job takes this one for dead."""
    away, sink = HangingSink(), Sink()
    owners = renewing({"away": away, "sink": sink}, interval_s=0.002)
    try:
        assert away.is_waiting.wait(PATIENCE_S)
        wait_for(lambda: sink.renewals >= 3, poll_s=0.002)
        told = list[FencedError]()
        owners.report_loss(told.append)
        sink.finds = FENCED
        wait_for(lambda: bool(told), poll_s=0.002)
        with pytest.raises(FencedError):
            owners.require()  # nor does this wait, where the answer is known
    finally:
        away.is_back.set()
        owners.stop(timeout_s=PATIENCE_S)
    assert told == [FENCED]


def test_lease_guards_outputs_a_renewal_that_hangs_holds_up_neither_a_decision_nor_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = HangingSink()
    serial = SerialSink(cast(SinkCoordinator, away))
    owners = renewing({"away": serial}, interval_s=0.002)
    try:
        assert away.is_waiting.wait(PATIENCE_S)
        with (
            patch("sluice.runtime.coordinator.committing.sink_committer._CLOSE_S", 0.01),
            patch("sluice.runtime.ownership.lease_watch._RETRY_FOR_S", 0.01),
        ):
            ends = [threading.Thread(target=each) for each in (owners.require, serial.close)]
            for each in ends:
                each.start()
            join(*ends)
    finally:
        away.is_back.set()
        owners.stop(timeout_s=PATIENCE_S)
    assert "lease was not checked, a renewal hangs: sink=away" in caplog.text
    assert "sink is not closed, a renewal of its lease hangs" in caplog.text


def test_lease_guards_outputs_a_decision_whose_own_look_hangs_goes_by_what_is_known() -> None:
    """After a pause it may be the first to look; the next one looks when that is over."""
    away, time = HangingSink(), Time()
    with watch(away, time) as owners:
        try:
            with patch("sluice.runtime.ownership.lease_watch._RETRY_FOR_S", 0.01):
                for _ in range(2):
                    owners.require()
        finally:
            away.is_back.set()
        time.now_s = 6 * INTERVAL_S
        with patch.object(away, "renew", fenced), pytest.raises(FencedError):
            owners.require()


def test_lease_guards_outputs_of_several_records_the_one_that_hangs_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = HangingSink()
    with (
        watch(Sink(), Time(), away) as owners,
        patch("sluice.runtime.ownership.lease_watch._RETRY_FOR_S", 0.01),
    ):

        def warned() -> str:
            caplog.clear()
            owners.require()
            return caplog.text

        try:
            wait_for(lambda: "sink=sink0" not in warned())  # once it has been looked at
            assert "a renewal hangs: sink=sink1" in warned()
        finally:
            away.is_back.set()


def test_lease_guards_outputs_a_host_that_stalls_all_the_time_holds_up_no_decision_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After each pause it waits from the beginning, for the looks were paused, too."""
    away, stalls = HangingSink(), Time()

    def stalling() -> float:
        stalls.now_s += 10.0
        return stalls.now_s

    with watch(away, stalling) as owners:
        try:
            with patch("sluice.runtime.ownership.lease_watch._RETRY_FOR_S", 0.01):
                decision, refused = decided(owners)
                join(decision)
        finally:
            away.is_back.set()
    assert not refused
    assert "a renewal hangs: sink=sink0" in caplog.text


def test_lease_guards_outputs_a_look_that_began_before_a_run_is_not_its_first() -> None:
    """It was under way when the start was over: another start may have written after it."""
    sink, time = Sink(), Time()
    at_renewal, go_on = threading.Event(), threading.Event()

    def renew() -> None:
        at_renewal.set()
        assert go_on.wait(PATIENCE_S)

    with watch(sink, time) as owners:
        with patch.object(sink, "renew", renew):
            with patch("sluice.runtime.ownership.lease_watch._RETRY_FOR_S", 0.01):
                owners.require()
            assert at_renewal.wait(PATIENCE_S)
        time.now_s = 1.0
        owners.expire()
        sink.finds = FENCED
        go_on.set()
        with pytest.raises(FencedError):
            owners.require()


def test_lease_guards_outputs_a_run_that_has_ended_decides_nothing_that_nobody_has_looked_for() -> (
    None
):
    """A commit that hung held the decision up until the record was renewed no more."""
    sink, time = Sink(), Time()
    with watch(sink, time) as owners:
        owners.require()
        owners.stop(timeout_s=PATIENCE_S)
        owners.require()  # the last look is good for a while
        time.now_s = 6 * INTERVAL_S
        with pytest.raises(FencedError, match="has ended"):
            owners.require()
    assert sink.renewals == 1


def test_lease_guards_outputs_who_waits_for_a_look_is_reported_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away, time = HangingSink(), Time()
    with watch(away, time) as owners:
        try:
            decision, told = decided(owners)
            assert away.is_waiting.wait(PATIENCE_S)
            owners.stop(timeout_s=0.0)
            join(decision)
        finally:
            away.is_back.set()
    assert len(told) == 1
    assert "hangs" not in caplog.text


def test_lease_guards_outputs_who_waits_is_reported_at_once_of_a_fence_that_a_look_under_way_finds() -> (
    None
):
    sink, time = Sink(), Time()
    at_renewal, go_on = threading.Event(), threading.Event()

    def renew() -> None:
        at_renewal.set()
        assert go_on.wait(PATIENCE_S)
        raise FENCED

    def decide() -> None:
        began_s = monotonic()
        with pytest.raises(FencedError):
            owners.require()
        took_s.append(monotonic() - began_s)

    took_s = list[float]()
    with patch.object(sink, "renew", renew), watch(sink, time) as owners:
        owners.report_loss(lambda _: go_on.set())
        first = threading.Thread(target=decide)
        first.start()
        assert at_renewal.wait(PATIENCE_S)
        time.now_s = 6 * INTERVAL_S
        second = threading.Thread(target=decide)
        second.start()
        wait_for(lambda: second.native_id is not None)
        go_on.set()
        join(first, second)
    assert max(took_s) < _RETRY_FOR_S


class SweepingSink(Sink):
    """Its sweep waits for a broker."""

    def __init__(self) -> None:
        super().__init__()
        self.is_sweeping, self.broker_is_back = threading.Event(), threading.Event()

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        del view, timeout_s
        self.is_sweeping.set()
        assert self.broker_is_back.wait(PATIENCE_S)
        return SweepReport(aborted=0)


def test_lease_guards_outputs_a_sweep_that_waits_holds_up_no_renewal() -> None:
    """Three renewals missed, and another job takes this one for dead."""
    sink = SweepingSink()
    serial = SerialSink(cast(SinkCoordinator, sink))
    view = SweepView(job_uid="u", protected=(), attempt_ids={}, orphans=())
    sweep = threading.Thread(target=lambda: serial.sweep(view, timeout_s=10))
    sweep.start()
    assert sink.is_sweeping.wait(PATIENCE_S)
    owners = renewing({"sink": serial}, interval_s=0.002)
    wait_for(lambda: sink.renewals >= 3, poll_s=0.002)
    sink.broker_is_back.set()
    owners.stop(timeout_s=PATIENCE_S)
    join(sweep)


def fenced() -> None:
    raise FENCED


def publish(verdict: Verdict) -> Publish:
    return Publish(
        checkpoint_id=1,
        kind=CheckpointKind.CHECKPOINT,
        verdict=verdict,
        requested_by="interval",
        reason="" if verdict is Verdict.DECIDED else "expired",
        regions=(),
        assignment=None,
        steps=(),
    )


def test_lease_guards_outputs_nothing_is_decided_under_a_prefix_that_another_job_has() -> None:
    """An abort needs no prefix: it makes nothing visible, and closes the place."""
    store = FakeStore()
    with pytest.raises(FencedError):
        drive(hands_of(store, before_decision=fenced).perform(publish(Verdict.DECIDED)))
    assert store.records == {}
    aborted = drive(hands_of(store, before_decision=fenced).perform(publish(Verdict.ABORTED)))
    assert aborted == Published(checkpoint_id=1, outcome=PublishOutcome.OURS)


def test_lease_guards_outputs_who_found_it_first_has_reported_it() -> None:
    """Two sinks' looks, at the same moment, find that the prefix is another's."""
    first, second, told = Sink(), Sink(), list[FencedError]()
    at_renewal, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        at_renewal.set()
        assert go_on.wait(PATIENCE_S)
        raise FencedError("found later", {}, "Stop one of them.")

    with patch.object(first, "renew", slow):
        owners = renewing({"first": first, "second": second}, interval_s=0.002)
        owners.report_loss(told.append)
        assert at_renewal.wait(PATIENCE_S)
        second.finds = FENCED
        wait_for(lambda: bool(told), poll_s=0.002)
        go_on.set()
        owners.stop(timeout_s=PATIENCE_S)
    assert told == [FENCED]
