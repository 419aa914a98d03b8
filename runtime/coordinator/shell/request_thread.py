"""Savepoints, full checkpoints and stops in order: one after the other, in a thread of its own."""

import contextlib
import logging
import queue
import secrets
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Protocol

from sluice.runtime.contracts import Clock
from sluice.runtime.coordinator.core.events import (
    CheckpointRequested,
    CopyFiles,
    CoreEvent,
    FilesCopied,
    Progress,
)
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.shell.restart_waits import result_within
from sluice.runtime.errors import ConfigError, FencedError, StreamError
from sluice.runtime.model.checkpoint_record import CheckpointKind, CheckpointRecord
from sluice.runtime.model.splits import SplitKey

__all__ = ["Copied", "CopyDue", "FileCopier", "RequestThread", "RequestView", "RequestedCheckpoint"]

log = logging.getLogger(__name__)

CopyDue = tuple[CopyFiles, CheckpointRecord]
_MOST_WAITING = 8
_MOST_SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The size of a complete copy."""

    bytes: int
    files: int


class FileCopier(Protocol):
    """Writes savepoints and full checkpoints. Driver, in the request thread."""

    def parent(self, kind: CheckpointKind, to: str | None) -> str:
        """The URI of the directory that copies of this kind are written below.

        Raises:
            ConfigError: ``to`` names no supported store.
        """
        ...

    def uri(self, record: CheckpointRecord, parent: str, *, request_id: str) -> str:
        """The URI of the copy of a record, whose kind is SAVEPOINT or FULL."""
        ...

    def copy(
        self,
        record: CheckpointRecord,
        uri: str,
        *,
        is_awaited: Callable[[str], bool],
        guard: Callable[[], None],
        progress: Callable[[int, int], None],
    ) -> Copied:
        """Copy the files of a committed record, then publish the copy's record in one step.

        Args:
            is_awaited: whether a region still runs: Spark logs the end of its batch, or its
                restart does.
            guard: raises if the copy is not wanted any more; called between two files, while it
                waits, and last before the publication.
            progress: called after each file with the files and the bytes so far.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """A request as people see it.

    Attributes:
        request_id: six hexadecimal digits; a savepoint's name ends with them.
        kind: ``savepoint``, ``full`` or ``stop``.
        state: ``running``, ``completed`` or ``failed``; a waiting one is running, too.
        parent, uri: of its copy; empty: there is none, or not yet.
        checkpoint_id: of its checkpoint, once it is committed on record.
        bytes, files: copied so far; of a completed request, all that its record names.
        suspended: regions that stand in it with an older snapshot.
        elapsed_s: since the request, or until its end.
        error: why it failed.
    """

    request_id: str
    kind: str
    state: str = "running"
    parent: str = ""
    uri: str = ""
    checkpoint_id: int | None = None
    bytes: int = 0
    files: int = 0
    suspended: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    error: str = ""


@dataclass(slots=True)
class RequestedCheckpoint:
    """A request, and its answer. Any thread reads it; the request thread changes it."""

    kind: CheckpointKind
    to: str | None
    is_copied: bool
    drain: bool
    limit_s: float
    since_s: float
    view: RequestView
    answer: "Future[RequestView]" = field(default_factory=Future)

    def result(self, timeout_s: float | None = None) -> RequestView:
        """Wait for its end; raises its error, or WaitedTooLongError: it goes on."""
        where = {"kind": self.view.kind, "request_id": self.view.request_id}
        return result_within(self.answer, timeout_s, where)


