"""The settings ``ha`` and ``ha_timeout_s`` of a job, and the election that they request."""

import hashlib
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from sluice.runtime.election.leader_election import Candidate, ElectionView, LeaderElection
from sluice.runtime.election.lease_chain import LeaseChain
from sluice.runtime.election.store_election import PresenceService, StoreElection
from sluice.runtime.election.zookeeper_path import ZooKeeperPath
from sluice.runtime.errors import ConfigError
from sluice.runtime.extras import extras_named
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["DEFAULT_TIMEOUT_S", "HaSettings", "await_lead"]

DEFAULT_TIMEOUT_S = 6.0
_SHORTEST_S = 1.0
_SESSION_PART = 0.5
_POLL_S = 0.1
_LEASE = "lease"
_UNNAMED = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class HaSettings:
    """How a job elects its leader.

    Attributes:
        zookeeper: servers and root path; None: by leases in the checkpoint store alone.
        timeout_s: how long a leader may be silent before a standby takes over.
    """

    zookeeper: ZooKeeperPath | None
    timeout_s: float

    @classmethod
    def of(cls, ha: str | None, timeout_s: float) -> Self | None:
        """From ``Job(ha=…, ha_timeout_s=…)``; None without ``ha``.

        Raises:
            ConfigError: ``ha`` is neither ``lease`` nor an address of ZooKeeper, or the time is too
                short.
        """
        if not timeout_s >= _SHORTEST_S:
            raise ConfigError(
                "ha_timeout_s is too short",
                {"ha_timeout_s": timeout_s, "at_least": _SHORTEST_S},
                "Raise it: a pause of the leader that is longer costs a takeover.",
            )
        if ha is None:
            return None
        zookeeper = ZooKeeperPath.parse(ha)
        if zookeeper is None and ha != _LEASE:
            raise ConfigError(
                "ha names no way to elect a leader",
                {"ha": ha},
                "Use ha='lease', or ha='zookeeper://host1:2181,host2:2181/path'.",
            )
        return cls(zookeeper=zookeeper, timeout_s=timeout_s)

    def nodes_of(self, name: str, checkpoint_uri: str) -> ZooKeeperPath | None:
        """The place of one job's nodes, by its name and its checkpoint directory."""
        if self.zookeeper is None:
            return None
        digest = hashlib.sha256(checkpoint_uri.encode()).hexdigest()[:12]
        return self.zookeeper.below(f"{_UNNAMED.sub('-', name)}-{digest}")

    def election(self, fs: FileSystem, *, name: str, role: str = "driver") -> LeaderElection:
        """A candidate of this process.

        Args:
            fs: rooted at the checkpoint directory.
            name: of the job.
            role: see `Candidate`.
        Raises:
            MissingRequirementError: ``ha`` needs a package that is not installed.
        """
        candidate = Candidate(host=socket.gethostname(), pid=os.getpid(), role=role)
        where = self.nodes_of(name, fs.uri)
        presence = None if where is None else self._presence(where)
        return StoreElection(
            LeaseChain(fs), candidate, duration_s=self.timeout_s, presence=presence
        )

    def _presence(self, where: ZooKeeperPath) -> PresenceService:
        with extras_named():
            from sluice.runtime.election.zookeeper_nodes import ZooKeeperNodes
        from sluice.runtime.election.zookeeper_presence import ZooKeeperPresence

        # A session ends before the lease does, also where the servers round it up to their tick.
        nodes = ZooKeeperNodes(where, session_timeout_s=self.timeout_s * _SESSION_PART)
        return ZooKeeperPresence(nodes)


def await_lead(
    election: LeaderElection,
    *,
    check: Callable[[], None],
    on_wait: Callable[[ElectionView], None] = lambda _: None,
) -> str:
    """The leader session id, once this candidate leads.

    Args:
        check: called again and again; it raises to end the wait.
        on_wait: called again and again while the candidate is a standby.
    Raises:
        StreamError: see `LeaderElection.campaign`.
    """
    while True:
        check()
        session = election.campaign(timeout_s=_POLL_S)
        if session is not None:
            return session
        on_wait(election.view())
