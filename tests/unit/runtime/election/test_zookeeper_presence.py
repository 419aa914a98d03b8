"""What a candidate knows by ZooKeeper, with a ZooKeeper that is away, loses sessions, and is late."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

import pytest

from sluice.runtime.checkpoint.run_record import RunRecord, decode_run, encode_run
from sluice.runtime.election.candidacy import Presence
from sluice.runtime.election.leader_election import Candidate
from sluice.runtime.election.zookeeper_nodes import ZooKeeperNodes
from sluice.runtime.election.zookeeper_presence import ZooKeeperPresence
from sluice.runtime.errors import UnreachableError
from tests.kit.waiting import wait_for


def _run(attempt_id: int) -> RunRecord:
    return RunRecord(
        leader_session_id=f"s{attempt_id}",
        address=f"http://h:{attempt_id}",
        attempt_id=attempt_id,
        job_uid="u",
    )


@dataclass(slots=True)
class _Nodes:
    """`ZooKeeperNodes` in memory."""

    living: set[str] = field(default_factory=lambda: {"other"})
    leader: bytes = b""
    version: int | None = None
    is_away: bool = False
    is_lost: bool = False
    races: int = 0  # writes that another session is faster than
    wake: Callable[[], None] = lambda: None
    is_closed: threading.Event = field(default_factory=threading.Event)

    def start(self, on_state: Callable[[], None]) -> None:
        """See `ZooKeeperNodes.start`."""
        self.wake = on_state

    def show_candidate(self, session_id: str, data: bytes) -> None:
        """See `ZooKeeperNodes.show_candidate`."""
        del data
        self._require()
        self.living.add(session_id)

    def candidates(self, on_change: Callable[[], None]) -> frozenset[str]:
        """See `ZooKeeperNodes.candidates`."""
        del on_change
        self._require()
        return frozenset(self.living)

    def read_leader(self) -> tuple[bytes, int | None]:
        """See `ZooKeeperNodes.read_leader`."""
        self._require()
        return self.leader, self.version

    def write_leader(self, data: bytes, *, version: int | None) -> bool:
        """See `ZooKeeperNodes.write_leader`."""
        self._require()
        if self.races or version != self.version:
            self.races -= 1
            return False
        self.leader, self.version = data, (version or 0) + 1
        return True

    def close(self) -> None:
        """See `ZooKeeperNodes.close`."""
        self.is_closed.set()

    def turn(self, *, is_away: bool, is_lost: bool = False) -> None:
        """It goes away, or is back."""
        self.is_away, self.is_lost = is_away, is_lost
        self.wake()

    def _require(self) -> None:
        if self.is_away:
            raise UnreachableError("ZooKeeper does not answer", {}, "Wait.")


@pytest.fixture
def nodes() -> _Nodes:
    """With another candidate."""
    return _Nodes()


@pytest.fixture
def presence(nodes: _Nodes) -> Iterator[ZooKeeperPresence]:
    """Of a candidate whose node exists."""
    made = ZooKeeperPresence(cast(ZooKeeperNodes, nodes))
    made.start("mine", Candidate(host="a", pid=1), lambda: None)
    wait_for(lambda: made.has_node and made.presence_of("other") is Presence.ALIVE)
    yield made
    made.close()
    assert nodes.is_closed.is_set()


def test_a_candidate_without_a_node_is_gone(presence: ZooKeeperPresence) -> None:
    assert presence.presence_of("dead") is Presence.GONE
    assert presence.presence_of("mine") is Presence.ALIVE


def test_nothing_is_known_while_zookeeper_is_away(
    nodes: _Nodes, presence: ZooKeeperPresence
) -> None:
    """Neither that a candidate lives, nor that it is gone: the lease decides."""
    nodes.turn(is_away=True)
    wait_for(lambda: presence.presence_of("other") is Presence.UNKNOWN)
    assert presence.presence_of("dead") is Presence.UNKNOWN
    assert presence.has_node, "its session may live"
    nodes.turn(is_away=False)
    wait_for(lambda: presence.presence_of("dead") is Presence.GONE)


def test_a_lost_session_has_no_node_until_the_next_one_has(
    nodes: _Nodes, presence: ZooKeeperPresence
) -> None:
    nodes.living.discard("mine")
    nodes.turn(is_away=True, is_lost=True)
    wait_for(lambda: not presence.has_node)
    nodes.turn(is_away=False)
    wait_for(lambda: presence.has_node and presence.presence_of("mine") is Presence.ALIVE)


def test_an_address_is_written_again_until_it_is_there(
    nodes: _Nodes, presence: ZooKeeperPresence
) -> None:
    nodes.turn(is_away=True)
    nodes.races = 1
    presence.announce(_run(4))
    wait_for(lambda: presence.presence_of("other") is Presence.UNKNOWN)
    assert nodes.leader == b""
    nodes.turn(is_away=False)
    wait_for(lambda: nodes.leader != b"", what="the address")
    assert decode_run(nodes.leader, {}) == _run(4)


def test_an_address_of_a_later_leader_stays(nodes: _Nodes, presence: ZooKeeperPresence) -> None:
    later = encode_run(_run(9), with_token=False)
    nodes.leader, nodes.version = later, 3
    presence.announce(_run(4))
    wait_for(lambda: presence._to_announce is None)  # noqa: SLF001 - nothing else shows it
    assert nodes.leader == later
