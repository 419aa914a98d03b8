"""Commands of an operator to a running job."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sluice.runtime.contracts import Placement
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.coordinator.shell.request_thread import RequestedCheckpoint
from sluice.runtime.errors import ConfigError, FencedError
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.model.spelling import choice_of

__all__ = ["HostControl", "JobCommands", "Restarted"]

_COPIED = (CheckpointKind.SAVEPOINT, CheckpointKind.FULL)


class HostControl(Protocol):
    """Keeps tasks off hosts. Driver; one thread at a time."""

    def placement(self, job_uid: str) -> Placement:
        """Where the job runs; only regions whose tasks are known to run on one host."""
        ...

    def require(self, hosts: Sequence[str]) -> None:
        """Raise ConfigError with the hosts that cannot be excluded; changes nothing."""
        ...

    def exclude(self, hosts: Sequence[str]) -> int:
        """Start no more tasks of the job on these hosts; returns how many executors were ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """The restarted regions, and how many executors were ended on excluded hosts."""

    regions: tuple[str, ...]
    executors_ended: int = 0


class JobCommands:
    """Commands to one running job. Driver; every method thread-safe.

    Args:
        coordinator: of the job, started.
        hosts: None if this job cannot exclude hosts.
    """

    def __init__(self, coordinator: BarrierCoordinator, *, hosts: HostControl | None) -> None:
        self._coordinator = coordinator
        self._hosts = hosts
        self._one_at_a_time = threading.Lock()

    def placement(self) -> Placement:
        """Where the job runs now.

        Raises:
            ConfigError: the hosts of this job are not known.
        """
        started = self._coordinator.started
        if self._hosts is None or started is None:
            raise ConfigError(
                "the hosts of this job are not known", {}, "Look at Spark's own pages."
            )
        found = self._hosts.placement(started.job_uid)
        running = [each.region for each in self._coordinator.status().regions if not each.suspended]
        return replace(found, regions={name: found.regions.get(name) for name in running})

    def restart(self, regions: Sequence[str], exclude_hosts: Sequence[str]) -> Restarted:
        """Restart regions away from these hosts; without names, all suspended regions.

        Everything is checked before anything is changed. The old attempts end first, so that Spark
        repeats none of their tasks elsewhere. New attempts start when the old ones are settled.

        Raises:
            ConfigError: no region is suspended or named, or a host cannot be excluded.
            WrongJobError: the job has no such region.
            StreamError: the job has ended.
        """
        hosts = tuple(dict.fromkeys(exclude_hosts))
        with self._one_at_a_time:
            if hosts and self._hosts is None:
                raise ConfigError(
                    "hosts cannot be excluded from this job",
                    {"hosts": ",".join(hosts)},
                    "Restart without excluded hosts.",
                )
            if hosts and self._hosts is not None:
                self._hosts.require(hosts)
            restarted = self._coordinator.restart_regions(regions)
            ended = self._hosts.exclude(hosts) if hosts and self._hosts is not None else 0
        return Restarted(regions=restarted, executors_ended=ended)

    def savepoint(self, kind: str, *, to: str | None) -> RequestedCheckpoint:
        """Request a ``savepoint``, or a ``full`` checkpoint.

        Raises:
            ConfigError: there is no such kind or store, or too many requests wait.
        """
        remedy = "Use savepoint or full."
        found = choice_of(CheckpointKind, kind, setting="kind", remedy=remedy)
        if found not in _COPIED or (found is CheckpointKind.FULL and to is not None):
            raise ConfigError(
                "this checkpoint cannot be requested",
                {"kind": kind, "to": to},
                f"{remedy} Only a savepoint has a directory of its own.",
            )
        return self._coordinator.requests.add(found, to=to)

    def stop(
        self, *, drain: bool, savepoint: bool, to: str | None, limit_s: float | None
    ) -> RequestedCheckpoint:
        """Request the end of the job after a last checkpoint. If that is under way already, the
        job ends at once: all undecided work is aborted.

        Args:
            drain: read to the present end offsets first.
            savepoint: write a savepoint below ``to`` before the end. Without it the job continues.
            limit_s: for the last checkpoint; after that the job continues.
        Raises:
            FencedError: it ends at once.
            ConfigError: as `savepoint`.
        """
        requests = self._coordinator.requests
        with self._one_at_a_time:
            if requests.is_stopping:
                self._coordinator.cancel()
                raise FencedError(
                    "the job ends at once: a stop was under way already",
                    {},
                    "Start the job again; it reads the epoch that was under way again.",
                )
            return requests.add(
                CheckpointKind.FINAL, to=to, is_copied=savepoint, drain=drain, limit_s=limit_s
            )
