"""A task's wait for unreachable brokers: reported to the coordinator, and ended with the task."""

import logging
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from sluice.connectors.kafka.sink.producers.producer_errors import NotReadyError
from sluice.connectors.kafka.sink.producers.producer_slots import NoIdLeftError
from sluice.runtime.contracts import AttemptRegistry, Clock, WaitRegistry
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.process.backoff import Backoff

__all__ = ["ProducerWait", "UnreportedWait", "Wait"]

log = logging.getLogger(__name__)

_FIRST_S = 2.0  # shorter waits are not worth a report
_EVERY_S = 2.0
_STEP_S = 1.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 2.0

T = TypeVar("T")


class Wait(Protocol):
    """Reports a task's wait."""

    def report(self, why: object) -> None:
        """Nothing has come yet; call it often, it reports every few seconds.

        Raises:
            FencedError: the task must end.
        """
        ...

    def is_over(self) -> None:
        """The wait is over, with or without success. Never raises. An unreported wait is not
        logged, and the next one starts again."""
        ...


class UnreportedWait(Wait):
    """A wait that is not reported."""

    def report(self, why: object) -> None:
        """See `Wait`."""

    def is_over(self) -> None:
        """See `Wait`."""


class ProducerWait(Wait):
    """Implements `Wait`. One wait at a time of one writer. Executor, the task's thread.

    Args:
        registry: of the writer; if it takes waits, it also decides whether the task continues.
        batch: that the task works for.
        what: the object of the wait, in words.
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
        self._registry = registry if isinstance(registry, WaitRegistry) else None
        self._batch = batch
        self._what = what
        self._clock = clock
        self._sleep = sleep
        self._since_s: float | None = None
        self._due_s = 0.0
        self._is_reported = False

    def until_ready(self, take: Callable[[float], T], *, timeout_s: float) -> T:
        """The result of ``take``, repeated while brokers are unreachable.

        Args:
            take: waits for at most so many seconds; raises `NotReadyError` if nothing has failed
                and the time was too short.
        Raises:
            UnreachableError: the brokers were unreachable for so long; the last reason.
            FencedError: the task must end.
            StreamError: an error that no wait corrects.
        """
        deadline_s = self._clock() + timeout_s
        failure: UnreachableError | None = None
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
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
                    rest_s = backoff.next_s()
                if self._clock() >= deadline_s:
                    raise reason
                self.report(reason)
                self._sleep(min(rest_s, left_s))
        finally:
            self.is_over()

    def report(self, why: object) -> None:
        now_s = self._clock()
        if self._since_s is None:
            self._since_s, self._due_s = now_s, now_s + _FIRST_S
        if now_s < self._due_s:
            return
        self._due_s = now_s + _EVERY_S
        log.info("waiting for %s: waited_s=%.0f why=%s", self._what, now_s - self._since_s, why)
        if self._registry is not None:
            self._is_reported = True
            self._registry.waits(self._batch, self._what, why=str(why))

    def is_over(self) -> None:
        is_reported, self._is_reported, self._since_s = self._is_reported, False, None
        if self._registry is not None and is_reported:
            self._registry.waited(self._batch, self._what)


def _in_all(error: NotReadyError, timeout_s: float) -> NotReadyError:
    """Waits in steps; the timeout is that of all steps together."""
    what, where, remedy = error.args
    return NotReadyError(str(what), {**where, "timeout_s": timeout_s}, str(remedy))
