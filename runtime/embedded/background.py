"""Servers of this user that run in the background: a small file each, so that another terminal can
stop them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.embedded.cache import exclusive, state_dir
from sluice.runtime.embedded.process import Identity, stop_identity
from sluice.runtime.embedded.start_timeout import LONGEST_S
from sluice.runtime.errors import MissingRequirementError
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.json_values import from_json, to_json

__all__ = ["RunningServer", "forget", "recall", "remember", "start_once", "stop"]

_LOCK_TIMEOUT_S = 2 * LONGEST_S  # its holder is starting a server; an HDFS has two


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that this user started.

    Attributes:
        name: one server of each name per user, e.g. ``kafka``.
        identities: its processes, in the order in which to stop them.
        address: where clients reach it.
        data_dir: its data.
        log_path: its log.
        web_address: of its web pages, if it has any.
    """

    name: str
    identities: tuple[Identity, ...]
    address: str
    data_dir: Path
    log_path: Path
    web_address: str | None = None

    @property
    def pids(self) -> str:
        """For people."""
        return ", ".join(str(identity.pid) for identity in self.identities)

    def is_running(self) -> bool:
        """Whether one of its processes lives; a server that lost other processes must still be
        stopped."""
        return any(identity.is_running() for identity in self.identities)

    def describe(self) -> str:
        """One line for people: its address, data and log."""
        web = f"  web {self.web_address}" if self.web_address else ""
        return f"{self.address}{web}  pid {self.pids}  log {self.log_path}"


def start_once(name: str, what: str, start: Callable[[], RunningServer]) -> None:
    """Start and remember a server, unless one of its name runs; serialised over all commands of a
    user.

    Args:
        name: of the server, and of its group of commands.
        what: for people, e.g. ``a broker``.
        start: starts it and returns its description.

    Raises:
        MissingRequirementError: one already runs, or it could not start.
    """
    with exclusive(state_dir() / f"{name}.lock", timeout_s=_LOCK_TIMEOUT_S):
        server = recall(name)
        if server:
            raise MissingRequirementError(
                f"{what} of this user already runs",
                {"address": server.address, "pid": server.pids},
                f"Use it, or stop it with: sluice {name} stop",
            )
        remember(start())


def remember(server: RunningServer) -> None:
    """Write the file of a running server."""
    path = _path(server.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".new")
    written.write_text(json.dumps(to_json(server), indent=2), encoding="utf-8")
    written.replace(path)


def recall(name: str) -> RunningServer | None:
    """The server of that name, if one of its processes still runs.

    Raises:
        MissingRequirementError: the file cannot be read, for example because the state is not a
            directory.
    """
    path = _path(name)
    try:
        server = from_json(RunningServer, parsed_json(path.read_bytes()))
        return server if server.is_running() else None
    except FileNotFoundError:
        return None
    except OSError as err:
        raise MissingRequirementError(
            "the record of this user's running servers cannot be read",
            {"file": path, "error": err.strerror},
            "Set SLUICE_STATE to a directory that this user may read and write.",
        ) from err
    except (ValueError, TypeError):  # Sluice did not write it
        return None


def forget(name: str) -> None:
    """Delete the file."""
    _path(name).unlink(missing_ok=True)


def stop(name: str) -> RunningServer | None:
    """End the server of that name; returns its description, or None."""
    server = recall(name)
    for identity in server.identities if server else ():
        stop_identity(identity)
    forget(name)
    return server


def _path(name: str) -> Path:
    return state_dir() / f"{name}.json"
