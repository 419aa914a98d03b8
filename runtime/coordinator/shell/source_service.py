"""Fetches barrier offsets and discovers splits, in the threads that poll for a barrier.

Many threads use a source, one at a time: its lock serves them in order.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from sluice.runtime.contracts import Backlog, Clock, JobTopicEnumerator, SplitEnumerator
from sluice.runtime.coordinator.core.events import (
    Action,
    FetchBarrierOffsets,
    GiveBarrier,
    NothingDue,
    PollAnswer,
    RegionBarrierOffsets,
    SplitsDiscovered,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings
from sluice.runtime.errors import (
    SourceChangedError,
    UnreachableError,
    UnreadSplitsLostError,
    WaitedTooLongError,
)
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.splits import Barrier, SplitKey, SplitRange, busy_by_source

__all__ = ["CallQueue", "SerialSource", "SourceService", "answer_in", "given"]

log = logging.getLogger(__name__)

_COURTESY_S = 1.0
_LIMIT_S = 9.0
"""Time of one poll: a task counts a coordinator as unreachable after 10 s."""
_CALL_SHARE = 0.5
"""Share of that time for which one call may lock a source: the next caller has the rest."""
_LONG_EVERY = 4
"""After an attempt without an answer, attempts are short and share the time among the regions whose
brokers do not answer, since other regions wait. Every fourth attempt is long: brokers may be slow.
"""
_SHORTEST_SHARE = 0.05
"""Share of a poll's time for a short attempt: enough for brokers that answer."""
_MAX_AGE_S = 30.0
"""Longest age of a source's answer that waits for other sources: offsets must be recent."""


class CallQueue:
    """A fair `threading.RLock`: it serves waiting threads in the order of their calls.

    Python's own lock goes to any thread that tries when it is free. A thread that holds it for
    seconds and takes it again at once would lock out threads that wait for a limited time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, threading.Event]] = deque()
        self._owner: int | None = None
        self._depth = 0

    def acquire(self, timeout_s: float | None = None) -> bool:
        """Whether this thread holds the lock now; without a time limit it waits for ever."""
        me, turn = threading.get_ident(), threading.Event()
        with self._lock:
            if self._owner in (me, None):
                self._owner = me
                self._depth += 1
                return True
            self._waiting.append((me, turn))
        try:
            if turn.wait(timeout_s):
                return True
        except BaseException:  # Ctrl-C: this thread must not keep a lock that it just received
            if not self._leave(me, turn):
                self.release()
            raise
        return not self._leave(me, turn)

    def _leave(self, me: int, turn: threading.Event) -> bool:
        """Stop waiting; False if the thread received the lock a moment ago."""
        with self._lock:
            if turn.is_set():
                return False
            self._waiting.remove((me, turn))
            return True

    def release(self) -> None:
        """Release the lock; the next waiting thread receives it."""
        with self._lock:
            self._depth -= 1
            if self._depth:
                return
            self._owner = None
            if self._waiting:
                self._owner, turn = self._waiting.popleft()
                self._depth = 1
                turn.set()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the lock for a block; waits for ever."""
        self.acquire()
        try:
            yield
        finally:
            self.release()