class RequestThread:
    """Carries out requests in their order. Driver; any thread may call the methods.

    A copy delays no checkpoint: the core decides the next ones meanwhile, and withholds batches
    only where Spark could delete what is being copied.

    Args:
        step: passes an event to the core.
        expect: the answer to a `CheckpointRequested` that follows; None: the job ends now.
        end_offsets: of all splits, now.
        copier: None: this coordinator makes no copies.
        suspended: names of the suspended regions.
        is_newest: whether no other run has taken over.
        limit_s: for a checkpoint, unless a request has its own limit.
        full_every: see `CheckpointSettings.full_checkpoint_every`.
        clock: monotonic seconds.

    Attributes:
        ended: number of ended requests by kind and state.
        last_s: how long the last one of each kind took.
    """

    def __init__(
        self,
        *,
        step: Callable[[CoreEvent], object],
        expect: Callable[[], "Future[CopyDue | None]"],
        end_offsets: Callable[[], Mapping[SplitKey, int]],
        copier: FileCopier | None,
        suspended: Callable[[], tuple[str, ...]],
        is_newest: Callable[[], bool],
        limit_s: float,
        full_every: int | None,
        clock: Clock,
    ) -> None:
        self._step = step
        self._expect = expect
        self._end_offsets = end_offsets
        self._copier = copier
        self._suspended = suspended
        self._is_newest = is_newest
        self._limit_s = limit_s
        self._full_every = full_every
        self._clock = clock
        self._lock = threading.Lock()
        self._requests: list[RequestedCheckpoint] = []
        self.ended: dict[tuple[str, str], int] = {}
        self.last_s: dict[str, float] = {}
        self._committed = 0
        self._stopping = threading.Event()
        self._inbox: queue.SimpleQueue[RequestedCheckpoint | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sluice-requests", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(
        self,
        kind: CheckpointKind,
        *,
        to: str | None = None,
        is_copied: bool = True,
        drain: bool = False,
        limit_s: float | None = None,
    ) -> RequestedCheckpoint:
        """Request a savepoint, a full checkpoint, or (FINAL) the end of the job.

        Raises:
            ConfigError: too many requests wait, or nothing can be copied to ``to``.
        """
        parent = ""
        if is_copied:
            if self._copier is None:
                raise ConfigError(
                    "this service makes no savepoints", {}, "Request savepoints only of a Job."
                )
            parent = self._copier.parent(kind, to)
        name = "stop" if kind is CheckpointKind.FINAL else kind.value
        request = RequestedCheckpoint(
            kind=kind,
            to=to,
            is_copied=is_copied,
            drain=drain,
            limit_s=self._limit_s if limit_s is None else limit_s,
            since_s=self._clock(),
            view=RequestView(request_id=secrets.token_hex(3), kind=name, parent=parent),
        )
        with self._lock:
            if self._stopping.is_set():
                raise _job_ended()
            waiting = [each for each in self._requests if not each.answer.done()]
            if len(waiting) >= _MOST_WAITING:
                raise ConfigError(
                    "too many savepoints wait for their turn",
                    {"waiting": len(waiting)},
                    "Wait until one has ended.",
                )
            self._requests = [*self._requests, request][-_MOST_SHOWN:]
            self._inbox.put(request)
        return request

    def views(self) -> tuple[RequestView, ...]:
        """The newest requests of this run, oldest first."""
        with self._lock:
            requests = list(self._requests)
        now_s = self._clock()
        return tuple(
            each.view if each.answer.done() else replace(each.view, elapsed_s=now_s - each.since_s)
            for each in requests
        )

    @property
    def is_stopping(self) -> bool:
        """Whether a stop is under way."""
        with self._lock:
            return any(
                each.kind is CheckpointKind.FINAL and not each.answer.done()
                for each in self._requests
            )

    def on_progress(self, progress: Progress) -> None:
        """Request a full checkpoint after each `full_every` committed ones."""
        if progress.state is not State.MARKED or self._full_every is None:
            return
        self._committed += 1
        is_due = self._committed >= self._full_every and progress.kind is not CheckpointKind.FINAL
        if is_due and not (self._stopping.is_set() or self._has_open()):
            self._committed = 0
            with contextlib.suppress(FencedError):  # the job ends just now
                self.add(CheckpointKind.FULL)

    def _has_open(self) -> bool:
        with self._lock:
            return any(not each.answer.done() for each in self._requests)

    def stop(self, *, timeout_s: float) -> None:
        """Give up a copy that is under way, and end the thread."""
        with self._lock:
            self._stopping.set()
            self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while (request := self._inbox.get()) is not None:
            self._serve(request)

    def _serve(self, request: RequestedCheckpoint) -> None:
        try:
            self._guard()
            drain_to = self._end_offsets() if request.drain else {}
            answer = self._expect()
            self._step(
                CheckpointRequested(
                    kind=request.kind,
                    is_copied=request.is_copied,
                    drain_to=drain_to,
                    limit_s=request.limit_s,
                )
            )
            due = answer.result()
            if due is not None:
                self._copy(request, *due)
            else:
                request.view = replace(request.view, suspended=self._suspended())
                self._end(request, None)
        except StreamError as err:
            self._end(request, err)
        except Exception as err:  # the job continues, and so does the thread
            log.exception("request failed: kind=%s", request.view.kind)
            self._end(request, err)

    def _copy(
        self, request: RequestedCheckpoint, action: CopyFiles, record: CheckpointRecord
    ) -> None:
        """Its end is known before the core's: a job may end with it."""
        assert self._copier is not None  # or the request was refused
        error: BaseException | None = None
        try:
            if record.kind is CheckpointKind.FINAL:
                record = replace(record, kind=CheckpointKind.SAVEPOINT)
            view = request.view
            uri = self._copier.uri(record, view.parent, request_id=view.request_id)
            request.view = replace(
                view, uri=uri, checkpoint_id=action.checkpoint_id, suspended=action.suspended
            )
            copied = self._copier.copy(
                record,
                uri,
                is_awaited=lambda name: name not in self._suspended(),
                guard=self._guard,
                progress=lambda files, size: self._note(request, files, size),
            )
            request.view = replace(request.view, bytes=copied.bytes, files=copied.files)
            self._end(request, None)
        except BaseException as err:
            error = err
            raise
        finally:
            self._step(FilesCopied(checkpoint_id=action.checkpoint_id, error=error))

    def _note(self, request: RequestedCheckpoint, files: int, length_bytes: int) -> None:
        request.view = replace(request.view, files=files, bytes=length_bytes)

    def _guard(self) -> None:
        if self._stopping.is_set():
            raise _job_ended()
        if not self._is_newest():
            raise FencedError(
                "another run of the job has taken over",
                {},
                "Request the savepoint from the newer run.",
            )

    def _end(self, request: RequestedCheckpoint, error: BaseException | None) -> None:
        elapsed_s = self._clock() - request.since_s
        if request.answer.done():
            return  # only the core's answer to the copy has failed: the job has ended
        view = request.view = replace(
            request.view,
            state="completed" if error is None else "failed",
            elapsed_s=elapsed_s,
            error="" if error is None else str(error),
        )
        key = view.kind, view.state
        self.ended[key] = self.ended.get(key, 0) + 1
        self.last_s[view.kind] = elapsed_s
        if error is None:
            log.info(
                "request completed: kind=%s checkpoint_id=%s uri=%s files=%d bytes=%d "
                "suspended=%s elapsed_s=%.3f",
                view.kind,
                view.checkpoint_id,
                view.uri or "none",
                view.files,
                view.bytes,
                ",".join(view.suspended) or "none",
                elapsed_s,
            )
            request.answer.set_result(view)
        else:
            log.warning(
                "request failed: kind=%s checkpoint_id=%s uri=%s elapsed_s=%.3f error=%s",
                view.kind,
                view.checkpoint_id,
                view.uri or "none",
                elapsed_s,
                error,
            )
            request.answer.set_exception(error)


def _job_ended() -> FencedError:
    return FencedError(
        "the job has ended before the request was done",
        {},
        "Start the job again; an incomplete savepoint has no _metadata and may be deleted.",
    )
