"""Both elections keep one contract: by leases on each file system, and with a real ZooKeeper."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from sluice.runtime.checkpoint.run_record import RunRecord
from sluice.runtime.election.ha_settings import HaSettings
from sluice.runtime.election.leader_election import ElectionView, LeaderElection
from sluice.runtime.election.lease_chain import ELECTION
from sluice.runtime.errors import JobFinishedError, LeadershipLostError
from sluice.runtime.storage.file_system import FileSystem
from tests.kit.waiting import wait_for

_TIMEOUT_S = 1.5
_STEP_S = 0.05

Candidates = Callable[[], LeaderElection]


pytestmark = pytest.mark.parametrize(
    ("fs", "ha"),
    [
        *(("fake", "lease"), ("file", "lease"), ("s3", "lease")),
        pytest.param("hdfs", "lease", marks=pytest.mark.integration),
        pytest.param("file", "zookeeper", marks=pytest.mark.integration),
    ],
    indirect=True,
)


@pytest.fixture
def ha(request: pytest.FixtureRequest) -> str:
    """The setting of a job."""
    if request.param == "lease":
        return "lease"
    return f"zookeeper://{request.getfixturevalue('zookeeper').hosts}/contract"


@pytest.fixture
def candidate(ha: str, fs: FileSystem) -> Iterator[Candidates]:
    """Makes candidates of one job, each as a process of its own would; they resign at the end."""
    settings = HaSettings.of(ha, _TIMEOUT_S)
    assert settings is not None
    with ExitStack() as stack:

        def make() -> LeaderElection:
            made = settings.election(fs, name="contract")
            stack.callback(made.resign)
            return made

        yield make


def _await_lead(election: LeaderElection) -> str:
    return wait_for(lambda: election.campaign(timeout_s=_STEP_S), what="the lead")


def _await_standby(election: LeaderElection, session: str) -> ElectionView:
    """It waits, and knows for whom."""

    def knows() -> ElectionView | None:
        assert election.campaign(timeout_s=_STEP_S) is None
        view = election.view()
        return view if view.leader is not None and view.leader.session_id == session else None

    return wait_for(knows, what="the leader known to a standby")


def test_the_first_candidate_leads_and_the_second_waits(candidate: Candidates) -> None:
    first, second = candidate(), candidate()
    session = _await_lead(first)
    view = _await_standby(second, session)
    assert view.leader is not None
    assert view.leader.term == 1
    wait_for(lambda: first.view().standbys, what="the standby known to the leader")
    first.require_leading()
    with pytest.raises(LeadershipLostError):
        second.require_leading()


def test_a_resignation_hands_over_to_another_session(candidate: Candidates) -> None:
    first, second = candidate(), candidate()
    before = _await_lead(first)
    _await_standby(second, before)
    first.resign()
    assert _await_lead(second) != before
    leader = second.view().leader
    assert leader is not None
    assert leader.term == 2
    wait_for(lambda: not second.view().standbys, what="no standby any more")


def test_a_finished_job_ends_its_standbys_and_not_its_next_start(candidate: Candidates) -> None:
    first, second = candidate(), candidate()
    _await_standby(second, _await_lead(first))
    first.resign(is_finished=True)

    def ends() -> bool:
        try:
            assert second.campaign(timeout_s=_STEP_S) is None
        except JobFinishedError:
            return True
        return False

    wait_for(ends, what="the standby's end")
    assert _await_lead(candidate())


def test_the_loser_of_an_election_is_told_once(
    candidate: Candidates, fs: FileSystem, ha: str
) -> None:
    """A person deletes the records, so another candidate is elected beside it."""
    first = candidate()
    lost: list[LeadershipLostError] = []
    _await_lead(first)
    first.report_loss(lost.append)
    second = candidate()

    def has_led() -> bool:
        fs.delete(ELECTION)  # again, if the first one has renewed its lease before the second came
        return _is_lost(second) or second.campaign(timeout_s=_STEP_S) is not None

    wait_for(has_led, what="the second leader")
    wait_for(lambda: lost or _is_lost(second), what="the end of one of two leaders")
    assert len(lost) <= 1


def _is_lost(election: LeaderElection) -> bool:
    try:
        election.campaign(timeout_s=0.0)
    except LeadershipLostError:
        return True
    return False


def test_the_address_is_in_the_record(candidate: Candidates) -> None:
    first, second = candidate(), candidate()
    session = _await_lead(first)
    run = RunRecord(leader_session_id=session, address="http://a:1", attempt_id=1, job_uid="u")
    first.announce(run)

    def address() -> str:
        second.campaign(timeout_s=_STEP_S)
        leader = second.view().leader
        return "" if leader is None else leader.address

    wait_for(lambda: address() == "http://a:1", what="the address known to a standby")


def test_a_candidate_that_has_not_campaigned_resigns(candidate: Candidates) -> None:
    candidate().resign()
    assert _await_lead(candidate())
