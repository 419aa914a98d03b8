"""A driver that waits for the lead of its job, before it writes a record or starts a task."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.election.ha_settings import await_lead
from sluice.runtime.election.leader_election import ElectionView, LeaderElection
from sluice.runtime.errors import JobFinishedError
from sluice.runtime.model.checkpoint_record import Verdict
from sluice.runtime.spark.run.console import RunTotals
from sluice.runtime.spark.run.job_spec import JobSpec
from sluice.runtime.spark.session.interrupts import EndRequests

__all__ = ["FinishedJob", "Standby"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedJob:
    """A job that another process has finished: its uid, and its newest decided checkpoint."""

    job_uid: str
    last_checkpoint_id: int


class Standby:
    """Waits, and shows people the leader. The thread that runs the job; any thread may read.

    Args:
        job: perhaps with an election.
        totals: shows the wait.

    Attributes:
        is_waiting: whether another process leads.
        finished: what the leader has left, if it has finished the job meanwhile.
    """

    def __init__(self, job: JobSpec, totals: RunTotals) -> None:
        self._job = job
        self._totals = totals
        self._leader: object = ()
        self.is_waiting = False
        self.finished: FinishedJob | None = None

    def elect(
        self,
        store: CheckpointStore,
        stack: contextlib.ExitStack,
        ends: EndRequests,
        on_step: Callable[[], None],
    ) -> LeaderElection | None:
        """Return once this process leads; None without ``ha``.

        Args:
            stack: of the run. It resigns last, after the coordinator has stopped.
            ends: requests for the end of the wait.
            on_step: called as soon as it is known that the process waits.
        Raises:
            JobFinishedError: the leader has finished the job; `finished` has its result.
            StreamError: see `LeaderElection.campaign`.
        """
        if self._job.ha is None:
            return None
        election = stack.enter_context(self._job.ha.election(store.fs, name=self._job.name))

        def wait(view: ElectionView) -> None:
            self.is_waiting = True
            self._tell(view)
            on_step()

        try:
            session = await_lead(election, check=ends.check, on_wait=wait)
            log.info("leads the job: job=%s session=%s", self._job.name, session)
        except JobFinishedError:
            self.finished = _finished(store)
            raise
        finally:
            self.is_waiting = False
            self._totals.wait_for("")
        return election

    def _tell(self, view: ElectionView) -> None:
        leader = view.leader
        if leader == self._leader:
            return
        self._leader = leader
        if leader is None:
            self._totals.wait_for("standby, no leader is known yet")
            return
        self._totals.wait_for(f"standby, {leader.candidate} leads")
        log.info(
            "standby waits for the lead: job=%s leader=%s session=%s address=%s term=%d",
            *(self._job.name, leader.candidate, leader.session_id, leader.address, leader.term),
        )


def _finished(store: CheckpointStore) -> FinishedJob:
    """The job as its leader has left it."""
    decided = (
        record
        for checkpoint_id in reversed(store.slots())
        if (record := store.read(checkpoint_id)) is not None and record.verdict is Verdict.DECIDED
    )
    record = next(decided)
    return FinishedJob(job_uid=record.job_uid, last_checkpoint_id=record.checkpoint_id)
