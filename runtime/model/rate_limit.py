"""A limit on how many records per second a region reads, found by a PID controller. Pure.

The formula is that of Spark Streaming's ``PIDRateEstimator`` (``spark.streaming.backpressure``),
with a region's epochs as its batches. Two things differ, because a barrier follows the commit of
the epoch before, and most of a small epoch is Spark's own time:

- an epoch that was on time, with fewer records than the limit, does not lower the rate; Spark
  Streaming lowers it, and a burst after a quiet hour starts at the lowest rate;
- one epoch changes the rate at most tenfold, so an outage costs only a few epochs.
"""

from dataclasses import dataclass, field

from sluice.runtime.errors import ConfigError

__all__ = ["PidRateLimit", "RateEstimator"]

_LARGEST_CHANGE = 10.0
_SHORTEST_S = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class PidRateLimit:
    """Keep the epochs of a region as short as the job's interval, by reading less per epoch.

    The names are those of ``spark.streaming.backpressure.pid.*`` and ``.initialRate``.

    Attributes:
        proportional: weight of the difference between the last epoch's rate and the limit; >= 0.
        integral: weight of the records that made the epoch late; >= 0.
        derived: weight of the error's change; >= 0.
        min_rate: records per second that each region may always read; > 0.
        initial_rate: limit before the first slow epoch, in records per second; > 0; None: no limit.
    Raises:
        ConfigError: one is out of range.
    """

    proportional: float = 1.0
    integral: float = 0.2
    derived: float = 0.0
    min_rate: float = 100.0
    initial_rate: float | None = None

    def __post_init__(self) -> None:
        weights = (self.proportional, self.integral, self.derived)
        rates = (self.min_rate, self.min_rate if self.initial_rate is None else self.initial_rate)
        if min(weights) < 0 or min(rates) <= 0:
            raise ConfigError(
                "a setting of the PID rate limit is out of range",
                {
                    "proportional": self.proportional,
                    "integral": self.integral,
                    "derived": self.derived,
                    "min_rate": self.min_rate,
                    "initial_rate": self.initial_rate,
                },
                "Use weights of 0 or more, and rates above 0.",
            )


@dataclass(slots=True)
class RateEstimator:
    """The rate of one region, from its epochs. Called at each barrier and each acknowledgement.

    Attributes:
        settings: of the controller.
        interval_s: longest time that an epoch should take; > 0.
        rate: records per second of the next epochs; None: no limit yet.
    """

    settings: PidRateLimit
    interval_s: float
    rate: float | None = field(init=False)
    _error: float = field(init=False, default=0.0)
    _updated_s: float | None = field(init=False, default=None)
    _started_s: float | None = field(init=False, default=None)
    _records: int = field(init=False, default=0)
    _is_full: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        initial = self.settings.initial_rate
        self.rate = None if initial is None else max(initial, self.settings.min_rate)

    @property
    def most_records(self) -> int | None:
        """Record limit of the next epoch, at least one; None: no limit."""
        return None if self.rate is None else max(1, int(self.rate * self.interval_s))

    def cut(self, records: int, *, splits: int, now_s: float) -> None:
        """An epoch starts; ``splits``: number of splits that shared its records."""
        most = self.most_records
        self._started_s, self._records = now_s, records
        # The shares of several partitions are rounded down, each by at most one record.
        self._is_full = most is not None and records + splits >= most

    def given_up(self) -> None:
        """The current epoch will not be acknowledged: its records are read again, and count
        then."""
        self._started_s = None

    def finished(self, now_s: float) -> None:
        """The current epoch is pre-committed."""
        if self._started_s is None or not self._records:
            return
        took_s = max(now_s - self._started_s, _SHORTEST_S)
        self._started_s = None
        measured = self._records / took_s
        is_on_time = took_s <= self.interval_s
        if self.rate is None:
            if not is_on_time:
                self._set(measured, error=0.0, now_s=now_s)
            return
        if is_on_time and not self._is_full and measured <= self.rate:
            return
        self._update(self.rate, measured, late_s=max(0.0, took_s - self.interval_s), now_s=now_s)

    def _update(self, rate: float, measured: float, *, late_s: float, now_s: float) -> None:
        """As in Spark: the error is the limit minus the rate that was reached; the delay of the
        epoch, in records, is the excess."""
        error = rate - measured
        late = late_s * measured / self.interval_s
        change = 0.0
        if self._updated_s is not None and now_s > self._updated_s:
            change = (error - self._error) / (now_s - self._updated_s)
        settings = self.settings
        new = (
            rate
            - settings.proportional * error
            - settings.integral * late
            - settings.derived * change
        )
        new = min(max(new, rate / _LARGEST_CHANGE), rate * _LARGEST_CHANGE)
        self._set(new, error=error, now_s=now_s)

    def _set(self, rate: float, *, error: float, now_s: float) -> None:
        self.rate = max(rate, self.settings.min_rate)
        self._error, self._updated_s = error, now_s
