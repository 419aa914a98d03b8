"""What the page shows of a job that runs in this process."""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.process.host_clock import wall_ms
from sluice.runtime.service.job_view import (
    JobFacts,
    details_of,
    history_of,
    list_of,
    summary_of,
)

__all__ = ["LiveJob", "LiveJobs"]

_RECENT_S = 0.5


class LiveJob:
    """A `JobPages` of one job. Driver; any thread.

    Args:
        coordinator: of the job, started or not.
        checkpoint_uri: its directory.
        history: its history by part (`HISTORY_PARTS`).
    """

    def __init__(
        self,
        coordinator: BarrierCoordinator,
        *,
        checkpoint_uri: str,
        history: Callable[[], Mapping[str, Sequence[Any]]] = dict,
    ) -> None:
        self._coordinator = coordinator
        self._checkpoint_uri = checkpoint_uri
        self._read_history = history
        self._recent: tuple[float, Mapping[str, Sequence[Any]]] | None = None
        self._began_ms = wall_ms()
        self._host = socket.gethostname()

    def jobs(self) -> dict[str, Any]:
        """The answer to ``GET /v1/jobs``: one job, and no commands."""
        facts = self._facts()
        return list_of([summary_of(facts)], service="job", can_command=False)

    def job(self, job_uid: str) -> dict[str, Any] | None:
        """Details of the job; None: another one."""
        facts = self._facts()
        return details_of(facts) if job_uid in ("", facts.job_uid) else None

    def history(self, job_uid: str, *, checkpoints: int | None = None) -> dict[str, Any] | None:
        """Its history; None: of another job."""
        started = self._coordinator.started
        known = "" if started is None else started.job_uid
        return (
            history_of(self._history(), checkpoints=checkpoints) if job_uid in ("", known) else None
        )

    def _history(self) -> Mapping[str, Sequence[Any]]:
        """Half a second old at most: a page requests details and history at once."""
        now_s, recent = time.monotonic(), self._recent
        if recent is None or now_s - recent[0] > _RECENT_S:
            self._recent = recent = (now_s, self._read_history())
        return recent[1]

    def _facts(self) -> JobFacts:
        started, plan = self._coordinator.started, self._coordinator.plan
        status = None if started is None else self._coordinator.status()
        waiting = None if status is None else status.waiting_for_resources
        history = self._history()
        samples = history.get("samples", ())
        return JobFacts(
            job_uid="" if started is None else started.job_uid,
            name=plan.name,
            state="starting" if status is None else status.state,
            checkpoint_uri=self._checkpoint_uri,
            started_ms=self._began_ms,
            last_committed=None if status is None else status.last_committed,
            host=self._host,
            error="" if status is None else status.error,
            records_per_s=samples[-1][1] if samples else None,
            status=status,
            graph=plan.graph,
            settings=plan.settings,
            savepoints=history.get("savepoints", ()),
            waiting_for_resources=None if waiting is None else asdict(waiting),
        )


class LiveJobs:
    """A `JobPages` of the jobs that run in this process. Driver; any thread.

    Args:
        running: those of the moment.
    """

    def __init__(self, running: Callable[[], Sequence[LiveJob]]) -> None:
        self._running = running

    def jobs(self) -> dict[str, Any]:
        """The answer to ``GET /v1/jobs``."""
        found = [summary for each in self._running() for summary in each.jobs()["jobs"]]
        return list_of(found, service="job", can_command=False)

    def job(self, job_uid: str) -> dict[str, Any] | None:
        """Details of a job; None: there is no such job."""
        answers = (each.job(job_uid) for each in self._running())
        return next((found for found in answers if found is not None), None)

    def history(self, job_uid: str, *, checkpoints: int | None = None) -> dict[str, Any] | None:
        """Its history; None: there is no such job."""
        answers = (each.history(job_uid, checkpoints=checkpoints) for each in self._running())
        return next((found for found in answers if found is not None), None)
