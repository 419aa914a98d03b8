"""What a running job does now and then: sweep orphans, renew its owner records."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping

from runtime.checkpoint.plan import CheckpointSettings
from runtime.contracts import Clock, SinkCoordinator
from runtime.errors import FencedError, StreamError

__all__ = ["Housekeeper", "OwnerWatch"]

log = logging.getLogger(__name__)


class OwnerWatch:
    """Renews the owner records, and knows whether they are still ours (rule 22)."""

    def __init__(
        self, sinks: Mapping[str, SinkCoordinator], *, interval_s: float, clock: Clock
    ) -> None:
        self._sinks = sinks
        self._interval_s = interval_s
        self._clock = clock
        self._tried_s = clock()
        self._lost: FencedError | None = None

    def renew(self) -> None:
        """Renew every record; FencedError when another session is found in one."""
        self._tried_s = self._clock()
        for sink in self._sinks.values():
            try:
                sink.renew()
            except FencedError as err:
                self._lost = err
                raise
            except StreamError as err:  # an unanswered renewal fences nobody
                log.warning("owner record was not renewed: error=%s", err)

    def require(self) -> None:
        """Before a decision: a record not looked at for too long is looked at first.

        A process that was paused finds out here that another one has taken over.
        """
        if self._lost is not None:
            raise self._lost
        if self._clock() - self._tried_s > self._interval_s:
            self.renew()


class Housekeeper:
    """A thread that sweeps and renews until it is stopped.

    Args:
        sweep: one sweep; must not raise for an unreachable remote.
        owners: the owner records.
        fenced: told when a record names another session.
    """

    def __init__(
        self,
        *,
        sweep: Callable[[], None],
        owners: OwnerWatch,
        fenced: Callable[[FencedError], None],
        settings: CheckpointSettings,
        clock: Clock,
    ) -> None:
        self._sweep = sweep
        self._owners = owners
        self._fenced = fenced
        self._settings = settings
        self._clock = clock
        self._wake = threading.Event()
        self._stopping = False
        self._asked: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._run, name="sluice-housekeeper", daemon=True)

    def start(self) -> None:
        """Begin; the first sweep was part of the job's start."""
        self._thread.start()

    def sweep_soon(self, then: Callable[[], None]) -> None:
        """Do not wait for the interval: a region was stopped, its readers shall not wait.

        ``then`` is called, in this thread, once that sweep or the thread itself is over.
        """
        self._asked.append(then)
        self._wake.set()

    def stop(self, *, timeout_s: float) -> None:
        """End the thread."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._keep_house()
        finally:
            self._answer(len(self._asked))

    def _keep_house(self) -> None:
        sweep_s = self._clock() + self._settings.sweep_interval_s
        renew_s = self._clock() + self._settings.renew_interval_s
        while not self._stopping:
            self._wake.wait(max(min(sweep_s, renew_s) - self._clock(), 0.0))
            self._wake.clear()
            now_s = self._clock()
            if not self._stopping and now_s >= renew_s:
                renew_s = now_s + self._settings.renew_interval_s
                if not self._renewed():
                    return
            asked = len(self._asked)
            if not self._stopping and (asked or now_s >= sweep_s):
                sweep_s = now_s + self._settings.sweep_interval_s
                self._sweep_once()
                self._answer(asked)

    def _answer(self, count: int) -> None:
        for _ in range(count):
            self._asked.popleft()()

    def _renewed(self) -> bool:
        try:
            self._owners.renew()
        except FencedError as err:
            self._fenced(err)
            return False
        except Exception:  # as above
            log.exception("owner record was not renewed; tried again")
        return True

    def _sweep_once(self) -> None:
        try:
            self._sweep()
        except StreamError as err:  # the next sweep comes in any case
            log.warning("sweep failed: error=%s", err)
        except Exception:  # a client's own bug must not end sweeping for the rest of the run
            log.exception("sweep failed; the next one tries again")
