"""The coordinator's answers to source runners, workers, drop-in queries and commands: Starlette."""

import dataclasses
import hmac
import itertools
import logging
import secrets
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio.to_thread
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from sluice.runtime.continuous.barrier_service import KEYED_STATE, BarrierService
from sluice.runtime.contracts import RegionRegistration
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.coordinator.shell.operator_commands import JobCommands
from sluice.runtime.coordinator.shell.request_thread import RequestedCheckpoint
from sluice.runtime.election.zookeeper_path import ZooKeeperPath
from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    FencedError,
    NotLeaderError,
    UnreachableError,
    WrongServiceError,
)
from sluice.runtime.model.json_values import to_json
from sluice.runtime.process.wait_log import WaitLog
from sluice.runtime.service.endpoints import (
    ERROR_ANSWERS,
    Answer,
    Endpoint,
    answering,
    body_of,
    metrics_endpoint,
)
from sluice.runtime.service.metrics import job_registry
from sluice.runtime.service.page.page_routes import JobPages, api_routes
from sluice.runtime.service.service_client import CoordinatorAddress
from sluice.runtime.service.service_messages import (
    AttemptMessage,
    BarrierMessage,
    BatchMessage,
    EpochMessage,
    Message,
    NextBarrierMessage,
    QueryMessage,
    RegionMessage,
    RestartMessage,
    SavepointMessage,
    StopMessage,
    TokenMessage,
    WaitMessage,
)
from sluice.runtime.storage.delegation_tokens import issued_token
from sluice.runtime.storage.objects.object_location import ObjectLocation
from sluice.runtime.storage.web_hdfs import WebHdfsAddress

__all__ = ["LONGEST_POLL_S", "CoordinatorApp", "QueryHandler"]

log = logging.getLogger(__name__)

_THREADS = 256
LONGEST_POLL_S = 5.0
"""A poll for a barrier waits no longer."""
_FOR_PEOPLE = frozenset(
    {
        "/v1/status",
        "/v1/hosts",
        "/v1/regions/restart",
        "/v1/savepoints",
        "/v1/stop",
        "/metrics",
    }
)
_JOB_VIEWS = "/v1/jobs"


