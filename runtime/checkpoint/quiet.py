"""How often a region that has nothing to read is looked at again. Pure."""

from dataclasses import dataclass

__all__ = ["QuietTime"]

_SHARE = 10


@dataclass(slots=True)
class QuietTime:
    """Looks of one region, for a barrier that nobody has found anything for, that found nothing.

    Each look asks the brokers. So the pause before the next one grows to a tenth of the time since
    the first: a record that comes then waits at most so much longer than it has kept us waiting.

    Attributes:
        checkpoint_id: of the barrier; None: no look has found nothing yet.
        since_s: clock of the first look.
        again_s: clock before which there is no other.
    """

    checkpoint_id: int | None = None
    since_s: float = 0.0
    again_s: float = float("-inf")

    def looked(
        self, checkpoint_id: int, now_s: float, *, least_s: float, longest_s: float
    ) -> float:
        """A look found nothing; seconds until the next one, in the given bounds."""
        if self.checkpoint_id != checkpoint_id:
            self.checkpoint_id, self.since_s = checkpoint_id, now_s
        pause_s = min((now_s - self.since_s) / _SHARE, longest_s)
        # Short pauses are the poller's own: whoever asks before is answered.
        self.again_s = now_s + pause_s if pause_s > least_s else now_s
        return max(pause_s, least_s)

    def left_s(self, checkpoint_id: int, now_s: float) -> float:
        """Seconds before the next look for this barrier; 0: now."""
        if self.checkpoint_id != checkpoint_id:
            return 0.0
        return max(0.0, self.again_s - now_s)
