"""The requests of a drop-in sink to the service in the user's process. Light: no Spark, no
server."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from sluice.runtime.errors import ConfigError, UnsupportedFormatError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.payloads import number, seconds, text
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient
from sluice.runtime.service.service_json import from_json

__all__ = ["HANDLER_KEY", "REGION", "DropInClient", "DropInMessage", "QueryRun"]

HANDLER_KEY = "drop-in"
"""Path under which `sluice.install` mounts the handler in its service."""

REGION = "query"
"""A drop-in query is one region, of this name."""

_BEGIN_TIMEOUT_S = 60.0
_COMMIT_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRun:
    """One run of a drop-in query, as its tasks need it. Picklable.

    Attributes:
        run_id: Spark's.
        job_uid, attempt_id, operator_id: see `sluice.runtime.contracts.TaskScope`.
        committed_through: every checkpoint up to this one is committed or aborted.
        address: of the run's coordinator.
        writer_factory: a pickled `WriterFactory` from the user's process.
    """

    run_id: str
    job_uid: str
    attempt_id: int
    operator_id: str
    committed_through: int
    address: CoordinatorAddress
    writer_factory: bytes = field(repr=False)  # with the address and token of the service

    def to_json(self) -> dict[str, Any]:
        """For the wire."""
        factory = base64.b64encode(self.writer_factory).decode("ascii")
        return {**asdict(self), "writer_factory": factory}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """From the wire."""
        return from_json(cls, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropInClient:
    """Picklable; travels inside the registered format. A repeated message is safe."""

    address: CoordinatorAddress

    def begin(self, format_name: str, location: str, options: Mapping[str, str]) -> QueryRun:
        """The run of the query at ``location``; the first call of a run fences and sweeps."""
        payload = {"format": format_name, "location": location, "options": dict(options.items())}
        found = self._call("begin", payload, timeout_s=_BEGIN_TIMEOUT_S)
        try:
            return QueryRun.from_json(found)
        except (ValueError, LookupError, TypeError) as err:
            raise UnsupportedFormatError(
                "the answer to a query's start cannot be read",
                {"location": location, "reason": type(err).__name__},
                "Call sluice.install(spark) with the Sluice version that Spark's processes import.",
            ) from err

    def commit(
        self,
        location: str,
        run: QueryRun,
        batch_id: int,
        entries: Sequence[StateEntry],
        *,
        decide_by_s: float | None,
    ) -> None:
        """Decide the batch and commit it; returns after the commit is on record.

        Args:
            decide_by_s: see `sluice.runtime.contracts.SinkWriter`.
        """
        payload = {
            "location": location,
            "run_id": run.run_id,
            "batch_id": batch_id,
            "entries": [_encode(entry) for entry in entries],
            "decide_by_s": decide_by_s,
        }
        self._call("commit", payload, timeout_s=_COMMIT_TIMEOUT_S)

    def abort(self, location: str, run: QueryRun, batch_id: int) -> None:
        """The batch failed; the handler leaves a decided batch alone."""
        payload = {"location": location, "run_id": run.run_id, "batch_id": batch_id}
        self._call("abort", payload, timeout_s=_BEGIN_TIMEOUT_S)

    def _call(self, call: str, payload: Mapping[str, Any], *, timeout_s: float) -> Any:  # noqa: ANN401 - JSON
        with CoordinatorClient(self.address) as client:
            return client.query(HANDLER_KEY, call, payload, timeout_s=timeout_s)


def _encode(entry: StateEntry) -> dict[str, Any]:
    return {
        **asdict(entry),
        "redistribution": entry.redistribution.value,
        "payload": base64.b64encode(entry.payload).decode("ascii"),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class DropInMessage:
    """A checked message of a drop-in process to the handler.

    Attributes:
        location: of the query's checkpoints.
        format_name, options: of a ``begin``.
        run_id, batch_id: of a ``commit`` or an ``abort``.
        entries, decide_by_s: of a ``commit``.
    """

    location: str
    format_name: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    run_id: str = ""
    batch_id: int = -1
    entries: tuple[StateEntry, ...] = ()
    decide_by_s: float | None = None

    @classmethod
    def of(cls, call: str, payload: Mapping[str, Any]) -> Self:
        """A message from JSON.

        Raises:
            ConfigError: it is not a message, or lacks a field.
        """
        try:
            return cls(location=text(payload["location"]), **_rest(call, payload))
        except (ValueError, LookupError, TypeError, AttributeError) as err:
            raise ConfigError(
                "this message does not come from a drop-in query",
                {"call": call, "reason": type(err).__name__},
                "Call sluice.install(spark) with the Sluice version that Spark's processes import.",
            ) from err


def _rest(call: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
    if call == "begin":
        options = {text(name): text(value) for name, value in payload["options"].items()}
        return {"format_name": text(payload["format"]), "options": options}
    batch = {"run_id": text(payload["run_id"]), "batch_id": number(payload["batch_id"])}
    if call == "commit":
        entries = (from_json(StateEntry, entry) for entry in payload["entries"])
        decide_by = payload["decide_by_s"]
        decide_by_s = None if decide_by is None else seconds(decide_by)
        return {**batch, "entries": tuple(entries), "decide_by_s": decide_by_s}
    if call == "abort":
        return batch
    raise LookupError(call)
