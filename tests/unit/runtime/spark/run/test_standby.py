"""A driver that waits for the lead of its job."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.election.ha_settings import HaSettings
from sluice.runtime.election.leader_election import Candidate, ElectionView, Leader
from sluice.runtime.election.lease_chain import LeaseChain
from sluice.runtime.election.store_election import StoreElection
from sluice.runtime.errors import JobFinishedError
from sluice.runtime.spark.run.console import RunTotals
from sluice.runtime.spark.run.job_spec import JobSpec
from sluice.runtime.spark.run.standby import Standby
from sluice.runtime.spark.session.interrupts import StopRequest, StopRequestedError
from tests.kit.coordinator.starting_job import aborted, record
from tests.kit.files.fake_file_system import Disk, FakeFileSystem
from tests.kit.waiting import wait_for

_LEADER = Leader(session_id="s", term=3, candidate=Candidate(host="a", pid=7))


@dataclass(slots=True)
class _Store:
    """The newest records of a job, and the files of its election."""

    fs: FakeFileSystem = field(default_factory=lambda: FakeFileSystem(Disk()))

    def slots(self) -> list[int]:
        """See `CheckpointStore.slots`."""
        return [0, 4, 5]

    def read(self, checkpoint_id: int) -> object:
        """See `CheckpointStore.read`."""
        return aborted(5) if checkpoint_id == 5 else record(checkpoint_id)


def _standby(ha: str | None = "lease") -> Standby:
    job = cast(JobSpec, SimpleNamespace(name="orders", ha=HaSettings.of(ha, 1.0)))
    return Standby(job, RunTotals("orders"))


def _elect(standby: Standby, store: _Store, stack: ExitStack, **given: Any) -> object:
    steps: Callable[[], None] = given.get("on_step", lambda: None)
    ends = given.get("ends", StopRequest())
    return standby.elect(cast(CheckpointStore, store), stack, ends, steps)


def _other_leader(store: _Store, stack: ExitStack) -> StoreElection:
    chain = LeaseChain(store.fs)
    election = StoreElection(chain, Candidate(host="a", pid=7), duration_s=1.0)
    stack.callback(election.resign)
    wait_for(lambda: election.campaign(timeout_s=0.05), what="the first leader")
    return election


def test_without_ha_nothing_is_elected() -> None:
    store = _Store()
    with ExitStack() as stack:
        assert _elect(_standby(None), store, stack) is None
    assert store.fs.entries("") == []


def test_a_first_start_leads_and_resigns_at_its_end() -> None:
    store, standby = _Store(), _standby()
    with ExitStack() as stack:
        election = cast(StoreElection, _elect(standby, store, stack))
        assert election.view().leader is not None
        assert not standby.is_waiting
    assert election.view().leader is not None
    newest = LeaseChain(store.fs).survey().newest
    assert newest is not None
    assert newest.leader is None, "the next start leads at once"


def test_a_request_ends_a_standby() -> None:
    store, standby, ends = _Store(), _standby(), StopRequest()
    with ExitStack() as stack:
        _other_leader(store, stack)
        with pytest.raises(StopRequestedError):
            _elect(standby, store, stack, ends=ends, on_step=ends.request)
    assert not standby.is_waiting


def test_a_standby_of_a_finished_job_has_its_last_decision() -> None:
    store, standby = _Store(), _standby()
    with ExitStack() as stack:
        leader = _other_leader(store, stack)
        with pytest.raises(JobFinishedError):
            _elect(standby, store, stack, on_step=lambda: leader.resign(is_finished=True))
    assert standby.finished is not None
    assert standby.finished.last_checkpoint_id == 4


def test_a_standby_shows_its_leader_in_one_line() -> None:
    standby = _standby()
    standby._tell(ElectionView(leader=None, standbys=(), way="lease"))  # noqa: SLF001 - no other way
    assert standby._totals.line() == "orders: standby, no leader is known yet"  # noqa: SLF001
    standby._tell(ElectionView(leader=_LEADER, standbys=(), way="lease"))  # noqa: SLF001
    assert standby._totals.line() == "orders: standby, driver 7 on a leads"  # noqa: SLF001