class QueryHandler(Protocol):
    """Answers the driver-side processes of drop-in queries. Called in the service's threads."""

    def call(self, call: str, payload: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """One message, ``begin``, ``commit``, ``abort``, …; a repeated one is safe; raises
        StreamError.

        Returns only values that `json` accepts.
        """
        ...


class CoordinatorApp:
    """Answers for one coordinator, or mounted handlers, or both; an ASGI application.

    Args:
        coordinator: a started coordinator, or None if it serves only handlers.
        checkpoint_uri: the coordinator's directory; if the service does not answer, clients read
            there which run leads the job.
        checkpoint_web: how clients without a JVM read that directory if it is not local; None: they
            cannot.
        zookeeper: nodes of the job with the same record; None: it has none.
        commands: of operators; None: none.
        barrier_service: of continuous regions; None: there are none.
        pages: what people see of the job; None: nothing but its status.
        registry: the coordinator's metrics; None: this makes them.
    """

    def __init__(
        self,
        coordinator: BarrierCoordinator | None = None,
        *,
        checkpoint_uri: str = "",
        checkpoint_web: WebHdfsAddress | ObjectLocation | None = None,
        zookeeper: ZooKeeperPath | None = None,
        commands: JobCommands | None = None,
        barrier_service: BarrierService | None = None,
        registry: CollectorRegistry | None = None,
        pages: JobPages | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._pages = pages
        self._barrier_service = barrier_service
        self._commands = commands
        self._task_waits = WaitLog(log)
        self._progress = itertools.count(1)
        self._command_token = secrets.token_urlsafe(32)
        self._checkpoint_uri = checkpoint_uri
        self._checkpoint_web = checkpoint_web
        self._zookeeper = zookeeper
        self._token = secrets.token_urlsafe(32)
        self.session = str(uuid.uuid4()) if coordinator is None else coordinator.session
        if registry is None and coordinator is not None:
            registry = job_registry(coordinator)
        self._registry = registry or CollectorRegistry()
        self._handlers: dict[str, QueryHandler] = {}
        self._answer = self._app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See https://asgi.readthedocs.io."""
        await self._answer(scope, receive, send)

    def address_at(self, base: str, *, ca: str, is_for_people: bool = False) -> CoordinatorAddress:
        """Address and token for a client.

        Args:
            base: ``http://host:port`` and path of this application.
            ca: what clients trust; see `CoordinatorAddress`.
            is_for_people: the token permits only status, metrics and commands, so that a reader of
                it cannot act as a task.
        """
        started = None if self._coordinator is None else self._coordinator.started
        return CoordinatorAddress(
            address=base,
            token=self._command_token if is_for_people else self._token,
            leader_session_id=self.session,
            job_uid="" if started is None else started.job_uid,
            attempt_id=None if started is None else started.attempt_id,
            checkpoint_uri=self._checkpoint_uri,
            checkpoint_web=self._checkpoint_web,
            zookeeper=self._zookeeper,
            ca=ca,
        )

    def mount(self, query_key: str, handler: QueryHandler) -> None:
        """Serve ``/v1/queries/{query_key}/…`` by this handler, from now on."""
        self._handlers[query_key] = handler

    # --- endpoints --------------------------------------------------------------------------------

    def _app(self) -> Starlette:
        asked = [
            ("/v1/barrier", answering(BarrierMessage, self._barrier)),
            ("/v1/attempts", answering(AttemptMessage, self._attempts)),
            ("/v1/epochs/next", answering(NextBarrierMessage, self._next_barrier)),
            ("/v1/epochs", answering(EpochMessage, self._epochs)),
            ("/v1/task-inputs", answering(RegionMessage, self._task_inputs)),
            ("/v1/waits", answering(WaitMessage, self._waiting)),
            ("/v1/tokens", answering(TokenMessage, self._tokens)),
            ("/v1/batches/decided", answering(BatchMessage, self._decided)),
            ("/v1/regions/restart", answering(RestartMessage, self._restart)),
            ("/v1/savepoints", answering(SavepointMessage, self._savepoint)),
            ("/v1/stop", answering(StopMessage, self._stop)),
            ("/v1/queries/{key}/{call}", self._query),
        ]
        shown = [
            ("/v1/status", self._status),
            ("/v1/savepoints", self._savepoints),
            ("/v1/hosts", self._hosts),
            ("/metrics", metrics_endpoint(self._registry)),
        ]
        return Starlette(
            routes=[
                *(Route(path, self._guarded(each), methods=["POST"]) for path, each in asked),
                *(Route(path, self._guarded(each), methods=["GET"]) for path, each in shown),
                *(() if self._pages is None else api_routes(self._pages, guarded=self._guarded)),
            ],
            exception_handlers=ERROR_ANSWERS,
            lifespan=_many_threads,
        )

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        """Only for clients with a token."""

        async def guarded(request: Request) -> Response:
            self._authorize(request)
            return await endpoint(request)

        return guarded

    def _authorize(self, request: Request) -> None:
        # Not from `request.url`, because the header Host is part of it.
        tokens, path = [self._token], request.scope["path"]
        if path in _FOR_PEOPLE or path.startswith(_JOB_VIEWS):
            tokens.append(self._command_token)
        given = request.headers.get("authorization", "").encode()
        if not any(hmac.compare_digest(given, f"Bearer {token}".encode()) for token in tokens):
            kind = "with a wrong token" if given else "without its token"
            # The sender of a wrong token may know an earlier run that had this address.
            found = WrongServiceError if given else AuthenticationError
            raise found(
                f"the coordinator refused a request {kind}",
                {"path": path},
                "Use the address object of this run, or `sluice job`. Tokens change with each "
                "run, and the token for people permits only status and commands.",
            )

    def _barrier(self, body: BarrierMessage) -> dict[str, Any]:
        barrier = self._of(body).poll_barrier(
            body.region, body.attempt_id, wait_s=min(body.wait_s, LONGEST_POLL_S)
        )
        return {"barrier": to_json(barrier)}

    def _next_barrier(self, body: NextBarrierMessage) -> dict[str, Any]:
        found = self._barrier_service_for(body).next_barrier(
            body.region,
            body.attempt_id,
            wait_s=min(body.wait_s, LONGEST_POLL_S),
            has_read=body.has_read,
            committed=body.committed,
        )
        return {"next": to_json(found)}

    def _epochs(self, body: EpochMessage) -> dict[str, Any]:
        self._barrier_service_for(body).acknowledge(body.epoch)
        return {}

    def _barrier_service_for(self, body: Message) -> BarrierService:
        self._of(body)
        if self._barrier_service is None:
            raise ConfigError("no region of this job is continuous", {}, "Restart the sender.")
        return self._barrier_service

    def _task_inputs(self, body: RegionMessage) -> dict[str, Any]:
        return {"inputs": to_json(self._of(body).task_inputs(body.region, body.attempt_id))}

    def _tokens(self, body: TokenMessage) -> dict[str, Any]:
        self._require_session(body.leader_session_id)
        found = issued_token(body.name)
        if found is None:
            raise ConfigError("this driver has no such delegation token", {}, "Restart the sender.")
        return {"issued": to_json(found)}

    def _attempts(self, body: AttemptMessage) -> dict[str, Any]:
        return {"registered_s": self._of(body).register(body.attempt)}

    def _waiting(self, body: WaitMessage) -> dict[str, Any]:
        coordinator, batch = self._of(body), body.batch
        is_stopping = is_continuous = False
        if self._barrier_service is not None:
            is_continuous = self._barrier_service.note_heartbeat(batch, body.what)
            is_stopping = self._barrier_service.is_stopping(batch)
        if body.what == KEYED_STATE and body.why is not None and not is_continuous:
            coordinator.register_region(  # the task of a micro-batch: its checkpoint waits for it
                RegionRegistration(
                    region=batch.region, attempt_id=batch.attempt_id, replayed=next(self._progress)
                )
            )
        # Names the batch: a task that dies while it waits does not report the end of its wait.
        name = f"{body.what} (region {batch.region}.{batch.attempt_id}, batch {batch.batch_id})"
        if body.why is None:
            self._task_waits.is_over(name)
        else:
            self._task_waits.waits(name, body.why)
        if is_stopping or not coordinator.is_live(batch.region, batch.attempt_id):
            raise FencedError(
                "this attempt of the region is over",
                {"region": batch.region, "attempt_id": batch.attempt_id, "waits_for": body.what},
                "Let the task end: its open work is aborted, and its records are read again if "
                "necessary.",
            )
        return {}

    def _decided(self, body: BatchMessage) -> dict[str, Any]:
        return {"decided": self._of(body).is_decided(body.batch)}

    async def _status(self, request: Request) -> Response:
        """Never waits for a thread of the pool: all of them may be waiting for commits."""
        del request
        started = None if self._coordinator is None else self._coordinator.started
        status = self._coordinator.status() if self._coordinator and started else None
        return Answer(
            {
                "leader_session_id": self.session,
                "job_uid": "" if started is None else started.job_uid,
                "queries": sorted(self._handlers),
                "job": dataclasses.asdict(status) if status else None,
            }
        )

    def _restart(self, body: RestartMessage) -> dict[str, Any]:
        commands = self._commands_for(body)
        return dataclasses.asdict(commands.restart(body.regions, body.exclude_hosts))

    def _savepoint(self, body: SavepointMessage) -> dict[str, Any]:
        return _requested(self._commands_for(body).savepoint(body.kind, to=body.to))

    def _stop(self, body: StopMessage) -> dict[str, Any]:
        return _requested(
            self._commands_for(body).stop(
                drain=body.drain, savepoint=body.savepoint, to=body.to, limit_s=body.timeout_s
            )
        )

    async def _savepoints(self, request: Request) -> Response:
        del request
        started = self._coordinator is not None and self._coordinator.started
        views = self._coordinator.requests.views() if self._coordinator and started else ()
        return Answer({"savepoints": [dataclasses.asdict(view) for view in views]})

    def _commands_for(self, body: Message) -> JobCommands:
        self._of(body)
        return self._accepted_commands()

    async def _hosts(self, request: Request) -> Response:
        del request
        found = await run_in_threadpool(self._accepted_commands().placement)
        return Answer(dataclasses.asdict(found))

    def _accepted_commands(self) -> JobCommands:
        if self._commands is None:
            raise ConfigError("this service takes no commands", {}, "Send commands only to a Job.")
        return self._commands

    async def _query(self, request: Request) -> Response:
        body, key = await body_of(QueryMessage, request), request.path_params["key"]
        self._require_caller(body.leader_session_id)
        handler = self._handlers.get(key)
        if handler is None:
            raise ConfigError(
                "no handler is mounted under this key",
                {"key": key, "mounted": ",".join(self._handlers)},
                "Call sluice.install(spark) in the process that runs the query.",
            )
        call = request.path_params["call"]
        return Answer({"answer": await run_in_threadpool(handler.call, call, body.payload)})

    def _of(self, body: Message) -> BarrierCoordinator:
        """The coordinator, if the message is meant for it."""
        self._require_session(body.leader_session_id)
        started = None if self._coordinator is None else self._coordinator.started
        if self._coordinator is None or started is None:
            raise UnreachableError(
                "this service has no coordinator yet", {}, "Send the request again."
            )
        if started.job_uid != body.job_uid:
            raise FencedError(
                "the message belongs to another job",
                {"job_uid": body.job_uid, "coordinated": started.job_uid},
                "Use one address for each job, and restart the sender.",
            )
        return self._coordinator

    def _require_caller(self, session: str) -> None:
        """Of a mounted handler."""
        self._require_session(session)

    def _require_session(self, session: str) -> None:
        if session != self.session:
            raise NotLeaderError(
                "the message is meant for another coordinator",
                {"leader_session_id": session, "current": self.session},
                "Stop this sender: the job was restarted, and the sender belongs to its older run.",
            )


def _requested(request: RequestedCheckpoint) -> dict[str, Any]:
    view = request.view
    return {"request_id": view.request_id, "parent": view.parent or None}


@asynccontextmanager
async def _many_threads(app: Starlette) -> AsyncIterator[None]:
    """Long polls and commits each keep a thread busy; the default of 40 is too few."""
    del app
    anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
    yield
