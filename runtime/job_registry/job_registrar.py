"""Registers a run in the background: no failure and no hang of the registry reaches the job."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Self

from sluice.runtime.errors import FencedError, StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.job_registry.registration import RENEWED_EVERY_S, JobRegistry, Registration
from sluice.runtime.process.backoff import Backoff
from sluice.runtime.process.host_clock import wall_ms
from sluice.runtime.storage.file_system import OpenFileSystem, close_quietly

__all__ = ["JobRegistrar", "ended_state"]

log = logging.getLogger(__name__)

_END_S = 3.0  # the job's end waits for its last registration no longer
_GIVE_UP_S = 60.0  # after the end, in the background
_FIRST_PAUSE_S = 0.5
_MOST_ERROR = 500


class JobRegistrar:
    """A context manager around a run; its exit registers how the run ended. Driver.

    A daemon thread writes, and retries. The job waits for it only at its end, and at most 3 s.

    Args:
        uri: of the registry; None: the job does not register.
        open_fs: opens the file system of a URI.
        renewed_every_s: > 0.
        was_stopped: of a run that ended without an error: whether a command stopped it.
    """

    def __init__(
        self,
        uri: str | None,
        open_fs: OpenFileSystem,
        *,
        renewed_every_s: float = RENEWED_EVERY_S,
        end_s: float = _END_S,
        was_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._uri = uri
        self._open_fs = open_fs
        self._renewed_every_s = renewed_every_s
        self._end_s = end_s
        self._was_stopped = was_stopped
        self._changed = threading.Event()
        self._registration: Registration | None = None
        self._is_away = False
        self._thread = threading.Thread(target=self._run, name="sluice-registrar", daemon=True)

    def begin(self, registration: Registration) -> None:
        """Register the run from now on."""
        if self._uri is not None:
            self._registration = registration
            self._thread.start()

    def end(self, state: str, error: str = "") -> None:
        """Register the end of the run; returns after at most a few seconds."""
        if self._registration is not None:
            self._registration = replace(
                self._registration, state=state, error=error[:_MOST_ERROR], ended_ms=wall_ms()
            )
            self._changed.set()
            self._thread.join(self._end_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        state = ended_state(error, self._was_stopped)
        self.end(state, str(error) if state in ("failed", "fenced") else "")

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._uri is not None
        registry: JobRegistry | None = None
        backoff = Backoff(_FIRST_PAUSE_S, self._renewed_every_s)
        gives_up_s: float | None = None
        while True:
            self._changed.clear()
            registration = self._registration
            assert registration is not None
            try:
                registry = registry or JobRegistry(self._open_fs(self._uri))
                is_mine = _register(registry, registration)
                self._report(None)
                if not is_mine or registration.ended_ms is not None:
                    break
                backoff = Backoff(_FIRST_PAUSE_S, self._renewed_every_s)
                pause_s = self._renewed_every_s
            except Exception as err:  # noqa: BLE001 - py4j raises its own, e.g. without a JVM
                self._report(err)
                pause_s = backoff.next_s()
            if registration.ended_ms is not None:
                gives_up_s = gives_up_s or time.monotonic() + _GIVE_UP_S
                if time.monotonic() > gives_up_s:
                    break
            self._changed.wait(pause_s)
        if registry is not None:
            close_quietly(registry.fs)

    def _report(self, error: Exception | None) -> None:
        """One line when the registry goes away, and one when it is back."""
        if error is not None and not self._is_away:
            log.warning(
                "job is not registered, and continues; retries follow: registry=%s error=%s",
                self._uri,
                error,
            )
        elif error is None and self._is_away:
            log.info("job is registered again: registry=%s", self._uri)
        self._is_away = error is not None


def ended_state(error: BaseException | None, was_stopped: Callable[[], bool]) -> str:
    """How a run ended, from the exception that left it.

    Args:
        was_stopped: called without an exception: whether a command stopped it.
    """
    if error is None:
        return "stopped" if was_stopped() else "finished"
    if isinstance(error, FencedError):
        return "fenced"
    return "failed" if isinstance(error, Exception) else "stopped"  # a signal or a handle


def _register(registry: JobRegistry, registration: Registration) -> bool:
    """Write it. False: a later run of the job has registered, and this one must not replace it."""
    try:
        found = registry.read(registration.job_uid)
    except StreamError:
        found = None  # damaged: replaced; a store that is away also refuses the write
    if found is not None and registration.is_older_than(found):
        return False
    failpoint("before-registration")
    registry.write(replace(registration, renewed_ms=wall_ms()))
    failpoint("after-registration")
    return True
