"""Notes the history of a running job, in a thread of its own: it never delays a decision."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from sluice.runtime.contracts import Clock
from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.region.status_views import JobStatus
from sluice.runtime.errors import StreamError, UnsupportedFormatError
from sluice.runtime.failover.attempt_history import first_line
from sluice.runtime.history.history_entries import attempts_of, checkpoint_entry, sample_of
from sluice.runtime.history.history_file import (
    HISTORY_FILE,
    PARTS,
    History,
    HistoryMembers,
    decoded,
    shown,
)
from sluice.runtime.job_registry.job_registrar import ended_state
from sluice.runtime.process.host_clock import wall_ms as host_wall_ms
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["JobHistory"]

log = logging.getLogger(__name__)

_EVERY_S = 5.0
_QUIET_S = 60.0  # from one write to the next, if there are only new samples
_BYTES_PER_S = 131_072.0
_JOIN_S = 5.0
_MOST_NEW = 10_000
_MOST_OPEN = 1_000
_KEPT = {"samples": 5_000}
_MOST_KEPT = 500
_ENDS = (State.MARKED, State.ABORTED)
_OVER = ("fenced",)


class JobHistory:
    """A `ProgressListener` that keeps the newest entries in memory and writes them to the file.

    Driver. A context manager around a run, whose exit notes how the run ended. Any thread may call
    it; none waits for the store. The thread ``sluice-history`` reads the file of earlier runs,
    samples the status, and writes every few seconds and at the end. It writes less often if the
    file is large or nothing has happened. A store that hangs or fails costs entries and one log
    line. A write replaces the file, so a paused earlier run may remove the newest entries until the
    next write of this run.

    Args:
        fs: rooted at the checkpoint directory.
        status: of the job.
        savepoints: savepoints and full checkpoints of this run, as ``GET /v1/savepoints`` shows
            them.
        every_s: from one sample to the next, and between two writes at least.
        clock: monotonic seconds.
        wall_ms: wall clock.

    Attributes:
        write_failures: of this run.
    """

    def __init__(
        self,
        fs: FileSystem,
        status: Callable[[], JobStatus],
        *,
        savepoints: Callable[[], Iterable[Mapping[str, Any]]] = tuple,
        every_s: float = _EVERY_S,
        clock: Clock = time.monotonic,
        wall_ms: Callable[[], int] = host_wall_ms,
    ) -> None:
        self._fs = fs
        self._status = status
        self._savepoints = savepoints
        self._every_s = every_s
        self._clock = clock
        self._wall_ms = wall_ms
        self._lock = threading.Lock()
        self._new: deque[tuple[str, Any]] = deque(maxlen=_MOST_NEW)
        self._kept: dict[str, deque[Any]] = {
            part: deque(maxlen=_KEPT.get(part, _MOST_KEPT)) for part in PARTS
        }
        self._barriers_ms: dict[int, int] = {}
        self._records = 0
        self._attempts: dict[str, int] = {}
        self._noted: dict[Any, Mapping[str, Any]] = {}
        self._run: dict[str, Any] = {}
        self._members: HistoryMembers | None = None  # None: the file has not been read
        self._sampled_s, self._written_s = clock(), float("-inf")  # it writes at its begin
        self._has_news = False
        self._is_dirty = self._has_failed = self._is_refused = False
        self.write_failures = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="sluice-history", daemon=True)

    # --- any thread -------------------------------------------------------------------------------

    def begin(self, run: Mapping[str, Any]) -> None:
        """The job has started; ``run``: its ``attempt_id`` and further facts for readers."""
        self._run = {**run, "started_ms": self._wall_ms(), "state": "running"}
        self._note("runs", self._run)
        self._thread.start()

    def on_progress(self, progress: Progress) -> None:
        """See `sluice.runtime.coordinator.shell.action_dispatcher.ProgressListener`."""
        checkpoint_id, now_ms = progress.checkpoint_id, self._wall_ms()
        if progress.state is State.ALIGNING and len(self._barriers_ms) < _MOST_OPEN:
            self._barriers_ms[checkpoint_id] = now_ms
        if progress.state not in _ENDS:
            return
        began_ms = self._barriers_ms.pop(checkpoint_id, now_ms)
        if progress.state is State.MARKED:
            self._records += progress.records
            began_ms = now_ms - round((progress.marked_s or 0.0) * 1000)
        self._note("checkpoints", checkpoint_entry(progress, began_ms=began_ms))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        state = ended_state(error, lambda: self._status().state == "stopped")
        self.end(state=state, error=first_line(error) if isinstance(error, Exception) else "")

    def view(self) -> History:
        """The newest entries, each part oldest first."""
        with self._lock:
            return shown({part: list(kept) for part, kept in self._kept.items()})

    def end(self, *, state: str, error: str = "") -> None:
        """The job has ended: write the rest, within a few seconds. Does nothing before `begin`."""
        if not self._run:
            return
        try:
            self._note_savepoints()
            self._note_attempts(self._status(), ended=state)
        except Exception:  # the end of a job needs no history
            log.exception("history lacks the last attempts: uri=%s", self._fs.uri)
        ended_ms = self._wall_ms()
        self._note("runs", {**self._run, "ended_ms": ended_ms, "state": state, "error": error})
        self._is_refused = self._is_refused or state in _OVER
        self._ending.set()
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            log.warning("history is not written, the store does not answer: uri=%s", self._fs.uri)

    def _note(self, part: str, entry: Any) -> None:  # noqa: ANN401 - JSON
        with self._lock:
            self._new.append((part, entry))
            self._kept[part].append(entry)
            self._has_news = self._has_news or part != "samples"

    # --- its thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        is_last = False
        while not is_last:
            self._cycle(is_last=is_last)
            is_last = self._ending.wait(self._every_s)
        self._cycle(is_last=True)

    def _cycle(self, *, is_last: bool) -> None:
        """One look at the job, and a write if one is due."""
        try:
            if not is_last:
                self._sample()
            self._write(is_last=is_last)
        except UnsupportedFormatError as err:
            self.write_failures += 1
            self._is_refused = True
            log.warning("history is not written: uri=%s error=%s", self._fs.uri, err)
        except StreamError as err:
            self.write_failures += 1
            if not self._has_failed:
                self._has_failed = True
                log.warning(
                    "history is not written, trying again: uri=%s error=%s", self._fs.uri, err
                )
        except Exception:  # a job must not end by its history
            self.write_failures += 1
            self._is_refused = True
            log.exception("history is not written any more: uri=%s", self._fs.uri)

    def _sample(self) -> None:
        status, now_s = self._status(), self._clock()
        if status.state in _OVER:
            self._is_refused = True
        self._note_savepoints()
        self._note_attempts(status)
        elapsed_s, self._sampled_s = now_s - self._sampled_s, now_s
        records, self._records = self._records, 0
        rate = records / elapsed_s if elapsed_s > 0 else 0.0
        self._note("samples", sample_of(status, ms=self._wall_ms(), records_per_s=rate))

    def _note_savepoints(self) -> None:
        for found in self._savepoints():
            before = self._noted.get(found["request_id"])
            if before is None or before["state"] != found["state"]:
                self._noted[found["request_id"]] = found
                self._note("savepoints", {"ms": self._wall_ms(), **found})

    def _note_attempts(self, status: JobStatus, *, ended: str = "") -> None:
        """Attempts that have ended; with ``ended`` also those that ended with the job."""
        with self._lock:
            known, began_ms = dict(self._attempts), int(self._run["started_ms"])
            for region in status.regions:
                last = max((each.attempt_id for each in region.attempts), default=-1)
                self._attempts[region.region] = max(last, known.get(region.region, -1))
        for entry in attempts_of(status, known, began_ms=began_ms):
            self._note("attempts", entry)
        for region in status.regions if ended else ():
            if region.attempt_id > self._attempts[region.region] and region.suspended is None:
                self._note(
                    "attempts",
                    {
                        "region": region.region,
                        "attempt_id": region.attempt_id,
                        "began_ms": region.began_ms or began_ms,
                        "ended_ms": self._wall_ms(),
                        "why": f"the job ended: {ended}",
                        "host": "",
                    },
                )

    def _write(self, *, is_last: bool) -> None:
        if self._is_refused:
            return
        members = self._members or self._opened()
        with self._lock:
            new, has_news = list(self._new), self._has_news
            self._new.clear()
        for part in PARTS:
            entries = [entry for named, entry in new if named == part]
            if entries:
                members.add(part, entries)
        self._is_dirty = self._is_dirty or bool(new)
        pause_s = max(self._every_s, members.size_bytes / _BYTES_PER_S) if has_news else _QUIET_S
        is_due = is_last or self._clock() - self._written_s >= pause_s
        if not (self._is_dirty and is_due):
            return
        self._fs.replace(HISTORY_FILE, members.content())
        self._written_s, self._is_dirty, self._has_failed = self._clock(), False, False
        with self._lock:
            self._has_news = any(part != "samples" for part, _ in self._new)

    def _opened(self) -> HistoryMembers:
        """Read the entries of earlier runs."""
        earlier = decoded(self._fs.read(HISTORY_FILE) or b"")
        members = HistoryMembers()
        with self._lock:
            for part in PARTS:
                members.add(part, earlier[part])
                room = (self._kept[part].maxlen or 0) - len(self._kept[part])
                self._kept[part].extendleft(reversed(earlier[part][-room:] if room else ()))
        self._members = members
        return members
