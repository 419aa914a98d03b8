"""The jobs of a registry, as the service sees them: it reads the registry, and asks each job."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.contracts import Clock
from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    StreamError,
    UnreachableError,
    WrongJobError,
)
from sluice.runtime.job_registry.registration import JobRegistry, Registration
from sluice.runtime.process.host_clock import wall_ms
from sluice.runtime.serve.job_state import is_stale, summary_for
from sluice.runtime.serve.past_jobs import past_details, past_history
from sluice.runtime.serve.store_access import StoreAccess
from sluice.runtime.service.service_client import (
    CoordinatorAddress,
    CoordinatorClient,
    command_address,
)

__all__ = ["NoSuchThingError", "ServedJobs"]

log = logging.getLogger(__name__)

_ANSWER_S = 3.0
_BUSY_EVERY_S = 2.0  # while the service has readers
_IDLE_EVERY_S = 10.0
_INTEREST_S = 15.0
_FIRST_ANSWERS_S = 2.0  # the first reader waits for jobs that have not answered yet
_MOST_WATCHED = 500
_REGISTERED = ("host", "started_ms", "submission_id")  # the registry knows them better
_MOST_CALLS = 4  # of readers and commands to one job at once


class NoSuchThingError(ConfigError):
    """The service knows no job, submission or drain of this name."""


class _WatchedJob:
    """One job: its registration, and its last answer. The lock is that of `ServedJobs`."""

    def __init__(self, registration: Registration) -> None:
        self.registration = registration
        self.changed_s: float | None = None
        self.answer: Mapping[str, Any] | None = None
        self.error: StreamError | None = None
        self.was_asked = False
        self.calls = 0
        self.wake = threading.Event()
        self.thread: threading.Thread | None = None
        self.past: tuple[Registration, dict[str, Any]] | None = None

    def is_waiting(self) -> bool:
        """Whether it runs, and has not been asked yet."""
        return self.thread is not None and not self.was_asked


class ServedJobs:
    """All jobs of a registry. A context manager; any thread.

    A thread reads the registry, and one thread for each running job asks it for a summary. So a
    registry or a job that hangs delays neither a reader nor another job.

    Args:
        uri: of the registry.
        stores: opens directories.
        kept: so many ended jobs stay in the registry; older ones are deleted from it.
        clock: monotonic seconds.
    """

    def __init__(
        self, uri: str, stores: StoreAccess, *, kept: int, clock: Clock = time.monotonic
    ) -> None:
        self._uri = uri
        self._stores = stores
        self._kept = kept
        self._clock = clock
        self._jobs: dict[str, _WatchedJob] = {}
        self._registry_error: StreamError | None = None
        self._was_read = False
        self._read_s = float("-inf")  # the last reader
        self._stopped = False
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._reader = threading.Thread(
            target=self._read_registry, name="sluice-job-registry", daemon=True
        )

    def __enter__(self) -> "ServedJobs":
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        """The threads are daemons: one that hangs in a file system must not delay the end."""
        with self._changed:
            self._stopped = True
            self._wake_all()
            self._changed.notify_all()

    # --- for readers -------------------------------------------------------------------------

    def jobs(self) -> dict[str, Any]:
        """The answer to ``GET /v1/jobs``: newest start first."""
        with self._changed:
            self._want()
            self._changed.wait_for(self._is_known, timeout=_FIRST_ANSWERS_S)
            found = [self._summary(job) for job in self._jobs.values()]
            error = self._registry_error
        return {
            "service": "serve",
            "can_command": True,
            "now_ms": wall_ms(),
            "registry": self._uri,
            "registry_error": None if error is None else str(error),
            "jobs": sorted(found, key=lambda each: each["started_ms"], reverse=True),
        }

    def job(self, job_uid: str) -> dict[str, Any]:
        """The answer to ``GET /v1/jobs/{job_uid}``.

        Raises:
            NoSuchThingError: no such job.
        """
        job = self._job(job_uid)
        live = self._from_job(job, lambda client: client.job(timeout_s=_ANSWER_S))
        past = self._past(job) if live is None else None
        with self._changed:
            summary = self._summary(job)
        if live is not None:
            return {**summary, **live, **{name: summary[name] for name in _REGISTERED}}
        assert past is not None
        return {name: summary.get(name) or past.get(name) for name in past | summary}

    def history(self, job_uid: str, *, checkpoints: int | None = None) -> dict[str, Any]:
        """The answer to ``GET /v1/jobs/{job_uid}/history``."""
        job = self._job(job_uid)
        live = self._from_job(
            job, lambda client: client.history(checkpoints=checkpoints, timeout_s=_ANSWER_S)
        )
        return dict(live) if live is not None else self._past_history(job, checkpoints)

    def running(self) -> dict[str, dict[str, Any]]:
        """Summaries of the jobs that have not ended, by uid."""
        found = {each["job_uid"]: each for each in self.jobs()["jobs"]}
        return {uid: each for uid, each in found.items() if each["ended_ms"] is None}

    # --- commands ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def commanded(self, job_uid: str, *, timeout_s: float = 0.0) -> Iterator[CoordinatorClient]:
        """A client with the token for commands of the job.

        Raises:
            NoSuchThingError: no such job.
            UnreachableError: it does not run, or too many commands wait for it.
            AuthenticationError: it belongs to another user.
        """
        job = self._job(job_uid)
        with (
            self._call_of(job),
            CoordinatorClient(self._command_address(job), deadline_s=timeout_s) as client,
        ):
            yield client

    # --- inside -----------------------------------------------------------------------------------

    def _job(self, job_uid: str) -> _WatchedJob:
        with self._changed:
            self._want()
            self._changed.wait_for(lambda: self._was_read, timeout=_FIRST_ANSWERS_S)
            job = self._jobs.get(job_uid)
        if job is None:
            raise NoSuchThingError(
                "no such job is registered",
                {"job_uid": job_uid, "registry": self._uri},
                "List the jobs: `sluice service jobs`. A job registers with Job(registry=...).",
            )
        return job

    def _want(self) -> None:
        """Note a reader; the first one after a while waits for new answers. Under the lock."""
        if self._clock() - self._read_s > _INTEREST_S:
            self._was_read = False
            for job in self._jobs.values():
                job.was_asked = False
            self._wake_all()
        self._read_s = self._clock()

    def _wake_all(self) -> None:
        """Let each thread look now. Under the lock."""
        for wake in (self._wake, *(job.wake for job in self._jobs.values())):
            wake.set()

    def _is_known(self) -> bool:
        waiting = any(job.is_waiting() for job in self._jobs.values())
        return self._stopped or (self._was_read and not waiting)

    def _summary(self, job: _WatchedJob) -> dict[str, Any]:
        """Under the lock."""
        return summary_for(
            job.registration, answer=job.answer, error=job.error, is_stale=self._is_stale(job)
        )

    def _is_stale(self, job: _WatchedJob) -> bool:
        unchanged_s = None if job.changed_s is None else self._clock() - job.changed_s
        return is_stale(job.registration, now_ms=wall_ms(), unchanged_s=unchanged_s)

    @contextlib.contextmanager
    def _call_of(self, job: _WatchedJob) -> Iterator[None]:
        with self._changed:
            if job.calls >= _MOST_CALLS:
                raise UnreachableError(
                    "the job has not answered earlier requests yet",
                    {"job_uid": job.registration.job_uid, "waiting": job.calls},
                    "Read the log of its driver: it may hang.",
                )
            job.calls += 1
        try:
            yield
        finally:
            with self._changed:
                job.calls -= 1

    def _command_address(self, job: _WatchedJob) -> CoordinatorAddress:
        """From the job's own file: the token never goes to an address of the registry."""
        registration = job.registration
        found = command_address(self._stores.open(registration.checkpoint_uri))
        if found.job_uid != registration.job_uid:
            raise WrongJobError(
                "another job runs with this checkpoint directory now",
                {"job_uid": registration.job_uid, "runs": found.job_uid},
                "Command that job.",
            )
        return found

    def _view_address(self, job: _WatchedJob) -> CoordinatorAddress:
        """The address to read from: the read-only port if the job belongs to another user."""
        try:
            return self._command_address(job)
        except AuthenticationError:
            registration = job.registration
            if registration.read_only_address is None:
                raise
            return CoordinatorAddress(
                address=registration.read_only_address,
                token="",
                leader_session_id="",
                job_uid=registration.job_uid,
            )

    def _from_job(
        self, job: _WatchedJob, read: Callable[[CoordinatorClient], Mapping[str, Any]]
    ) -> Mapping[str, Any] | None:
        """The job's own answer; None: it has ended, or did not answer lately."""
        with self._changed:
            if job.registration.ended_ms is not None or job.error is not None:
                return None
        try:
            with (
                self._call_of(job),
                CoordinatorClient(self._view_address(job), deadline_s=0.0) as client,
            ):
                return read(client)
        except StreamError as err:
            with self._changed:
                job.error = err
            return None

    def _past(self, job: _WatchedJob) -> dict[str, Any]:
        """Graph and settings from the newest decision of a job that does not answer."""
        registration = job.registration
        if job.past is not None and job.past[0] == registration:
            return job.past[1]
        with self._call_of(job):
            found = past_details(
                open_store(
                    registration.checkpoint_uri, jvm=self._stores.jvm(registration.checkpoint_uri)
                ),
                registration,
            )
        job.past = (registration, found)
        return found

    def _past_history(self, job: _WatchedJob, checkpoints: int | None) -> dict[str, Any]:
        with self._call_of(job):
            return past_history(
                self._stores.open(job.registration.checkpoint_uri), checkpoints=checkpoints
            )

    # --- the thread of the registry ---------------------------------------------------------------

    def _read_registry(self) -> None:
        registry: JobRegistry | None = None
        while not self._stopped:
            try:
                registry = registry or JobRegistry(self._stores.open(self._uri))
                self._take(registry.registrations())
                self._prune(registry)
                error = None
            except StreamError as err:
                error = err
            except Exception as err:
                log.exception("the registry cannot be read: registry=%s", self._uri)
                error = UnreachableError("the registry cannot be read", {"error": err}, "Wait.")
            with self._changed:
                if (error is None) != (self._registry_error is None):
                    log.warning(
                        "registry is %s: registry=%s", "back" if error is None else error, self._uri
                    )
                self._registry_error, self._was_read = error, True
                self._changed.notify_all()
            self._pause(self._wake)

    def _pause(self, wake: threading.Event) -> None:
        """Wait until the next look is due; a first reader makes it due."""
        looked_s = self._clock()
        while not self._stopped:
            if wake.wait(_BUSY_EVERY_S):
                wake.clear()
                return
            now_s = self._clock()
            if now_s - self._read_s < _INTEREST_S or now_s - looked_s >= _IDLE_EVERY_S:
                return

    def _take(self, registrations: list[Registration]) -> None:
        with self._changed:
            for job_uid in self._jobs.keys() - {each.job_uid for each in registrations}:
                del self._jobs[job_uid]
            for registration in registrations:
                self._note(registration)

    def _note(self, registration: Registration) -> None:
        """Take a registration as it is now. Under the lock."""
        job = self._jobs.setdefault(registration.job_uid, _WatchedJob(registration))
        if job.registration != registration:
            if job.registration.run_attempt != registration.run_attempt:
                job.error = None
            job.registration, job.changed_s = registration, self._clock()
        if registration.ended_ms is None and job.thread is None:
            self._watch(job)

    def _watch(self, job: _WatchedJob) -> None:
        watched = sum(each.thread is not None for each in self._jobs.values())
        if watched >= _MOST_WATCHED:
            job.error = UnreachableError(
                "the service watches no more jobs",
                {"watched": watched},
                "Start another service with a registry of its own.",
            )
            return
        job.thread = threading.Thread(
            target=self._ask_repeatedly,
            args=(job,),
            name=f"sluice-watch-{job.registration.job_uid}",
            daemon=True,
        )
        job.thread.start()

    def _prune(self, registry: JobRegistry) -> None:
        with self._changed:
            found = [self._summary(job) for job in self._jobs.values()]
        ended = [each for each in found if each["ended_ms"] is not None]
        ended.sort(key=lambda each: each["ended_ms"], reverse=True)
        for each in ended[self._kept :]:
            registry.delete(each["job_uid"])
            log.info("ended job forgotten: job_uid=%s name=%s", each["job_uid"], each["name"])

    # --- the thread of a job ----------------------------------------------------------------------

    def _ask_repeatedly(self, job: _WatchedJob) -> None:
        address: CoordinatorAddress | None = None
        while True:
            answer, error = None, None
            try:
                address = address or self._view_address(job)
                with CoordinatorClient(address, deadline_s=0.0) as client:
                    answer = next(iter(client.jobs(timeout_s=_ANSWER_S)), None)
            except StreamError as err:
                address, error = None, err
            except Exception as err:  # noqa: BLE001 - py4j raises its own
                address = None
                error = UnreachableError(
                    "the job's directory cannot be read", {"error": err}, "Wait."
                )
            with self._changed:
                job.answer = answer or job.answer
                job.error, job.was_asked = error, True
                self._changed.notify_all()
                if self._has_ended(job):
                    job.thread, job.was_asked = None, False
                    return
            self._pause(job.wake)
            with self._changed:
                if self._has_ended(job):
                    job.thread, job.was_asked = None, False
                    return

    def _has_ended(self, job: _WatchedJob) -> bool:
        is_listed = self._jobs.get(job.registration.job_uid) is job
        return self._stopped or not is_listed or job.registration.ended_ms is not None
