"""Programs that pass a pipeline's failpoints without being one; each notes what it does."""

import os
import signal
import sys
import threading
from pathlib import Path

from sluice.runtime.failpoints import failpoint

CHECKPOINTS = 3
_STEPS = {
    "start": "after-fencing",
    "record": "after-stage",
    "pre-commit": "before-decision",
    "decision": "after-decision",
    "commit": "after-commit",
    "completion": "after-mark",
}


def note(journal: Path, text: str) -> None:
    """Append a line."""
    with journal.open("a") as file:
        file.write(f"{text}\n")


def checkpoints(journal: Path) -> None:
    """Pass the steps of three checkpoints, and note each before it is passed."""
    note(journal, "begun")
    for number in range(CHECKPOINTS):
        for step, name in _STEPS.items():
            note(journal, f"{step} {number}")
            failpoint(name)
    note(journal, "end")


def with_a_child(journal: Path) -> None:
    """Its child would outlive it."""
    child = os.posix_spawn("/bin/sleep", ["sleep", "900"], os.environ)
    note(journal, f"child {child}")
    checkpoints(journal)
    os.kill(child, signal.SIGKILL)


def forever_with_a_child(journal: Path) -> None:
    """Its first run does not end."""
    is_first = not journal.exists()
    with_a_child(journal)
    if is_first:
        threading.Event().wait()


def forever(journal: Path) -> None:
    """Ctrl-C ends it."""
    note(journal, "begun")
    note(journal, f"runs {os.getpid()}")
    failpoint("after-decision")
    threading.Event().wait()


def failing_the_second_time(journal: Path) -> None:
    """Fails after a restart."""
    if journal.exists():
        sys.exit("no such topic")
    checkpoints(journal)


def dies_elsewhere(_: Path) -> None:
    """As if the system had killed it."""
    os.kill(os.getpid(), signal.SIGKILL)


def failing_at_its_interrupt(journal: Path) -> None:
    """Ends an interrupt with a failure."""
    try:
        forever(journal)
    except KeyboardInterrupt:
        sys.exit("not committed")
