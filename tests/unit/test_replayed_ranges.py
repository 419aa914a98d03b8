"""A batch that Spark has logged, whose partitions were cut off before it was read to its end."""

from dataclasses import replace
from typing import Any

import pytest

from sluice.connectors.kafka import kafka_drop_in_source as _spark_source
from sluice.connectors.kafka.kafka_drop_in_source import KafkaStreamReader
from sluice.connectors.kafka.records.columns import columns_with
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.runtime.errors import DataLostError, SourceChangedError, UnreachableError
from sluice.runtime.model.model import SplitRange
from tests.fake_source_cluster import FakeLog, FakeSourceCluster
from tests.source_bench import TIMEOUT_S, Bench, bounds

LOST = "records lost, going on behind them"


def replayed(bench: Bench, logged: tuple[SplitRange, ...]) -> tuple[SplitRange, ...]:
    """What is read of a batch that an earlier process has cut."""
    return bench.enumerator.replayable(logged, timeout_s=TIMEOUT_S)


def logged_by(bench: Bench, **options: Any) -> tuple[Bench, tuple[SplitRange, ...]]:
    """orders-0[0,10) and orders-1[0,20), cut before; and the process that begins now."""
    return Bench(bench.cluster, **options), bench.cut(bench.start())


def test_a_batch_whose_log_was_cut_off_is_refused_at_once_with_what_is_there() -> None:
    """A later leader knows for good where the log ends: nobody has to wait for more."""
    bench, logged = logged_by(Bench())
    bench.cluster.log("orders", 0).elect(cut_off_at=7)
    bench.cluster.log("orders", 0).earliest = 2
    began_s = bench.clock.now_s
    with pytest.raises(DataLostError, match="that Spark has logged") as caught:
        replayed(bench, logged)
    assert bench.clock.now_s == began_s
    assert "orders-0=wanted=[0,10) present=[2,7)" in str(caught.value)
    assert "orders-1" not in str(caught.value)
    assert "failOnDataLoss=false" in str(caught.value)


def test_where_allowed_a_batch_delivers_what_is_left_and_the_rest_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However often it is asked for; then the source goes back to where the log was cut off, and
    reads what is there now."""
    bench, logged = logged_by(Bench(), failOnDataLoss="false")
    log = bench.cluster.log("orders", 0)
    log.elect(cut_off_at=7)
    for _ in range(2):
        left = replayed(bench, logged)
        assert bounds(left) == {"orders-0": (0, 7), "orders-1": (0, 20)}
    assert bench.enumerator.lost_records == 3
    assert [said.getMessage() for said in caplog.records if LOST in said.message] == [
        f"{LOST}: records=3 ranges=orders-0[7,10)"
    ]
    bench.enumerator.restore(logged, timeout_s=TIMEOUT_S)
    log.latest = 30
    again = bench.cut(logged)
    assert bounds(again)["orders-0"] == (7, 30)
    assert again[0].set_back_from == 10
    assert bounds(bench.cut(again))["orders-0"] == (30, 30)


def test_what_is_gone_of_a_batch_is_not_lost_by_whoever_does_not_go_on_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A repair needs all of it, and stops the job."""
    bench, logged = logged_by(Bench(), failOnDataLoss="false")
    bench.cluster.log("orders", 0).elect(cut_off_at=7)
    left = bench.enumerator.replayable(logged, timeout_s=TIMEOUT_S, counts=False)
    assert bounds(left) == {"orders-0": (0, 7), "orders-1": (0, 20)}
    assert bench.enumerator.lost_records == 0
    assert LOST not in caplog.text


@pytest.mark.parametrize("grown_to", [7, 9, 40])
def test_batch_identity_what_a_later_leader_wrote_is_none_of_the_batch(grown_to: int) -> None:
    """It is told to end before that; and its records are checked by the leader of its cut still."""
    bench, logged = logged_by(Bench(), failOnDataLoss="false")
    bench.cluster.log("orders", 0).elect(cut_off_at=7, grown_to=grown_to)
    first, _ = replayed(bench, logged)
    assert (first.start_offset, first.end_offset) == (0, 7)
    assert first.leader_epoch == logged[0].leader_epoch == 0


