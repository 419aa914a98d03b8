"""A coordinator without a job: it campaigns, fences, decides often, and ends when another leads.

Usage: ``python -m tests.kit.elected_program DIRECTORY HA TIMEOUT_S``. Each slot is a file below
``slots``, created once, with ``session term fence|decision`` in it.
"""

import logging
import sys
import threading
import time
from pathlib import Path

from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore
from sluice.runtime.election.ha_settings import HaSettings, await_lead
from sluice.runtime.election.leader_election import LeaderElection
from sluice.runtime.errors import FencedError, LeadershipLostError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.storage.file_system_opening import open_file_system

_DECISION_S = 0.05
LEADS = "leads:"
WAITS = "waits for:"
LOST = "lost:"


class Slots:
    """Files that exist once: `Path.touch` would not do, a link does."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def free(self) -> int:
        """The number of the first free slot."""
        return len(list(self._directory.glob("[0-9]*")))

    def publish(self, slot: int, text: str) -> bool:
        """Whether the slot was free."""
        temporary = self._directory / f".{threading.get_native_id()}-{time.monotonic_ns()}"
        temporary.write_text(text)
        try:
            (self._directory / f"{slot:08d}").hardlink_to(temporary)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def records(self) -> list[list[str]]:
        """All, in order: session, term, kind."""
        return [path.read_text().split() for path in sorted(self._directory.glob("[0-9]*"))]


def main() -> int:
    """Run until another process leads."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    directory, ha, timeout_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    settings = HaSettings.of(ha, timeout_s)
    assert settings is not None
    fs = open_file_system(str(directory))
    election = settings.election(fs, name="elected")
    waited = []

    def tell(view: object) -> None:
        leader = getattr(view, "leader", None)
        if leader is not None and leader.session_id not in waited:
            waited.append(leader.session_id)
            _say(f"{WAITS} {leader.session_id}")

    with election:
        session = await_lead(election, check=lambda: None, on_wait=tell)
        _say(f"{LEADS} {session}")
        try:
            _lead(election, Slots(directory / "slots"), RunRecordStore(fs), session)
        except FencedError as err:
            _say(f"{LOST} {type(err).__name__}")
            raise
    return 0


def _lead(election: LeaderElection, slots: Slots, records: RunRecordStore, session: str) -> None:
    lost: list[LeadershipLostError] = []
    election.report_loss(lost.append)
    leader = election.view().leader
    term = 0 if leader is None else leader.term
    while True:
        slot = slots.free()
        failpoint("before-elected")
        election.require_leading()
        failpoint("after-elected")
        if slots.publish(slot, f"{session} {term} fence"):
            break
    run = RunRecord(
        leader_session_id=session, address=f"http://{session}", attempt_id=slot, job_uid="job"
    )
    records.announce(run)  # the store first, as a start does
    election.announce(run)
    while True:
        time.sleep(_DECISION_S)  # the pace of decisions
        if lost:
            raise lost[0]
        slot += 1
        if not slots.publish(slot, f"{session} {term} decision"):
            raise FencedError("a slot is taken", {"slot": slot}, "End.")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
