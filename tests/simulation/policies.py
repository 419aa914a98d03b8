"""How the worlds' jobs take checkpoints, and what they do with regions that fail, or are late."""

import random

from sluice.runtime.coordinator.policy.balance import Balancer
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    OnLost,
    OnRegionFailure,
)
from sluice.runtime.coordinator.policy.handlers import (
    GlobalCheckpointHandler,
    RegionalCheckpointHandler,
)
from sluice.runtime.failover.restart_strategies import (
    ExponentialDelayRestart,
    FixedDelayRestart,
    RestartStrategy,
)
from tests.simulation.profile import Profile

_REGIONAL = RegionalCheckpointHandler(
    max_failed_ratio=0.7, max_skipped_in_a_row=4, region_timeout_s=0.3
)
_DELAYED = ExponentialDelayRestart(
    initial_backoff_s=0.2, max_backoff_s=3.0, reset_backoff_threshold_s=5.0, jitter_factor=0.5
)
_SECOND_IS_FOR_GOOD = FixedDelayRestart(attempts=1, delay_s=0.1)
_TIMEOUTS_S = (0.5, 1.0, 2.0, 8.0)


def settings_of(profile: Profile, seed: int, balancer: Balancer) -> CheckpointSettings:
    """Of a world's job."""
    dice = random.Random(seed)
    return CheckpointSettings(
        interval_s=None if profile.external else 0.5,
        timeout_s=dice.choice(_TIMEOUTS_S) if profile.short else 8.0,
        retained=dice.randint(1, 3) if profile.short else 3,
        tolerable_failures=1_000_000,
        retry_s=0.01,
        max_retry_s=0.1,
        settle_timeout_s=1e9,
        call_timeout_s=0.05,
        unknown_timeout_s=0.0,
        max_concurrent=profile.max_concurrent,
        on_lost=OnLost.REPAIR if profile.expire and not profile.lost_stops else OnLost.FAIL,
        handler=_REGIONAL if profile.regional else GlobalCheckpointHandler(),
        restart_strategy=_strategy_of(profile),
        on_region_failure=OnRegionFailure.SUSPEND if profile.suspend else OnRegionFailure.FAIL,
        balancer=balancer if profile.move else None,
    )


def _strategy_of(profile: Profile) -> RestartStrategy | None:
    """When a region that has failed begins again; None: as the job has it."""
    if profile.suspend:
        return _SECOND_IS_FOR_GOOD
    return _DELAYED if profile.delayed else None
