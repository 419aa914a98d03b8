"""A source's enumerator with the cluster in memory that it asks."""

from collections.abc import Callable

from sluice.connectors.kafka.source.enumerator.enumerator import KafkaSplitEnumerator
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.runtime.model.splits import SplitRange
from tests.kit.source.fake_source_cluster import FakeClock, FakeLog, FakeSourceCluster

TIMEOUT_S = 1.0


def bounds(splits: tuple[SplitRange, ...]) -> dict[str, tuple[int, int]]:
    """Start and end by name."""
    return {split.name: (split.start_offset, split.end_offset) for split in splits}


class Bench:
    """An enumerator, the cluster it asks and the clock it reads.

    Attributes:
        on_pause: what happens while the enumerator waits.
    """

    def __init__(
        self,
        cluster: FakeSourceCluster | None = None,
        *,
        bounded: bool = False,
        clock: FakeClock | None = None,
        **options: str,
    ) -> None:
        self.cluster = cluster or FakeSourceCluster()
        if cluster is None:
            self.cluster.create("orders", FakeLog(latest=10), FakeLog(latest=20))
        self.clock = clock or FakeClock()
        self.on_pause: Callable[[], object] = lambda: None
        given = {
            "kafka.bootstrap.servers": "fake:9092",
            "startingOffsets": "earliest",
            **{name.replace("__", "."): value for name, value in options.items()},
        }
        if "subscribePattern" not in given and "assign" not in given:
            given.setdefault("subscribe", "orders")
        self.enumerator = KafkaSplitEnumerator(
            SourceOptions.of(given, bounded=bounded, stream=True),
            self.cluster,
            source_id="s",
            group_id="group",
            bounded=bounded,
            clock=self.clock,
            wall_clock=self.clock,
            pause=self._pause,
        )

    def _pause(self, seconds: float) -> None:
        self.clock.pass_time(seconds)
        self.on_pause()

    def start(self) -> tuple[SplitRange, ...]:
        return self.enumerator.resolve_start(timeout_s=TIMEOUT_S)

    def cut(
        self, positions: tuple[SplitRange, ...], *, max_records: int | None = None
    ) -> tuple[SplitRange, ...]:
        return self.enumerator.cut(positions, max_records=max_records, timeout_s=TIMEOUT_S)

    def discover(self) -> tuple[SplitRange, ...]:
        return self.enumerator.discover(timeout_s=TIMEOUT_S)
