"""One run of a driver that hosts regions for a coordinator in another process."""

import contextlib
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.run_record import RunRecordStore
from sluice.runtime.contracts import RegionAttempt
from sluice.runtime.errors import ConfigError, StreamError
from sluice.runtime.service.error_json import error_from_json
from sluice.runtime.service.hosted_region import HostedRegion, RunningAttempt
from sluice.runtime.service.hosting.host_messages import HostAnswer, Join
from sluice.runtime.service.hosting.leader_link import LeaderLink
from sluice.runtime.service.hosting.relay import RelayApp, Relays
from sluice.runtime.service.listening.listener import Listener
from sluice.runtime.service.remote_region import RegionDoor, region_key
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.spark.run.hosting.job_description import describe, publish
from sluice.runtime.spark.run.job_spec import JobSpec
from sluice.runtime.spark.run.region_launcher import ContinuousRegions, RegionLauncher
from sluice.runtime.spark.run.region_layout import Layout
from sluice.runtime.spark.session.interrupts import EndRequests

__all__ = ["HostedRun", "require_hostable"]

log = logging.getLogger(__name__)

_WATCH_S = 0.1
_STARTED_S = 5.0
_STOP_S = 60.0


def require_hostable(job: JobSpec, layout: Layout) -> None:
    """Refuse what a coordinator in another process cannot lead.

    Raises:
        ConfigError: a region is not continuous, or the job has topics of its own.
    """
    names = sorted({region.name for region in layout.regions} - layout.continuous)
    if names:
        raise ConfigError(
            "a separate coordinator leads continuous regions only",
            {"regions": ",".join(names)},
            "Use engine='continuous', or coordinator='driver'.",
        )
    if job.ha is not None:
        raise ConfigError(
            "ha is a setting of the coordinator that runs in a process of its own",
            {"job": job.name},
            "Leave ha out of the job, and use `sluice coordinator start --ha …`.",
        )
    if job.uid is not None or job.restore_from is not None:
        raise ConfigError(
            "a separate coordinator knows no repartition topics and restores nothing",
            {"job": job.name, "restore_from": job.restore_from},
            "Use key_by(…, partitioned=True), or start once with coordinator='driver' to restore.",
        )


@dataclass(slots=True)
class HostedRun:
    """Hosts the regions of a job until its leader reports the end. Driver, the job's thread.

    Attributes:
        last: the leader's last answer; None: it has not answered yet.
    """

    job: JobSpec
    layout: Layout
    store: CheckpointStore
    last: HostAnswer | None = None

    def run(self, ends: EndRequests, on_step: Callable[[], None]) -> None:
        """Host until the end.

        Raises:
            StreamError: the error that ended the job, or why its leader refuses this driver.
        """
        description = describe(self.job, self.layout)
        publish(self.store.fs, description)
        on_step()
        relays = Relays()
        app = RelayApp(relays)
        records = RunRecordStore(self.store.fs)
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(Listener.of(self.job.service))
            service = CoordinatorService(app, listener=listener)
            own = service.coordinator_address
            link = LeaderLink(
                records.newest_for_hosts,
                Join(
                    host_id=str(uuid.uuid4()),
                    address=own.address,
                    token=own.token,
                    ca=own.ca,
                    digest=description.digest,
                ),
                relays.reports,
                app.obey,
            )
            app.link_to(link)
            host = _Regions(self, link, relays, service)
            handles = [HostedRegion(each.name, host.launch) for each in self.layout.regions]
            for handle in handles:
                service.mount(region_key(handle.region), RegionDoor(handle))
            stack.enter_context(service)
            stack.enter_context(link)
            stack.callback(_stop, handles)
            with ends.held():
                self._await_end(link, ends)

    def _await_end(self, link: LeaderLink, ends: EndRequests) -> None:
        while True:
            ends.check()
            if link.error is not None:
                raise link.error
            answer = link.wait_for_answer(_WATCH_S)
            self.last = answer or self.last
            if answer is not None and answer.end:
                if answer.error is not None:
                    raise error_from_json(answer.error)
                log.info("the job has ended: state=%s", answer.end)
                return


@dataclass(frozen=True, slots=True)
class _Regions:
    """Starts attempts of the leader's regions in this process; the service's threads."""

    run: HostedRun
    link: LeaderLink
    relays: Relays
    service: CoordinatorService

    def launch(self, attempt: RegionAttempt) -> RunningAttempt:
        """See `RegionLauncher.launch`."""
        told = self.link.started(_STARTED_S)
        job, layout = self.run.job, self.run.layout
        launcher = RegionLauncher(
            job,
            {region.name: region for region in layout.regions},
            None,
            self.run.store.fs,
            job_uid=told.job_uid,
            address=self.service.coordinator_address,
            batches_to_retain=0,
            continuous=ContinuousRegions(
                names=layout.continuous,
                barrier_service=self.relays,
                ends=self.link.fixed_ends,
                lost_timeout_s=told.lost_timeout_s,
            ),
            replayable=lambda batch: batch,
            analyses=layout.analyses,
        )
        return launcher.launch(attempt)


def _stop(handles: Sequence[HostedRegion]) -> None:
    """End all attempts; each ends in a thread of its own."""
    for timeout_s in (0.0, _STOP_S):
        for handle in handles:
            attempt_id = handle.status(timeout_s=0.0).attempt_id
            try:
                is_over = attempt_id is None or handle.stop(attempt_id, timeout_s=timeout_s)
            except StreamError as err:
                log.warning("a region was not stopped in order: error=%s", err)
                continue
            if timeout_s and not is_over:
                log.warning("a region has not stopped yet: region=%s", handle.region)
