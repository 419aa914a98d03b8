"""For how long continuous tasks go on without hearing of their coordinator."""

from sluice.runtime.errors import ConfigError

__all__ = ["LostTimeout"]

_USUAL_S = 60.0
_SHARE = 0.45


class LostTimeout:
    """Always below half of the transaction timeout of every sink that the tasks write to.

    A task that is silent for so long ends, and what it has open is aborted by whoever comes next:
    in the other half of the timeout, before the remote does it by itself. Driver, one thread.

    Args:
        asked_s: by the user; None: a minute, or less where a sink needs that.

    Attributes:
        seconds: that the tasks are given; final once every sink has said what it allows.
    """

    def __init__(self, asked_s: float | None) -> None:
        self._asked_s = asked_s
        self.seconds = _USUAL_S if asked_s is None else asked_s

    def allow(self, transaction_timeout_s: float) -> None:
        """A sink's transactions live so long.

        Raises:
            ConfigError: the user's own number is not below half of that.
        """
        if self._asked_s is None:
            self.seconds = min(self.seconds, _SHARE * transaction_timeout_s)
        elif self._asked_s >= transaction_timeout_s / 2:
            raise ConfigError(
                "a continuous task would outlive its coordinator for too long",
                {
                    "coordinator_lost_timeout_s": self._asked_s,
                    "transaction_timeout_s": transaction_timeout_s,
                },
                "Keep it below half of the transaction timeout, or leave it out; or raise the "
                "transaction timeout.",
            )
