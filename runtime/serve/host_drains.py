"""Hosts of all jobs, and moving work off one of them."""

import contextlib
import logging
import queue
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.runtime.errors import ConfigError, StreamError, WaitedTooLongError
from sluice.runtime.process.host_clock import wall_ms
from sluice.runtime.serve.job_state import UNREACHABLE
from sluice.runtime.serve.served_jobs import NoSuchThingError, ServedJobs

__all__ = ["HostDrains"]

log = logging.getLogger(__name__)

_ANSWER_S = 3.0
_ALL_ANSWERS_S = 10.0
_COMMAND_S = 60.0
_ASKED_AT_ONCE = 32
_POLL_S = 0.5
_KEPT_DRAINS = 100


@dataclass(slots=True)
class _Drain:
    """One request to drain a host; only its thread changes it."""

    host: str
    request_id: str = field(default_factory=lambda: secrets.token_hex(6))
    started_ms: int = field(default_factory=wall_ms)
    ended_ms: int | None = None
    state: str = "running"
    jobs: list[dict[str, Any]] = field(default_factory=list)
    left: list[dict[str, Any]] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        return {
            "request_id": self.request_id,
            "host": self.host,
            "state": self.state,
            "started_ms": self.started_ms,
            "ended_ms": self.ended_ms,
            "jobs": [dict(each) for each in list(self.jobs)],
            "left": list(self.left),
        }


