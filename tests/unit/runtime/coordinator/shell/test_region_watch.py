"""Pressure that lasts, and the lag of regions, as they are reported."""

import logging
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.coordinator.region.region_pace import PressureAlarm
from sluice.runtime.coordinator.region.status_views import RegionStatusView
from sluice.runtime.coordinator.shell.region_watch import RegionsView, RegionWatch
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.splits import SplitRange
from tests.kit.coordinator.core_driver import FAST, CoreDriver, split
from tests.kit.fakes import FakeSource, ManualClock
from tests.kit.waiting import PATIENCE_S, wait_for


def test_an_alarm_begins_after_the_limit_and_ends_at_once() -> None:
    """Half of the time is still low pressure; each is reported once."""
    alarm = PressureAlarm(limit_s=60.0)
    assert alarm.look(0.0, {"a": 0.6, "b": 0.5}) == ((), ())
    assert alarm.look(59.0, {"a": 0.9, "b": 0.5}) == ((), ())
    assert alarm.look(60.0, {"a": 0.51, "b": 0.5}) == (("a",), ())
    assert alarm.look(90.0, {"a": 1.0, "b": 0.5}) == ((), ())
    assert alarm.look(95.0, {"a": 0.5, "b": 0.5}) == ((), ("a",))
    assert alarm.look(96.0, {"a": 0.9}) == ((), ())
    assert alarm.look(155.0, {"a": 0.9}) == ((), ())


def test_a_region_that_is_suspended_meanwhile_has_no_alarm() -> None:
    alarm = PressureAlarm(limit_s=0.0)
    assert alarm.look(0.0, {"a": 0.9}) == (("a",), ())
    assert alarm.look(1.0, {}) == ((), ("a",))


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 1)), max_size=30), st.floats(0, 100))
def test_beginnings_and_ends_take_turns(looks: list[tuple[float, float]], limit_s: float) -> None:
    """Whatever a region does; and an alarm needs all of the limit without a lower look."""
    alarm, now_s, is_on, since_s = PressureAlarm(limit_s=limit_s), 0.0, False, None
    for pause_s, ratio in looks:
        now_s += pause_s
        begun, ended = alarm.look(now_s, {"a": ratio})
        since_s = (now_s if since_s is None else since_s) if ratio > 0.5 else None
        expected = since_s is not None and now_s - since_s >= limit_s
        assert begun == (("a",) if expected and not is_on else ())
        assert ended == (("a",) if is_on and not expected else ())
        is_on = expected


class Seen:
    """The core's answers, and a watch of them on a manual clock."""

    def __init__(self) -> None:
        self.source = FakeSource("source", {0: 0, 1: 0})
        self.clock = ManualClock()
        self.ratios: Mapping[str, float] = {}
        self.suspended: Sequence[str] = ("left",)
        self.positions: dict[str, Sequence[SplitRange]] = {
            "left": (split(0, 0, 5),),
            "right": (split(1, 0, 5),),
        }
        self.watch = RegionWatch(
            lambda: RegionsView(
                positions=self.positions, suspended=self.suspended, ratios=self.ratios
            ),
            sources={"source": self.source},
            interval_s=1.0,
            alarm_s=10.0,
            timeout_s=1.0,
            clock=self.clock,
        )


def test_pressure_is_reported_once_when_it_begins_and_once_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A human may act in between, and is not asked every few seconds."""
    seen = Seen()
    seen.suspended = ()
    seen.source.ends |= {0: 5, 1: 5}
    with caplog.at_level(logging.WARNING):
        for ratio in (0.9, 0.9, 0.9, 0.9, 0.1, 0.1):
            seen.ratios = {"right": ratio}
            seen.watch.refresh()
            seen.clock.advance(5.0)
    told = [entry.getMessage().partition(":")[0] for entry in caplog.records]
    assert told == ["region is under high pressure", "region is no longer under high pressure"]


def test_a_source_that_does_not_answer_leaves_a_suspended_regions_lag_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Which is said; the other regions' lag comes from their cuts."""
    seen = Seen()
    seen.source.error = UnreachableError("no broker answers", {}, "Wait.")
    with caplog.at_level(logging.WARNING):
        seen.watch.refresh()
    assert "lag of a suspended region is unknown: region=left" in caplog.text


def test_what_retention_takes_from_a_suspended_region_is_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Reported when it begins, and each time that it has doubled."""
    seen = Seen()
    seen.source.ends |= {0: 1000, 1: 5}
    with caplog.at_level(logging.ERROR):
        for first in range(105):
            seen.source.first[0] = first
            seen.watch.refresh()
    lost = [entry.getMessage().rpartition("=")[2] for entry in caplog.records]
    assert lost == ["1", "3", "7", "15", "31", "63"]


def looked(
    splits: Sequence[SplitRange], *sources: FakeSource, is_suspended: bool = False
) -> RegionStatusView:
    watch = RegionWatch(
        lambda: RegionsView(
            positions={"main": splits}, suspended=("main",) if is_suspended else (), ratios={}
        ),
        sources={source.source_id: source for source in sources},
        interval_s=1.0,
        alarm_s=None,
        timeout_s=1.0,
        clock=ManualClock(),
    )
    watch.refresh()
    (told,) = watch.with_lags(CoreDriver(FAST).status()).regions
    return told


@pytest.mark.parametrize("is_suspended", [False, True])
def test_each_source_is_asked_for_its_own_splits(*, is_suspended: bool) -> None:
    told = looked(
        (split(0, 0, 5), split(1, 0, 5, source_id="audit")),
        FakeSource("source", {0: 9}),
        FakeSource("audit", {1: 7}),
        is_suspended=is_suspended,
    )
    assert told.lags == {"input-0": 4, "input-1": 2}


def test_looks_continue_after_one_that_failed_by_a_clients_bug() -> None:
    looks: list[RegionsView] = []

    def ask() -> RegionsView:
        looks.append(RegionsView(positions={}, suspended=(), ratios={}))
        if len(looks) == 1:
            raise ValueError("a client's own bug")
        return looks[-1]

    watch = _watching(ask)
    watch.start()
    wait_for(lambda: len(looks) >= 3, poll_s=0.002)
    watch.stop(timeout_s=PATIENCE_S)


def test_a_watch_that_is_stopped_before_it_begins_looks_at_nothing() -> None:
    """A job may be stopped in the middle of its start."""
    looks: list[RegionsView] = []

    def ask() -> RegionsView:
        looks.append(RegionsView(positions={}, suspended=(), ratios={}))
        return looks[-1]

    watch = _watching(ask)
    watch.stop(timeout_s=PATIENCE_S)
    watch.start()
    watch.stop(timeout_s=PATIENCE_S)
    assert not looks


def _watching(ask: Callable[[], RegionsView]) -> RegionWatch:
    return RegionWatch(
        ask, sources={}, interval_s=0.002, alarm_s=None, timeout_s=1.0, clock=ManualClock()
    )
