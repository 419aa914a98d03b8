"""How a command reaches a running job, and waits for what it requested."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.runtime.checkpoint.checkpoint_slots import METADATA
from sluice.runtime.checkpoint.inspect.checkpoint_opening import DROP_IN, command_store, split_slot
from sluice.runtime.checkpoint.succession import last_record
from sluice.runtime.errors import (
    AuthenticationError,
    CheckpointFailedError,
    ConfigError,
    FencedError,
    StreamError,
    UnreachableError,
    WrongServiceError,
)
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    RegionStatus,
    Verdict,
)
from sluice.runtime.service.service_client import CoordinatorClient, command_address
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import needs_jvm, open_file_system

__all__ = ["JobEnd", "await_end", "await_request", "running_job", "written_as"]

_ANSWER_S = 5.0
_LOCAL = "file:"
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How a job has ended that was requested to stop.

    Attributes:
        savepoint: path of the savepoint; None: none was requested.
        suspended: regions that its last checkpoint has with an older snapshot.
    """

    savepoint: str | None
    suspended: tuple[str, ...] = ()


def written_as(given: str, uri: str) -> str:
    """A URI in the form in which the user gave another one: a plain path stays one."""
    return uri if given.lower().startswith(_LOCAL) else uri.removeprefix("file://")


@contextlib.contextmanager
def running_job(path: str, *, answer_s: float = _ANSWER_S) -> Iterator[CoordinatorClient]:
    """A client of the job that runs with this checkpoint directory.

    Args:
        answer_s: how long refused connections are repeated.
    Raises:
        UnreachableError: no job runs with it.
        ConfigError: the directory belongs to a drop-in query.
        AuthenticationError: the job belongs to another user.
    """
    with command_store(split_slot(path)[0]) as store:
        below = f"/{DROP_IN}"
        if store.fs.uri.endswith(below) and not path.rstrip("/").endswith(below):
            raise ConfigError(
                "this is a Spark query with a drop-in sink, not a job",
                {"path": path},
                "Watch and stop it with Spark: query.lastProgress, Spark's pages, query.stop(). "
                "`sluice checkpoint list` shows its decisions.",
            )
        address = command_address(store.fs)
    with CoordinatorClient(address, deadline_s=answer_s) as client:
        try:
            yield client
        except UnreachableError as err:
            what, where, remedy = err.args
            if isinstance(err, WrongServiceError):
                remedy = "It has ended or starts again; another program has its address now."
            raise UnreachableError(
                f"the job does not answer: {what}", {**where, "path": path}, remedy
            ) from err


def await_request(
    client: CoordinatorClient,
    request_id: str,
    *,
    watch: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> Mapping[str, Any]:
    """The request after it is completed.

    Args:
        watch: called with each answer of the job.
    Raises:
        CheckpointFailedError: it failed.
        UnreachableError: the job has ended, or does not answer.
    """
    pause = threading.Event()
    while True:
        found = next(r for r in client.savepoints() if r["request_id"] == request_id)
        watch(found)
        if found["state"] == "failed":
            raise CheckpointFailedError(
                f"the {found['kind']} failed",
                {"checkpoint_id": found["checkpoint_id"], "cause": found["error"]},
                "Remove the cause and repeat the command; the job continues unless it has failed.",
            )
        if found["state"] == "completed":
            return found
        pause.wait(_POLL_S)


def await_end(path: str, client: CoordinatorClient, request: Mapping[str, Any]) -> JobEnd:
    """Wait until a job that was requested to stop has ended.

    Raises:
        CheckpointFailedError: the stop failed, the job ended without its last checkpoint, or
            another run has continued the job: its driver died before it could end the job.
    """
    pause, session = threading.Event(), client.leader_session_id
    try:
        found = await_request(client, request["request_id"])
        with contextlib.suppress(UnreachableError, FencedError, AuthenticationError):
            while True:  # until it has ended; another program may get its port later
                client.status()
                pause.wait(_POLL_S)
    except (UnreachableError, FencedError, AuthenticationError) as err:
        # It has ended between two polls: the directories say how.
        savepoint = _left_by(path, request, err, session=session)
    else:
        savepoint = found["uri"] or None
    last = _require_last(path, session, savepoint)
    regions = () if last is None else last.regions
    suspended = tuple(each.region for each in regions if each.status is RegionStatus.SKIPPED)
    return JobEnd(savepoint=savepoint, suspended=suspended)


def _require_last(path: str, session: str, savepoint: str | None) -> CheckpointRecord | None:
    """The last record. A supervisor or a standby may have started the job again after it."""
    with command_store(split_slot(path)[0]) as store:
        last = last_record(store)
    if last is None or last.leader_session_id == session:
        return last
    where = {} if savepoint is None else {"savepoint": savepoint}
    raise CheckpointFailedError(
        "the job was stopped, but another run has continued it since",
        {
            "path": path,
            **where,
            "stopped_run": session,
            "newer_run": last.leader_session_id,
            "checkpoint_id": last.checkpoint_id,
        },
        "Repeat the command to stop the newer run, too. A savepoint that is named here is whole.",
    )


def _left_by(
    path: str, request: Mapping[str, Any], cause: StreamError, *, session: str
) -> str | None:
    parent = request["parent"]
    found = None if parent is None else _savepoint_of(parent, request["request_id"])
    if found is not None or (parent is None and _ends_with_a_final_one(path, session)):
        return found
    raise CheckpointFailedError(
        "the job ended without its last checkpoint",
        {"path": path, "request_id": request["request_id"]},
        "Read the log of the driver process; the next start resumes from the last checkpoint.",
    ) from cause


def _savepoint_of(parent: str, request_id: str) -> str | None:
    with _opened(parent) as fs:
        names = [e.name for e in fs.entries("") if e.name.endswith(f"-{request_id}")]
        whole = (name for name in names if fs.exists(f"{name}/{METADATA}"))
        return next((f"{parent}/{name}" for name in whole), None)


def _ends_with_a_final_one(path: str, session: str) -> bool:
    """Whether the last decision of this run is a final one, and committed. A run that was killed
    may have decided nothing, after a run with a final one."""
    with command_store(split_slot(path)[0]) as store:
        records = map(store.read, sorted(store.slots(), reverse=True))
        decided = (r for r in records if r is not None and r.verdict is Verdict.DECIDED)
        last = next((r for r in decided if r.leader_session_id == session), None)
        return (
            last is not None
            and last.kind is CheckpointKind.FINAL
            and (not last.committables or store.is_committed(last.checkpoint_id))
        )


@contextlib.contextmanager
def _opened(uri: str) -> Iterator[FileSystem]:
    with contextlib.ExitStack() as stack:
        jvm = None
        if needs_jvm(uri):
            from sluice.runtime.storage.hadoop_jvm import hadoop_jvm

            jvm = stack.enter_context(hadoop_jvm())
        yield open_file_system(uri, jvm)
