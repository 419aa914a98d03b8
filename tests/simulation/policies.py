"""What the worlds' jobs do with regions that fail, or are late."""

from runtime.checkpoint.handlers import RegionalCheckpointHandler
from runtime.failover.restart_strategies import (
    ExponentialDelayRestart,
    FixedDelayRestart,
    RestartStrategy,
)
from tests.simulation.profile import Profile

__all__ = ["REGIONAL", "strategy_of"]

REGIONAL = RegionalCheckpointHandler(
    max_failed_ratio=0.7, max_carried_in_a_row=4, region_timeout_s=0.3
)
_DELAYED = ExponentialDelayRestart(
    initial_backoff_s=0.2, max_backoff_s=3.0, reset_backoff_threshold_s=5.0, jitter_factor=0.5
)
_SECOND_IS_FOR_GOOD = FixedDelayRestart(attempts=1, delay_s=0.1)


def strategy_of(profile: Profile) -> RestartStrategy | None:
    """When a region that has failed begins again; None: as the job has it."""
    if profile.park:
        return _SECOND_IS_FOR_GOOD
    return _DELAYED if profile.delayed else None
