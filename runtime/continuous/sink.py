"""The driver's side of a sink that continuous tasks write to."""

from collections.abc import Mapping

from runtime.continuous.lost_timeout import LostTimeout
from runtime.continuous.native_commits import NativeCommits, TasksFirst
from runtime.contracts import Committer, SinkContext, SinkCoordinator, SweepReport, SweepView

__all__ = ["ContinuousSink"]


class ContinuousSink:
    """A `SinkCoordinator` around the sink's own: its tasks commit first, and do not outlive their
    coordinator for too long. Driver.

    Args:
        sink: of the connector.
        commits: that tasks are asked for.
        lost_timeout: of the job; told by `check` what the sink allows.
    """

    def __init__(
        self, sink: SinkCoordinator, commits: NativeCommits, lost_timeout: LostTimeout
    ) -> None:
        self._sink = sink
        self._lost_timeout = lost_timeout
        self.committer: Committer = TasksFirst(lambda: sink.committer, commits)

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """See `SinkCoordinator.check`; ConfigError also as `LostTimeout.allow`."""
        facts = self._sink.check(timeout_s=timeout_s)
        if "transaction_timeout_s" in facts:
            self._lost_timeout.allow(float(facts["transaction_timeout_s"]))
        return facts

    def claim(self, context: SinkContext, *, timeout_s: float) -> None:
        """See `SinkCoordinator.claim`."""
        self._sink.claim(context, timeout_s=timeout_s)

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        """See `SinkCoordinator.sweep`."""
        return self._sink.sweep(view, timeout_s=timeout_s)

    def renew(self) -> None:
        """See `SinkCoordinator.renew`."""
        self._sink.renew()

    def close(self) -> None:
        """See `SinkCoordinator.close`."""
        self._sink.close()
