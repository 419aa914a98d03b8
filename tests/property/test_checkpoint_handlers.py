"""What both handlers rule, for any alignment."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.runtime.coordinator.policy.handlers import (
    Alignment,
    CheckpointHandler,
    GlobalCheckpointHandler,
    HandlerDecision,
    RegionalCheckpointHandler,
)
from sluice.runtime.model.checkpoint_record import CheckpointKind
from tests.kit.effort import examples

_TIMEOUT_S = 10.0
_NAMES = tuple("abcdefgh")
_seconds = st.floats(0.0, 20.0)


_OFTEN = 12
_KINDS = [*CheckpointKind, *[CheckpointKind.CHECKPOINT] * _OFTEN]
_STANDINGS = ["failed", "waiting", "starting", *["acknowledged"] * _OFTEN]


@st.composite
def _alignments(draw: st.DrawFn) -> Alignment:
    """Each region has acknowledged, failed, or neither, and then may be starting."""
    standing = {
        name: draw(st.sampled_from(_STANDINGS))
        for name in _NAMES[: draw(st.integers(1, len(_NAMES)))]
    }

    def those(*wanted: str) -> frozenset[str]:
        return frozenset(name for name, found in standing.items() if found in wanted)

    return Alignment(
        kind=draw(st.sampled_from(_KINDS)),
        acknowledged=those("acknowledged"),
        failed=those("failed"),
        waiting=those("waiting", "starting"),
        starting=those("starting"),
        skipped={name: draw(st.sampled_from([0, 0, 0, 1, 2, 6])) for name in standing},
        elapsed_s=draw(_seconds),
    )


_regional = st.builds(
    RegionalCheckpointHandler,
    max_failed_ratio=st.floats(0.05, 0.95) | st.floats(0.5, 0.95),
    max_skipped_in_a_row=st.integers(1, 5),
    region_timeout_s=st.none() | st.floats(0.1, 5.0) | st.floats(0.1, 20.0),
)
_handlers: st.SearchStrategy[CheckpointHandler] = st.one_of(
    st.builds(GlobalCheckpointHandler), _regional
)


@given(_handlers, _alignments())
def test_a_checkpoint_that_all_acknowledged_is_decided_by_both(
    handler: CheckpointHandler, found: Alignment
) -> None:
    everybody = found.acknowledged | found.failed | found.waiting
    whole = dataclasses.replace(
        found, acknowledged=everybody, failed=frozenset(), waiting=frozenset()
    )
    assert handler.rule(whole, timeout_s=_TIMEOUT_S) is HandlerDecision.DECIDE


@given(_alignments())
def test_the_global_handler_decides_for_all_or_for_none(found: Alignment) -> None:
    ruling = GlobalCheckpointHandler().rule(found, timeout_s=_TIMEOUT_S)
    assert (ruling is HandlerDecision.DECIDE) == (not found.failed and not found.waiting)


@settings(max_examples=examples(300))
@given(_regional, _alignments())
def test_nobody_is_skipped_beyond_a_limit(
    handler: RegionalCheckpointHandler, found: Alignment
) -> None:
    if handler.rule(found, timeout_s=_TIMEOUT_S) is not HandlerDecision.DECIDE:
        return
    left_out = found.failed | found.waiting
    if not left_out:
        return
    everybody = found.acknowledged | left_out
    assert found.kind is CheckpointKind.CHECKPOINT
    assert len(left_out) <= handler.max_failed_ratio * len(everybody)
    assert all(found.skipped[name] < handler.max_skipped_in_a_row for name in left_out)
    if found.waiting - found.starting:
        assert handler.region_timeout_s is not None
        assert found.elapsed_s >= handler.region_timeout_s
    assert set(found.left_out()) == left_out


@given(_regional, _alignments())
def test_within_the_limits_no_failure_gives_a_checkpoint_up(
    handler: RegionalCheckpointHandler, found: Alignment
) -> None:
    is_within = (
        found.kind is CheckpointKind.CHECKPOINT
        and len(found.failed | found.waiting)
        <= handler.max_failed_ratio * len(found.acknowledged | found.failed | found.waiting)
        and all(
            found.skipped[name] < handler.max_skipped_in_a_row
            for name in found.failed | found.waiting
        )
    )
    if is_within and found.elapsed_s < _TIMEOUT_S:
        assert handler.rule(found, timeout_s=_TIMEOUT_S) is not HandlerDecision.GIVE_UP


@given(_handlers, _alignments())
def test_no_checkpoint_waits_beyond_its_timeout(
    handler: CheckpointHandler, found: Alignment
) -> None:
    """It is decided or given up, so that its ranges are read again."""
    late = dataclasses.replace(found, elapsed_s=_TIMEOUT_S)
    assert handler.rule(late, timeout_s=_TIMEOUT_S) is not HandlerDecision.WAIT


@given(_handlers, _alignments(), _seconds)
def test_time_alone_changes_a_ruling_at_a_deadline_only(
    handler: CheckpointHandler, found: Alignment, later_s: float
) -> None:
    first_s, last_s = sorted((found.elapsed_s, later_s))
    rulings = [
        handler.rule(dataclasses.replace(found, elapsed_s=at_s), timeout_s=_TIMEOUT_S)
        for at_s in (first_s, last_s)
    ]
    deadlines = handler.deadlines_s(timeout_s=_TIMEOUT_S)
    if not any(first_s < deadline_s <= last_s for deadline_s in deadlines):
        assert rulings[0] is rulings[1]


@settings(max_examples=examples(300))
@given(_handlers, _alignments(), st.data())
def test_an_acknowledgement_never_makes_a_ruling_worse(
    handler: CheckpointHandler, found: Alignment, data: st.DataObject
) -> None:
    if not found.waiting:
        return
    name = data.draw(st.sampled_from(sorted(found.waiting)))
    after = dataclasses.replace(
        found,
        acknowledged=found.acknowledged | {name},
        waiting=found.waiting - {name},
        starting=found.starting - {name},
    )
    if handler.rule(found, timeout_s=_TIMEOUT_S) is HandlerDecision.DECIDE:
        assert handler.rule(after, timeout_s=_TIMEOUT_S) is HandlerDecision.DECIDE