def test_a_batch_of_which_nothing_is_left_reads_nothing() -> None:
    bench, before = logged_by(Bench(), failOnDataLoss="false")
    bench.cluster.log("orders", 0).latest = 15
    logged = bench.cut(before)
    bench.cluster.log("orders", 0).elect(cut_off_at=8)
    assert bounds(replayed(bench, logged)) == {"orders-0": (10, 10)}
    assert bench.enumerator.lost_records == 5, "what came before was another batch's"


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_partition_of_which_a_batch_reads_nothing_is_left_to_the_next_cut(fails: str) -> None:
    bench, before = logged_by(Bench(), failOnDataLoss=fails)
    bench.cluster.log("orders", 1).latest = 25
    logged = bench.cut(before)
    bench.cluster.log("orders", 0).elect(cut_off_at=7)
    assert bounds(replayed(bench, logged)) == {"orders-1": (20, 25)}
    assert bench.enumerator.lost_records == 0


def test_a_log_that_no_later_leader_tells_of_has_to_stay_shorter() -> None:
    """A leader may know a lower end for a moment."""
    bench, logged = logged_by(Bench())
    log = bench.cluster.log("orders", 0)
    log.latest = 7
    began_s = bench.clock.now_s
    with pytest.raises(DataLostError, match=r"wanted=\[0,10\) present=\[0,7\)"):
        replayed(bench, logged)
    assert 30 <= bench.clock.now_s - began_s < 31


def test_who_waits_for_a_log_lets_others_ask_meanwhile() -> None:
    """Between its looks, where it is told how."""
    bench, logged = logged_by(Bench(), failOnDataLoss="false")
    bench.cluster.log("orders", 0).latest = 7
    bench.cluster.log("orders", 1).latest = 40
    cuts: list[dict[str, tuple[int, int]]] = []

    def pause(seconds: float) -> None:
        bench.clock.pass_time(seconds)
        cuts.append(bounds(bench.cut(logged[1:])))

    began_s = bench.clock.now_s
    left = bench.enumerator.replayable(logged[:1], timeout_s=TIMEOUT_S, pause=pause)
    assert bounds(left) == {"orders-0": (0, 7)}
    assert 30 <= bench.clock.now_s - began_s < 31
    assert cuts == [{"orders-1": (20, 40)}] * len(cuts)
    assert bench.enumerator.lost_records == 3


def test_a_run_that_ends_by_itself_waits_less_for_it() -> None:
    bench, logged = logged_by(Bench(), failOnDataLoss="false")
    bench.enumerator.fix_ends(timeout_s=TIMEOUT_S)
    bench.cluster.log("orders", 0).latest = 7
    began_s = bench.clock.now_s
    assert bounds(replayed(bench, logged))["orders-0"] == (0, 7)
    assert 3 <= bench.clock.now_s - began_s < 4


def test_a_loss_that_no_leader_tells_of_is_counted_once_by_replay_and_cut() -> None:
    """What came in its place is read, once."""
    bench, logged = logged_by(Bench(), failOnDataLoss="false")
    bench.cluster.log("orders", 0).latest = 7
    assert bounds(replayed(bench, logged))["orders-0"] == (0, 7)
    assert bounds(bench.cut(logged))["orders-0"] == (7, 7)
    bench.cluster.log("orders", 0).latest = 9
    assert bounds(bench.cut(logged))["orders-0"] == (7, 9)
    assert bench.enumerator.lost_records == 3


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


def test_a_query_that_is_started_again_reads_what_is_left_of_its_logged_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Spark asks: the batch's tasks first, then, from its logged end, the next one."""
    cluster = FakeSourceCluster()
    cluster.create("orders", FakeLog(latest=10))
    monkeypatch.setattr(_spark_source, "KafkaCluster", lambda *_, **__: cluster)
    no_limit = _reader("true").getDefaultReadLimit()
    first = _reader("true")
    start = first.latestOffset(first.initialOffset(), no_limit)
    end = first.latestOffset(start, no_limit)
    cluster.log("orders").elect(cut_off_at=7)
    with pytest.raises(DataLostError, match=r"present=\[0,7\)"):
        _reader("true").partitions(start, end)
    again = _reader("false")
    assert _ranges(again, start, end) == [(0, 7)]
    cluster.log("orders").latest = 12
    assert _ranges(again, end, again.latestOffset(end, no_limit)) == [(7, 12)]


def _ranges(
    source: KafkaStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[tuple[int, int]]:
    splits = [split for task in source.partitions(start, end) for split in task.value]
    return [(split.start_offset, split.end_offset) for split in splits]


def _reader(fails: str) -> KafkaStreamReader:
    given = {
        "kafka.bootstrap.servers": "fake:9092",
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "failOnDataLoss": fails,
    }
    names = tuple(columns_with(headers=False))
    return KafkaStreamReader(SourceOptions.of(given, bounded=False, stream=True), names)
