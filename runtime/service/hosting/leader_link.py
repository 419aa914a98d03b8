"""A region host's link to the leader of its job, over all changes of the leader."""

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from sluice.runtime.checkpoint.run_record import RunRecord
from sluice.runtime.continuous.task_messages import EpochResult
from sluice.runtime.contracts import Clock, JobTopic
from sluice.runtime.errors import (
    NotLeaderError,
    StreamError,
    UnreachableError,
    WrongServiceError,
)
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.process.backoff import Backoff
from sluice.runtime.process.host_clock import age_clock
from sluice.runtime.service.hosting.host_messages import (
    HOSTS_KEY,
    AttemptReport,
    FixedEnd,
    Hello,
    HostAnswer,
    Join,
    RunTopic,
)
from sluice.runtime.service.service_client import (
    CoordinatorAddress,
    CoordinatorClient,
    understood,
)

__all__ = ["FindPauses", "LeaderLink", "LeaderSession", "answers"]

log = logging.getLogger(__name__)

T = TypeVar("T")
_HELLO_S = 1.0
_HELLO_TIMEOUT_S = 3.0
_JOIN_TIMEOUT_S = 10.0
_START_POLL_S = 0.2  # while the leader has not started
_CALL_WAIT_S = 1.0
_FIRST_PAUSE_S = 0.25
_USUAL_PAUSE_S = 0.8  # in the time of a usual takeover
_USUAL_S = 15.0
_LONGEST_PAUSE_S = 2.0
_THREADS = 256


@dataclass(slots=True)
class LeaderSession:
    """One leader, from the join to its loss.

    Attributes:
        record: how to reach it.
        ahead_s: the leader's clock for ages minus ours, at least.
        answer: the last one.
        over: the link has left it.
    """

    record: RunRecord
    ahead_s: float
    answer: HostAnswer
    over: Future[None] = field(default_factory=Future)
    _clients: dict[str, CoordinatorClient] = field(default_factory=dict)

    def client(self, key: str) -> CoordinatorClient:
        """For calls of one kind: each client has connections for two threads."""
        found = self._clients.get(key)
        if found is None:
            found = self._clients[key] = CoordinatorClient(
                _address(self.record, job_uid=self.answer.job_uid), deadline_s=0.0
            )
        return found

    def on_its_clock(self, result: EpochResult) -> EpochResult:
        """The epoch with its time limit on the leader's clock, rather too early than too late."""
        if result.decide_by_s is None:
            return result
        return replace(result, decide_by_s=result.decide_by_s + self.ahead_s)

    def close(self) -> None:
        """Calls to it get no answer any more."""
        if not self.over.done():
            self.over.set_result(None)
        for client in self._clients.values():
            client.close()


