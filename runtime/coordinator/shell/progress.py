"""Notifies listeners of a job's checkpoints. They can neither slow nor stop the job."""

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
    """Is notified of every state change of a checkpoint. Driver, in a thread of its own."""

    def on_progress(self, progress: Progress) -> None:
        """Receive one change. May be slow, and may raise: neither affects the job."""
        ...


class ListenerThread:
    """Passes progress to listeners, one at a time. If they are too slow, it drops progress."""

    def __init__(self, listeners: Sequence[ProgressListener]) -> None:
        self._listeners: tuple[ProgressListener, ...] = ()
        self._waiting: queue.Queue[Progress | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="sluice-progress", daemon=True)
        for listener in listeners:
            self.add(listener)

    def add(self, listener: ProgressListener) -> None:
        """Add a listener. Called by one thread at a time."""
        self._listeners = (*self._listeners, listener)
        if len(self._listeners) == 1:
            self._thread.start()

    def publish(self, progress: Progress) -> None:
        """Queue progress for all listeners. Never blocks."""
        if not self._listeners:
            return
        try:
            self._waiting.put_nowait(progress)
        except queue.Full:
            log.debug("progress dropped: checkpoint_id=%d", progress.checkpoint_id)

    def stop(self, *, timeout_s: float) -> None:
        """Pass queued progress to the listeners, then end the thread."""
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
