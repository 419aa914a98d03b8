"""The coordinator over HTTP: its answers on uvicorn in a thread of the driver's process."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.errors import FencedError
from sluice.runtime.service.coordinator_app import CoordinatorApp, QueryHandler
from sluice.runtime.service.endpoints import ERROR_ANSWERS
from sluice.runtime.service.http_thread import HttpThread
from sluice.runtime.service.listening.listener import Listener
from sluice.runtime.service.listening.service_settings import ServiceSettings
from sluice.runtime.service.service_client import CoordinatorAddress

__all__ = ["CoordinatorService", "ServedRun"]

_RUNS = "/runs/"


class CoordinatorService(HttpThread):
    """Serves one coordinator, mounted handlers, and further coordinators on the same port. Driver;
    start and stop by one thread.

    Args:
        coordinator: or what answers for it; None: it serves only handlers.
        listener: where; None: a free port of the loopback interface.
    """

    def __init__(
        self,
        coordinator: BarrierCoordinator | CoordinatorApp | None = None,
        *,
        listener: Listener | None = None,
    ) -> None:
        self._own = (
            coordinator if isinstance(coordinator, CoordinatorApp) else CoordinatorApp(coordinator)
        )
        self._runs: dict[str, CoordinatorApp] = {}
        super().__init__(self._route, listener or Listener.of(ServiceSettings()))

    @property
    def coordinator_address(self) -> CoordinatorAddress:
        """Address and token for a client; give it only to tasks of this job."""
        return self._own.address_at(self.address, ca=self.ca)

    @property
    def command_address(self) -> CoordinatorAddress:
        """Address for people: its token permits only status, metrics and commands, so that a reader
        of it cannot act as a task."""
        return self._own.address_at(self.address, ca=self.ca, is_for_people=True)

    def mount(self, query_key: str, handler: QueryHandler) -> None:
        """Serve ``/v1/queries/{query_key}/…`` by this handler, from now on."""
        self._own.mount(query_key, handler)

    def serve_run(self, coordinator: BarrierCoordinator) -> "ServedRun":
        """Serve another coordinator below a path of its own, until `ServedRun.stop`."""
        app = CoordinatorApp(coordinator)
        self._runs[app.session] = app
        return ServedRun(self, app)

    def end_run(self, session: str) -> None:
        """Requests for this coordinator are refused from now on. A repeated call is safe."""
        self._runs.pop(session, None)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if not path.startswith(_RUNS):
            await self._own(scope, receive, send)
            return
        session, _, rest = path.removeprefix(_RUNS).partition("/")
        below = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()}
        await self._runs.get(session, _ENDED)(below, receive, send)


class ServedRun:
    """A coordinator on the port of a service that started before. Any thread."""

    def __init__(self, service: CoordinatorService, app: CoordinatorApp) -> None:
        self._service, self._app = service, app

    @property
    def address(self) -> str:
        """Of its messages."""
        return f"{self._service.address}{_RUNS}{self._app.session}"

    @property
    def coordinator_address(self) -> CoordinatorAddress:
        """See `CoordinatorService.coordinator_address`."""
        return self._app.address_at(self.address, ca=self._service.ca)

    def stop(self) -> None:
        """See `CoordinatorService.end_run`."""
        self._service.end_run(self._app.session)


async def _refuse(request: Request) -> Response:
    raise FencedError(
        "this run of the query is over",
        {"path": request.scope["path"]},
        "Stop this sender: it belongs to an ended run.",
    )


_ENDED = Starlette(
    routes=[Route("/{path:path}", _refuse, methods=["GET", "POST"])],
    exception_handlers=ERROR_ANSWERS,
)
