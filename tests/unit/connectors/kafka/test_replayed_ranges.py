"""A batch that Spark has logged, whose partitions were cut off before it was read to its end."""

from dataclasses import replace
from typing import Any

import pytest

from sluice.connectors.kafka import kafka_drop_in_batch as _spark_source
from sluice.connectors.kafka.kafka_drop_in_source import KafkaStreamReader
from sluice.connectors.kafka.records.columns import columns_with
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.runtime.errors import DataLostError, SourceChangedError, UnreachableError
from sluice.runtime.model.splits import SplitRange
from tests.kit.source.fake_source_cluster import FakeLog, FakeSourceCluster
from tests.kit.source.source_setup import TIMEOUT_S, Bench, bounds


def replayed(bench: Bench, logged: tuple[SplitRange, ...]) -> tuple[SplitRange, ...]:
    """What is read of a batch that an earlier process has cut."""
    return bench.enumerator.replayable(logged, timeout_s=TIMEOUT_S)


def logged_by(bench: Bench, **options: Any) -> tuple[Bench, tuple[SplitRange, ...]]:
    """orders-0[0,10) and orders-1[0,20), cut before; and the process that begins now."""
    return Bench(bench.cluster, **options), bench.cut(bench.start())


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("grown_to", [7, 9, 40])
def test_batch_identity_a_batch_whose_log_was_truncated_is_refused_at_once(
    grown_to: int, fails: str
) -> None:
    """A later leader's answer is final, whatever other records the log has by then."""
    bench, logged = logged_by(Bench(), failOnDataLoss=fails)
    bench.cluster.log("orders", 0).elect(cut_off_at=7, grown_to=grown_to)
    began_s = bench.clock.now_s
    for _ in range(2):
        with pytest.raises(DataLostError, match=r"orders-0\[7,10\).*Start from a new") as caught:
            replayed(bench, logged)
    assert bench.clock.now_s == began_s
    assert "orders-1" not in str(caught.value)
    assert bench.enumerator.lost_records == 0


def test_a_batch_of_which_nothing_is_left_is_refused_with_all_that_is_gone() -> None:
    bench, before = logged_by(Bench(), failOnDataLoss="false")
    bench.cluster.log("orders", 0).latest = 15
    logged = bench.cut(before)
    bench.cluster.log("orders", 0).elect(cut_off_at=8)
    with pytest.raises(DataLostError, match=r"orders-0\[8,15\)"):
        replayed(bench, logged)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_partition_of_which_a_batch_reads_nothing_is_left_to_the_next_cut(fails: str) -> None:
    bench, before = logged_by(Bench(), failOnDataLoss=fails)
    bench.cluster.log("orders", 1).latest = 25
    logged = bench.cut(before)
    bench.cluster.log("orders", 0).elect(cut_off_at=7)
    assert bounds(replayed(bench, logged)) == {"orders-1": (20, 25)}
    assert bench.enumerator.lost_records == 0


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_log_that_no_later_leader_tells_of_has_to_stay_shorter(fails: str) -> None:
    """A leader may know a lower end for a moment."""
    bench, logged = logged_by(Bench(), failOnDataLoss=fails)
    log = bench.cluster.log("orders", 0)
    log.latest = 7
    began_s = bench.clock.now_s
    with pytest.raises(DataLostError, match=r"orders-0\[7,10\)"):
        replayed(bench, logged)
    assert 30 <= bench.clock.now_s - began_s < 31


def test_who_waits_for_a_log_lets_others_ask_meanwhile() -> None:
    """In the pauses between its lookups, by the caller's function."""
    bench, logged = logged_by(Bench())
    bench.cluster.log("orders", 0).latest = 7
    bench.cluster.log("orders", 1).latest = 40
    cuts: list[dict[str, tuple[int, int]]] = []

    def pause(seconds: float) -> None:
        bench.clock.pass_time(seconds)
        cuts.append(bounds(bench.cut(logged[1:])))

    began_s = bench.clock.now_s
    with pytest.raises(DataLostError, match=r"orders-0\[7,10\)"):
        bench.enumerator.replayable(logged[:1], timeout_s=TIMEOUT_S, pause=pause)
    assert 30 <= bench.clock.now_s - began_s < 31
    assert cuts == [{"orders-1": (20, 40)}] * len(cuts)


