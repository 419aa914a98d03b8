"""The leader's handle of a region whose host is lost: no call waits for it longer than needed."""

import time
from typing import cast

import pytest

from sluice.runtime.continuous.barrier_service import BarrierService
from sluice.runtime.errors import RegionUnansweredError
from sluice.runtime.leading.region_hosts import AssignedRegion, RegionHosts

_LONG_S = 90.0


class _LostHost:
    """A host that answers nothing, and is lost after so many calls."""

    def __init__(self, calls: int) -> None:
        self.timeouts_s: list[float] = []
        self._calls = calls

    def remote(self, region: str, host_id: str | None) -> "_LostHost | None":
        """See `RegionHosts.remote`."""
        del region, host_id
        return self if len(self.timeouts_s) < self._calls else None

    def stop(self, attempt_id: int, *, timeout_s: float) -> bool:
        """See `RegionHandle.stop`."""
        self.timeouts_s.append(timeout_s)
        raise RegionUnansweredError("no answer", {"attempt_id": attempt_id}, "Wait.")


def _region(host: _LostHost) -> AssignedRegion:
    return AssignedRegion("main", (), cast(RegionHosts, host), cast(BarrierService, None))


def test_a_stop_ends_when_its_host_is_lost() -> None:
    """The job's end does not wait until its time is up, and each call is short."""
    host, began_s = _LostHost(calls=3), time.monotonic()
    assert _region(host).stop(0, timeout_s=_LONG_S)
    assert time.monotonic() - began_s < _LONG_S / 2
    assert len(host.timeouts_s) == 3
    assert max(host.timeouts_s) <= 5.0


def test_a_stop_without_time_raises_that_there_is_no_answer() -> None:
    with pytest.raises(RegionUnansweredError):
        _region(_LostHost(calls=3)).stop(0, timeout_s=0.0)
