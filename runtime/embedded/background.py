"""What runs for this user: a small file per server, so that another terminal can stop it."""

import json
from dataclasses import dataclass
from pathlib import Path

from runtime.embedded.cache import state_dir
from runtime.embedded.process import Identity, stop_identity

__all__ = ["RunningServer", "forget", "recall", "remember", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that this user started.

    Attributes:
        name: one server of each name per user, e.g. ``kafka``.
        identity: its process.
        address: where clients reach it.
        data_dir: its data.
        log_path: its log.
    """

    name: str
    identity: Identity
    address: str
    data_dir: Path
    log_path: Path


def remember(server: RunningServer) -> None:
    """Write the file; the server runs."""
    path = _path(server.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "pid": server.identity.pid,
        "created_at": server.identity.created_at,
        "address": server.address,
        "data_dir": str(server.data_dir),
        "log_path": str(server.log_path),
    }
    written = path.with_suffix(".new")
    written.write_text(json.dumps(record, indent=2), encoding="utf-8")
    written.replace(path)


def recall(name: str) -> RunningServer | None:
    """The server of that name if its very process still runs."""
    try:
        record = json.loads(_path(name).read_text(encoding="utf-8"))
        server = RunningServer(
            name=name,
            identity=Identity(pid=record["pid"], created_at=record["created_at"]),
            address=record["address"],
            data_dir=Path(record["data_dir"]),
            log_path=Path(record["log_path"]),
        )
    except (FileNotFoundError, ValueError, KeyError):  # never written, or not by us
        return None
    return server if server.identity.is_running() else None


def forget(name: str) -> None:
    """Delete the file."""
    _path(name).unlink(missing_ok=True)


def stop(name: str) -> RunningServer | None:
    """End the server of that name; returns what ran, or None."""
    server = recall(name)
    if server:
        stop_identity(server.identity)
    forget(name)
    return server


def _path(name: str) -> Path:
    return state_dir() / f"{name}.json"
