"""The requests of a drop-in sink to the service in the user's process. Light: no Spark, no
server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from sluice.runtime.errors import ConfigError, UnsupportedFormatError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.json_values import FieldError, from_json, to_json
from sluice.runtime.model.payloads import seconds
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DropInClient:
    """Picklable; travels inside the registered format. A repeated message is safe."""

    address: CoordinatorAddress

    def begin(self, format_name: str, location: str, options: Mapping[str, str]) -> QueryRun:
        """The run of the query at ``location``; the first call of a run fences and sweeps."""
        payload = {"format_name": format_name, "options": dict(options.items())}
        found = self._call("begin", location, payload, timeout_s=_BEGIN_TIMEOUT_S)
        try:
            return from_json(QueryRun, found)
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
            "run_id": run.run_id,
            "batch_id": batch_id,
            "entries": to_json(list(entries)),
            "decide_by_s": decide_by_s,
        }
        self._call("commit", location, payload, timeout_s=_COMMIT_TIMEOUT_S)

    def abort(self, location: str, run: QueryRun, batch_id: int) -> None:
        """The batch failed; the handler leaves a decided batch alone."""
        payload = {"run_id": run.run_id, "batch_id": batch_id}
        self._call("abort", location, payload, timeout_s=_BEGIN_TIMEOUT_S)

    def _call(
        self, call: str, location: str, payload: Mapping[str, Any], *, timeout_s: float
    ) -> Any:  # noqa: ANN401 - JSON
        with CoordinatorClient(self.address) as client:
            payload = {"location": location, **payload}
            return client.query(HANDLER_KEY, call, payload, timeout_s=timeout_s)


_FIELDS = {
    "begin": {"location", "format_name", "options"},
    "commit": {"location", "run_id", "batch_id", "entries", "decide_by_s"},
    "abort": {"location", "run_id", "batch_id"},
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
            if payload.keys() != _FIELDS[call]:
                raise FieldError(call)
            message = from_json(cls, payload)
            if message.decide_by_s is not None:
                seconds(message.decide_by_s)
        except (ValueError, LookupError, TypeError, AttributeError) as err:
            raise ConfigError(
                "this message does not come from a drop-in query",
                {"call": call, "reason": type(err).__name__},
                "Call sluice.install(spark) with the Sluice version that Spark's processes import.",
            ) from err
        return message
