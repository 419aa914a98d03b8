"""The driver's side of a sink that continuous tasks write to."""

from collections.abc import Mapping

from runtime.continuous.native_commits import NativeCommits, TasksFirst
from runtime.contracts import Committer, SinkContext, SinkCoordinator, SweepView

__all__ = ["ContinuousSink"]


class ContinuousSink:
    """A `SinkCoordinator` around the sink's own: its tasks commit first. Driver.

    Args:
        sink: of the connector.
        commits: that tasks are asked for.
    """

    def __init__(self, sink: SinkCoordinator, commits: NativeCommits) -> None:
        self._sink = sink
        self.committer: Committer = TasksFirst(lambda: sink.committer, commits)

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """See `SinkCoordinator.check`."""
        return self._sink.check(timeout_s=timeout_s)

    def claim(self, context: SinkContext, *, timeout_s: float) -> None:
        """See `SinkCoordinator.claim`."""
        self._sink.claim(context, timeout_s=timeout_s)

    def sweep(self, view: SweepView, *, timeout_s: float) -> int:
        """See `SinkCoordinator.sweep`."""
        return self._sink.sweep(view, timeout_s=timeout_s)

    def renew(self) -> None:
        """See `SinkCoordinator.renew`."""
        self._sink.renew()

    def close(self) -> None:
        """See `SinkCoordinator.close`."""
        self._sink.close()