class LeaderLink:
    """Finds the leader, joins it, and passes calls to it. Driver; any thread.

    A thread of its own sends a message each second. After a lost answer it looks for a later
    leader, and joins that one with a report of all attempts. It never goes back to an earlier one.
    Meanwhile calls raise `UnreachableError`, so the tasks repeat them. An answer that arrives after
    the link has left its leader counts as lost: the message is sent to the next one.

    Args:
        find: the newest leader, read from the checkpoint directory; None: there is none.
        join: without session and reports.
        obey: from now on only messages with this session may start and stop attempts.
        report: of all attempts, with the epochs' times on this host's clock. While it is called
            and until the join is over, no call is passed on.
        clock: for ages.
    """

    def __init__(
        self,
        find: Callable[[], RunRecord | None],
        join: Join,
        report: Callable[[], Sequence[AttemptReport]],
        obey: Callable[[str], None],
        *,
        clock: Clock = age_clock,
    ) -> None:
        self._find = find
        self._join = join
        self._report = report
        self._obey = obey
        self._clock = clock
        self._changed = threading.Condition()
        self._session: LeaderSession | None = None
        self._newest = -1
        self._is_closed = False
        self._wake = threading.Event()
        self._error: StreamError | None = None
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="sluice-relay")
        self._thread = threading.Thread(target=self._run, name="sluice-leader-link", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        self._wake.set()
        self._thread.join(_JOIN_TIMEOUT_S)
        self._leave()
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def error(self) -> StreamError | None:
        """Why the leader has refused this host for good; None: it has not."""
        return self._error

    def answer(self) -> HostAnswer | None:
        """The leader's last answer; None: there is no leader now."""
        session = self._session
        return None if session is None else session.answer

    def wait_for_answer(self, timeout_s: float) -> HostAnswer | None:
        """The next answer, or the last one after this time; None: there is no leader."""
        with self._changed:
            self._changed.wait(timeout_s)
        return self.answer()

    def started(self, timeout_s: float) -> HostAnswer:
        """An answer of a leader whose start is over.

        Raises:
            UnreachableError: not within this time.
        """

        def found() -> HostAnswer | None:
            answer = self.answer()
            return answer if answer is not None and answer.job_uid else None

        with self._changed:
            self._changed.wait_for(lambda: found() is not None, timeout_s)
            answer = found()
        if answer is None:
            raise _no_leader()
        return answer

    def fixed_ends(self, source_id: str) -> dict[Any, int] | None:
        """The ends of the splits of a bounded source; None: they do not end."""
        found = self.call(
            lambda session: session.client("ends").query(
                HOSTS_KEY, "ends", {"source_id": source_id}, timeout_s=_JOIN_TIMEOUT_S
            ),
        )
        if found is None:
            return None
        with understood("ends"):
            return {each.split: each.end_offset for each in from_json(tuple[FixedEnd, ...], found)}

    def topics(self) -> dict[str, JobTopic]:
        """The repartition topics of the leader's run, by operator id of their sources."""
        found = self.call(
            lambda session: session.client("topics").query(
                HOSTS_KEY, "topics", {}, timeout_s=_JOIN_TIMEOUT_S
            ),
        )
        with understood("topics"):
            return {each.source_id: each.topic for each in from_json(tuple[RunTopic, ...], found)}

    def call(self, call: Callable[[LeaderSession], T]) -> T:
        """One try of a call to the present leader; waits a moment for the next one.

        Raises:
            UnreachableError: there is no answer of the present leader; send it again.
            StreamError: the leader's own error.
        """
        session = self._started_session()
        made = self._pool.submit(call, session)
        either: list[Future[Any]] = [made, session.over]
        wait(either, return_when=FIRST_COMPLETED)
        if session.over.done():
            raise _no_leader()
        try:
            return made.result()
        except (NotLeaderError, WrongServiceError) as err:
            self._wake.set()
            raise _no_leader() from err
        except UnreachableError:
            self._wake.set()
            raise

    def _started_session(self) -> LeaderSession:
        """So a task's message reaches the next leader at once, without a pause of the task."""

        def found() -> LeaderSession | None:
            session = self._session
            return session if session is not None and session.answer.job_uid else None

        with self._changed:
            session = found()
            if session is None:
                self._wake.set()
                self._changed.wait_for(lambda: self._is_closed or found() is not None, _CALL_WAIT_S)
                session = found()
        if session is None:
            raise _no_leader()
        return session

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        pauses = FindPauses(time.monotonic())
        while not self._is_closed:
            try:
                if self._session is None:
                    is_linked = self._take_newest()
                else:
                    is_linked = self._hello(self._session) or self._take_newest()
            except StreamError as err:
                log.warning("leader does not answer: error=%s", err)
                is_linked = False
            if is_linked:
                pauses = FindPauses(time.monotonic())
                answer = self.answer()
                is_started = answer is not None and bool(answer.job_uid)
                self._wake.wait(_HELLO_S if is_started else _START_POLL_S)
            else:
                # Failing calls must not cut the pause short.
                time.sleep(pauses.next_s(time.monotonic(), random.random()))
            self._wake.clear()

    def _hello(self, session: LeaderSession) -> bool:
        """Whether this leader answers, and knows this host."""
        try:
            answer, ahead_s = self._ask(session.record, "hello", Hello(host_id=self._join.host_id))
        except StreamError as err:
            log.info("leader is lost: error=%s", err)
            return False
        if not answer.is_known and not answer.end:
            return False
        session.ahead_s = max(session.ahead_s, ahead_s)
        with self._changed:
            session.answer = answer
            self._changed.notify_all()
        return True

    def _take_newest(self) -> bool:
        """Join the newest leader, if one answers. One that has lost this host is joined again."""
        record = self._find()
        if record is None or record.attempt_id < self._newest:
            return False
        hello, ahead_s = self._ask(record, "hello", Hello(host_id=self._join.host_id))
        session = self._session
        if session is not None and session.record == record and hello.is_known:
            return True
        self._newest = record.attempt_id
        self._leave()  # from here on no answer of an earlier leader counts
        made = LeaderSession(record=record, ahead_s=ahead_s, answer=hello)
        reports = tuple(
            replace(each, epochs=tuple(map(made.on_its_clock, each.epochs)))
            for each in self._report()
        )
        join = replace(self._join, session=str(uuid.uuid4()), reports=reports)
        self._obey(join.session)
        try:
            made.answer, _ = self._ask(record, "join", join, timeout_s=_JOIN_TIMEOUT_S)
        except (NotLeaderError, UnreachableError):
            raise
        except StreamError as err:
            self._error = err
            raise
        with self._changed:
            self._session = made
            self._changed.notify_all()
        log.info("leader joined: attempt_id=%d address=%s", record.attempt_id, record.address)
        return True

    def _ask(
        self, record: RunRecord, call: str, body: Hello, *, timeout_s: float = _HELLO_TIMEOUT_S
    ) -> tuple[HostAnswer, float]:
        """The answer, and how far the leader's clock is ahead of ours at least."""
        with CoordinatorClient(_address(record), deadline_s=0.0) as client:
            found = client.query(HOSTS_KEY, call, to_json(body), timeout_s=timeout_s, repeats=False)
        with understood(call):
            answer = from_json(HostAnswer, found)
        return answer, answer.clock_s - self._clock()

    def _leave(self) -> None:
        with self._changed:
            session, self._session = self._session, None
            self._changed.notify_all()
        if session is not None:
            session.close()


class FindPauses:
    """Between two reads of the store while no leader answers.

    They are short as long as a usual takeover lasts. Many hosts read the store at once, so each
    pauses for another time.

    Args:
        since_s: when a leader answered last.
    """

    def __init__(self, since_s: float) -> None:
        self._usual_until_s = since_s + _USUAL_S
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)

    def next_s(self, now_s: float, drawn: float) -> float:
        """The next pause; ``drawn`` from [0, 1)."""
        longest_s = _USUAL_PAUSE_S if now_s < self._usual_until_s else _LONGEST_PAUSE_S
        return min(self._backoff.next_s(), longest_s) * (0.5 + drawn)


def answers(record: RunRecord) -> bool:
    """Whether this leader answers."""
    hello = to_json(Hello(host_id=""))
    try:
        with CoordinatorClient(_address(record), deadline_s=0.0) as client:
            client.query(HOSTS_KEY, "hello", hello, timeout_s=_HELLO_TIMEOUT_S, repeats=False)
    except StreamError:
        return False
    return True


def _no_leader() -> UnreachableError:
    return UnreachableError(
        "no coordinator leads the job at this moment",
        {},
        "Wait: the task repeats its message until a coordinator leads. Start one: `sluice "
        "coordinator start`.",
    )


def _address(record: RunRecord, *, job_uid: str = "") -> CoordinatorAddress:
    return CoordinatorAddress(
        address=record.address,
        token=record.token,
        leader_session_id=record.leader_session_id,
        job_uid=job_uid,
        ca=record.ca,
    )
