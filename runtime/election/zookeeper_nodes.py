"""The nodes of one job in ZooKeeper: the only import of kazoo. Each call is bounded."""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from sluice.runtime.election.zookeeper_path import ZooKeeperPath
from sluice.runtime.errors import UnreachableError

__all__ = ["ZooKeeperNodes"]

_CALL_S = 2.0
_LONGEST_PAUSE_S = 1.0  # between two tries to connect: soon after an outage all nodes are back
_CANDIDATES = "candidates"
_LEADER = "leader"
# Kazoo warns of each try to connect; callers log an outage once.
_silent = logging.getLogger("sluice.runtime.election.kazoo")
_silent.setLevel(logging.CRITICAL)


class ZooKeeperNodes:
    """A session of ZooKeeper. Any thread.

    ``candidates/{session id}`` is an ephemeral node of each candidate, ``leader`` a persistent one
    with the address of the newest leader.

    Args:
        where: servers and path of the job.
        session_timeout_s: requested; the servers have bounds of their own.
    """

    def __init__(self, where: ZooKeeperPath, *, session_timeout_s: float) -> None:
        self._where = where
        self._client = KazooClient(
            hosts=where.hosts,
            timeout=session_timeout_s,
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.1, max_delay=_LONGEST_PAUSE_S, ignore_expire=True
            ),
            command_retry=KazooRetry(max_tries=0),
            logger=_silent,
        )

    def start(self, on_state: Callable[[], None] = lambda: None) -> None:
        """Begin to connect; ``on_state`` is called when the session's state changes."""

        def listen(_: object) -> None:
            on_state()

        self._client.add_listener(listen)
        self._client.start_async()

    def connect(self) -> None:
        """Begin, and wait for the connection; UnreachableError: there is none in time."""
        try:
            self._client.start(timeout=_CALL_S)
        except KazooTimeoutError as err:
            raise self._unreachable(repr(err)) from err

    @property
    def is_connected(self) -> bool:
        """Whether it has a session and a connection now."""
        return bool(self._client.state == KazooState.CONNECTED)

    @property
    def is_lost(self) -> bool:
        """Whether there is no session: its ephemeral nodes are gone."""
        return bool(self._client.state == KazooState.LOST)

    def show_candidate(self, session_id: str, data: bytes) -> None:
        """Make the ephemeral node, unless this session of ZooKeeper has made it."""
        path = self._at(f"{_CANDIDATES}/{session_id}")
        stat = self._call(self._client.exists_async, path, if_absent=None)
        mine, _ = self._client.client_id
        if stat is not None and stat.ephemeralOwner == mine:
            return
        if stat is not None:  # of an earlier session of this process, which ends soon
            self._call(self._client.delete_async, path, if_absent=None)
        with suppress(_ExistsError):
            self._create(path, data, ephemeral=True, makepath=True)

    def candidates(self, on_change: Callable[[], None]) -> frozenset[str]:
        """Session ids of all candidates that live; ``on_change`` is called once they change."""
        path = self._at(_CANDIDATES)
        self._call(self._client.sync_async, path, if_absent=None)

        def watch(_: object) -> None:
            on_change()

        found = self._call(self._client.get_children_async, path, watch, if_absent=())
        return frozenset(found)

    def read_leader(self) -> tuple[bytes, int | None]:
        """The content of ``leader`` and its version; empty and None: there is none."""
        found = self._call(self._client.get_async, self._at(_LEADER), if_absent=None)
        return (b"", None) if found is None else (found[0], found[1].version)

    def write_leader(self, data: bytes, *, version: int | None) -> bool:
        """Replace ``leader`` if it still has this version; None: create it. False: it changed."""
        path = self._at(_LEADER)
        try:
            if version is None:
                self._create(path, data, ephemeral=False, makepath=True)
            else:
                self._call(lambda: self._client.set_async(path, data, version))
        except _ExistsError:
            return False
        return True

    def close(self) -> None:
        """End the session: its ephemeral nodes vanish at once."""
        with suppress(Exception):  # of a client that never connected; the session expires
            self._client.stop()
            self._client.close()

    def _create(self, path: str, data: bytes, *, ephemeral: bool, makepath: bool) -> None:
        self._call(
            lambda: self._client.create_async(path, data, ephemeral=ephemeral, makepath=makepath)
        )

    def _call(self, call: Callable[..., Any], *args: object, **absent: object) -> Any:  # noqa: ANN401 - kazoo's values
        """The answer; ``if_absent``: in place of the error that there is no such node."""
        if not self.is_connected:  # a call would wait for the connection
            raise self._unreachable("no connection")
        try:
            return call(*args).get(timeout=_CALL_S)
        except NoNodeError as err:
            if "if_absent" in absent:
                return absent["if_absent"]
            raise self._unreachable(repr(err)) from err
        except (NodeExistsError, BadVersionError) as err:
            raise _ExistsError from err
        except (KazooException, KazooTimeoutError) as err:
            raise self._unreachable(repr(err)) from err

    def _at(self, name: str) -> str:
        return f"{self._where.path}/{name}"

    def _unreachable(self, reason: str) -> UnreachableError:
        return UnreachableError(
            "ZooKeeper does not answer",
            {"hosts": self._where.hosts, "path": self._where.path, "reason": reason},
            "Check the servers; meanwhile the checkpoint store answers.",
        )


class _ExistsError(Exception):
    """Another session was faster."""
