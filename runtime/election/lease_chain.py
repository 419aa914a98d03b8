"""The lease records of one job in its checkpoint directory: created, read, deleted."""

import contextlib
import re
from dataclasses import dataclass

from sluice.runtime.checkpoint.slot_publishing import SlotPublication
from sluice.runtime.election.leader_election import Candidate
from sluice.runtime.election.lease_record import LEASE_NAME, LeaseRecord, lease_name
from sluice.runtime.errors import StorageError, StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.storage.file_system import Entry, FileSystem

__all__ = ["ELECTION", "LeaseChain", "Survey"]

ELECTION = "_election"
"""Directory of the election in a checkpoint directory."""
_STANDBY = re.compile(r"standby\.(?P<role>[a-z]+)\.(?P<pid>\d+)\.(?P<host>[A-Za-z0-9.-]+)")
_KEPT = 8
"""Records before the newest. A name that is free again deceives no reader: the newest counts."""
_SHOWN_MS = 30_000
_LISTINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The result of one listing of the directory.

    Attributes:
        newest: the record with the largest number; None: there is none.
        standbys: processes that waited a short while ago.
        outdated: names that no process needs any more.
    """

    newest: LeaseRecord | None
    standbys: tuple[Candidate, ...] = ()
    outdated: tuple[str, ...] = ()


class LeaseChain:
    """Reads and extends the chain. One thread.

    Args:
        fs: rooted at the checkpoint directory.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def survey(self) -> Survey:
        """The newest record, and who waits.

        Raises:
            UnsupportedFormatError: a later Sluice wrote the record.
            StorageError: it is damaged, or the store does not answer.
        """
        for _ in range(_LISTINGS):
            entries = self._fs.entries(ELECTION)
            leases = sorted(each.name for each in entries if LEASE_NAME.fullmatch(each.name))
            if not leases:
                return Survey(newest=None, standbys=_standbys(entries, since_ms=0))
            newest = self._read(leases[-1])
            if newest is not None:  # else a leader has deleted it after many renewals
                return _survey(newest, entries)
        raise StorageError(
            "the lease records of the election vanish while they are read",
            {"uri": self._fs.uri, "directory": ELECTION},
            "Find the program that deletes them.",
        )

    def create(self, record: LeaseRecord) -> None:
        """Create the record if its name is free. Only a later `survey` shows whether it counts.

        Raises:
            StorageError: it is unknown whether it was created.
        """
        name = lease_name(record.number)
        failpoint("before-lease")
        SlotPublication(self._fs, ELECTION, name, record.encode(), record.session_id).run()
        failpoint("after-lease")

    def show_standby(self, candidate: Candidate) -> None:
        """Show for a while that this process waits."""
        self._fs.replace(_standby_path(candidate), b"")

    def hide_standby(self, candidate: Candidate) -> None:
        """Show it no longer."""
        with contextlib.suppress(StreamError):  # it is outdated within seconds
            self._fs.delete(_standby_path(candidate))

    def delete(self, outdated: tuple[str, ...]) -> None:
        """Delete files that a survey found to be outdated; only the leader does."""
        for name in outdated:
            self._fs.delete(f"{ELECTION}/{name}")

    def _read(self, name: str) -> LeaseRecord | None:
        path = f"{ELECTION}/{name}"
        data = self._fs.read(path)
        where = {"uri": self._fs.uri, "path": path}
        return None if data is None else LeaseRecord.decode(data, where)


def _survey(newest: LeaseRecord, entries: list[Entry]) -> Survey:
    written = {each.name: each.changed_ms for each in entries}
    # Both times are of the store's clock.
    since_ms = written.get(lease_name(newest.number), 0) - _SHOWN_MS
    needed = {lease_name(newest.number - back) for back in range(_KEPT + 1)}
    return Survey(
        newest=newest,
        standbys=_standbys(entries, since_ms=since_ms),
        outdated=tuple(
            each.name
            for each in entries
            if each.changed_ms < since_ms or LEASE_NAME.fullmatch(each.name)
            if each.name not in needed
        ),
    )


def _standbys(entries: list[Entry], *, since_ms: int) -> tuple[Candidate, ...]:
    found = (_STANDBY.fullmatch(each.name) for each in entries if each.changed_ms >= since_ms)
    return tuple(
        Candidate(host=match["host"], pid=int(match["pid"]), role=match["role"])
        for match in found
        if match
    )


def _standby_path(candidate: Candidate) -> str:
    host = re.sub(r"[^A-Za-z0-9.-]", "-", candidate.host) or "-"
    return f"{ELECTION}/standby.{candidate.role}.{candidate.pid}.{host}"