class HostDrains:
    """Asks all running jobs for their hosts, and drains hosts. Any thread.

    A drain runs in a thread of its own, one for each host. It is kept in memory: after a restart of
    the service, start the drain again. Each of its steps may be repeated.
    """

    def __init__(self, jobs: ServedJobs) -> None:
        self._jobs = jobs
        self._drains: dict[str, _Drain] = {}
        self._lock = threading.Lock()

    # --- what people read -------------------------------------------------------------------------

    def hosts(self) -> dict[str, Any]:
        """The answer to ``GET /v1/hosts``."""
        placements, unknown = self._placements()
        found: dict[str, dict[str, Any]] = {}
        for job_uid, placement in placements.items():
            for host in {placement["driver"], *placement["executors"]}:
                entry = found.setdefault(
                    host, {"host": host, "executors": 0, "drivers": 0, "jobs": []}
                )
                entry["executors"] += placement["executors"].get(host, 0)
                entry["drivers"] += host == placement["driver"]
                entry["jobs"].append(job_uid)
        return {"hosts": [found[host] for host in sorted(found)], "unknown": unknown}

    def jobs_on(self, host: str) -> dict[str, Any]:
        """The answer to ``GET /v1/hosts/{host}/jobs``."""
        placements, unknown = self._placements()
        return {
            "host": host,
            "jobs": [
                {
                    "job_uid": job_uid,
                    "is_driver": placement["driver"] == host,
                    "executors": placement["executors"].get(host, 0),
                    "regions": _regions_on(host, placement),
                }
                for job_uid, placement in placements.items()
                if host in {placement["driver"], *placement["executors"]}
            ],
            "unknown": unknown,
        }

    def report(self, request_id: str) -> dict[str, Any]:
        """The answer to ``GET /v1/drains/{request_id}``.

        Raises:
            NoSuchThingError: this service has not started it.
        """
        with self._lock:
            drain = self._drains.get(request_id)
        if drain is None:
            raise NoSuchThingError(
                "this service has no such drain",
                {"request_id": request_id},
                "Drain the host again: a restarted service has forgotten its drains.",
            )
        return drain.report()

    # --- a drain ----------------------------------------------------------------------------------

    def start(self, host: str, *, timeout_s: float) -> dict[str, Any]:
        """Begin to drain a host; a repeated call for a host under way returns the same drain.

        Args:
            timeout_s: for each step of a job: its full checkpoint, and its restart elsewhere.
        """
        if not 0 < timeout_s <= 86_400:
            raise ConfigError(
                "a drain needs a time limit", {"timeout_s": timeout_s}, "Use 1 to 86400 seconds."
            )
        with self._lock:
            for drain in self._drains.values():
                if drain.host == host and drain.state == "running":
                    return drain.report()
            drain = _Drain(host)
            self._drains[drain.request_id] = drain
            while len(self._drains) > _KEPT_DRAINS:
                self._drains.pop(next(iter(self._drains)))
        threading.Thread(
            target=self._run, args=(drain, timeout_s), name=f"sluice-drain-{host}", daemon=True
        ).start()
        return drain.report()

    def _run(self, drain: _Drain, timeout_s: float) -> None:
        try:
            placements, _ = self._placements()
            names = {uid: each["name"] for uid, each in self._jobs.running().items()}
            drain.jobs += [
                {"job_uid": uid, "name": names.get(uid, ""), "state": "waiting", "error": None}
                for uid, placement in placements.items()
                if placement["executors"].get(drain.host) or placement["driver"] == drain.host
            ]
            for entry in drain.jobs:
                self._move(entry, drain.host, timeout_s)
            drain.left = self._left_on(drain.host)
            drain.state = "incomplete" if drain.left else "drained"
        except Exception as err:
            log.exception("drain failed: host=%s", drain.host)
            drain.left.append({"job_uid": None, "what": str(err)})
            drain.state = "incomplete"
        drain.ended_ms = wall_ms()
        log.info(
            "drain ended: host=%s state=%s jobs=%d left=%d",
            drain.host,
            drain.state,
            len(drain.jobs),
            len(drain.left),
        )

    def _move(self, entry: dict[str, Any], host: str, timeout_s: float) -> None:
        """Full checkpoint, restart elsewhere, verify; the entry says how far it came."""
        job_uid = entry["job_uid"]
        try:
            placement = self._placement(job_uid)
            if not placement["executors"].get(host):
                entry["state"] = "stays"
                return
            entry["state"] = "full checkpoint"
            entry["full_checkpoint"] = self._full_checkpoint(job_uid, timeout_s)
            entry["state"] = "restart"
            # Without names only suspended regions would restart.
            regions = _regions_on(host, placement) or list(placement["regions"])
            with self._jobs.commanded(job_uid) as client:
                done = client.restart(regions, exclude_hosts=[host], timeout_s=_COMMAND_S)
            entry["regions"] = list(done["regions"])
            entry["executors_ended"] = done["executors_ended"]
            entry["state"] = "verify"
            self._await_gone(job_uid, host, entry["regions"], timeout_s)
            entry["state"] = "moved"
        except StreamError as err:
            entry["error"] = str(err)

    def _full_checkpoint(self, job_uid: str, timeout_s: float) -> str:
        """Take one, and wait until it is complete; its URI."""
        with self._jobs.commanded(job_uid) as client:
            request_id = client.savepoint(kind="full")["request_id"]
        for _ in _until(timeout_s, "full checkpoint", job_uid):
            with self._jobs.commanded(job_uid, timeout_s=_ANSWER_S) as client:
                found = {each["request_id"]: each for each in client.savepoints()}
            state = found.get(request_id, {"state": "failed", "error": "the job was restarted"})
            if state["state"] == "completed":
                return str(state["uri"])
            if state["state"] == "failed":
                raise StreamError(
                    "the full checkpoint before a drain failed",
                    {"job_uid": job_uid, "reason": state["error"]},
                    "Repair its cause, and drain the host again. Nothing was restarted.",
                )
        raise AssertionError("unreachable")

    def _await_gone(
        self, job_uid: str, host: str, regions: Iterable[str], timeout_s: float
    ) -> None:
        """Until the job has no executor on the host, and its restarted regions run again."""
        for _ in _until(timeout_s, "restart elsewhere", job_uid):
            with self._jobs.commanded(job_uid, timeout_s=_ANSWER_S) as client:
                placement = client.hosts(timeout_s=_ANSWER_S)
                status = client.status()["job"]
            open_regions = {each["region"] for each in status["regions"] if each["is_open"]}
            if not placement["executors"].get(host) and open_regions.issuperset(regions):
                return

    def _left_on(self, host: str) -> list[dict[str, Any]]:
        """Work of any job that still runs there, and jobs that do not answer."""
        found = self.jobs_on(host)
        left = [
            {"job_uid": each["job_uid"], "what": what}
            for each in found["jobs"]
            for what in (
                *(["driver"] if each["is_driver"] else []),
                *(["executors"] if each["executors"] else []),
            )
        ]
        return left + [{"job_uid": uid, "what": "not known"} for uid in found["unknown"]]

    # --- inside -----------------------------------------------------------------------------------

    def _placement(self, job_uid: str) -> Mapping[str, Any]:
        with self._jobs.commanded(job_uid) as client:
            return client.hosts(timeout_s=_ANSWER_S)

    def _placements(self) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
        """Ask all running jobs: the answers by uid, and the jobs that do not answer."""
        running = self._jobs.running()
        asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        answers: queue.SimpleQueue[tuple[str, Mapping[str, Any] | None]] = queue.SimpleQueue()

        def ask() -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    job_uid = asked.get_nowait()
                    try:
                        answers.put((job_uid, self._placement(job_uid)))
                    except StreamError:
                        answers.put((job_uid, None))

        answering = [uid for uid, each in running.items() if each["state"] != UNREACHABLE]
        for job_uid in answering:
            asked.put(job_uid)
        for _ in range(min(_ASKED_AT_ONCE, len(answering))):  # one may hang in a file system
            threading.Thread(target=ask, name="sluice-hosts", daemon=True).start()
        known: dict[str, Mapping[str, Any]] = {}
        deadline_s = time.monotonic() + _ALL_ANSWERS_S
        with contextlib.suppress(queue.Empty):
            for _ in answering:
                job_uid, found = answers.get(timeout=max(0.0, deadline_s - time.monotonic()))
                if found is not None:
                    known[job_uid] = found
        return dict(sorted(known.items())), sorted(running.keys() - known.keys())


def _regions_on(host: str, placement: Mapping[str, Any]) -> list[str]:
    """Regions that run there, or may: Spark chooses the executor of each task of a query."""
    if not placement["executors"].get(host):
        return []
    return [name for name, where in placement["regions"].items() if where in (None, host)]


def _until(timeout_s: float, what: str, job_uid: str) -> Iterable[None]:
    """A round each half second; raises at the end of the time."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        yield
        time.sleep(_POLL_S)  # the job has no call that waits
    raise WaitedTooLongError(
        f"the {what} of a job takes too long",
        {"job_uid": job_uid, "waited_s": timeout_s},
        "Read the log of its driver. Drain the host again with a longer limit.",
    )
