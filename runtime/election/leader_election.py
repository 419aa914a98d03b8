"""The protocol of an election: which of several processes leads a job.

An election serves liveness only. Two processes may believe for a while that they lead, because one
of them was paused. The fencing record in the checkpoint slots decides between them (`fence-first`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from sluice.runtime.checkpoint.run_record import RunRecord
from sluice.runtime.errors import LeadershipLostError

__all__ = ["Candidate", "ElectionView", "Leader", "LeaderElection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A process that leads a job or would lead it.

    Attributes:
        host, pid: of the process, for people.
        role: ``driver`` or ``coordinator``.
    """

    host: str
    pid: int
    role: str = "driver"

    def __str__(self) -> str:
        return f"{self.role} {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The leader of a job, as an observer knows it.

    Attributes:
        session_id: leader session id; no two leaderships ever have the same one.
        term: number of this leadership, from 1; a later leader has a larger one.
        candidate: the process.
        address: ``http://host:port`` of its coordinator, or ``https``; empty: it is still starting.
    """

    session_id: str
    term: int
    candidate: Candidate
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionView:
    """An election for people.

    Attributes:
        leader: None: no process leads, or none is known.
        standbys: processes that wait for the leadership.
        way: ``lease`` or ``zookeeper``; with ``zookeeper``, the lease replaces it while it is away.
    """

    leader: Leader | None
    standbys: Sequence[Candidate]
    way: str


class LeaderElection(Protocol):
    """One candidate in the election of one job. Driver or coordinator process; any thread.

    The owner calls `campaign` until it returns a session id, and uses that id for its coordinator.
    It calls `require_leading` between its last read of the slots and its fencing record. It may be
    elected once; a process that lost its leadership makes a new one.
    """

    def campaign(self, *, timeout_s: float) -> str | None:
        """The leader session id, once this candidate leads; None: not within this time.

        Raises:
            JobFinishedError: the leader has finished the job while this candidate waited.
            LeadershipLostError: it led before, and leads no more.
            StreamError: the election cannot be held, for example without permission.
        """
        ...

    def require_leading(self) -> None:
        """Read now whether this candidate still leads; the result is newer than the call.

        Raises:
            LeadershipLostError: another candidate leads.
            StorageError: the store does not answer.
        """
        ...

    def report_loss(self, on_lost: Callable[[LeadershipLostError], None]) -> None:
        """Call ``on_lost`` once when another candidate leads; now if one already does."""
        ...

    def announce(self, run: RunRecord) -> None:
        """Publish the run's address beside ``_leader``; the leader calls it after its start."""
        ...

    def view(self) -> ElectionView:
        """Leader and standbys, as known now; returns at once."""
        ...

    def resign(self, *, is_finished: bool = False) -> None:
        """Give up the leadership or the candidacy, and release all. Repeatable.

        Args:
            is_finished: the job has ended for good, so the standbys end, too. Otherwise one of them
                takes over at once.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Resign; the job is finished if no error left the block."""
        ...
