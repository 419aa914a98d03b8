"""The coordinator as source runners and tasks use it: HTTP, repeated until answered. Light.

Every Python worker imports it, so it loads only urllib3 and the value types.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import urllib3

from sluice.runtime.checkpoint.run_record import RunRecordStore
from sluice.runtime.continuous.checkpoint_client import CoordinatorLink
from sluice.runtime.continuous.task_messages import CommittedEpoch, EpochResult, NextBarrier
from sluice.runtime.contracts import Clock, RegisteredAttempt, WaitRegistry
from sluice.runtime.election.leader_lookup import LeaderLookup
from sluice.runtime.election.zookeeper_path import ZooKeeperPath
from sluice.runtime.errors import (
    NotLeaderError,
    StreamError,
    UnreachableError,
    WrongServiceError,
)
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.model.payloads import seconds
from sluice.runtime.model.splits import Barrier, BatchKey
from sluice.runtime.model.state.task_inputs import TaskInputs
from sluice.runtime.process.backoff import Backoff
from sluice.runtime.process.pause_tolerant_clock import PauseTolerantClock
from sluice.runtime.service.error_json import error_from_json
from sluice.runtime.service.listening.service_tls import client_context
from sluice.runtime.service.service_messages import (
    AttemptMessage,
    BarrierMessage,
    BatchMessage,
    EpochMessage,
    Message,
    NextBarrierMessage,
    QueryMessage,
    RegionMessage,
    RestartMessage,
    SavepointMessage,
    StopMessage,
    TokenMessage,
    WaitMessage,
)
from sluice.runtime.service.unanswered_calls import (
    CONNECT_TIMEOUT_S,
    foreign_answer,
    no_connection,
    unusable_address,
)
from sluice.runtime.storage.delegation_tokens import IssuedToken
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.objects.object_location import ObjectLocation
from sluice.runtime.storage.web_hdfs import WebHdfsAddress

__all__ = [
    "CoordinatorAddress",
    "CoordinatorClient",
    "command_address",
    "fetch_issued_token",
    "understood",
]

_DEADLINE_S = 30.0
_CALL_TIMEOUT_S = 10.0
_LEADER_S = 12.0  # reading the leader record takes no longer, whether or not a server answers
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_WAIT_S = 2.0  # for the connection, and again for the answer
_TOO_MANY = 429
_SERVER_ERRORS = 500  # and above: the cause may pass


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorAddress:
    """Address of a job's coordinator, and the token for it. Picklable.

    Attributes:
        address: ``http://host:port``, or ``https``, and perhaps a path.
        token: bearer token; never logged, never in ``repr``.
        leader_session_id: of the coordinator; another one refuses our messages.
        job_uid: of the job.
        attempt_id: of its run: the checkpoint slot that it fenced; None: not known.
        checkpoint_uri: directory with the leader record; empty: there is none.
        checkpoint_web: how to read that directory if it is not local; see `find_leader`.
        zookeeper: the job's nodes, which are asked before that directory; None: it has none.
        ca: PEM text of the authorities that an ``https`` address is checked with; empty: those of
            this system.
    """

    address: str
    token: str
    leader_session_id: str
    job_uid: str
    attempt_id: int | None = None
    checkpoint_uri: str = ""
    checkpoint_web: WebHdfsAddress | ObjectLocation | None = None
    zookeeper: ZooKeeperPath | None = None
    ca: str = ""

    def __repr__(self) -> str:
        return (
            f"CoordinatorAddress(address={self.address!r}, token='***', "
            f"leader_session_id={self.leader_session_id!r}, job_uid={self.job_uid!r}, "
            f"checkpoint_uri={self.checkpoint_uri!r})"
        )


def command_address(fs: FileSystem) -> CoordinatorAddress:
    """The address at which the job of this checkpoint directory accepts commands.

    Raises:
        StreamError: as `RunRecordStore.newest_command`.
    """
    run = RunRecordStore(fs).newest_command()
    return CoordinatorAddress(
        address=run.address,
        token=run.token,
        leader_session_id=run.leader_session_id,
        job_uid=run.job_uid,
        ca=run.ca,
    )


class CoordinatorClient(CoordinatorLink, WaitRegistry):
    """Implements `sluice.runtime.contracts.WaitRegistry` and the barrier poll over HTTP.

    Runs in source runners (driver side) and Python workers (executors), one thread. Every message
    may be repeated safely, so a call is repeated until it has an answer or its deadline has passed.
    One try counts for at most the time limit of a try, so a pause of this process does not count as
    silence of the coordinator. While the coordinator does not answer, the client reads the leader
    record in ZooKeeper or in the checkpoint directory; see `LeaderLookup`. The record
    shows whether a later coordinator leads the job. An error of the coordinator is raised here in
    the same class.
    """

    def __init__(
        self,
        address: CoordinatorAddress,
        *,
        deadline_s: float = _DEADLINE_S,
        clock: Clock = time.monotonic,
    ) -> None:
        self._clock = clock
        self._address = address
        self._envelope = {
            "job_uid": address.job_uid,
            "leader_session_id": address.leader_session_id,
        }
        self._deadline_s = deadline_s
        self._lookup = LeaderLookup(
            address.checkpoint_uri,
            address.checkpoint_web,
            address.zookeeper,
            attempt_id=address.attempt_id,
            clock=clock,
        )
        is_tls = address.address.startswith("https://")
        self._pool = urllib3.PoolManager(
            num_pools=1,
            maxsize=2,
            retries=False,
            ssl_context=client_context(address.ca) if is_tls else None,
            headers={
                "Authorization": f"Bearer {address.token}",
                "Content-Type": "application/json",
            },
        )

    @property
    def leader_session_id(self) -> str:
        """Of the run that it calls."""
        return self._address.leader_session_id

    def poll_barrier(self, region: str, attempt_id: int, *, wait_s: float) -> Barrier | None:
        """See `sluice.runtime.contracts.Coordinator.poll_barrier`."""
        body = BarrierMessage(**self._envelope, region=region, attempt_id=attempt_id, wait_s=wait_s)
        answer = self._send("/v1/barrier", body, timeout_s=wait_s + _CALL_TIMEOUT_S)
        with understood("/v1/barrier"):
            barrier = answer["barrier"]
            return None if barrier is None else from_json(Barrier, barrier)

    def next_barrier(
        self,
        region: str,
        attempt_id: int,
        *,
        wait_s: float,
        has_read: bool,
        committed: Sequence[CommittedEpoch] = (),
    ) -> NextBarrier:
        body = NextBarrierMessage(
            **self._envelope,
            region=region,
            attempt_id=attempt_id,
            wait_s=wait_s,
            has_read=has_read,
            committed=tuple(committed),
        )
        answer = self._send("/v1/epochs/next", body, timeout_s=wait_s + _CALL_TIMEOUT_S)
        with understood("/v1/epochs/next"):
            return from_json(NextBarrier, answer["next"])

    def acknowledge_epoch(self, result: EpochResult) -> None:
        self._send("/v1/epochs", EpochMessage(**self._envelope, epoch=result))

    def register(self, attempt: RegisteredAttempt) -> float:
        answer = self._send("/v1/attempts", AttemptMessage(**self._envelope, attempt=attempt))
        with understood("/v1/attempts"):
            return seconds(answer["registered_s"])

    def waits(self, batch: BatchKey, what: str, *, why: str) -> None:
        with contextlib.suppress(UnreachableError):
            self.report_wait(batch, what, why)

    def waited(self, batch: BatchKey, what: str) -> None:
        with contextlib.suppress(StreamError):
            self.report_wait(batch, what, None)

    def report_wait(self, batch: BatchKey, what: str, why: str | None) -> None:
        """A task waits for something, or without ``why`` no longer. Sent once."""
        body = WaitMessage(**self._envelope, batch=batch, what=what, why=why)
        self._send("/v1/waits", body, timeout_s=_WAIT_S, deadline_s=0.0)

    def task_inputs(self, region: str, attempt_id: int) -> TaskInputs:
        """What the attempt's functions begin with; FencedError if it is over."""
        path = "/v1/task-inputs"
        body = RegionMessage(**self._envelope, region=region, attempt_id=attempt_id)
        answer = self._send(path, body)
        with understood(path):
            return from_json(TaskInputs, answer["inputs"])

    def issued_token(self, name: str) -> IssuedToken:
        """The newest delegation token of a file system. Sent once: it may be asked again."""
        path = "/v1/tokens"
        body = TokenMessage(**self._envelope, name=name)
        answer = self._send(path, body, deadline_s=0.0)
        with understood(path):
            return from_json(IssuedToken, answer["issued"])

    def is_decided(self, batch: BatchKey) -> bool:
        """See `sluice.runtime.contracts.Coordinator.is_decided`."""
        path = "/v1/batches/decided"
        answer = self._send(path, BatchMessage(**self._envelope, batch=batch))
        with understood(path):
            # Only this answer is a yes: decided work is not written again.
            return from_json(bool, answer["decided"])

    def status(self) -> Mapping[str, Any]:
        """State of the job, its checkpoints and regions, as JSON."""
        found = self._send("/v1/status")
        with understood("/v1/status"):
            if not isinstance(found["job"], dict | None):
                raise TypeError("neither a job id nor empty")
        return found

    def jobs(self, *, timeout_s: float = _CALL_TIMEOUT_S) -> Sequence[Mapping[str, Any]]:
        """Summaries, as JSON: of this one job. See `sluice.runtime.service.job_view`."""
        path = "/v1/jobs"
        answer = self._send(path, timeout_s=timeout_s)
        with understood(path):
            return from_json(tuple[dict[str, Any], ...], answer["jobs"])

    def job(self, *, timeout_s: float = _CALL_TIMEOUT_S) -> Mapping[str, Any]:
        """Its summary and details."""
        return self._send(f"/v1/jobs/{self._address.job_uid}", timeout_s=timeout_s)

    def history(
        self, *, checkpoints: int | None = None, timeout_s: float = _CALL_TIMEOUT_S
    ) -> Mapping[str, Any]:
        """Its history; ``checkpoints``: only the newest so many of them."""
        query = "" if checkpoints is None else f"?checkpoints={checkpoints}"
        return self._send(f"/v1/jobs/{self._address.job_uid}/history{query}", timeout_s=timeout_s)

    def hosts(self, *, timeout_s: float = _CALL_TIMEOUT_S) -> Mapping[str, Any]:
        """Where the job runs, as JSON; see
        `sluice.runtime.contracts.Placement`."""
        return self._send("/v1/hosts", timeout_s=timeout_s)

    def restart(
        self, regions: Sequence[str], *, exclude_hosts: Sequence[str] = (), timeout_s: float
    ) -> Mapping[str, Any]:
        """Restart regions, off these hosts; without names: all suspended regions.

        Returns the names under ``regions``, and the number under ``executors_ended``. Sent once: a
        repeated request would restart attempts that have just started.
        """
        body = RestartMessage(
            **self._envelope, regions=tuple(regions), exclude_hosts=tuple(exclude_hosts)
        )
        return self._send("/v1/regions/restart", body, timeout_s=timeout_s, deadline_s=0.0)

    def savepoint(
        self, to: str | None = None, *, kind: str = "savepoint", timeout_s: float = _CALL_TIMEOUT_S
    ) -> Mapping[str, Any]:
        """Request a savepoint below ``to``, or a full checkpoint; `savepoints` shows its progress.

        Returns ``request_id`` and ``parent``. Sent once: a repeated request would write another.
        """
        body = SavepointMessage(**self._envelope, kind=kind, to=to)
        return self._send("/v1/savepoints", body, timeout_s=timeout_s, deadline_s=0.0)

    def savepoints(self) -> Sequence[Mapping[str, Any]]:
        """Savepoints, full checkpoints and stops that were requested in this run, oldest first."""
        path = "/v1/savepoints"
        answer = self._send(path)
        with understood(path):
            return from_json(tuple[dict[str, Any], ...], answer["savepoints"])

    def stop(
        self,
        *,
        drain: bool = False,
        savepoint: bool = False,
        to: str | None = None,
        stop_within_s: float | None = None,
        timeout_s: float = _CALL_TIMEOUT_S,
    ) -> Mapping[str, Any]:
        """Request the end of the job after a last checkpoint; `savepoints` shows its progress.

        Returns ``request_id`` and ``parent``. Sent once: a second request ends the job at once.
        """
        body = StopMessage(
            **self._envelope, drain=drain, savepoint=savepoint, to=to, timeout_s=stop_within_s
        )
        return self._send("/v1/stop", body, timeout_s=timeout_s, deadline_s=0.0)

    def query(
        self,
        key: str,
        call: str,
        payload: Mapping[str, Any],
        *,
        timeout_s: float,
        repeats: bool = True,
    ) -> Any:  # noqa: ANN401 - JSON
        """Call a mounted `sluice.runtime.service.coordinator_app.QueryHandler` (drop-in).

        The handler has already retried: its answer that a cluster is unreachable is final, and not
        requested again.

        Args:
            repeats: whether to send it again until ``timeout_s`` while there is no answer.
        """
        path = f"/v1/queries/{key}/{call}"
        body = QueryMessage(**self._envelope, payload=payload)
        answer = self._send(
            path,
            body,
            timeout_s=timeout_s,
            deadline_s=timeout_s if repeats else 0.0,
            repeats_errors=False,
        )
        with understood(path):
            return answer["answer"]

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside ---------------------------------------------------------------------------------

    def _send(
        self,
        path: str,
        body: Message | None = None,
        *,
        timeout_s: float = _CALL_TIMEOUT_S,
        deadline_s: float | None = None,
        repeats_errors: bool = True,
    ) -> dict[str, Any]:
        """Repeat with growing pauses until answered; bounded by the deadline."""
        # In ASCII, so that text without UTF-8 arrives, too. The JSON of urllib3 would raise.
        content = None if body is None else json.dumps(to_json(body), separators=(",", ":"))
        longest_try_s = CONNECT_TIMEOUT_S + timeout_s + _LEADER_S + _LONGEST_PAUSE_S
        tries = PauseTolerantClock(self._clock, longest_step_s=longest_try_s)
        deadline = tries() + (self._deadline_s if deadline_s is None else deadline_s)
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            try:
                response = self._request(path, content, timeout_s=timeout_s)
                if response.status != _TOO_MANY and response.status < _SERVER_ERRORS:
                    return self._answer(response, path)
                own = _error_of(response)
                if own is not None and not repeats_errors:
                    raise own
                failure = self._failed(response, own, path)
                if own is None:  # a proxy for a driver that may have ended
                    self._require_leadership()
            except WrongServiceError as err:
                failure = err
                self._require_leadership()
            except urllib3.exceptions.HTTPError as err:
                failure = no_connection(
                    err, address=self._address.address, path=path, timeout_s=timeout_s
                )
                self._require_leadership()
            if tries() + backoff.pause_s >= deadline:
                raise failure
            time.sleep(backoff.next_s())  # between tries while a service does not answer

    def _request(
        self, path: str, content: str | None, *, timeout_s: float
    ) -> urllib3.BaseHTTPResponse:
        address = self._address.address
        if not address.startswith(("http://", "https://")):
            raise unusable_address("neither http:// nor https://", address=address)
        try:
            return self._pool.request(
                "GET" if content is None else "POST",
                f"{address}{path}",
                body=content,
                timeout=urllib3.Timeout(connect=min(timeout_s, CONNECT_TIMEOUT_S), read=timeout_s),
                redirect=False,  # the token must not follow a redirect to another host
            )
        except ValueError as err:  # also an error of urllib3 for an invalid address
            # Without its cause, which would show an invalid token.
            raise unusable_address(type(err).__name__, address=address) from None

    def _answer(self, response: urllib3.BaseHTTPResponse, path: str) -> dict[str, Any]:
        """The JSON of a success; the coordinator's own error otherwise."""
        found = _json(response)
        where = {"address": self._address.address, "path": path}
        error = None
        if response.status != 200 or not isinstance(found, dict):
            error = _error_of(response) or foreign_answer(response, **where)
        if not isinstance(error, WrongServiceError):
            self._lookup.has_answered()
        if error is not None:
            raise error
        return cast(dict[str, Any], found)

    def _failed(
        self, response: urllib3.BaseHTTPResponse, own: StreamError | None, path: str
    ) -> StreamError:
        """The error to raise if no later try succeeds."""
        if own is None:
            return foreign_answer(response, address=self._address.address, path=path)
        if isinstance(own, UnreachableError):
            return own
        return UnreachableError(
            "the coordinator answers each request with an error",
            {"address": self._address.address, "path": path, "reason": str(own)},
            "Read the log of the driver process.",
        )

    def _require_leadership(self) -> None:
        """Raise FencedError if a later coordinator leads the job."""
        leader = self._lookup.later_leader()
        if leader is not None:
            raise NotLeaderError(
                "another coordinator leads the job now",
                {
                    "leader_session_id": self._address.leader_session_id,
                    "current": leader.leader_session_id,
                    "address": leader.address,
                },
                "Stop this sender: the job was restarted, and the sender belongs to its older run.",
            )


def fetch_issued_token(address: CoordinatorAddress, name: str) -> IssuedToken:
    """As `CoordinatorClient.issued_token`, with a client of its own."""
    with CoordinatorClient(address) as client:
        return client.issued_token(name)


@contextlib.contextmanager
def understood(path: str) -> Iterator[None]:
    """An answer that this version does not expect counts as one of another service."""
    try:
        yield
    except (ValueError, LookupError, TypeError) as err:
        raise WrongServiceError(
            "the answer does not come from a coordinator",
            {"path": path, "reason": repr(err)},
            "Check that no other service listens on that port, and that both sides run the same "
            "version of Sluice.",
        ) from err


def _error_of(response: urllib3.BaseHTTPResponse) -> StreamError | None:
    """The coordinator's own error in an answer, if it is one. Many services answer with an
    ``error``."""
    found = _json(response)
    error = found.get("error") if isinstance(found, dict) else None
    is_own = isinstance(error, dict) and all(
        isinstance(error.get(each), str) for each in ("type", "what", "remedy")
    )
    return error_from_json(cast(dict[str, Any], error)) if is_own else None


def _json(response: urllib3.BaseHTTPResponse) -> object:
    try:
        return parsed_json(response.data)
    except ValueError:
        return None
