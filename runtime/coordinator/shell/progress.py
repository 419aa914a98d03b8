"""Listeners to a job's checkpoints: they only listen, and can neither slow nor stop it."""

import logging
import queue
import threading
from collections.abc import Sequence
from typing import Protocol

from sluice.runtime.coordinator.core.events import Progress

__all__ = ["ListenerThread", "ProgressListener"]

log = logging.getLogger(__name__)

_MOST_WAITING = 1_000


class ProgressListener(Protocol):
    """Told of every change of a checkpoint's state. Driver, in a thread of its own."""

    def on_progress(self, progress: Progress) -> None:
        """One change. May be slow, and may raise: neither reaches the job."""
        ...


class ListenerThread:
    """Hands progress to listeners, one at a time. When they are too slow, news is dropped."""

    def __init__(self, listeners: Sequence[ProgressListener]) -> None:
        self._listeners: tuple[ProgressListener, ...] = ()
        self._waiting: queue.Queue[Progress | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="sluice-progress", daemon=True)
        for listener in listeners:
            self.add(listener)

    def add(self, listener: ProgressListener) -> None:
        """One more, from now on. Called by one thread at a time."""
        self._listeners = (*self._listeners, listener)
        if len(self._listeners) == 1:
            self._thread.start()

    def tell(self, progress: Progress) -> None:
        """Never blocks."""
        if not self._listeners:
            return
        try:
            self._waiting.put_nowait(progress)
        except queue.Full:
            log.debug("progress dropped: checkpoint_id=%d", progress.checkpoint_id)

    def stop(self, *, timeout_s: float) -> None:
        """Let the listeners hear the rest, then end."""
        if self._thread.is_alive():
            try:
                self._waiting.put(None, timeout=timeout_s)
            except queue.Full:
                return  # a listener hangs; its thread is a daemon
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (progress := self._waiting.get()) is not None:
            for listener in self._listeners:
                try:
                    listener.on_progress(progress)
                except Exception:  # a listener is user code: its errors are its own
                    log.exception("progress listener failed: listener=%r", listener)
