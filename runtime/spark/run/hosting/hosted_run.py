"""One run of a driver that hosts regions for a coordinator in another process."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.run_record import RunRecordStore
from sluice.runtime.contracts import RegionAttempt
from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.repartitioning import on_topics
from sluice.runtime.service.error_json import error_from_json
from sluice.runtime.service.hosted_region import RunningAttempt
from sluice.runtime.service.hosting.host_messages import HostAnswer
from sluice.runtime.service.hosting.leader_link import LeaderLink, answers
from sluice.runtime.service.hosting.region_host import RegionHost
from sluice.runtime.service.listening.listener import Listener
from sluice.runtime.spark.run.hosting.job_description import describe, publish
from sluice.runtime.spark.run.job_spec import JobSpec
from sluice.runtime.spark.run.region_launcher import ContinuousRegions, RegionLauncher
from sluice.runtime.spark.run.region_layout import Layout
from sluice.runtime.spark.session.interrupts import EndRequests

__all__ = ["HostedRun", "require_hostable"]

log = logging.getLogger(__name__)

_WATCH_S = 0.1
_STARTED_S = 5.0


def require_hostable(job: JobSpec, layout: Layout) -> None:
    """Refuse what a coordinator in another process cannot lead.

    Raises:
        ConfigError: a region is not continuous, or the job elects a leader itself.
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
        records = RunRecordStore(self.store.fs)

        def is_led() -> bool:
            leader = records.newest_for_hosts()
            return leader is not None and answers(leader)

        publish(self.store.fs, description, is_led=is_led)
        on_step()
        with (
            RegionHost(
                [region.name for region in self.layout.regions],
                self._launch,
                digest=description.digest,
                find=records.newest_for_hosts,
                listener=Listener.of(self.job.service),
            ) as host,
            ends.held(),
        ):
            self._await_end(host.link, ends)

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

    def _launch(self, host: RegionHost, attempt: RegionAttempt) -> RunningAttempt:
        """Start an attempt in this process; the service's threads."""
        told, job, layout = host.link.started(_STARTED_S), self.job, self.layout
        topics = host.link.topics() if job.uid is not None else {}
        launcher = RegionLauncher(
            job,
            {region.name: on_topics(region, topics) for region in layout.regions},
            None,
            self.store.fs,
            job_uid=told.job_uid,
            address=host.address,
            batches_to_retain=0,
            continuous=ContinuousRegions(
                names=layout.continuous,
                barrier_service=host.relays,
                ends=host.link.fixed_ends,
                lost_timeout_s=told.lost_timeout_s,
            ),
            replayable=lambda batch: batch,
            analyses=layout.analyses,
        )
        return launcher.launch(attempt)
