"""Asking a coordinator that may be silent for a while: again and again, and not for ever."""

import logging
from collections.abc import Callable
from typing import TypeVar

from sluice.runtime.contracts import Clock
from sluice.runtime.errors import CoordinatorLostError, UnreachableError
from sluice.runtime.process.boot_clock import PauseTolerantClock

__all__ = ["call_with_retries"]

log = logging.getLogger(__name__)

_LONGEST_TRY_S = 30.0
"""A connection, an answer that takes its time, and a look at who leads."""

T = TypeVar("T")


def call_with_retries(
    ask: Callable[[], T],
    *,
    region: str,
    attempt_id: int,
    lost_timeout_s: float,
    goes_on: Callable[[], bool],
    clock: Clock,
) -> T | None:
    """Ask until there is an answer, as long as a task may live without a coordinator. Executor.

    A try counts no more than the longest one takes: beyond that this process stood still, and it
    asks once more before it gives the coordinator up (`CheckpointClient`).

    Args:
        ask: one try.
        region, attempt_id: who asks.
        lost_timeout_s: how long nobody may answer.
        goes_on: whether an answer is still wanted; asked behind each try without one, may raise.
        clock: monotonic seconds.
    Returns:
        The answer; None: it is not wanted any more.
    Raises:
        CoordinatorLostError: nobody has answered for so long.
    """
    asking = PauseTolerantClock(clock, longest_step_s=_LONGEST_TRY_S)
    since_s, stood_still = asking(), False
    while True:
        began_s = clock()
        try:
            return ask()
        except UnreachableError as err:
            silent_s = asking() - since_s
            stood_still_before, stood_still = stood_still, clock() - began_s > _LONGEST_TRY_S
            if not goes_on():
                return None
            is_excused = stood_still and not stood_still_before
            if silent_s >= lost_timeout_s and not is_excused:
                raise CoordinatorLostError(
                    "the coordinator has been silent for too long",
                    {
                        "region": region,
                        "attempt_id": attempt_id,
                        "silent_s": round(silent_s, 1),
                    },
                    "This task stops; what it has not acknowledged is aborted by the next "
                    "coordinator, and read again.",
                ) from err
            log.warning("no answer from the coordinator: error=%s", err)
