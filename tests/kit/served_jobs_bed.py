"""A registry with jobs that a small HTTP server plays, and the service for them."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore
from sluice.runtime.errors import ConfigError
from sluice.runtime.job_registry.registration import JobRegistry, Registration
from sluice.runtime.process.host_clock import wall_ms
from sluice.runtime.serve.host_drains import HostDrains
from sluice.runtime.serve.openapi import Call
from sluice.runtime.serve.serve_app import serve_app
from sluice.runtime.serve.serve_client import ServeClient
from sluice.runtime.serve.serve_server import ServeServer
from sluice.runtime.serve.served_jobs import ServedJobs
from sluice.runtime.serve.service_calls import service_calls
from sluice.runtime.serve.store_access import StoreAccess
from sluice.runtime.serve.submissions import Submissions, SubmitSettings
from sluice.runtime.service.error_json import error_to_json
from sluice.runtime.service.http_thread import HttpThread
from sluice.runtime.service.listening.listener import Listener
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.registered_jobs import a_registration
from tests.kit.waiting import PATIENCE_S

__all__ = ["TOKEN", "PlayedJob", "PlayedJobs", "Service", "service_of"]

TOKEN = "a-token-of-the-tests"


@dataclass
class PlayedJob:
    """What one job answers, and what it was told."""

    uid: str
    registration: Registration
    executors: dict[str, int] = field(default_factory=dict)
    regions: dict[str, str | None] = field(default_factory=dict)
    excluded: list[str] = field(default_factory=list)
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    savepoints: list[dict[str, Any]] = field(default_factory=list)
    fails_savepoints: bool = False
    suspended: str | None = None
    state: str = "running"
    hangs: threading.Event = field(default_factory=threading.Event)
    """Cleared: it hangs."""

    def summary(self) -> dict[str, Any]:
        return {"job_uid": self.uid, "state": self.state, "regions": 2, "lag_records": 7}

    def status(self) -> dict[str, Any]:
        why = {"since_ms": 1_000, "why": "poison"}
        regions = [
            {
                "region": name,
                "is_open": name != self.suspended,
                "suspended": why if name == self.suspended else None,
            }
            for name in self.regions
        ]
        return {"state": "running", "regions": regions}

    def placement(self) -> dict[str, Any]:
        return {
            "driver": self.registration.host,
            "executors": self.executors,
            "excluded": self.excluded,
            "regions": self.regions,
        }

    def answer(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if method == "GET":
            return {
                "/v1/jobs": {"jobs": [self.summary()]},
                f"/v1/jobs/{self.uid}": self.summary() | {"status": self.status()},
                f"/v1/jobs/{self.uid}/history": {"checkpoints": [{"checkpoint_id": 3}]},
                "/v1/status": {"job": self.status()},
                "/v1/hosts": self.placement(),
                "/v1/savepoints": {"savepoints": self.savepoints},
            }[path]
        self.told.append((path, body))
        if path == "/v1/savepoints":
            state = "failed" if self.fails_savepoints else "completed"
            entry = {
                "request_id": f"r{len(self.savepoints)}",
                "kind": body["kind"],
                "checkpoint_id": 3,
                "files": 1,
                "bytes": 2,
                "elapsed_s": 0.1,
                "suspended": [],
            }
            self.savepoints.append(entry | {"state": state, "uri": "file:///s", "error": "no room"})
            return {"request_id": entry["request_id"], "parent": "file:///"}
        if path == "/v1/regions/restart":
            return self._restart(body)
        return {"request_id": "stop", "parent": "file:///s" if body["savepoint"] else None}

    def _restart(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["exclude_hosts"]:
            (host,) = body["exclude_hosts"]
            if not set(self.executors) - {host}:
                raise ConfigError("no executor would be left", {"hosts": host}, "Start workers.")
            self.executors.pop(host)
            other = next(iter(self.executors))
            self.regions = {n: w if w != host else other for n, w in self.regions.items()}
        return {"regions": body["regions"], "executors_ended": 1}


class PlayedJobs(HttpThread):
    """Runs jobs, each with a token and a checkpoint directory of its own below ``uri``."""

    def __init__(self, uri: str, *, jvm: Any = None) -> None:
        self._open = partial(open_file_system, jvm=jvm)
        self.uri = uri
        self.registry = JobRegistry(self._open(f"{uri}/registry"))
        self._by_token: dict[str, PlayedJob] = {}
        self._command_files = contextlib.ExitStack()
        methods = ["GET", "POST"]
        app = Starlette(routes=[Route("/{path:path}", self._answer, methods=methods)])
        super().__init__(app, Listener.open("127.0.0.1", range(1)))

    def start_job(self, uid: str, **changes: Any) -> PlayedJob:
        """Write its command file, and register it."""
        checkpoints = self._open(f"{self.uri}/{uid}")
        registration = a_registration(
            uid,
            checkpoint_uri=checkpoints.uri,
            address=self.address,
            **({"started_ms": wall_ms(), "renewed_ms": wall_ms()} | changes),
        )
        run = RunRecord(
            leader_session_id="session",
            address=self.address,
            attempt_id=1,
            job_uid=uid,
            token=f"token-{uid}",
        )
        accepts = RunRecordStore(checkpoints).accept_commands(run, is_newest=lambda: True)
        self._command_files.enter_context(accepts)
        job = PlayedJob(uid=uid, registration=registration)
        job.hangs.set()
        self._by_token[f"token-{uid}"] = job
        self.registry.write(registration)
        return job

    def stop(self) -> None:
        """See `HttpThread.stop`."""
        super().stop()
        self._command_files.close()

    def kill(self, job: PlayedJob) -> None:
        """Its address refuses its token from now on; it never registers its end."""
        del self._by_token[f"token-{job.uid}"]

    async def _answer(self, request: Request) -> Response:
        token = request.headers["authorization"].removeprefix("Bearer ")
        job = self._by_token.get(token)
        if job is None:
            return JSONResponse({"error": "not this one"}, status_code=502)
        body = await request.json() if request.method == "POST" else {}
        if not job.hangs.is_set():
            await run_in_threadpool(job.hangs.wait, PATIENCE_S)
        try:
            return JSONResponse(job.answer(request.method, request.url.path, body))
        except ConfigError as err:
            return JSONResponse({"error": error_to_json(err)}, status_code=400)


@dataclass
class Service:
    """A running service."""

    server: ServeServer
    jobs: ServedJobs
    calls: list[Call]
    token: str = TOKEN

    def client(self, token: str | None = None, **options: Any) -> ServeClient:
        """With the token, or another one."""
        return ServeClient(self.server.address, token or self.token, **options)


@contextlib.contextmanager
def service_of(
    registry: str,
    directory: Path,
    *,
    submit_dir: Path | None = None,
    tls: tuple[Path, Path] | None = None,
    kept: int = 1000,
    env: frozenset[str] = frozenset(),
) -> Iterator[Service]:
    """As `sluice serve` makes it."""
    settings = SubmitSettings(
        directory=submit_dir, kept_in=directory / "submissions", registry=registry, env=env
    )
    with StoreAccess() as stores, ServedJobs(registry, stores, kept=kept) as jobs:
        calls = service_calls(jobs, HostDrains(jobs), Submissions(settings))
        with ServeServer(serve_app(calls, TOKEN), host="127.0.0.1", port=0, tls=tls) as server:
            yield Service(server, jobs, calls)
