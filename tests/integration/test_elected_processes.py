"""Real processes that elect a leader: killed, paused, without ZooKeeper, without a quorum."""

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count, groupby
from pathlib import Path

import pytest

from sluice.runtime.checkpoint.run_record import RunRecord
from sluice.runtime.election.ha_settings import HaSettings
from sluice.runtime.election.leader_lookup import LeaderLookup
from sluice.runtime.embedded.program import Program, ProgramSpec
from sluice.runtime.embedded.zookeeper.embedded_zookeeper import EmbeddedZooKeeper
from sluice.runtime.failpoints import VARIABLE
from tests.kit.elected_program import LEADS, LOST, WAITS, Slots
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration

_TIMEOUT_S = 2.0
_MORE = 10  # decisions
_KILLS = 12


class Candidates:
    """Processes of one job; none outlives the test."""

    def __init__(self, directory: Path, ha: str, stack: ExitStack) -> None:
        self.slots = Slots(directory / "job" / "slots")
        self._directory = directory
        self._ha = ha
        self._stack = stack
        self._started = 0

    def start(self, *, failpoints: str = "") -> Program:
        """One more."""
        self._started += 1
        directory = str(self._directory / "job")
        spec = ProgramSpec(
            command=(
                *(sys.executable, "-m", "tests.kit.elected_program"),
                *(directory, self._ha, str(_TIMEOUT_S)),
            ),
            log_path=self._directory / f"process-{self._started}.log",
            environment={VARIABLE: failpoints},
        )
        return self._stack.enter_context(Program(spec))

    def leader(self) -> Program:
        """A process that leads and decides."""
        program = self.start()
        await_text(program, LEADS)
        self.await_decisions()
        return program

    def standby(self) -> Program:
        """A process that waits."""
        program = self.start()
        await_text(program, WAITS)
        return program

    def await_decisions(self) -> None:
        """Some more than now."""
        target = self.slots.free() + _MORE
        wait_for(lambda: self.slots.free() >= target, what=f"{target} slots")

    def judge(self, leaders: int | None = None) -> None:
        """Terms only grow, each has one session, and each leader fenced before it decided."""
        records = self.slots.records()
        runs = [
            (session, int(term), [each[2] for each in group])
            for (session, term), group in groupby(records, key=lambda each: (each[0], each[1]))
        ]
        terms = [term for _, term, _ in runs]
        assert terms == sorted(set(terms)), runs
        assert len({session for session, _, _ in runs}) == len(runs)
        assert all(kinds[0] == "fence" and "fence" not in kinds[1:] for _, _, kinds in runs)
        assert leaders is None or len(runs) == leaders


def await_text(program: Program, text: str) -> None:
    """Its log has the text, and it lives."""

    def has_said() -> bool:
        assert program.exit_code is None, program.log_tail()
        return text in program.log()

    wait_for(has_said, what=text)


@pytest.fixture(params=["lease", "zookeeper"])
def candidates(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Candidates]:
    """Of an election of each way."""
    ha = "lease"
    if request.param == "zookeeper":
        ha = f"zookeeper://{request.getfixturevalue('zookeeper').hosts}/{tmp_path.name}"
    with ExitStack() as stack:
        yield Candidates(tmp_path, ha, stack)


