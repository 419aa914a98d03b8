"""Rule 22: whose prefix it is, is asked before a decision, and not only every few seconds."""

from collections.abc import Mapping
from typing import cast

import pytest

from runtime.checkpoint.housekeeping import OwnerWatch
from runtime.checkpoint.messages import Publish, Published
from runtime.checkpoint.steps import drive
from runtime.contracts import PublishOutcome, SinkCoordinator
from runtime.errors import FencedError, StreamError, UnreachableError
from runtime.model import CheckpointKind, Verdict
from tests.fake_store import FakeStore
from tests.run_hands import hands_of

FENCED = FencedError("another job uses this prefix", {}, "Stop one of them.")


class Sink:
    """Counts its renewals; the next one may find what it is told to find."""

    def __init__(self) -> None:
        self.renewals = 0
        self.finds: StreamError | None = None

    def renew(self) -> None:
        """See `SinkCoordinator.renew`."""
        self.renewals += 1
        if self.finds is not None:
            raise self.finds


class Time:
    """Seconds that a test owns."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def watch(sink: Sink, time: Time) -> OwnerWatch:
    """Of one sink, renewed every 5 s."""
    sinks = cast(Mapping[str, SinkCoordinator], {"sink": sink})
    return OwnerWatch(sinks, interval_s=5.0, clock=time)


def test_rule_22_a_record_that_was_not_looked_at_lately_is_looked_at_first() -> None:
    """A process that was paused does not know what has become of its prefix."""
    sink, time = Sink(), Time()
    owners = watch(sink, time)
    time.now_s = 5.0
    owners.require()
    assert sink.renewals == 0
    time.now_s = 5.1
    owners.require()
    owners.require()
    assert sink.renewals == 1
    time.now_s, sink.finds = 20.0, FENCED
    for _ in range(2):  # once lost it is lost, whatever the next answer is
        with pytest.raises(FencedError):
            owners.require()
        sink.finds = None


def test_rule_22_a_renewal_that_is_not_answered_fences_nobody() -> None:
    sink, time = Sink(), Time()
    owners = watch(sink, time)
    sink.finds = UnreachableError("no broker answers", {}, "Start one.")
    time.now_s = 6.0
    owners.require()
    assert sink.renewals == 1


def fenced() -> None:
    """What a coordinator finds that was replaced."""
    raise FENCED


def publish(verdict: Verdict) -> Publish:
    """The next record."""
    return Publish(
        checkpoint_id=1,
        kind=CheckpointKind.CHECKPOINT,
        verdict=verdict,
        asked_by="interval",
        reason="" if verdict is Verdict.DECIDED else "expired",
        regions=(),
        assignment=None,
        steps=(),
    )


def test_rule_22_nothing_is_decided_under_a_prefix_that_another_job_has() -> None:
    """An abort needs no prefix: it makes nothing visible, and closes the place."""
    store = FakeStore()
    with pytest.raises(FencedError):
        drive(hands_of(store, before_decision=fenced).perform(publish(Verdict.DECIDED)))
    assert store.records == {}
    aborted = drive(hands_of(store, before_decision=fenced).perform(publish(Verdict.ABORTED)))
    assert aborted == Published(checkpoint_id=1, outcome=PublishOutcome.OURS)
