"""The coordinator as source runners and tasks see it: HTTP, repeated until answered. Light.

Imported by every Python worker, so it loads urllib3 and the value types, and nothing else.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import urllib3

from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore, find_leader
from sluice.runtime.continuous.task_messages import CommittedEpoch, EpochResult, NextBarrier
from sluice.runtime.contracts import Clock, RegisteredAttempt
from sluice.runtime.errors import FencedError, StreamError, UnreachableError, UnsupportedFormatError
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.model import Barrier, BatchKey
from sluice.runtime.model.payloads import seconds
from sluice.runtime.process.boot_clock import PauseTolerantClock
from sluice.runtime.service import json_values as values
from sluice.runtime.service import pickled_wire as wire
from sluice.runtime.service.unanswered_calls import (
    CONNECT_TIMEOUT_S,
    foreign_answer,
    no_connection,
    unusable_address,
)
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.web_hdfs import WebHdfsAddress

__all__ = ["CoordinatorAddress", "CoordinatorClient", "command_address"]

_DEADLINE_S = 30.0
_CALL_TIMEOUT_S = 10.0
_LEADER_S = 12.0  # a look at who leads takes no longer, whoever is away
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_LOOK_EVERY_S = 1.0
_WAIT_S = 2.0  # for the connection, and as long for the answer
_TOO_MANY = 429
_SERVER_ERRORS = 500  # and above: whatever it was, it may pass


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorAddress:
    """Where a job's coordinator answers, and the right to ask it. Picklable.

    Attributes:
        address: ``http://host:port``.
        token: bearer token; never logged, never in ``repr``.
        leader_session_id: of the coordinator; another one refuses our messages.
        job_uid: of the job.
        attempt_id: of its run, the place that it has sealed; None: not known.
        checkpoint_uri: directory with the record of who leads; empty: there is none.
        checkpoint_web: where WebHDFS answers for that directory; None: nowhere, or it is local.
    """

    address: str
    token: str
    leader_session_id: str
    job_uid: str
    attempt_id: int | None = None
    checkpoint_uri: str = ""
    checkpoint_web: WebHdfsAddress | None = None

    def __repr__(self) -> str:
        return (
            f"CoordinatorAddress(address={self.address!r}, token='***', "
            f"leader_session_id={self.leader_session_id!r}, job_uid={self.job_uid!r}, "
            f"checkpoint_uri={self.checkpoint_uri!r})"
        )


def command_address(fs: FileSystem) -> CoordinatorAddress:
    """Where the job with this checkpoint directory accepts commands; errors as of
    `RunRecordStore.newest_command`."""
    run = RunRecordStore(fs).newest_command()
    return CoordinatorAddress(
        address=run.address,
        token=run.token,
        leader_session_id=run.leader_session_id,
        job_uid=run.job_uid,
    )


class CoordinatorClient:
    """Implements `sluice.runtime.contracts.WaitRegistry` and the barrier poll over HTTP.

    Runs in source runners (driver side) and Python workers (executors), one thread. Every message
    may be repeated safely, so a call is repeated until it is answered or its deadline has passed. A
    try counts no more than the longest one takes: what this process stood still for is nobody's
    silence.
    While nobody answers, the record in the checkpoint directory, where that is local, mounted or to
    be read over WebHDFS, tells whether a later coordinator leads the job by now. An error of the
    coordinator is raised here as the same class.
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
        self._deadline_s = deadline_s
        self._looked_s: float | None = None
        self._pool = urllib3.PoolManager(
            num_pools=1,
            maxsize=2,
            retries=False,
            headers={
                "Authorization": f"Bearer {address.token}",
                "Content-Type": "application/json",
            },
        )

    def poll_barrier(self, region: str, attempt_id: int, *, wait_s: float) -> Barrier | None:
        """See `sluice.runtime.contracts.Coordinator.poll_barrier`."""
        body = self._envelope(region, attempt_id) | {"wait_s": wait_s}
        answer = self._post("/v1/barrier", body, timeout_s=wait_s + _CALL_TIMEOUT_S)
        with _understood("/v1/barrier"):
            barrier = answer["barrier"]
            return None if barrier is None else wire.barrier_from_json(barrier)

    def next_barrier(
        self,
        region: str,
        attempt_id: int,
        *,
        wait_s: float,
        has_read: bool,
        committed: Sequence[CommittedEpoch] = (),
    ) -> NextBarrier:
        """See `sluice.runtime.continuous.checkpoint_client.CoordinatorLink`."""
        body = self._envelope(region, attempt_id) | {
            "wait_s": wait_s,
            "has_read": has_read,
            "committed": [values.to_json(epoch) for epoch in committed],
        }
        answer = self._post("/v1/epochs/next", body, timeout_s=wait_s + _CALL_TIMEOUT_S)
        with _understood("/v1/epochs/next"):
            return values.from_json(NextBarrier, answer["next"])

    def acknowledge_epoch(self, result: EpochResult) -> None:
        """See `sluice.runtime.continuous.checkpoint_client.CoordinatorLink`."""
        body = {
            "job_uid": self._address.job_uid,
            "leader_session_id": self._address.leader_session_id,
            "epoch": values.to_json(result),
        }
        self._post("/v1/epochs", body)

    def register(self, attempt: RegisteredAttempt) -> float:
        """See `sluice.runtime.contracts.AttemptRegistry.register`."""
        batch = attempt.batch
        path = "/v1/attempts"
        answer = self._post(
            path,
            self._envelope(batch.region, batch.attempt_id)
            | {
                "checkpoint_id": attempt.checkpoint_id,
                "batch_id": batch.batch_id,
                "operator_id": attempt.operator_id,
                "resource": attempt.resource,
            },
        )
        with _understood(path):
            return seconds(answer["registered_s"])

    def waits(self, batch: BatchKey, what: str, *, why: str) -> None:
        """See `sluice.runtime.contracts.WaitRegistry.waits`."""
        with contextlib.suppress(UnreachableError):
            self._tell_wait(batch, what, why)

    def waited(self, batch: BatchKey, what: str) -> None:
        """See `sluice.runtime.contracts.WaitRegistry.waited`."""
        with contextlib.suppress(StreamError):
            self._tell_wait(batch, what, None)

    def _tell_wait(self, batch: BatchKey, what: str, why: str | None) -> None:
        body = self._batch_envelope(batch) | {"what": what, "why": why}
        self._send("POST", "/v1/waits", body=body, timeout_s=_WAIT_S, deadline_s=0.0)

    def is_decided(self, batch: BatchKey) -> bool:
        """See `sluice.runtime.contracts.Coordinator.is_decided`."""
        path = "/v1/batches/decided"
        answer = self._send(
            "GET",
            path,
            fields={k: str(v) for k, v in self._batch_envelope(batch).items() if v is not None},
        )
        with _understood(path):
            # Nothing else is a yes: what is decided is not written again.
            if not isinstance(answer["decided"], bool):
                raise TypeError("neither true nor false")
            return answer["decided"]

    def status(self) -> Mapping[str, Any]:
        """State of the job, its checkpoints and regions, as JSON."""
        found = self._send("GET", "/v1/status")
        with _understood("/v1/status"):
            if not isinstance(found["job"], dict | None):
                raise TypeError("neither a job nor none")
        return found

    def restart(
        self, regions: Sequence[str], *, exclude_hosts: Sequence[str] = (), timeout_s: float
    ) -> Mapping[str, Any]:
        """Let regions begin new lives, off these hosts; none named: all that are suspended.

        Returns the names under ``regions``, and the number under ``executors_ended``. Asked once:
        to repeat it would restart what has just begun.
        """
        body = {
            "job_uid": self._address.job_uid,
            "leader_session_id": self._address.leader_session_id,
            "regions": list(regions),
            "exclude_hosts": list(exclude_hosts),
        }
        path = "/v1/regions/restart"
        return self._send("POST", path, body=body, timeout_s=timeout_s, deadline_s=0.0)

    def query(self, key: str, call: str, payload: Mapping[str, Any], *, timeout_s: float) -> Any:  # noqa: ANN401 - JSON
        """Call a mounted `sluice.runtime.service.server.QueryHandler` (drop-in).

        The handler has tried for as long as makes sense: that a cluster cannot be reached is its
        answer, and is not asked for again.
        """
        path = f"/v1/queries/{key}/{call}"
        body = {
            "job_uid": self._address.job_uid,
            "leader_session_id": self._address.leader_session_id,
            "payload": payload,
        }
        answer = self._send(
            "POST", path, body=body, timeout_s=timeout_s, deadline_s=timeout_s, repeats_errors=False
        )
        with _understood(path):
            return answer["answer"]

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside ---------------------------------------------------------------------------------

    def _envelope(self, region: str, attempt_id: int) -> dict[str, Any]:
        return {
            "job_uid": self._address.job_uid,
            "leader_session_id": self._address.leader_session_id,
            "region": region,
            "attempt_id": attempt_id,
            "checkpoint_id": None,
        }

    def _batch_envelope(self, batch: BatchKey) -> dict[str, Any]:
        return self._envelope(batch.region, batch.attempt_id) | {"batch_id": batch.batch_id}

    def _post(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float = _CALL_TIMEOUT_S
    ) -> dict[str, Any]:
        return self._send("POST", path, body=body, timeout_s=timeout_s)

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        fields: Mapping[str, str] | None = None,
        timeout_s: float = _CALL_TIMEOUT_S,
        deadline_s: float | None = None,
        repeats_errors: bool = True,
    ) -> dict[str, Any]:
        """Repeat with growing pauses until answered; bounded by the deadline."""
        # In ASCII: text that has no UTF-8 arrives, too. urllib3's own way with JSON would raise.
        content = None if body is None else json.dumps(body, separators=(",", ":"))
        longest_try_s = CONNECT_TIMEOUT_S + timeout_s + _LEADER_S + _LONGEST_PAUSE_S
        asking = PauseTolerantClock(self._clock, longest_step_s=longest_try_s)
        deadline = asking() + (self._deadline_s if deadline_s is None else deadline_s)
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                response = self._request(
                    method, path, content=content, fields=fields, timeout_s=timeout_s
                )
                if response.status != _TOO_MANY and response.status < _SERVER_ERRORS:
                    return self._answer(response, path)
                own = _error_of(response)
                if own is not None and not repeats_errors:
                    raise own
                failure = self._failed(response, own, path)
                if own is None:  # a proxy before a driver that may be gone
                    self._require_leadership()
            except urllib3.exceptions.HTTPError as err:
                failure = no_connection(
                    err, address=self._address.address, path=path, timeout_s=timeout_s
                )
                self._require_leadership()
            if asking() + pause_s >= deadline:
                raise failure
            time.sleep(pause_s)  # the pause between tries of a service that does not answer
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _request(
        self,
        method: str,
        path: str,
        *,
        content: str | None,
        fields: Mapping[str, str] | None,
        timeout_s: float,
    ) -> urllib3.BaseHTTPResponse:
        address = self._address.address
        if not address.startswith(("http://", "https://")):
            raise unusable_address("neither http:// nor https://", address=address)
        try:
            return self._pool.request(
                method,
                f"{address}{path}",
                body=content,
                fields=fields,
                timeout=urllib3.Timeout(connect=min(timeout_s, CONNECT_TIMEOUT_S), read=timeout_s),
                redirect=False,  # wherever it leads, the token is not for that place
            )
        except ValueError as err:  # urllib3's own, too, of what is no address
            # Without its cause: that of a token that is no header shows it.
            raise unusable_address(type(err).__name__, address=address) from None

    def _answer(self, response: urllib3.BaseHTTPResponse, path: str) -> dict[str, Any]:
        """The JSON of a success; the coordinator's own error otherwise."""
        found = _json(response)
        if response.status == 200 and isinstance(found, dict):
            return found
        raise _error_of(response) or foreign_answer(
            response, address=self._address.address, path=path
        )

    def _failed(
        self, response: urllib3.BaseHTTPResponse, own: StreamError | None, path: str
    ) -> StreamError:
        """What is raised if no later try is answered better."""
        if own is None:
            return foreign_answer(response, address=self._address.address, path=path)
        if isinstance(own, UnreachableError):
            return own
        return UnreachableError(
            "the coordinator answers, and fails each time",
            {"address": self._address.address, "path": path, "reason": str(own)},
            "See the log of the driver process.",
        )

    def _require_leadership(self) -> None:
        """Raise FencedError when the record says that a later coordinator leads the job.

        All tasks of a dead driver look, so not at each of their tries.
        """
        now_s = self._clock()
        if self._looked_s is not None and now_s - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now_s
        leader = find_leader(self._address.checkpoint_uri, self._address.checkpoint_web)
        if leader is not None and self._is_later(leader):
            raise FencedError(
                "another coordinator leads the job now",
                {
                    "leader_session_id": self._address.leader_session_id,
                    "current": leader.leader_session_id,
                    "address": leader.address,
                },
                "The job has been restarted; this sender belongs to its older run.",
            )

    def _is_later(self, leader: RunRecord) -> bool:
        """An earlier one may announce itself late: it slept behind its seal. Places only grow."""
        ours = self._address.attempt_id
        return ours is not None and leader.attempt_id > ours


@contextlib.contextmanager
def _understood(path: str) -> Iterator[None]:
    """What stands in an answer is what this version expects there, or a typed error."""
    try:
        yield
    except (ValueError, LookupError, TypeError) as err:
        raise UnsupportedFormatError(
            "the coordinator's address gave an answer that is not a coordinator's",
            {"path": path, "reason": repr(err)},
            "Is another service listening on that port, or another version of Sluice?",
        ) from err


def _error_of(response: urllib3.BaseHTTPResponse) -> StreamError | None:
    """The coordinator's own error in an answer, if it is one."""
    found = _json(response)
    error = found.get("error") if isinstance(found, dict) else None
    return wire.error_from_json(error) if isinstance(error, dict) else None


def _json(response: urllib3.BaseHTTPResponse) -> object:
    try:
        return parsed_json(response.data)
    except ValueError:
        return None
