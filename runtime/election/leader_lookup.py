"""Finds the newest leader of a job: in ZooKeeper first, then in its checkpoint store."""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from sluice.runtime.checkpoint.run_record import RunRecord, decode_run, find_leader
from sluice.runtime.contracts import Clock
from sluice.runtime.election.zookeeper_path import ZooKeeperPath
from sluice.runtime.errors import StreamError
from sluice.runtime.extras import extras_named
from sluice.runtime.process.backoff import Backoff
from sluice.runtime.storage.objects.object_location import ObjectLocation
from sluice.runtime.storage.web_hdfs import WebHdfsAddress

__all__ = ["LeaderLookup", "LookupTimes"]

log = logging.getLogger(__name__)

_FIRST_S = 4.0  # a successor seldom leads earlier, so a read before it would be in vain
_SPREAD_S = 6.0
_PAUSE_S = 6.0
_LONGEST_PAUSE_S = 60.0
_SESSION_S = 10.0


@dataclass(slots=True)
class LookupTimes:
    """When a reader asks the store during one silence of its coordinator. Pure.

    All tasks of a dead coordinator read. So their first reads come when there may be a successor,
    spread over some seconds, and later ones become rare: at last one a minute.

    Attributes:
        draw: a number in [0, 1).
    """

    draw: Callable[[], float]
    _due_s: float | None = None
    _backoff: Backoff | None = None

    def is_due(self, now_s: float) -> bool:
        """Whether to read now; then the next read is due later."""
        if self._due_s is None:
            self._due_s = now_s + _FIRST_S + _SPREAD_S * self.draw()
            self._backoff = Backoff(_PAUSE_S, _LONGEST_PAUSE_S)
        if now_s < self._due_s or self._backoff is None:
            return False
        self._due_s = now_s + self._backoff.next_s() * (0.5 + self.draw())
        return True

    def end(self) -> None:
        """The coordinator has answered."""
        self._due_s = None


class LeaderLookup:
    """For a process whose coordinator does not answer. One thread.

    ZooKeeper may be away, or hold an older leader because a write to it failed. So its answer
    counts only if it names a later run than the known one. Otherwise the store is read, where the
    leader has written its address first.

    Args:
        checkpoint_uri, web: see `find_leader`.
        zookeeper: nodes of the job; None: only the store is read.
        attempt_id: of the known run; None: no run is later.
        clock: monotonic seconds.
        draw: a number in [0, 1).
    """

    def __init__(
        self,
        checkpoint_uri: str,
        web: WebHdfsAddress | ObjectLocation | None,
        zookeeper: ZooKeeperPath | None,
        *,
        attempt_id: int | None,
        clock: Clock = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._checkpoint_uri = checkpoint_uri
        self._web = web
        self._zookeeper = zookeeper
        self._attempt_id = attempt_id
        self._clock = clock
        self._times = LookupTimes(draw)

    def later_leader(self) -> RunRecord | None:
        """The leader if it is a later run than the known one; None also if no read is due."""
        if self._attempt_id is None or not self._times.is_due(self._clock()):
            return None
        found = self._in_zookeeper()
        if not self._is_later(found):
            found = find_leader(self._checkpoint_uri, self._web)
        return found if self._is_later(found) else None

    def has_answered(self) -> None:
        """The coordinator answers again."""
        self._times.end()

    def _is_later(self, found: RunRecord | None) -> bool:
        return (
            found is not None
            and self._attempt_id is not None
            and found.attempt_id > self._attempt_id
        )

    def _in_zookeeper(self) -> RunRecord | None:
        if self._zookeeper is None:
            return None
        try:
            with extras_named():
                from sluice.runtime.election.zookeeper_nodes import ZooKeeperNodes
            nodes = ZooKeeperNodes(self._zookeeper, session_timeout_s=_SESSION_S)
            try:
                nodes.connect()
                data, _ = nodes.read_leader()
            finally:
                nodes.close()
            return decode_run(data, {}) if data else None
        except StreamError as err:
            log.debug("ZooKeeper did not name the leader: error=%s", err)
            return None
