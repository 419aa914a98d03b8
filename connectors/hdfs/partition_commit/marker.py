"""Marks partitions beside the commits: a policy that fails is retried and delays no commit."""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sluice.connectors.hdfs.partition_commit.open_partitions import PartitionLedger
from sluice.connectors.hdfs.partition_commit.partition_time import values_of
from sluice.connectors.hdfs.partition_commit.policies import MarkRefusedError, RunPolicy
from sluice.connectors.hdfs.partition_commit.settings import PartitionMark
from sluice.connectors.hdfs.partition_commit.trigger import DuePartition
from sluice.runtime.contracts import Clock, SinkContext
from sluice.runtime.failpoints import failpoint

__all__ = ["PartitionMarker"]

log = logging.getLogger(__name__)

_POLL_S = 0.5  # no event reports that a process time or an idle time-out has passed
_NEWEST_S = 1.0  # for so long one check is valid for further marks
_RETRY_S = 1.0
_MAX_RETRY_S = 60.0


@dataclass(slots=True)
class _Pause:
    """The pause before a failed step is retried; each pause is longer than the one before."""

    length_s: float = _RETRY_S
    until_s: float = float("-inf")

    def begin(self, now_s: float) -> float:
        """Start a pause after a failure; returns its length in seconds."""
        length_s, self.length_s = self.length_s, min(2 * self.length_s, _MAX_RETRY_S)
        self.until_s = now_s + length_s
        return length_s


@dataclass(slots=True)
class _FailedMark:
    """A mark whose policies have not all run.

    Attributes:
        key: of the mark.
        done: positions of the policies that have run.
        may_be_notified: whether a policy, also one whose answer was lost, may have notified a
        reader.
        pause: before the remaining policies are retried.
    """

    key: str
    may_be_notified: bool = False
    done: set[int] = field(default_factory=set)
    pause: _Pause = field(default_factory=_Pause)


