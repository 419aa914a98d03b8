"""When a region whose file system went away may begin again."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from sluice.runtime.contracts import Clock
from sluice.runtime.errors import StorageError, StorageUnreachableError
from sluice.runtime.process.wait_log import WaitLog

__all__ = ["Outages"]

log = logging.getLogger(__name__)

_FIRST_S, _LONGEST_S = 0.5, 5.0


@dataclass(slots=True, kw_only=True)
class _Outage:
    """Since the region's last failure of this kind with a commit before it.

    Attributes:
        since_s: when it was noticed.
        committed: newest checkpoint that was committed by then.
        pause_s: before the next look; grows.
        look_s: the time of that look.
        of: what is away, in words.
    """

    since_s: float
    committed: int
    pause_s: float = _FIRST_S
    look_s: float = 0.0
    of: str = ""

    def looked(self, now_s: float) -> None:
        """The next look comes after a longer pause."""
        self.look_s = now_s + self.pause_s
        self.pause_s = min(self.pause_s * 2, _LONGEST_S)


class Outages:
    """A file system that is away costs a region time, and none of its tolerable failures.

    Driver, the thread that runs the job, which is never held up by more than one look. An outage
    ends with the next commit, not with the first answer: a store that answers a look and refuses
    each epoch does not keep a region starting for ever.

    Args:
        limit_s: an outage that lasts longer ends the job.
        clock: monotonic seconds.
    """

    def __init__(self, *, limit_s: float, clock: Clock = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._open: dict[str, _Outage] = {}
        self._waits = WaitLog(log, clock)

    def may_begin(self, region: str, *, committed: int, look: Callable[[], None]) -> bool:
        """Ask again until it is true, after a failure with `StorageUnreachableError`.

        Args:
            region: its name.
            committed: newest committed checkpoint.
            look: raises where the region could not stage or checkpoint now.
        Raises:
            StorageUnreachableError: the limit is over.
        """
        now_s = self._clock()
        outage = self._open.get(region)
        if outage is None or outage.committed != committed:
            outage = self._open[region] = _Outage(since_s=now_s, committed=committed)
        if now_s < outage.look_s:
            return False
        failure = _failure_of(look)
        outage.looked(self._clock())
        if failure is None:
            self._waits.is_over(outage.of)
        else:
            outage.of = _named(failure, region)
            self._waits.waits(outage.of, failure)
        waited_s = self._clock() - outage.since_s
        if waited_s >= self._limit_s:
            raise _too_long(region, waited_s, failure or "it answers, and takes no epoch")
        return failure is None


def _named(failure: StorageUnreachableError, region: str) -> str:
    _, where, _ = failure.args
    return f"{where.get('uri', 'a file system')} (region {region})"


def _failure_of(look: Callable[[], None]) -> StorageUnreachableError | None:
    try:
        look()
    except StorageUnreachableError as err:
        return err
    except StorageError as err:
        # It answers; what it refuses the region will meet, and that is counted.
        log.info("a file system answers, and refuses: error=%s", err)
    return None


def _too_long(region: str, waited_s: float, last: object) -> StorageUnreachableError:
    return StorageUnreachableError(
        "a file system stayed away for longer than the job waits",
        {"region": region, "waited_s": round(waited_s), "last": last},
        "Nothing is lost or doubled: start the job again when it answers, or raise "
        "outage_timeout_s.",
    )
