"""Makes durable which attempts have ended, before any of their work is aborted."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Self

from sluice.runtime.checkpoint.resumable_attempts import ListedAttempts, ResumableAttempts
from sluice.runtime.coordinator.core.core import CoordinatorCore
from sluice.runtime.coordinator.start.takeover import Takeover
from sluice.runtime.failpoints import failpoint

__all__ = ["AttemptListing"]


class AttemptListing:
    """Keeps the list of a run up to date. Coordinator process; the I/O thread and the housekeeper.

    Args:
        attempts: the file.
        open_attempts: the attempts of the run that have not ended, by region.
        listed: what the file has now.
    """

    def __init__(
        self,
        attempts: ResumableAttempts,
        open_attempts: Callable[[], Mapping[str, int]],
        *,
        listed: ListedAttempts,
    ) -> None:
        self._attempts = attempts
        self._open_attempts = open_attempts
        self._listed = listed
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls,
        takeover: Takeover | None,
        core: CoordinatorCore,
        ask: Callable[[Callable[[CoordinatorCore], dict[str, int]]], dict[str, int]],
        *,
        run_attempt_id: int,
        resumed_from: int,
    ) -> Self | None:
        """For a run whose start has written the list; None: no later coordinator resumes attempts.

        Args:
            core: not shared yet; ``ask`` queries it later.
        """
        if takeover is None:
            return None
        return cls(
            takeover.attempts,
            lambda: ask(lambda core: core.open_attempts()),
            listed=ListedAttempts(
                run_attempt_id=run_attempt_id,
                resumed_from=resumed_from,
                attempts=core.open_attempts(),
            ),
        )

    def update(self, require_newest: Callable[[], None]) -> None:
        """After it, no later coordinator resumes an attempt that has ended.

        Args:
            require_newest: raises FencedError if a later run exists: it may have read the old list.
        Raises:
            StreamError: nothing may be aborted now.
        """
        with self._lock:
            listed = replace(self._listed, attempts=self._open_attempts())
            if listed == self._listed:
                return
            failpoint("before-attempts-listed")
            self._attempts.write(listed)
            failpoint("after-attempts-listed")
            require_newest()
            self._listed = listed
