"""What people command a running job to do."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.errors import ConfigError

__all__ = ["HostControl", "JobCommands", "Restarted"]


class HostControl(Protocol):
    """Keeps tasks off hosts. Driver; one thread at a time."""

    def require(self, hosts: Sequence[str]) -> None:
        """ConfigError where these hosts cannot be excluded, by name; changes nothing."""
        ...

    def exclude(self, hosts: Sequence[str]) -> int:
        """From now on no task of the job begins there; how many executors were ended for it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """Which regions begin new lives, and how many executors were ended on excluded hosts."""

    regions: tuple[str, ...]
    executors_ended: int = 0


class JobCommands:
    """Commands to one running job. Driver; every method thread-safe.

    Args:
        coordinator: of the job, started.
        hosts: None: hosts cannot be excluded here.
    """

    def __init__(self, coordinator: BarrierCoordinator, *, hosts: HostControl | None) -> None:
        self._coordinator = coordinator
        self._hosts = hosts
        self._one_at_a_time = threading.Lock()

    def restart(self, regions: Sequence[str], exclude_hosts: Sequence[str]) -> Restarted:
        """Let regions begin new lives, off these hosts; none named: all that are suspended.

        Everything is checked before anything is changed. The lives end first, so that no task of
        theirs is tried again elsewhere; the new ones begin when the old ones are settled.

        Raises:
            ConfigError: nothing is suspended and none is named; a host cannot be excluded.
            WrongJobError: the job has no such region.
            StreamError: the job has ended.
        """
        hosts = tuple(dict.fromkeys(exclude_hosts))
        with self._one_at_a_time:
            if hosts and self._hosts is None:
                raise ConfigError(
                    "hosts cannot be excluded from this job",
                    {"hosts": ",".join(hosts)},
                    "Restart without it.",
                )
            if hosts and self._hosts is not None:
                self._hosts.require(hosts)
            restarted = self._coordinator.restart_regions(regions)
            ended = self._hosts.exclude(hosts) if hosts and self._hosts is not None else 0
        return Restarted(regions=restarted, executors_ended=ended)