def test_a_run_that_ends_by_itself_waits_less_for_it() -> None:
    bench, logged = logged_by(Bench())
    bench.enumerator.fix_ends(timeout_s=TIMEOUT_S)
    bench.cluster.log("orders", 0).latest = 7
    began_s = bench.clock.now_s
    with pytest.raises(DataLostError, match=r"orders-0\[7,10\)"):
        replayed(bench, logged)
    assert 3 <= bench.clock.now_s - began_s < 4


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_lower_end_of_a_moment_costs_a_batch_nothing(fails: str) -> None:
    bench, logged = logged_by(Bench(), failOnDataLoss=fails)
    log = bench.cluster.log("orders", 0)
    log.latest = 7

    def grow() -> None:
        log.latest = 10

    bench.on_pause = grow
    assert replayed(bench, logged) == logged
    assert bench.enumerator.lost_records == 0


@pytest.mark.parametrize("fails", ["true", "false"])
def test_what_is_hidden_or_told_to_be_there_is_waited_for_by_whoever_reads_it(fails: str) -> None:
    """A transaction that is open again behind an election; and a leader that shows less as yet."""
    bench, logged = logged_by(Bench(), failOnDataLoss=fails)
    first, second = bench.cluster.log("orders", 0), bench.cluster.log("orders", 1)
    first.latest, first.end = 4, 10
    second.elect()
    assert replayed(bench, logged) == logged


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_former_leader_says_nothing_of_a_batch(fails: str) -> None:
    bench = Bench()
    bench.cluster.log("orders", 0).elect()
    bench, logged = logged_by(bench, failOnDataLoss=fails)
    log = bench.cluster.log("orders", 0)
    log.leader_epoch, log.latest = 0, 5
    assert replayed(bench, logged) == logged


@pytest.mark.parametrize("fails", ["true", "false"])
def test_markers_behind_a_batchs_last_record_are_no_loss(fails: str) -> None:
    bench, (first, *others) = logged_by(Bench(), failOnDataLoss=fails)
    bench.cluster.log("orders", 0).elect(cut_off_at=9)
    left = replayed(bench, (replace(first, leader_epoch_end=9), *others))
    assert bounds(left)["orders-0"] == (0, 9)
    assert bench.enumerator.lost_records == 0


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_made_again_stops_the_batch_at_once_whatever_is_allowed(fails: str) -> None:
    """Its offsets mean other records: there is nothing left of what the batch was cut from."""
    bench, logged = logged_by(Bench(), failOnDataLoss=fails)
    bench.cluster.create("orders", FakeLog(), FakeLog(), topic_id="another")
    with pytest.raises(SourceChangedError, match="id-of-orders->another"):
        replayed(bench, logged)


def test_a_batch_is_not_judged_while_nobody_answers() -> None:
    bench, logged = logged_by(Bench(), failOnDataLoss="false")
    bench.cluster.is_reachable = False
    with pytest.raises(UnreachableError):
        replayed(bench, logged)
    assert bench.enumerator.lost_records == 0


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_query_that_is_started_again_refuses_its_truncated_batch(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Spark requests the tasks of its last logged batch first."""
    cluster = FakeSourceCluster()
    cluster.create("orders", FakeLog(latest=10))
    monkeypatch.setattr(_spark_source, "KafkaCluster", lambda *_, **__: cluster)
    no_limit = _reader(fails).getDefaultReadLimit()
    first = _reader(fails)
    start = first.latestOffset(first.initialOffset(), no_limit)
    end = first.latestOffset(start, no_limit)
    cluster.log("orders").elect(cut_off_at=7)
    with pytest.raises(DataLostError, match=r"orders-0\[7,10\)"):
        _reader(fails).partitions(start, end)


def _reader(fails: str) -> KafkaStreamReader:
    given = {
        "kafka.bootstrap.servers": "fake:9092",
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "failOnDataLoss": fails,
    }
    names = tuple(columns_with(headers=False))
    return KafkaStreamReader(SourceOptions.of(given, bounded=False, stream=True), names)
