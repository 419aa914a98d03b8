"""How long work has been open at the remotes, and the alarms before their timeouts."""

import logging
from collections.abc import Mapping

from sluice.runtime.contracts import Clock
from sluice.runtime.coordinator.region.status_views import TransactionView

__all__ = ["ALARMS", "OpenTransactions", "alarm_of"]

log = logging.getLogger(__name__)

ALARMS = (0.5, 0.8)
"""Shares of the timeout at which an open transaction is logged."""

Since = Mapping[tuple[str, str], float]
"""Moment of the oldest open work, by region and operator id."""


def alarm_of(view: TransactionView) -> float:
    """The largest of `ALARMS` that the transaction has reached; 0: none."""
    return max((each for each in ALARMS if view.age_s >= each * view.timeout_s), default=0.0)


class OpenTransactions:
    """The open transactions of a job, for people. Driver; `warn` by one thread, `views` by any.

    Args:
        names: of the sinks, by operator id.
        ages: seconds, with the time in which this host was suspended.
    """

    def __init__(self, names: Mapping[str, str], *, ages: Clock) -> None:
        self._names = names
        self._ages = ages
        self._timeouts_s: Mapping[str, float] = {}
        self._logged: dict[tuple[str, str], float] = {}

    def begin(self, facts: Mapping[str, Mapping[str, str]]) -> None:
        """Use the timeouts in the answers of `SinkCoordinator.check`, by operator id; a sink
        without one has no transactions."""
        self._timeouts_s = {
            name: float(each["transaction_timeout_s"])
            for name, each in facts.items()
            if "transaction_timeout_s" in each
        }

    def views(self, since: Since) -> tuple[TransactionView, ...]:
        """Of each region and sink with open transactions, the one that is nearest to its timeout;
        operators with a uid may share a name."""
        now_s = self._ages()
        found: dict[tuple[str, str], TransactionView] = {}
        for (region, operator_id), at_s in sorted(since.items()):
            timeout_s = self._timeouts_s.get(operator_id)
            if timeout_s is None:
                continue
            sink, age_s = self._names.get(operator_id, operator_id), max(0.0, now_s - at_s)
            view = TransactionView(region=region, sink=sink, age_s=age_s, timeout_s=timeout_s)
            other = found.get((region, sink), view)
            found[region, sink] = max(view, other, key=lambda each: each.age_s / each.timeout_s)
        return tuple(found.values())

    def warn(self, since: Since) -> None:
        """Log each transaction once for each of `ALARMS`."""
        logged: dict[tuple[str, str], float] = {}
        for view in self.views(since):
            key, alarm = (view.region, view.sink), alarm_of(view)
            if alarm > self._logged.get(key, 0.0):
                log.warning(
                    "a transaction has been open for %.0f %% of its timeout: region=%s sink=%s "
                    "age_s=%.0f timeout_s=%.0f. Brokers abort it at the timeout. Find out what the "
                    "region waits for: `sluice job status` and `sluice txn list`.",
                    alarm * 100,
                    view.region,
                    view.sink,
                    view.age_s,
                    view.timeout_s,
                )
            if alarm:
                logged[key] = alarm
        self._logged = logged
