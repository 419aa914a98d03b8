"""One report for many files: steps run at the same time, and the worst outcome counts."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from sluice.runtime.contracts import CommitOutcome, CommitReport
from sluice.runtime.errors import AuthenticationError, StorageError

__all__ = ["DONE", "LATE", "ReportPool", "guarded", "worst"]

DONE = CommitReport(outcome=CommitOutcome.COMMITTED)
LATE = CommitReport(outcome=CommitOutcome.PENDING, detail="the time ran out before the try")
_WORST = (CommitOutcome.UNKNOWN, CommitOutcome.PENDING, CommitOutcome.COMMITTED)
_MOST_DETAILS = 5

_File = TypeVar("_File")


class ReportPool:
    """Runs steps in threads. One caller at a time.

    Args:
        at_once: number of steps at once; 1: in the caller's thread.
    """

    def __init__(self, at_once: int) -> None:
        self._pool: ThreadPoolExecutor | None = None
        if at_once > 1:
            self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="sluice-files")

    def each(
        self, step: Callable[[_File], CommitReport], todo: Sequence[_File]
    ) -> list[CommitReport]:
        """Several at once. While the process ends, the pool takes no more work: then the
        caller's thread publishes the rest, because these files are decided."""
        begun = [] if self._pool is None else _begun(self._pool, step, todo)
        try:
            return [each.result() for each in begun] + [step(file) for file in todo[len(begun) :]]
        finally:
            for each in begun:
                each.cancel()

    def close(self) -> None:
        """End the threads, after the steps under way."""
        if self._pool is not None:
            self._pool.shutdown()


def _begun(
    pool: ThreadPoolExecutor, step: Callable[[_File], CommitReport], todo: Iterable[_File]
) -> list[Future[CommitReport]]:
    """The futures of as many steps as the pool takes."""
    begun: list[Future[CommitReport]] = []
    with contextlib.suppress(RuntimeError):
        for file in todo:
            begun.append(pool.submit(step, file))  # noqa: PERF401 - may end early
    return begun


def guarded(step: Callable[[], CommitReport]) -> CommitReport:
    """Turn a failure into PENDING: a later try can still look what happened."""
    try:
        return step()
    except (StorageError, AuthenticationError) as err:
        return CommitReport(outcome=CommitOutcome.PENDING, detail=str(err))


def worst(reports: Iterable[CommitReport]) -> CommitReport:
    """The report of a set of files."""
    found = list(reports)
    outcome = min((report.outcome for report in found), key=_WORST.index)
    details = sorted({r.detail for r in found if r.outcome is outcome and r.detail})
    if len(details) > _MOST_DETAILS:
        details[_MOST_DETAILS:] = [f"and {len(details) - _MOST_DETAILS} more"]
    return CommitReport(outcome=outcome, detail="; ".join(details))
