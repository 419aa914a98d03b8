"""The PID rate limit over a consumer of fixed speed: it settles, and starves nobody."""

from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.model.rate_limit import PidRateLimit, RateEstimator

INTERVAL_S = 1.0


class Consumer:
    """Writes so many records per second, and needs some time for an epoch without any."""

    def __init__(self, rate: RateEstimator, *, speed: float, fixed_s: float) -> None:
        self.rate, self.speed, self.fixed_s = rate, speed, fixed_s
        self.now_s = 0.0

    def epochs(self, number: int, *, backlog: int = 10**9, outage_s: float = 0.0) -> None:
        """Each begins when it is due, or when the one before has ended."""
        for _ in range(number):
            most = self.rate.most_records
            records = backlog if most is None else min(backlog, most)
            took_s = self.fixed_s + records / self.speed + outage_s
            self.rate.cut(records, splits=1, now_s=self.now_s)
            self.rate.finished(self.now_s + took_s)
            self.now_s += max(took_s, INTERVAL_S)

    @property
    def capacity(self) -> float:
        """Records per second with which an epoch takes just the interval."""
        return self.speed * (1 - self.fixed_s / INTERVAL_S)


speeds = st.floats(1_000, 1_000_000)
fixed = st.floats(0.0, 0.6)
starts = st.one_of(st.none(), st.floats(1, 10_000_000))


@given(speeds, fixed, starts)
def test_the_rate_settles_at_what_the_consumer_can_do(
    speed: float, fixed_s: float, initial: float | None
) -> None:
    rate = RateEstimator(PidRateLimit(initial_rate=initial), INTERVAL_S)
    consumer = Consumer(rate, speed=speed, fixed_s=fixed_s)
    consumer.epochs(60)
    assert rate.rate is not None
    assert 0.95 * consumer.capacity <= rate.rate <= 1.05 * consumer.capacity + 100


@given(speeds, fixed, st.floats(10, 3_600))
def test_an_outage_is_over_when_it_is_over(speed: float, fixed_s: float, outage_s: float) -> None:
    """No time that it took is made up for: the rate comes back, and not above what it was."""
    rate = RateEstimator(PidRateLimit(), INTERVAL_S)
    consumer = Consumer(rate, speed=speed, fixed_s=fixed_s)
    consumer.epochs(60)
    consumer.epochs(1, outage_s=outage_s)
    for _ in range(60):
        consumer.epochs(1)
        assert rate.rate is not None
        assert rate.rate <= 1.6 * consumer.capacity + 100
    assert rate.rate is not None
    assert rate.rate >= 0.9 * consumer.capacity


@given(
    st.lists(
        st.tuples(st.integers(0, 10**7), st.floats(0, 10_000), st.integers(1, 64), st.booleans()),
        max_size=50,
    ),
    st.floats(0, 3),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0.5, 10_000),
)
def test_a_region_is_never_starved_whatever_happens(
    epochs: list[tuple[int, float, int, bool]],
    proportional: float,
    integral: float,
    derived: float,
    min_rate: float,
) -> None:
    settings = PidRateLimit(
        proportional=proportional, integral=integral, derived=derived, min_rate=min_rate
    )
    rate = RateEstimator(settings, INTERVAL_S)
    now_s = 0.0
    for records, took_s, splits, ends in epochs:
        rate.cut(records, splits=splits, now_s=now_s)
        now_s += took_s
        if ends:
            rate.finished(now_s)
        else:
            rate.given_up()
        assert rate.rate is None or rate.rate >= min_rate
        assert rate.most_records is None or rate.most_records >= 1