class SerialSource(SplitEnumerator):
    """A `SplitEnumerator` with a lock: many threads fetch barrier offsets, one at a time.

    A thread waits for the lock at most as long as its call may take. A source with unreachable
    brokers is locked for that long.
    """

    def __init__(self, source: SplitEnumerator) -> None:
        self._source = source
        self._lock = CallQueue()

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[tuple[SplitEnumerator, float]]:
        """Lock the source for several calls; yields it and the remaining time.

        Raises:
            WaitedTooLongError: other threads held the lock all the time.
        """
        began_s = time.monotonic()
        if not self._lock.acquire(max(0.0, timeout_s)):
            raise WaitedTooLongError(
                "the source is busy with other calls",
                {"waited_s": round(timeout_s, 1)},
                "Check that all brokers of its partitions run; the call is repeated.",
            )
        try:
            yield self._source, max(0.0, timeout_s - (time.monotonic() - began_s))
        finally:
            self._lock.release()

    def resolve_start(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        with self.held(timeout_s) as (source, left_s):
            return source.resolve_start(timeout_s=left_s)

    def restore(self, positions: Sequence[SplitRange], *, timeout_s: float) -> None:
        with self.held(timeout_s) as (source, left_s):
            source.restore(positions, timeout_s=left_s)

    def adopt(self, positions: Sequence[SplitRange], *, timeout_s: float) -> tuple[SplitRange, ...]:
        with self.held(timeout_s) as (source, left_s):
            return source.adopt(positions, timeout_s=left_s)

    def readable(self, ranges: Sequence[SplitRange], *, timeout_s: float) -> tuple[SplitRange, ...]:
        with self.held(timeout_s) as (source, left_s):
            return source.readable(ranges, timeout_s=left_s)

    def replayable(
        self,
        ranges: Sequence[SplitRange],
        *,
        timeout_s: float,
        pause: Callable[[float], object] | None = None,
    ) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.replayable`. Other threads may use the source in its pauses."""
        wait = time.sleep if pause is None else pause

        def pause_unlocked(seconds: float) -> None:
            self._lock.release()
            try:
                wait(seconds)
            finally:
                self._lock.acquire()

        with self.held(timeout_s) as (source, left_s):
            return source.replayable(ranges, timeout_s=left_s, pause=pause_unlocked)

    def discover(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        with self.held(timeout_s) as (source, left_s):
            return source.discover(timeout_s=left_s)

    def cut(
        self, positions: Sequence[SplitRange], *, max_records: int | None, timeout_s: float
    ) -> tuple[SplitRange, ...]:
        with self.held(timeout_s) as (source, left_s):
            return source.cut(positions, max_records=max_records, timeout_s=left_s)

    def is_finished(self, positions: Sequence[SplitRange]) -> bool:
        with self._lock.taken():
            return self._source.is_finished(positions)

    def fixed_ends(self) -> Mapping[SplitKey, int] | None:
        with self._lock.taken():
            return self._source.fixed_ends()

    def committed(self, positions: Sequence[SplitRange]) -> None:
        """See `SplitEnumerator.committed`. If the source stays locked, the positions wait for the
        next call: only lag tools read them, and commits wait for this call."""
        try:
            with self.held(_COURTESY_S) as (source, _):
                source.committed(positions)
        except UnreachableError as err:
            log.debug("committed positions are not published: error=%s", err)

    def lag_records(self, positions: Sequence[SplitRange]) -> int | None:
        with self._lock.taken():
            return self._source.lag_records(positions)

    def measure(
        self, positions: Sequence[SplitRange], *, timeout_s: float
    ) -> Mapping[SplitKey, Backlog]:
        with self.held(timeout_s) as (source, left_s):
            return source.measure(positions, timeout_s=left_s)

    def close(self) -> None:
        with self._lock.taken():
            self._source.close()


@dataclass(slots=True)
class _Discovery:
    """State of the discovery of one source's splits.

    Attributes:
        due_s: time of the next call.
        is_open: whether the last call is under way, or had no answer.
        pause_s: pause after a call without an answer; grows.
        failures: calls in a row without an answer.
    """

    due_s: float = float("-inf")
    is_open: bool = False
    pause_s: float = 0.0
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceOffsets:
    """Barrier offsets of one source.

    Attributes:
        at_s: time of the answer.
        splits: the ranges up to the barrier.
        is_finished: whether they end at the source's end.
        waiting: unread records after them.
        log_ends: of a repartition topic, if they were requested.
    """

    at_s: float
    splits: tuple[SplitRange, ...]
    is_finished: bool
    waiting: Mapping[SplitKey, int]
    log_ends: Mapping[SplitKey, int]


@dataclass(slots=True)
class _Request:
    """A region's open request. The answer of one source waits for those of the other sources."""

    action: FetchBarrierOffsets
    answers: dict[str, _SourceOffsets] = field(default_factory=dict)
    tries: int = 0
    again_s: float = float("-inf")


class SourceService:
    """The job's sources. Any thread; each source serialises its own calls.

    A discovery without an answer is repeated soon. Until it is answered, no source counts as
    finished: a bounded job would end without undiscovered splits.
    """

    def __init__(
        self,
        sources: Mapping[str, SerialSource],
        *,
        settings: CheckpointSettings,
        clock: Clock,
    ) -> None:
        self._sources = sources
        self._settings = settings
        self._clock = clock
        self._limit_s = min(settings.call_timeout_s, _LIMIT_S)
        self._lock = threading.Lock()
        self._requests: dict[str, _Request] = {}
        self._unanswered: dict[str, set[str]] = {source_id: set() for source_id in sources}
        self._discoveries = {source_id: _Discovery() for source_id in sources}

    def deadline_s(self) -> float:
        """Time limit of a poll that begins now."""
        return self._clock() + self._limit_s

    def discover(
        self,
        source_ids: Sequence[str],
        post: Callable[[SplitsDiscovered], object],
        *,
        until_s: float,
    ) -> bool:
        """Ask the sources that are due for new splits; whether there were any.

        It takes half of the poll's time, and the barrier offsets the other half. If brokers are
        slow, every fourth attempt takes all of it.

        Raises:
            UnreadSplitsLostError: a source's own SourceChangedError, which concerns no region.
        """
        found = False
        for source_id in source_ids:
            if source_id in self._sources and self._is_due(source_id):
                is_long = self._discoveries[source_id].failures % _LONG_EVERY == _LONG_EVERY - 1
                offsets_s = 0.0 if is_long else self._limit_s * _CALL_SHARE
                left_s = max(0.0, until_s - offsets_s - self._clock())
                splits = self._discover(source_id, timeout_s=left_s)
                if splits:
                    post(SplitsDiscovered(source_id=source_id, splits=splits))
                    found = True
                if splits is not None:
                    self._discoveries[source_id].is_open = False  # the core has all splits now
        return found

    def _is_due(self, source_id: str) -> bool:
        interval_s = self._settings.discovery_interval_s
        if interval_s is None:
            return False
        with self._lock:
            discovery, now_s = self._discoveries[source_id], self._clock()
            if now_s < discovery.due_s:
                return False
            discovery.due_s, discovery.is_open = now_s + interval_s, True
            return True

    def _discover(self, source_id: str, *, timeout_s: float) -> tuple[SplitRange, ...] | None:
        """New splits; None without an answer."""
        discovery = self._discoveries[source_id]
        try:
            found = self._sources[source_id].discover(timeout_s=timeout_s)
        except UnreachableError as err:
            with self._lock:
                first_s, longest_s = self._settings.retry_s, self._settings.max_retry_s
                discovery.pause_s = min(max(discovery.pause_s * 2, first_s), longest_s)
                discovery.failures += 1
                discovery.due_s = min(discovery.due_s, self._clock() + discovery.pause_s)
            log.warning("discovery was not answered: source_id=%s error=%s", source_id, err)
            return None
        except SourceChangedError as err:
            # The poller lost nothing: if its own splits are lost, its barrier offsets raise.
            raise UnreadSplitsLostError(*err.args) from err
        discovery.pause_s, discovery.failures = 0.0, 0
        return found

    def cut(
        self, action: FetchBarrierOffsets, source_ids: Sequence[str], *, until_s: float
    ) -> RegionBarrierOffsets | None:
        """Fetch a region's barrier offsets; None if a source does not answer: the next poll tries
        again.

        Raises:
            SourceChangedError, DataLostError: to continue would lose records.
        """
        failpoint("before-cut")
        request = self._request(action)
        if self._clock() < request.again_s:
            return None
        for source_id in source_ids:
            known = request.answers.get(source_id)
            if known is not None and self._clock() - known.at_s < _MAX_AGE_S:
                continue
            try:
                request.answers[source_id] = self._cut(request, source_id, until_s)
            except UnreachableError as err:
                log.warning("barrier has no offsets yet: region=%s error=%s", action.region, err)
                self._note_unanswered(request, source_id)
                return None
            self._unanswered[source_id].discard(action.region)
        with self._lock:  # an equal request may follow, and needs new answers
            self._requests.pop(action.region, None)
        answers = [request.answers[source_id] for source_id in source_ids]
        is_known = not any(self._discoveries[source_id].is_open for source_id in source_ids)
        failpoint("after-cut")
        return RegionBarrierOffsets(
            checkpoint_id=action.checkpoint_id,
            region=action.region,
            attempt_id=action.attempt_id,
            splits=tuple(split for answer in answers for split in answer.splits),
            finished=is_known and all(answer.is_finished for answer in answers),
            waiting={key: lag for answer in answers for key, lag in answer.waiting.items()},
            requested=frozenset(split.key for split in action.positions),
            has_read=action.has_read,
            log_ends={key: end for answer in answers for key, end in answer.log_ends.items()},
            input_ms=action.input_ms,
        )

    def end_offsets(
        self,
        post: Callable[[SplitsDiscovered], object],
        positions: Callable[[], Mapping[str, Sequence[SplitRange]]],
    ) -> dict[SplitKey, int]:
        """The present end of every split, also of splits that no region knows yet.

        Raises:
            StreamError: a source does not answer for each of them, or has lost records.
        """
        ends: dict[SplitKey, int] = {}
        for source_id, source in self._sources.items():
            is_discovering = self._settings.discovery_interval_s is not None
            if is_discovering and (splits := source.discover(timeout_s=self._limit_s)):
                post(SplitsDiscovered(source_id=source_id, splits=splits))
            found = (split for region in positions().values() for split in region)
            mine = [split for split in found if split.source_id == source_id]
            left = source.measure(mine, timeout_s=self._limit_s)
            missing = [split for split in mine if split.key not in left]
            # Without partitions that were deleted and may be skipped.
            unknown = source.readable(missing, timeout_s=self._limit_s) if missing else ()
            if unknown:
                raise UnreachableError(
                    "the end offsets of partitions are not known",
                    {"splits": ",".join(split.name for split in unknown)},
                    "Wait until each partition has a leader, then repeat the command.",
                )
            ends |= {s.key: s.end_offset + left[s.key].records for s in mine if s.key in left}
        return ends

    def replayable(self, batch: Barrier) -> Barrier:
        """A replayed batch without records that were deleted since its barrier.

        If a source does not answer, the batch stays whole: its tasks wait for the brokers, and a
        new attempt asks again.

        Raises:
            SourceChangedError, DataLostError: the batch cannot be read, or not as a whole.
        """
        left: list[SplitRange] = []
        for source_id, mine in busy_by_source(batch.splits).items():
            try:
                left += self._sources[source_id].replayable(mine, timeout_s=self._limit_s)
            except UnreachableError as err:
                log.warning("replay was not checked: region=%s error=%s", batch.region, err)
                left += mine
        return replace(batch, splits=tuple(left))

    def _request(self, action: FetchBarrierOffsets) -> _Request:
        """The region's open request if it is the same, else a new one."""
        with self._lock:
            found = self._requests.get(action.region)
            if found is None or found.action != action:
                found = self._requests[action.region] = _Request(action)
            return found

    def _cut(self, request: _Request, source_id: str, until_s: float) -> _SourceOffsets:
        action = request.action
        mine = [split for split in action.positions if split.source_id == source_id]
        with self._sources[source_id].held(until_s - self._clock()) as (source, left_s):
            splits = source.cut(
                mine,
                max_records=action.max_records,
                timeout_s=min(left_s, self._retry_for_s(request, source_id)),
            )
            return _SourceOffsets(
                at_s=self._clock(),
                splits=tuple(splits),
                is_finished=action.may_finish and source.is_finished(splits),
                waiting=self._waiting(source, splits),
                log_ends=source.log_ends(mine, timeout_s=left_s)
                if action.input_ms is not None and isinstance(source, JobTopicEnumerator)
                else {},
            )

    def _retry_for_s(self, request: _Request, source_id: str) -> float:
        """How long this attempt may lock the source."""
        longest_s = self._limit_s * _CALL_SHARE
        if request.tries % _LONG_EVERY == 0:
            return longest_s
        sharing = max(1, len(self._unanswered[source_id]))
        return max(longest_s / sharing, self._limit_s * _SHORTEST_SHARE)

    def _note_unanswered(self, request: _Request, source_id: str) -> None:
        """Delay the region's next attempt: it would block regions whose brokers answer."""
        self._unanswered[source_id].add(request.action.region)
        first_s, longest_s = self._settings.retry_s, self._settings.max_retry_s
        pause_s = min(first_s * 2.0 ** min(request.tries, 16), longest_s)
        request.again_s = self._clock() + pause_s
        request.tries += 1

    def _waiting(
        self, source: SplitEnumerator, splits: Sequence[SplitRange]
    ) -> dict[SplitKey, int]:
        """Unread records after the barrier, by split, if splits may be reassigned."""
        if self._settings.balancer is None:
            return {}
        lags = {split.key: source.lag_records([split]) for split in splits}
        return {key: lag for key, lag in lags.items() if lag is not None}


def answer_in(actions: Sequence[Action]) -> PollAnswer | None:
    """The answer to a poll among the actions of its step, if there is one."""
    return next((action for action in actions if isinstance(action, PollAnswer)), None)


def given(answer: PollAnswer | None, *, otherwise_s: float) -> Barrier | float:
    """The barrier, or in how many seconds to poll again unless something changes.

    Args:
        otherwise_s: if the answer has no time.
    """
    if isinstance(answer, GiveBarrier):
        return answer.barrier
    if isinstance(answer, NothingDue) and answer.poll_in_s is not None:
        return answer.poll_in_s
    return otherwise_s
