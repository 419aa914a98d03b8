"""The drivers that host regions for the leader, and the handle of each region on them."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.runtime.continuous.barrier_service import AttemptEpochs, BarrierService
from sluice.runtime.contracts import (
    AttemptState,
    AttemptStatus,
    Clock,
    RegionAttempt,
    RegionHandle,
    RegionRegistration,
)
from sluice.runtime.errors import (
    ConfigError,
    FencedError,
    RegionUnansweredError,
    UnreachableError,
)
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.process.host_clock import age_clock
from sluice.runtime.process.pause_tolerant_clock import PauseTolerantClock
from sluice.runtime.service.hosting.host_messages import (
    AttemptReport,
    FixedEnd,
    Hello,
    HostAnswer,
    Join,
    RunTopic,
)
from sluice.runtime.service.remote_region import RemoteRegion
from sluice.runtime.service.service_client import CoordinatorAddress

__all__ = ["AssignedRegion", "RegionHosts"]

log = logging.getLogger(__name__)

_LONGEST_STEP_S = 5.0
_HOST_CALL_S = 5.0
"""Longest call to a host: meanwhile the leader does nothing for other regions, and the host may be
lost. A call without an answer is repeated."""

_ENDED = (AttemptState.ENDED, AttemptState.STOPPING, AttemptState.STOPPED)
_STATUS_S = 2.0
_TRANSFER_S = 1.0


@dataclass(slots=True)
class _Host:
    """A driver that has joined.

    Attributes:
        join: its last one.
        last_s: clock of its last message.
        regions: handles of regions in it, made when they are needed.
    """

    join: Join
    last_s: float
    regions: dict[str, RemoteRegion] = field(default_factory=dict)

    def region(self, name: str) -> RemoteRegion:
        """The handle of a region there."""
        found = self.regions.get(name)
        if found is None:
            address = CoordinatorAddress(
                address=self.join.address,
                token=self.join.token,
                leader_session_id=self.join.session,
                job_uid="",
                ca=self.join.ca,
            )
            found = self.regions[name] = RemoteRegion(name, address, transfer_s=_TRANSFER_S)
        return found

    def close(self) -> None:
        """Close the connections."""
        for region in self.regions.values():
            region.close()


class RegionHosts:
    """Hosts join here, report their attempts, and say hello each second. Coordinator process.

    Implements `sluice.runtime.service.coordinator_app.QueryHandler`, in the service's threads; the
    leader's thread calls the other methods.

    Args:
        digest: of the job's description.
        timeout_s: a host that is silent for so long is lost: its regions move to another one.
        fixed_ends: of a source.
        before_refusal: called before a driver of another job is refused. It takes back what that
            driver has left for later leaders: they must not execute what was refused.
        clock: monotonic seconds.

    Attributes:
        topics: the repartition topics of the run; set before the start is published.
    """

    def __init__(
        self,
        digest: str,
        *,
        timeout_s: float,
        fixed_ends: Callable[[str], Sequence[FixedEnd] | None],
        before_refusal: Callable[[], None] = lambda: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._digest = digest
        self._timeout_s = timeout_s
        self._fixed_ends = fixed_ends
        self._before_refusal = before_refusal
        self.topics: Sequence[RunTopic] = ()
        self._clock = PauseTolerantClock(clock, longest_step_s=_LONGEST_STEP_S)
        self._changed = threading.Condition()
        self._hosts: dict[str, _Host] = {}
        self._places: dict[str, str] = {}
        self._told_end: set[str] = set()
        self._answer = HostAnswer(is_known=False, clock_s=0.0)

    # --- messages -----------------------------------------------------------------------------

    def call(self, call: str, payload: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """``hello``, ``join``, ``ends`` or ``topics``."""
        match call:
            case "hello":
                return to_json(self._hello(from_json(Hello, payload)))
            case "join":
                return to_json(self._join(from_json(Join, payload)))
            case "ends":
                return to_json(self._fixed_ends(str(payload["source_id"])))
            case "topics":
                return to_json(tuple(self.topics))
        raise ConfigError(
            "the leader does not know this message of a host",
            {"call": call},
            "Run the same version of Sluice in the coordinator and all drivers.",
        )

    def _hello(self, hello: Hello) -> HostAnswer:
        with self._changed:
            host = self._hosts.get(hello.host_id)
            if host is not None:
                host.last_s = self._clock()
            if self._answer.end:
                self._told_end.add(hello.host_id)
            return replace(self._answer, is_known=host is not None, clock_s=age_clock())

    def _join(self, join: Join) -> HostAnswer:
        if join.digest != self._digest:
            self._before_refusal()
            raise ConfigError(
                "this driver describes another job than the coordinator runs",
                {"host_id": join.host_id, "address": join.address},
                "Run the same program with the same restore_from in all drivers. To change either, "
                "stop the job with `sluice job stop`, and start the new program first.",
            )
        with self._changed:
            known = self._hosts.get(join.host_id)
            if known is not None:
                known.close()
            self._hosts[join.host_id] = _Host(join=join, last_s=self._clock())
            self._changed.notify_all()
            log.info(
                "host joined: host_id=%s address=%s attempts=%s",
                join.host_id,
                join.address,
                ",".join(f"{each.region}.{each.attempt_id}" for each in join.reports),
            )
            return replace(self._answer, is_known=True, clock_s=age_clock())

    def publish(self, answer: HostAnswer) -> None:
        """Answer every message with this from now on."""
        with self._changed:
            self._answer = answer

    def await_end_told(self, timeout_s: float) -> None:
        """Wait until each host that is alive has learnt how the job ended."""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            with self._changed:
                if not self._live() - self._told_end:
                    return
                self._changed.wait(0.1)

    # --- hosts --------------------------------------------------------------------------------

    def collect(
        self, regions: Collection[str], *, hosts: int, timeout_s: float
    ) -> list[AttemptReport]:
        """Reports of all attempts, once each region is reported and enough hosts have joined, or
        time is up."""

        def is_complete() -> bool:
            running = {report.region for report in self._reports() if report.is_running}
            return running.issuperset(regions) and len(self._hosts) >= hosts

        with self._changed:
            self._changed.wait_for(is_complete, timeout_s)
            return list(self._reports())

    def await_hosts(self, count: int, timeout_s: float) -> bool:
        """Whether so many hosts are alive, now or within this time."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._live()) >= count, timeout_s)

    def _reports(self) -> Iterator[AttemptReport]:
        for host in self._hosts.values():
            yield from host.join.reports

    def watch(self) -> None:
        """Remove hosts that have been silent for too long."""
        with self._changed:
            for host_id in self._hosts.keys() - self._live():
                log.warning("host is lost: host_id=%s", host_id)
                self._hosts.pop(host_id).close()

    def _live(self) -> set[str]:
        now_s = self._clock()
        return {i for i, host in self._hosts.items() if now_s - host.last_s < self._timeout_s}

    def host_of(self, report: AttemptReport) -> str | None:
        """The host that has reported this attempt; None: it is lost."""
        key = report.region, report.attempt_id
        with self._changed:
            return next(
                (
                    i
                    for i, host in self._hosts.items()
                    if any((r.region, r.attempt_id) == key for r in host.join.reports)
                ),
                None,
            )

    def place(self, region: str, host_id: str) -> None:
        """The region runs on this host."""
        with self._changed:
            self._places[region] = host_id

    def choose(self, region: str) -> str | None:
        """The region's host, or the one with the fewest regions if that one is lost; None: there is
        no host."""
        with self._changed:
            live = self._live()
            if self._places.get(region) in live:
                return self._places[region]
            loads = dict.fromkeys(sorted(live), 0)
            for other, host_id in self._places.items():
                if host_id in loads and other != region:
                    loads[host_id] += 1
            return min(loads, key=loads.__getitem__, default=None)

    def remote(self, region: str, host_id: str | None) -> RemoteRegion | None:
        """The handle of a region on a host; None: the host is lost."""
        with self._changed:
            return self._hosts[host_id].region(region) if host_id in self._live() else None