class PartitionMarker:
    """Runs the policies of the partitions that are due. Driver; a thread of its own, or `round`.

    At least once: if a mark is made but not yet in a record, the next run makes it again, with the
    same key.

    Args:
        ledger: knows which partitions are due.
        policies: by name, in order.
        context: of the sink.
        target: URI of the directory that the sink writes.
        is_newest_run: whether no other run has taken over the job; it may fail. The marker calls it
            at most a second before a mark, because a process that was stopped for long may wake up
            in this thread. If the process stops between the check and the mark, it still makes this
            one mark.
    """

    def __init__(
        self,
        ledger: PartitionLedger,
        policies: Sequence[tuple[str, RunPolicy]],
        *,
        context: SinkContext,
        target: str,
        clock: Clock = time.monotonic,
        is_newest_run: Callable[[], bool] = lambda: True,
    ) -> None:
        self._ledger = ledger
        self._policies = policies
        self._context = context
        self._target = target
        self._clock = clock
        self._is_newest_run = is_newest_run
        self._rest = _Pause()
        self._newest_until_s = float("-inf")
        self._failed: dict[str, _FailedMark] = {}  # until the mark is made, also if not due
        self._due: frozenset[str] = frozenset()
        self._warned = False
        self._condition = threading.Condition()
        self._requested = 0
        self._served = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="sluice-marks", daemon=True)

    def start(self) -> None:
        """Begin to mark."""
        self._thread.start()

    def look(self, *, timeout_s: float) -> None:
        """Mark after files were published. Returns after one try of each due mark, or after the
        bound.

        Returns at once while a policy of a due partition fails.
        """
        with self._condition:
            self._requested += 1
            asked = self._requested
            self._condition.notify_all()
            if not self._due & self._failed.keys():
                self._condition.wait_for(lambda: self._served >= asked, timeout_s)

    def close(self, *, timeout_s: float) -> None:
        """Try each due mark once more, and end. The next run makes the remaining marks."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            with self._condition:
                self._condition.wait_for(
                    lambda: self._stopping or self._requested > self._served, _POLL_S
                )
                is_last, asked = self._stopping, self._requested
            try:
                self.round()
            except Exception:  # marks wait; the job's data does not depend on them
                log.exception(
                    "partitions could not be marked, the next round tries again: target=%s",
                    self._target,
                )
            with self._condition:
                self._served = asked
                self._condition.notify_all()

    def round(self) -> None:
        """Make the marks that are due; retry failed ones after their pause."""
        self._warn_without_watermark()
        due = self._ledger.due()
        self._due = frozenset(one.path for one in due)
        for one in filter(self._is_ready, due):
            if not self._may_mark():
                return
            self._try(one)

    def _is_ready(self, due: DuePartition) -> bool:
        failed = self._failed.get(due.path)
        is_new = failed is None or failed.key != self._mark(due).key
        return is_new or self._clock() >= self._failed[due.path].pause.until_s

    def _may_mark(self) -> bool:
        if self._clock() < self._rest.until_s:
            return False
        if self._clock() < self._newest_until_s:
            return True
        why = "another run has taken over this job"
        try:
            checked_s = self._clock()
            if self._is_newest_run():
                self._rest = _Pause()
                self._newest_until_s = checked_s + _NEWEST_S
                return True
        except Exception as err:  # noqa: BLE001 - whatever a client raises, the check has failed
            why = str(err)
        rest_s = self._rest.begin(self._clock())
        log.warning(
            "partitions are not marked by this run: target=%s again_in_s=%.0f error=%s",
            self._target,
            rest_s,
            why,
        )
        return False

    def _try(self, due: DuePartition) -> None:
        if not self._ledger.begin(due):
            return
        mark = self._mark(due)
        failed = self._failed.get(due.path)
        if failed is None or failed.key != mark.key:
            # A reader that may have been notified under another key stays notified.
            may_be_notified = failed is not None and failed.may_be_notified
            failed = self._failed[due.path] = _FailedMark(
                key=mark.key, may_be_notified=may_be_notified
            )
        failpoint("before-partition-mark")
        for place, (name, run) in enumerate(self._policies):
            if place in failed.done:
                continue
            try:
                run(mark)
            except Exception as err:  # noqa: BLE001 - a user's function, too, may raise anything
                failed.may_be_notified |= not isinstance(err, MarkRefusedError)
                self._put_off(due.path, failed, name, err)
                return
            failed.may_be_notified = True
            failed.done.add(place)
        failpoint("after-partition-mark")
        self._ledger.finish(due)
        del self._failed[due.path]
        log.info(
            "partition marked: target=%s partition=%s sequence=%d late=%s",
            self._target,
            mark.partition,
            mark.sequence,
            mark.is_late,
        )

    def _put_off(self, path: str, failed: _FailedMark, policy: str, err: Exception) -> None:
        if not failed.may_be_notified:
            self._ledger.undo(path)
        pause_s = failed.pause.begin(self._clock())
        log.warning(
            "partition is not marked yet: target=%s partition=%s policy=%s again_in_s=%.0f "
            "error=%s",
            self._target,
            path,
            policy,
            pause_s,
            err,
        )

    def _warn_without_watermark(self) -> None:
        is_waiting = self._ledger.is_waiting_for_a_watermark and self._ledger.has_open
        if is_waiting and not self._warned:
            log.warning(
                "no partition can be marked yet, a live split had no record: target=%s; "
                "set idle_timeout_s if that may last",
                self._target,
            )
        self._warned = is_waiting

    def _mark(self, due: DuePartition) -> PartitionMark:
        context = self._context
        what = [
            context.job_uid,
            context.operator_id,
            due.path,
            *map(str, sorted(due.through.items())),
        ]
        return PartitionMark(
            job_name=context.job_name,
            job_uid=context.job_uid,
            operator_id=context.operator_id,
            target=self._target,
            partition=due.path,
            values=values_of(due.path),
            sequence=due.sequence,
            is_late=due.is_late,
            key=hashlib.sha256("\n".join(what).encode()).hexdigest()[:32],
        )