@pytest.fixture
def by_zookeeper(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[Candidates]:
    """Of an election with ZooKeeper alone."""
    with ExitStack() as stack:
        yield Candidates(tmp_path, f"zookeeper://{zookeeper.hosts}/{tmp_path.name}", stack)


def test_a_standby_leads_after_a_kill(candidates: Candidates) -> None:
    leader = candidates.leader()
    standby = candidates.standby()
    leader.kill()
    await_text(standby, LEADS)
    candidates.await_decisions()
    candidates.judge(leaders=2)


def test_a_leader_that_wakes_after_two_successors_ends(candidates: Candidates) -> None:
    paused = candidates.leader()
    paused.pause()
    killed = candidates.start()
    await_text(killed, LEADS)
    killed.kill()
    last = candidates.start()
    await_text(last, LEADS)
    candidates.await_decisions()
    paused.resume()
    assert paused.await_exit(timeout_s=PATIENCE_S) == 1
    assert LOST in paused.log()
    candidates.await_decisions()
    assert last.exit_code is None
    candidates.judge(leaders=3)


@pytest.mark.extended
@pytest.mark.parametrize("failpoint", ["before-elected", "after-elected"])
def test_a_start_that_pauses_around_its_check_fences_no_later_leader(
    candidates: Candidates, failpoint: str
) -> None:
    paused = candidates.start(failpoints=f"{failpoint}=pause")
    wait_for(lambda: LEADS in paused.log(), what="the first leader")
    later = candidates.start()
    await_text(later, LEADS)
    candidates.await_decisions()
    paused.resume()
    assert paused.await_exit(timeout_s=PATIENCE_S) == 1
    assert f"{LOST} LeadershipLostError" in paused.log()
    candidates.await_decisions()
    assert later.exit_code is None
    candidates.judge(leaders=1)


@pytest.mark.extended
def test_kill_after_kill_has_one_leader_each(candidates: Candidates) -> None:
    leader = candidates.leader()
    for _ in range(_KILLS):
        standby = candidates.standby()
        leader.kill()
        await_text(standby, LEADS)
        candidates.await_decisions()
        leader = standby
    candidates.judge(leaders=_KILLS + 1)


@pytest.mark.extended
@pytest.mark.parametrize("failpoint", ["before-lease", "after-lease"])
def test_a_standby_that_dies_around_its_claim_hands_over(
    candidates: Candidates, failpoint: str
) -> None:
    """Once, and then the next one as well."""
    leader = candidates.leader()
    doomed = [candidates.start(failpoints=f"{failpoint}=kill") for _ in range(2)]
    for each in doomed:
        await_text(each, WAITS)
    leader.kill()
    for each in doomed:
        each.await_exit(timeout_s=PATIENCE_S)
    standby = candidates.start()
    await_text(standby, LEADS)
    candidates.await_decisions()
    candidates.judge(leaders=2)


@pytest.mark.extended
@pytest.mark.parametrize("failpoint", ["before-address", "after-address"])
def test_a_leader_that_dies_around_its_address_has_a_successor_with_an_address(
    by_zookeeper: Candidates, failpoint: str, zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """Once, and then the next one as well; readers find the last one in ZooKeeper."""
    for _ in range(2):
        doomed = by_zookeeper.start(failpoints=f"{failpoint}=kill")
        doomed.await_exit(timeout_s=PATIENCE_S)
    last = by_zookeeper.leader()

    def address() -> str:
        found = _later_leader(zookeeper, tmp_path, attempt_id=-1, uri="")
        return "" if found is None else found.address

    wait_for(lambda: address() == f"http://{_session(last)}", what="the last leader's address")
    by_zookeeper.judge(leaders=3)


@pytest.mark.extended
def test_readers_find_the_leader_in_the_store_while_zookeeper_names_an_earlier_one(
    by_zookeeper: Candidates, zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """The leader died after it had written its address to the store, before that to ZooKeeper."""
    first = by_zookeeper.leader()
    in_zookeeper = partial(_later_leader, zookeeper, tmp_path, attempt_id=-1, uri="")
    wait_for(lambda: in_zookeeper() is not None, what="the first leader's address")
    stale = in_zookeeper()
    assert stale is not None
    assert stale.leader_session_id == _session(first)
    second = by_zookeeper.start(failpoints="before-address=kill")
    first.kill()
    second.await_exit(timeout_s=PATIENCE_S)
    assert in_zookeeper() == stale
    uri = f"file://{tmp_path / 'job'}"
    found = _later_leader(zookeeper, tmp_path, attempt_id=stale.attempt_id, uri=uri)
    assert found is not None
    assert found.leader_session_id == _session(second)


def _session(leader: Program) -> str:
    (session,) = re.findall(f"^{LEADS} (.+)$", leader.log(), re.MULTILINE)
    return str(session)


def _later_leader(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path, *, attempt_id: int, uri: str
) -> RunRecord | None:
    """As a task finds it; without the URI of the checkpoint directory in ZooKeeper only."""
    where = HaSettings.of(f"zookeeper://{zookeeper.hosts}/{tmp_path.name}", _TIMEOUT_S)
    assert where is not None
    nodes = where.nodes_of("elected", f"file://{tmp_path / 'job'}")
    ticks = count(step=10.0).__next__  # the second call reads
    lookup = LeaderLookup(uri, None, nodes, attempt_id=attempt_id, clock=ticks, draw=lambda: 0.0)
    return lookup.later_leader() or lookup.later_leader()


@pytest.mark.extended
def test_a_quorum_without_one_node_goes_on(
    by_zookeeper: Candidates, zookeeper: EmbeddedZooKeeper
) -> None:
    """Also without the node that leads the ensemble."""
    leader = by_zookeeper.leader()
    standby = by_zookeeper.standby()
    zookeeper.nodes[zookeeper.leader()].kill()
    by_zookeeper.await_decisions()
    leader.kill()
    await_text(standby, LEADS)
    by_zookeeper.await_decisions()
    zookeeper.start()
    by_zookeeper.await_decisions()
    by_zookeeper.judge(leaders=2)


@pytest.mark.extended
def test_without_zookeeper_the_lease_elects(
    by_zookeeper: Candidates, zookeeper: EmbeddedZooKeeper
) -> None:
    """The leader goes on, dies, and is replaced; after ZooKeeper is back, the next one, too."""
    leader, standby = by_zookeeper.leader(), by_zookeeper.standby()
    for node in zookeeper.nodes:
        node.kill()
    by_zookeeper.await_decisions()
    leader.kill()
    await_text(standby, LEADS)
    by_zookeeper.await_decisions()
    zookeeper.start()
    by_zookeeper.await_decisions()
    assert standby.exit_code is None
    last = by_zookeeper.standby()
    standby.kill()
    await_text(last, LEADS)
    by_zookeeper.await_decisions()
    by_zookeeper.judge(leaders=3)
