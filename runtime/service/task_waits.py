"""What tasks wait for, in the driver's log: so that a wait is not taken for a hang."""

import logging
import threading
import time

from sluice.runtime.contracts import Clock
from sluice.runtime.coordinator.shell.wait_log import WaitLog
from sluice.runtime.model.model import BatchKey

__all__ = ["TaskWaits"]

log = logging.getLogger(__name__)


class TaskWaits:
    """Waits as tasks tell of them. Driver, the service's threads.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._waits = WaitLog(log, clock)

    def told(self, batch: BatchKey, what: str, why: str | None) -> None:
        """A task of the batch waits for ``what``; no reason: it does not any more.

        The batch is named, for a task that died while it waited does not say that this is over.
        """
        name = f"{what} (region {batch.region}.{batch.attempt_id}, batch {batch.batch_id})"
        with self._lock:
            if why is None:
                self._waits.is_over(name)
            else:
                self._waits.waits(name, why)
