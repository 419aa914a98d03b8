"""Listeners that are slow or hang: the job neither waits for them nor keeps all their news."""

import threading

from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.shell.action_dispatcher import ListenerThread
from sluice.runtime.model.checkpoint_record import CheckpointKind
from tests.kit.waiting import PATIENCE_S

MOST = 1_000
"""News that wait for a listener."""


def _news(checkpoint_id: int) -> Progress:
    return Progress(
        checkpoint_id=checkpoint_id,
        kind=CheckpointKind.CHECKPOINT,
        requested_by="interval",
        state=State.MARKED,
    )


class Hanging:
    """A listener that comes back when it is let go."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.began, self.let_go = threading.Event(), threading.Event()

    def on_progress(self, progress: Progress) -> None:
        self.seen.append(progress.checkpoint_id)
        self.began.set()
        assert self.let_go.wait(PATIENCE_S)


def test_news_for_a_listener_that_hangs_are_dropped_and_nobody_waits() -> None:
    """Not the core, which tells them, and not the job's stop; what was kept is still heard."""
    listener = Hanging()
    thread = ListenerThread([listener])
    thread.publish(_news(0))
    assert listener.began.wait(PATIENCE_S)
    for number in range(1, 3 * MOST):
        thread.publish(_news(number))
    thread.stop(timeout_s=0.0)
    assert listener.seen == [0]
    listener.let_go.set()
    thread.stop(timeout_s=PATIENCE_S)
    assert listener.seen == list(range(MOST + 1))
