"""Which regions a checkpoint is decided for: both handlers' rulings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.contracts import FailureReason
from sluice.runtime.coordinator.policy.handlers import (
    Alignment,
    GlobalCheckpointHandler,
    HandlerDecision,
    RegionalCheckpointHandler,
)
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import CheckpointKind

TIMEOUT_S = 100.0
REGIONAL = RegionalCheckpointHandler(
    max_failed_ratio=0.5, max_skipped_in_a_row=3, region_timeout_s=10.0
)


def alignment(
    acknowledged: int,
    *,
    failed: int = 0,
    waiting: int = 0,
    elapsed_s: float = 0.0,
    skipped: int = 0,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
) -> Alignment:
    """So many regions of each sort; those without an acknowledgement were ``skipped`` before."""

    def names(sort: str, count: int) -> frozenset[str]:
        return frozenset(f"{sort}{number}" for number in range(count))

    missing = names("failed", failed) | names("waiting", waiting)
    return Alignment(
        kind=kind,
        acknowledged=names("acknowledged", acknowledged),
        failed=names("failed", failed),
        waiting=names("waiting", waiting),
        skipped=dict.fromkeys(missing, skipped),
        elapsed_s=elapsed_s,
    )


@pytest.mark.parametrize(
    ("given", "ruling"),
    [
        (alignment(2), HandlerDecision.DECIDE),
        (alignment(1, waiting=1, elapsed_s=99.0), HandlerDecision.WAIT),
        (alignment(1, waiting=1, elapsed_s=100.0), HandlerDecision.GIVE_UP),
        (alignment(1, failed=1), HandlerDecision.GIVE_UP),
    ],
)
def test_the_global_handler_wants_every_region(given: Alignment, ruling: HandlerDecision) -> None:
    assert GlobalCheckpointHandler().rule(given, timeout_s=TIMEOUT_S) is ruling


@pytest.mark.parametrize(
    ("given", "ruling"),
    [
        (alignment(2), HandlerDecision.DECIDE),
        (alignment(1, failed=1), HandlerDecision.DECIDE),
        (alignment(1, failed=1, waiting=1), HandlerDecision.WAIT),
        (alignment(1, waiting=1, elapsed_s=9.0), HandlerDecision.WAIT),
        (alignment(1, waiting=1, elapsed_s=10.0), HandlerDecision.DECIDE),
        (alignment(1, failed=2), HandlerDecision.GIVE_UP),
        (alignment(1, waiting=2, elapsed_s=10.0), HandlerDecision.WAIT),
        (alignment(1, waiting=2, elapsed_s=100.0), HandlerDecision.GIVE_UP),
        (alignment(1, failed=1, skipped=2), HandlerDecision.DECIDE),
        (alignment(1, failed=1, skipped=3), HandlerDecision.GIVE_UP),
        (alignment(1, failed=1, kind=CheckpointKind.SAVEPOINT), HandlerDecision.GIVE_UP),
        (alignment(0, failed=1), HandlerDecision.GIVE_UP),
    ],
)
def test_the_regional_handler_continues_within_its_limits(
    given: Alignment, ruling: HandlerDecision
) -> None:
    """Beyond them, and for checkpoints that were asked for, it is the global one."""
    assert REGIONAL.rule(given, timeout_s=TIMEOUT_S) is ruling


@given(
    acknowledged=st.integers(0, 4),
    failed=st.integers(0, 4),
    waiting=st.integers(0, 4),
    skipped=st.integers(0, 5),
    elapsed_s=st.sampled_from([0.0, 5.0, 10.0, 50.0, 100.0]),
    ratio=st.floats(0.01, 0.99),
)
def test_nobody_is_left_out_beyond_the_limits(
    acknowledged: int, failed: int, waiting: int, skipped: int, elapsed_s: float, ratio: float
) -> None:
    """A decision carries no more than the ratio, none too often, and never everybody; and no
    checkpoint waits beyond the timeout."""
    handler = RegionalCheckpointHandler(
        max_failed_ratio=ratio, max_skipped_in_a_row=3, region_timeout_s=10.0
    )
    shape = alignment(
        acknowledged, failed=failed, waiting=waiting, skipped=skipped, elapsed_s=elapsed_s
    )
    ruling = handler.rule(shape, timeout_s=TIMEOUT_S)
    left_out = shape.left_out()
    if ruling is HandlerDecision.DECIDE and left_out:
        assert len(left_out) <= ratio * (acknowledged + failed + waiting)
        assert acknowledged
        assert skipped < 3
    if elapsed_s >= TIMEOUT_S:
        assert ruling is not HandlerDecision.WAIT


def test_why_a_region_is_left_out() -> None:
    """A failed one reads its range again, a late one's batch may still join."""
    found = alignment(1, failed=1, waiting=1).left_out()
    assert found == {"failed0": FailureReason.ERROR, "waiting0": FailureReason.EXPIRED}


@pytest.mark.parametrize(
    "settings", [{"max_failed_ratio": 1.0}, {"max_skipped_in_a_row": 0}, {"region_timeout_s": 0.0}]
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, float]) -> None:
    """By name."""
    with pytest.raises(ConfigError, match="out of range"):
        RegionalCheckpointHandler(**settings)  # type: ignore[arg-type]
