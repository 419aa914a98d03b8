"""The driver's side of a sink that continuous tasks write to: its tasks commit first, and end in
time if they lose their coordinator."""

from collections.abc import Mapping

from sluice.runtime.continuous.native_commits import NativeCommits, TasksFirst
from sluice.runtime.contracts import (
    INTERVALS_PER_TRANSACTION_TIMEOUT,
    Committer,
    SinkContext,
    SinkCoordinator,
    SweepReport,
    SweepView,
)
from sluice.runtime.errors import ConfigError

__all__ = ["ContinuousSink", "LostTimeout", "require_short_epochs"]

_USUAL_S = 60.0
_SHARE = 0.45


class LostTimeout:
    """How long a continuous task runs without an answer from its coordinator.

    Always below half of the transaction timeout of every sink that the tasks write to. So the task
    ends in the first half, and the next coordinator aborts its open work in the second half, before
    the broker does. Driver, one thread.

    Args:
        requested_s: the user's setting; None: a minute, or less if a sink needs that.

    Attributes:
        seconds: the timeout; final once `allow` was called for every sink.
    """

    def __init__(self, requested_s: float | None) -> None:
        self._requested_s = requested_s
        self.seconds = _USUAL_S if requested_s is None else requested_s

    def allow(self, transaction_timeout_s: float) -> None:
        """Respect the transaction timeout of a sink.

        Raises:
            ConfigError: the user's own setting is not below half of that.
        """
        if self._requested_s is None:
            self.seconds = min(self.seconds, _SHARE * transaction_timeout_s)
        elif self._requested_s >= transaction_timeout_s / 2:
            raise ConfigError(
                "a continuous task would outlive its coordinator for too long",
                {
                    "coordinator_lost_timeout_s": self._requested_s,
                    "transaction_timeout_s": transaction_timeout_s,
                },
                "Keep coordinator_lost_timeout_s below half of the transaction timeout, leave it "
                "out, or raise the transaction timeout.",
            )


def require_short_epochs(
    facts: Mapping[str, str], lost_timeout: LostTimeout, *, between_barriers_s: float
) -> None:
    """Refuse continuous tasks for a sink whose transaction timeout is too short for them.

    Args:
        facts: of the sink's check.
        lost_timeout: of the job; limited to what the sink allows.
        between_barriers_s: the job's interval, or its pause between checkpoints if that is longer.
    Raises:
        ConfigError: as `LostTimeout.allow`; or each transaction would be too old at its barrier, so
            the region would read the same records forever.
    """
    if "transaction_timeout_s" not in facts:
        return
    timeout_s = float(facts["transaction_timeout_s"])
    lost_timeout.allow(timeout_s)
    if between_barriers_s > timeout_s / INTERVALS_PER_TRANSACTION_TIMEOUT:
        raise ConfigError(
            "a continuous task's transaction would be too old at its barrier",
            {"between_barriers_s": between_barriers_s, "transaction_timeout_s": timeout_s},
            "Keep interval_s and min_pause_s below a third of the transaction timeout "
            "(transactionTimeout, or the broker's maximum), or use engine='micro-batch'.",
        )


class ContinuousSink:
    """A `SinkCoordinator` around the sink's own. Driver.

    Its tasks commit first, and `check` limits how long they run without their coordinator.

    Args:
        sink: of the connector.
        commits: that tasks shall do.
        lost_timeout: of the job; `check` limits it to what the sink allows.
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
