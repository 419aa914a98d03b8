"""When a region may restart after its file system became unreachable."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.runtime.contracts import Clock
from sluice.runtime.errors import StorageError, StorageUnreachableError
from sluice.runtime.process.backoff import Backoff
from sluice.runtime.process.wait_log import WaitLog

__all__ = ["Outages"]

log = logging.getLogger(__name__)

_FIRST_S, _LONGEST_S = 0.5, 5.0


@dataclass(slots=True, kw_only=True)
class _Outage:
    """An outage that has lasted since the region's last commit.

    Attributes:
        since_s: when it was noticed.
        committed: newest checkpoint that was committed by then.
        backoff: pauses between probes.
        probe_s: the time of the next probe.
        name: of the unreachable file system, for logs.
    """

    since_s: float
    committed: int
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_S, _LONGEST_S))
    probe_s: float = 0.0
    name: str = ""

    def schedule_probe(self, now_s: float) -> None:
        """Schedule the next probe, after a longer pause each time."""
        self.probe_s = now_s + self.backoff.next_s()


class Outages:
    """An unreachable file system delays a region, and does not count as a tolerable failure.

    Driver, the thread that runs the job; one probe is the longest that it blocks. An outage ends
    with the next commit, not with the first answer. So a region does not restart forever if a store
    answers probes but refuses each epoch.

    Args:
        limit_s: a longer outage ends the job.
        clock: monotonic seconds.
    """

    def __init__(self, *, limit_s: float, clock: Clock = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._open: dict[str, _Outage] = {}
        self._waits = WaitLog(log, clock)

    def may_begin(self, region: str, *, committed: int, probe: Callable[[], None]) -> bool:
        """Whether the region may restart after a `StorageUnreachableError`; call again until True.

        Args:
            region: its name.
            committed: newest committed checkpoint.
            probe: raises if the region could not stage or checkpoint now.
        Raises:
            StorageUnreachableError: the outage is longer than the limit.
        """
        now_s = self._clock()
        outage = self._open.get(region)
        if outage is None or outage.committed != committed:
            outage = self._open[region] = _Outage(since_s=now_s, committed=committed)
        if now_s < outage.probe_s:
            return False
        failure = _failure_of(probe)
        outage.schedule_probe(self._clock())
        if failure is None:
            self._waits.is_over(outage.name)
        else:
            outage.name = _named(failure, region)
            self._waits.waits(outage.name, failure)
        waited_s = self._clock() - outage.since_s
        if waited_s >= self._limit_s:
            raise _too_long(region, waited_s, failure or "it answers, but no epoch was committed")
        return failure is None


def _named(failure: StorageUnreachableError, region: str) -> str:
    _, where, _ = failure.args
    return f"{where.get('uri', 'a file system')} (region {region})"


def _failure_of(probe: Callable[[], None]) -> StorageUnreachableError | None:
    try:
        probe()
    except StorageUnreachableError as err:
        return err
    except StorageError as err:
        # It answers. If it refuses the region's work, that counts as a failure of the region.
        log.info("a file system answers with an error: error=%s", err)
    return None


def _too_long(region: str, waited_s: float, last: object) -> StorageUnreachableError:
    return StorageUnreachableError(
        "a file system was unreachable for longer than outage_timeout_s",
        {"region": region, "waited_s": round(waited_s), "last_error": last},
        "Start the job again when it answers, or raise outage_timeout_s; no record is lost or "
        "doubled.",
    )
