"""Shows in ZooKeeper that this process lives, and learns which others do."""

import json
import logging
import threading
import time
from collections.abc import Callable

from sluice.runtime.checkpoint.run_record import RunRecord, decode_run, encode_run
from sluice.runtime.contracts import Clock
from sluice.runtime.election.candidacy import Presence
from sluice.runtime.election.leader_election import Candidate
from sluice.runtime.election.store_election import PresenceService
from sluice.runtime.election.zookeeper_nodes import ZooKeeperNodes
from sluice.runtime.errors import StorageError, StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.json_values import to_json
from sluice.runtime.process.wait_log import WaitLog

__all__ = ["ZooKeeperPresence", "is_replaced_by"]

log = logging.getLogger(__name__)

_POLL_S = 1.0
_JOIN_S = 5.0


class ZooKeeperPresence(PresenceService):
    """`PresenceService` by ephemeral nodes. Its thread talks to ZooKeeper; no other thread waits.

    Without an answer nothing is known: `presence_of` is UNKNOWN, and the lease decides.

    Args:
        nodes: of the job.
        clock: monotonic seconds.
    """

    def __init__(self, nodes: ZooKeeperNodes, *, clock: Clock = time.monotonic) -> None:
        self._nodes = nodes
        self._session_id = ""
        self._data = b""
        self._living: frozenset[str] | None = None
        self._to_announce: RunRecord | None = None
        self._on_change: Callable[[], None] = lambda: None
        self._waits = WaitLog(log, clock)
        self._changed = threading.Condition()
        self._is_woken = self._is_over = False
        self._thread = threading.Thread(target=self._run, name="sluice-zookeeper", daemon=True)
        self.has_node = False

    def start(self, session_id: str, candidate: Candidate, on_change: Callable[[], None]) -> None:
        self._session_id = session_id
        self._data = json.dumps(to_json(candidate)).encode()
        self._on_change = on_change
        self._nodes.start(self._wake)
        self._thread.start()

    def presence_of(self, session_id: str) -> Presence:
        living = self._living
        if living is None:
            return Presence.UNKNOWN
        return Presence.ALIVE if session_id in living else Presence.GONE

    def announce(self, run: RunRecord) -> None:
        self._to_announce = run
        self._wake()

    def close(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        self._nodes.close()

    # --- its thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_over:
            self._refresh()
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or self._is_woken, _POLL_S)
                self._is_woken = False

    def _refresh(self) -> None:
        before = self._living
        try:
            self._nodes.show_candidate(self._session_id, self._data)
            self.has_node = True
            self._living = self._nodes.candidates(self._wake)
            if self._to_announce is not None:
                self._announce(self._to_announce)
            self._waits.is_over("ZooKeeper")
        except StreamError as err:
            self._living = None
            self.has_node &= not self._nodes.is_lost
            self._waits.waits("ZooKeeper", err)
        except Exception:  # a bug in a client must not end the thread
            self._living = None
            log.exception("ZooKeeper failed, trying again")
        if self._living != before:
            self._on_change()

    def _announce(self, run: RunRecord) -> None:
        data, version = self._nodes.read_leader()
        failpoint("before-address")
        if is_replaced_by(data, run) and not self._nodes.write_leader(
            encode_run(run, with_token=False), version=version
        ):
            return  # another writer was faster: the next turn compares again
        failpoint("after-address")
        self._to_announce = None

    def _wake(self) -> None:
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()


def is_replaced_by(data: bytes, run: RunRecord) -> bool:
    """Whether this run's address replaces the content of the node.

    Attempt ids only grow in one checkpoint directory, so a leader that was paused never replaces a
    later one.
    """
    try:
        found = decode_run(data, {}) if data else None
    except StorageError:  # damaged
        return True
    return found is None or found.job_uid != run.job_uid or found.attempt_id < run.attempt_id
