"""The driver's side of a sink that continuous tasks write to."""

from collections.abc import Mapping

from sluice.runtime.continuous.coordinator_timeout import LostTimeout
from sluice.runtime.continuous.native_commits import NativeCommits, TasksFirst
from sluice.runtime.contracts import (
    INTERVALS_OF_AN_ATTEMPT,
    Committer,
    SinkContext,
    SinkCoordinator,
    SweepReport,
    SweepView,
)
from sluice.runtime.errors import ConfigError

__all__ = ["ContinuousSink", "require_short_epochs"]


def require_short_epochs(
    facts: Mapping[str, str], lost_timeout: LostTimeout, *, between_barriers_s: float
) -> None:
    """Refuse continuous tasks for a sink whose transactions would not live long enough for them.

    Args:
        facts: of the sink's check.
        lost_timeout: of the job; told what the sink allows.
        between_barriers_s: the job's interval, or its pause between checkpoints if that is longer.
    Raises:
        ConfigError: as `LostTimeout.allow`; or a transaction would be too old at its barrier, and
            read again for ever.
    """
    if "transaction_timeout_s" not in facts:
        return
    attempts_s = float(facts["transaction_timeout_s"])
    lost_timeout.allow(attempts_s)
    if between_barriers_s > attempts_s / INTERVALS_OF_AN_ATTEMPT:
        raise ConfigError(
            "a continuous task's transaction would be too old at its barrier",
            {"between_barriers_s": between_barriers_s, "transaction_timeout_s": attempts_s},
            "Keep interval_s and min_pause_s below a third of the transaction timeout "
            "(transactionTimeout, or the broker's maximum), or use engine='micro-batch'.",
        )


class ContinuousSink:
    """A `SinkCoordinator` around the sink's own: its tasks commit first, and do not outlive their
    coordinator for too long. Driver.

    Args:
        sink: of the connector.
        commits: that tasks are asked for.
        lost_timeout: of the job; told by `check` what the sink allows.
        between_barriers_s: the job's interval, or its pause between checkpoints if that is longer.
    """

    def __init__(
        self,
        sink: SinkCoordinator,
        commits: NativeCommits,
        lost_timeout: LostTimeout,
        *,
        between_barriers_s: float = 0.0,
    ) -> None:
        self._sink = sink
        self._lost_timeout = lost_timeout
        self._between_barriers_s = between_barriers_s
        self.committer: Committer = TasksFirst(lambda: sink.committer, commits)

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """See `SinkCoordinator.check`.

        Raises:
            ConfigError: also as `require_short_epochs`.
        """
        facts = self._sink.check(timeout_s=timeout_s)
        require_short_epochs(facts, self._lost_timeout, between_barriers_s=self._between_barriers_s)
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
