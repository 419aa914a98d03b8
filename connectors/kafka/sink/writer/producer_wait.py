"""A task's wait for brokers that are away: told to the coordinator, and ended where the task is."""

import logging
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from sluice.connectors.kafka.sink.producers.producer_errors import NotReadyError
from sluice.connectors.kafka.sink.producers.producer_slots import NoIdLeftError
from sluice.runtime.contracts import AttemptRegistry, Clock, WaitRegistry
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.model import BatchKey

__all__ = ["ProducerWait", "Unheard", "Wait"]

log = logging.getLogger(__name__)

_FIRST_S = 2.0  # what is shorter nobody needs to know
_EVERY_S = 2.0
_STEP_S = 1.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 2.0

T = TypeVar("T")


class Wait(Protocol):
    """How a task's wait is told."""

    def goes_on(self, why: object) -> None:
        """Nothing has come yet; to be told often, and said every few seconds.

        Raises:
            FencedError: the task shall end.
        """
        ...

    def is_over(self) -> None:
        """Something has come, or it is given up. Never raises; nothing is said of a wait that was
        not told, and the next one begins anew."""
        ...


class Unheard:
    """A wait that nobody hears of."""

    def goes_on(self, why: object) -> None:
        """See `Wait`."""

    def is_over(self) -> None:
        """See `Wait`."""


class ProducerWait:
    """Implements `Wait`. One wait at a time of one writer. Executor, the task's thread.

    Args:
        registry: of the writer; asked whether the task shall go on, if it can be told of waits.
        batch: that the task works for.
        what: is waited for, in words.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        registry: AttemptRegistry,
        batch: BatchKey,
        what: str,
        *,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._room = registry if isinstance(registry, WaitRegistry) else None
        self._batch = batch
        self._what = what
        self._clock = clock
        self._sleep = sleep
        self._since_s: float | None = None
        self._due_s = 0.0
        self._is_told = False

    def until_ready(self, take: Callable[[float], T], *, timeout_s: float) -> T:
        """What ``take`` returns, asked again while brokers cannot be reached.

        Args:
            take: waits for so many seconds at most; raises `NotReadyError` where nothing has failed
                and it was too short.
        Raises:
            UnreachableError: they could not for so long; the last reason that there was.
            FencedError: the task shall end.
            StreamError: what no wait mends.
        """
        deadline_s = self._clock() + timeout_s
        failure: UnreachableError | None = None
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                left_s = max(0.0, deadline_s - self._clock())
                rest_s = 0.0
                try:
                    return take(min(_STEP_S, left_s))
                except NoIdLeftError:
                    raise
                except NotReadyError as err:
                    reason = failure or _in_all(err, timeout_s)
                except UnreachableError as err:
                    reason = failure = err
                    rest_s, pause_s = pause_s, min(2 * pause_s, _LONGEST_PAUSE_S)
                if self._clock() >= deadline_s:
                    raise reason
                self.goes_on(reason)
                self._sleep(min(rest_s, left_s))
        finally:
            self.is_over()

    def goes_on(self, why: object) -> None:
        """See `Wait`."""
        now_s = self._clock()
        if self._since_s is None:
            self._since_s, self._due_s = now_s, now_s + _FIRST_S
        if now_s < self._due_s:
            return
        self._due_s = now_s + _EVERY_S
        log.info("waiting for %s: waited_s=%.0f why=%s", self._what, now_s - self._since_s, why)
        if self._room is not None:
            self._is_told = True
            self._room.waits(self._batch, self._what, why=str(why))

    def is_over(self) -> None:
        """See `Wait`."""
        is_told, self._is_told, self._since_s = self._is_told, False, None
        if self._room is not None and is_told:
            self._room.waited(self._batch, self._what)


def _in_all(error: NotReadyError, timeout_s: float) -> NotReadyError:
    """Asked for step by step, and not in time: that of all steps together."""
    what, where, remedy = error.args
    return NotReadyError(str(what), {**where, "timeout_s": timeout_s}, str(remedy))
