"""A process that hosts regions for the leader of a job: its service, its link, its attempts."""

import contextlib
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Self

from sluice.runtime.checkpoint.run_record import RunRecord
from sluice.runtime.contracts import RegionAttempt
from sluice.runtime.errors import StreamError
from sluice.runtime.service.hosted_region import HostedRegion, RunningAttempt
from sluice.runtime.service.hosting.host_messages import Join
from sluice.runtime.service.hosting.leader_link import LeaderLink
from sluice.runtime.service.hosting.relay import RelayApp, Relays
from sluice.runtime.service.listening.listener import Listener
from sluice.runtime.service.remote_region import RegionDoor, region_key
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_client import CoordinatorAddress

__all__ = ["RegionHost"]

log = logging.getLogger(__name__)

_STOP_S = 60.0


class RegionHost(contextlib.AbstractContextManager["RegionHost"]):
    """Open as a context manager; its end stops all attempts. Driver, one thread.

    Args:
        regions: names of all regions of the job.
        begin: starts an attempt in this process, see `HostedRegion`.
        digest: of the job's description.
        find: the newest leader, see `LeaderLink`.
        listener: where the service listens; the end closes it.

    Attributes:
        relays: of the attempts.
        link: to the leader.
    """

    def __init__(
        self,
        regions: Sequence[str],
        begin: Callable[["RegionHost", RegionAttempt], RunningAttempt],
        *,
        digest: str,
        find: Callable[[], RunRecord | None],
        listener: Listener,
    ) -> None:
        self.relays = Relays()
        app = RelayApp(self.relays)
        self._service = CoordinatorService(app, listener=listener)
        own = self.address
        self.link = LeaderLink(
            find,
            Join(
                host_id=str(uuid.uuid4()),
                address=own.address,
                token=own.token,
                ca=own.ca,
                digest=digest,
            ),
            self.relays.reports,
            app.obey,
        )
        app.link_to(self.link)
        self._handles = [
            HostedRegion(each, lambda attempt: begin(self, attempt)) for each in regions
        ]
        for handle in self._handles:
            self._service.mount(region_key(handle.region), RegionDoor(handle))
        self._stack = contextlib.ExitStack()

    @property
    def address(self) -> CoordinatorAddress:
        """Of the coordinator, as the tasks of this host see it."""
        return self._service.coordinator_address

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._service)
            stack.enter_context(self.link)
            stack.callback(self._stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _stop(self) -> None:
        """End all attempts; each ends in a thread of its own."""
        for timeout_s in (0.0, _STOP_S):
            for handle in self._handles:
                attempt_id = handle.status(timeout_s=0.0).attempt_id
                try:
                    is_over = attempt_id is None or handle.stop(attempt_id, timeout_s=timeout_s)
                except StreamError as err:
                    log.warning("a region was not stopped in order: error=%s", err)
                    continue
                if timeout_s and not is_over:
                    log.warning("a region has not stopped yet: region=%s", handle.region)
