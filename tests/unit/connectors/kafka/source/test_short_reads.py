"""Reads that end by themselves: never fewer records than asked for without a word."""

from collections.abc import Mapping

import pytest

from sluice.connectors.kafka.source.enumerator.discovery import OffsetFact
from sluice.connectors.kafka.source.positions import Edge, PartitionKey
from sluice.runtime.errors import ConfigError, UnreachableError
from sluice.runtime.model.splits import SplitRange
from tests.kit.source.fake_source_cluster import FakeLog, FakeSourceCluster
from tests.kit.source.source_setup import Bench, bounds


def bench_of(*latest: int, **options: str) -> Bench:
    """A bounded source over partitions with so many records."""
    cluster = FakeSourceCluster()
    cluster.create("orders", *(FakeLog(latest=end) for end in latest))
    return Bench(cluster, bounded=True, **options)


def test_a_log_that_stays_short_is_named_while_it_is_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A bounded job goes on; once it has grown nothing more is said."""
    bench = bench_of(10, endingOffsets='{"orders":{"0":15}}')
    position = bench.cut(bench.start())
    for _ in range(5):
        bench.clock.pass_time(15)
        bench.cut(position)
    assert caplog.text.count("partition=orders-0 log_end=10 end=15") == 2
    bench.cluster.log("orders").latest = 15
    assert bounds(bench.cut(position)) == {"orders-0": (10, 15)}
    assert caplog.text.count("log_end") == 2


def test_a_batch_read_that_stops_short_says_so_where_loss_is_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is planned once, and over before a log has been short for long."""
    bench = bench_of(10, 20, endingOffsets='{"orders":{"0":11,"1":20}}', failOnDataLoss="false")
    ranges = bench.cut(bench.start())
    bench.enumerator.require_readable_ends(ranges)
    assert bounds(ranges) == {"orders-0": (0, 10), "orders-1": (0, 20)}
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "fewer records are read than requested" in record.getMessage()
    assert "orders-0: readable=10 ending=11" in record.getMessage()
    assert "orders-1" not in record.getMessage()


def test_a_batch_read_that_is_whole_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bench = bench_of(10, 20, failOnDataLoss="false")
    bench.enumerator.require_readable_ends(bench.cut(bench.start()))
    assert not caplog.records


def ending_at(log: FakeLog, timestamp_ms: int) -> dict[str, tuple[int, int]]:
    """What a batch read of all before a timestamp reads; it is 1,000,000 ms."""
    cluster = FakeSourceCluster()
    cluster.create("orders", log)
    bench = Bench(cluster, bounded=True, endingTimestamp=str(timestamp_ms))
    ranges = bench.enumerator.cut_to_ends(bench.start(), max_records=None, timeout_s=1, whole=True)
    bench.enumerator.require_readable_ends(ranges)
    return bounds(ranges)


def test_a_read_that_ends_at_a_timestamp_ends_before_the_first_record_as_young() -> None:
    log = FakeLog(latest=10, times_ms={offset: offset * 100 for offset in range(10)})
    assert ending_at(log, 700) == {"orders-0": (0, 7)}
    assert ending_at(log, 650) == {"orders-0": (0, 7)}


@pytest.mark.parametrize("timestamp_ms", [2_000_000, 999_999])
def test_where_no_record_is_as_young_all_that_there_is_is_read(timestamp_ms: int) -> None:
    assert ending_at(FakeLog(latest=10, times_ms={9: 900}), timestamp_ms) == {"orders-0": (0, 10)}


@pytest.mark.parametrize("timestamp_ms", [1_200, 1_500])
def test_what_an_open_transaction_hides_before_a_timestamp_is_not_left_out_in_silence(
    timestamp_ms: int,
) -> None:
    """Committed records behind its first one are older than what was asked for, whether there is
    one that is not or none."""
    log = FakeLog(latest=10, end=13, times_ms={11: 1_100, 12: 1_200})
    ending = 12 if timestamp_ms == 1_200 else 13
    with pytest.raises(ConfigError, match=f"orders-0=readable=10 ending={ending}"):
        ending_at(log, timestamp_ms)


