"""Makes durable which attempts have ended, before any of their work is aborted."""

import threading
from collections.abc import Callable, Mapping

from sluice.runtime.checkpoint.resumable_attempts import ResumableAttempts
from sluice.runtime.failpoints import failpoint

__all__ = ["AttemptListing"]


class AttemptListing:
    """Keeps the list of a run up to date. Coordinator process; the I/O thread and the housekeeper.

    Args:
        attempts: the file.
        open_attempts: the attempts of the run that have not ended, by region.
        run_attempt_id: of the run.
        listed: the attempts that the file has now.
    """

    def __init__(
        self,
        attempts: ResumableAttempts,
        open_attempts: Callable[[], Mapping[str, int]],
        *,
        run_attempt_id: int,
        listed: Mapping[str, int],
    ) -> None:
        self._attempts = attempts
        self._open_attempts = open_attempts
        self._run_attempt_id = run_attempt_id
        self._listed = listed
        self._lock = threading.Lock()

    def update(self, require_newest: Callable[[], None]) -> None:
        """After it, no later coordinator resumes an attempt that has ended.

        Args:
            require_newest: raises FencedError if a later run exists: it may have read the old list.
        Raises:
            StreamError: nothing may be aborted now.
        """
        with self._lock:
            attempts = self._open_attempts()
            if attempts == self._listed:
                return
            failpoint("before-attempts-listed")
            self._attempts.write(self._run_attempt_id, attempts)
            failpoint("after-attempts-listed")
            require_newest()
            self._listed = attempts
