"""A region of another process: its handle here, and the handler there.

Messages pass through `CoordinatorService` and `CoordinatorClient`; each region is mounted under its
name. An error of the region is part of an answer, so it is never taken for a lost answer.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from sluice.runtime.contracts import (
    AttemptState,
    AttemptStatus,
    RegionAttempt,
    RegionHandle,
    RegionRegistration,
)
from sluice.runtime.errors import ConfigError, RegionUnansweredError, StreamError, UnreachableError
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.service.error_json import error_from_json, error_to_json
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient

__all__ = ["RegionDoor", "RemoteRegion", "region_key"]


def region_key(region: str) -> str:
    """Path under which the handler of a region is mounted."""
    return f"region-{region}"


class RegionDoor:
    """Answers for a handle of this process.

    Implements `sluice.runtime.service.coordinator_app.QueryHandler`.
    """

    def __init__(self, handle: RegionHandle) -> None:
        self._handle = handle

    def call(self, call: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """``start``, ``stop``, ``register`` or ``status``; the result or the error, never both."""
        try:
            return {"result": self._answer(call, payload)}
        except Exception as err:  # noqa: BLE001 - Spark's, too: it is raised where it was asked
            return {"error": _error(err)}

    def _answer(self, call: str, payload: Mapping[str, Any]) -> object:
        timeout_s = float(payload["timeout_s"])
        match call:
            case "start":
                attempt = from_json(RegionAttempt, payload["attempt"])
                self._handle.start(attempt, timeout_s=timeout_s)
                return None
            case "stop":
                return self._handle.stop(payload["attempt_id"], timeout_s=timeout_s)
            case "register":
                told = self._handle.register(payload["attempt_id"], timeout_s=timeout_s)
                return to_json(told)
            case "status":
                return _plain(
                    self._handle.status(check_storage=payload["check_storage"], timeout_s=timeout_s)
                )
        raise ConfigError(
            "a region does not know this message",
            {"region": self._handle.region, "call": call},
            "Run the same version of Sluice in both processes.",
        )


class RemoteRegion(RegionHandle):
    """`sluice.runtime.contracts.RegionHandle` over HTTP. Driver; every method is thread-safe.

    Args:
        region: name of the region.
        address: of the service in the process that runs it.
        transfer_s: extra time for an answer, beyond the timeout of the call.
    """

    def __init__(
        self, region: str, address: CoordinatorAddress, *, transfer_s: float = 5.0
    ) -> None:
        self._region = region
        self._transfer_s = transfer_s
        self._client = CoordinatorClient(address)

    @property
    def region(self) -> str:
        return self._region

    def start(self, attempt: RegionAttempt, *, timeout_s: float) -> None:
        with self._understood("start"):
            self._ask("start", {"attempt": to_json(attempt)}, timeout_s)

    def stop(self, attempt_id: int, *, timeout_s: float) -> bool:
        with self._understood("stop"):
            found = self._ask("stop", {"attempt_id": attempt_id}, timeout_s)
            if not isinstance(found, bool):
                raise TypeError("neither true nor false")
            return found

    def register(self, attempt_id: int, *, timeout_s: float) -> RegionRegistration:
        with self._understood("register"):
            found = self._ask("register", {"attempt_id": attempt_id}, timeout_s)
            return from_json(RegionRegistration, found)

    def status(self, *, check_storage: bool = False, timeout_s: float) -> AttemptStatus:
        """See `RegionHandle.status`; other errors than `StreamError` come as text."""
        with self._understood("status"):
            return _status(self._ask("status", {"check_storage": check_storage}, timeout_s))

    def close(self) -> None:
        """Close the connections; the region continues."""
        self._client.close()

    @contextlib.contextmanager
    def _understood(self, call: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError) as err:
            raise RegionUnansweredError(
                "the answer does not come from the host of a region",
                {"region": self._region, "call": call, "reason": repr(err)},
                "Run the same version of Sluice in both processes.",
            ) from err

    def _ask(self, call: str, payload: Mapping[str, Any], timeout_s: float) -> Any:  # noqa: ANN401 - JSON
        try:
            answer = self._client.query(
                region_key(self._region),
                call,
                {**payload, "timeout_s": timeout_s},
                timeout_s=timeout_s + self._transfer_s,
            )
        except UnreachableError as err:
            raise RegionUnansweredError(
                "the host of a region did not answer",
                {"region": self._region, "call": call, "timeout_s": timeout_s},
                "Query the region's status: whether it received the request is unknown.",
            ) from err
        if "error" in answer:
            raise error_from_json(answer["error"])
        return answer["result"]


def _plain(status: AttemptStatus) -> dict[str, Any]:
    return {
        "region": status.region,
        "attempt_id": status.attempt_id,
        "state": status.state.value,
        "error": _error(status.error),
        "hindrance": _error(status.hindrance),
    }


def _error(error: BaseException | None) -> dict[str, Any] | None:
    if error is None:
        return None
    if not isinstance(error, StreamError):
        error = StreamError(
            "a region failed",
            {"error": f"{type(error).__name__}: {error}"},
            "Read the log of that process.",
        )
    return error_to_json(error)


def _status(found: Mapping[str, Any]) -> AttemptStatus:
    def error(name: str) -> StreamError | None:
        return None if found[name] is None else error_from_json(found[name])

    return AttemptStatus(
        region=found["region"],
        attempt_id=found["attempt_id"],
        state=AttemptState(found["state"]),
        error=error("error"),
        hindrance=error("hindrance"),
    )