def test_a_record_that_comes_while_an_ending_is_looked_up_is_the_next_reads() -> None:
    """It is as young as the ending, and a read from there finds it again."""

    class Growing(FakeSourceCluster):
        """A record comes behind each question for a timestamp."""

        def offsets(
            self, wanted: Mapping[PartitionKey, Edge | int], *, timeout_s: float
        ) -> Mapping[PartitionKey, OffsetFact | None]:
            found = super().offsets(wanted, timeout_s=timeout_s)
            if any(isinstance(what, int) for what in wanted.values()):
                self.log("orders").latest += 1
            return found

    cluster = Growing()
    cluster.create("orders", FakeLog(latest=10))
    bench = Bench(cluster, bounded=True, endingTimestamp="999999")
    assert bounds(bench.cut(bench.start())) == {"orders-0": (0, 10)}


def test_an_ending_that_is_yet_to_come_is_what_can_be_read_now() -> None:
    log = FakeLog(latest=10, end=13, times_ms={12: 1_200})
    assert ending_at(log, 2_000_000) == {"orders-0": (0, 10)}


def planned(bench: Bench, start: tuple[SplitRange, ...]) -> dict[str, tuple[int, int]]:
    """What ``spark.read`` reads."""
    return bounds(bench.enumerator.cut_to_ends(start, max_records=None, timeout_s=30.0, whole=True))


def planned_without_a_leader(bench: Bench) -> dict[str, tuple[int, int]]:
    """Partition 1 loses it once the ends are known."""
    start = bench.start()
    bench.cluster.leaderless.add(("orders", 1))
    return planned(bench, start)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_batch_read_waits_for_a_partition_that_has_no_leader(fails: str) -> None:
    """It had one when the ends were asked for; half of the records would pass for all."""
    bench = bench_of(10, 20, failOnDataLoss=fails)

    def elect() -> None:
        if bench.clock() > began_s + 20:
            bench.cluster.leaderless.clear()

    began_s, bench.on_pause = bench.clock(), elect
    assert planned_without_a_leader(bench) == {"orders-0": (0, 10), "orders-1": (0, 20)}


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_batch_read_fails_when_a_partition_stays_without_a_leader(fails: str) -> None:
    """That is no loss, and nothing may be gone on without."""
    bench = bench_of(10, 20, failOnDataLoss=fails)
    began_s = bench.clock()
    with pytest.raises(UnreachableError, match="orders-1=readable=0 ending=20"):
        planned_without_a_leader(bench)
    assert 30 <= bench.clock() - began_s < 40


def test_a_batch_read_whose_empty_partition_has_no_leader_is_whole() -> None:
    assert planned_without_a_leader(bench_of(10, 0)) == {"orders-0": (0, 10), "orders-1": (0, 0)}


def test_a_lower_end_of_a_moment_cuts_no_batch_read() -> None:
    """A new leader may know one; a log that stays short is judged a moment later."""
    bench = bench_of(10)
    start = bench.start()
    bench.cluster.log("orders").latest = 8
    assert planned(bench, start) == {"orders-0": (0, 8)}

    def catch_up() -> None:
        bench.cluster.log("orders").latest = 10

    bench.on_pause = catch_up
    assert planned(bench, start) == {"orders-0": (0, 10)}


def test_a_batch_read_goes_on_without_a_topic_that_is_deleted_where_that_is_allowed() -> None:
    bench = bench_of(10, failOnDataLoss="false")
    start = bench.start()
    bench.cluster.topics.clear()
    assert planned(bench, start) == {"orders-0": (0, 0)}


def test_a_batch_read_of_no_topic_asks_nobody() -> None:
    bench = Bench(bounded=True, subscribePattern="nothing-.*")
    assert planned(bench, bench.start()) == {}
    assert bench.cluster.looks == 0