class AssignedRegion(RegionHandle):
    """`RegionHandle` of a region on whichever host runs it. Coordinator process, leader's thread.

    An attempt is sent to one host only: if the answer is lost and the host with it, the attempt is
    over. Two hosts with one attempt would write two batches of one identity.

    Args:
        name: of the region.
        functions: of the region; their counts become part of its acknowledgements.
        hosts: of the job.
        barrier_service: answers its tasks.
    """

    def __init__(
        self,
        name: str,
        functions: Sequence[ChainedFunction],
        hosts: RegionHosts,
        barrier_service: BarrierService,
    ) -> None:
        self._name = name
        self._functions = functions
        self._hosts = hosts
        self._barrier_service = barrier_service
        self._epochs: AttemptEpochs | None = None
        self._host_id: str | None = None

    @property
    def region(self) -> str:
        return self._name

    def resume(self, epochs: AttemptEpochs, host_id: str | None) -> None:
        """An attempt of an earlier coordinator continues on this host; None: it is lost."""
        self._epochs, self._host_id = epochs, host_id
        if host_id is not None:
            self._hosts.place(self._name, host_id)
        self._barrier_service.open(epochs)

    def start(self, attempt: RegionAttempt, *, timeout_s: float) -> None:
        """See `RegionHandle.start`. Without a host the region waits.

        Raises:
            UnreachableError: the host that got this attempt is lost; only a new attempt may start.
        """
        if self._epochs is None or self._epochs.attempt_id != attempt.attempt_id:
            host_id = self._hosts.choose(self._name)
            remote = self._hosts.remote(self._name, host_id)
            if host_id is None or remote is None:
                raise self._unanswered("no driver hosts regions of this job now")
            if not remote.stop(attempt.attempt_id - 1, timeout_s=_HOST_CALL_S):
                raise self._unanswered("an earlier attempt is still ending on its host")
            self._epochs = AttemptEpochs(
                region=self._name,
                attempt_id=attempt.attempt_id,
                functions=self._functions,
                operator_states=attempt.restored.operator_states,
            )
            self._host_id = host_id
            self._hosts.place(self._name, host_id)
            self._barrier_service.open(self._epochs)
        remote = self._hosts.remote(self._name, self._host_id)
        if remote is None:
            raise self._lost()
        remote.start(attempt, timeout_s=min(timeout_s, _HOST_CALL_S))

    def stop(self, attempt_id: int, *, timeout_s: float) -> bool:
        """See `RegionHandle.stop`. On a lost host the attempt may still run. None of its batches is
        decided: the coordinator refuses its messages and aborts its transactions."""
        if self._epochs is not None and self._epochs.attempt_id <= attempt_id:
            self._epochs.stop()
        until_s = time.monotonic() + timeout_s
        while (remote := self._hosts.remote(self._name, self._host_id)) is not None:
            left_s = max(0.0, until_s - time.monotonic())
            try:
                if remote.stop(attempt_id, timeout_s=min(left_s, _HOST_CALL_S)):
                    return True
            except RegionUnansweredError:
                if left_s <= 0:
                    raise
            if left_s <= 0:
                return False
        return True

    def register(self, attempt_id: int, *, timeout_s: float) -> RegionRegistration:
        """As far as this coordinator knows the attempt: it has all its acknowledged epochs."""
        del timeout_s
        if self._epochs is None or self._epochs.attempt_id != attempt_id:
            raise FencedError(
                "this is not the newest attempt of the region",
                {"region": self._name, "attempt_id": attempt_id},
                "Use the newest attempt; the sweep ends open work of older ones.",
            )
        return self._epochs.registration()

    def status(self, *, check_storage: bool = False, timeout_s: float) -> AttemptStatus:
        remote = self._hosts.remote(self._name, self._host_id)
        if remote is None:
            return AttemptStatus(region=self._name, attempt_id=None, state=AttemptState.NONE)
        limit_s = min(timeout_s, _STATUS_S)  # other regions wait meanwhile
        found = remote.status(check_storage=check_storage, timeout_s=limit_s)
        if found.error is None and found.state in _ENDED:  # its driver leaves the job
            return replace(found, error=self._lost())
        return found

    def _unanswered(self, what: str) -> RegionUnansweredError:
        return RegionUnansweredError(
            what, {"region": self._name}, "Start the job's program, or wait for its driver."
        )

    def _lost(self) -> UnreachableError:
        return UnreachableError(
            "the host of a region is lost, or leaves the job",
            {"region": self._name, "host_id": self._host_id},
            "Check the driver process and its network. The region restarts on another driver.",
        )
