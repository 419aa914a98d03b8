"""What changes under a running Kafka source: recreated and vanished partitions, losses."""

from collections.abc import Collection
from dataclasses import replace
from unittest.mock import patch

import pytest
from confluent_kafka import Uuid

from sluice.connectors.kafka.source.enumerator.discovery import ClusterView
from sluice.connectors.kafka.source.enumerator.enumerator import KafkaSplitEnumerator
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.runtime.errors import (
    ConfigError,
    DataLostError,
    SourceChangedError,
    StreamError,
)
from sluice.runtime.model.splits import SplitRange
from tests.kit.source.fake_source_cluster import FakeLog, FakeSourceCluster
from tests.kit.source.source_setup import TIMEOUT_S, Bench, bounds


def test_recreated_topic_stops_with_both_ids() -> None:
    bench = Bench()
    position = bench.cut(bench.start())
    bench.cluster.create("orders", FakeLog(latest=50), FakeLog(latest=50), topic_id="another")
    for act in (
        lambda: bench.cut(position),
        lambda: bench.enumerator.restore(position, timeout_s=TIMEOUT_S),
    ):
        with pytest.raises(SourceChangedError) as caught:
            act()
        assert "id-of-orders" in str(caught.value)
        assert "another" in str(caught.value)


NO_ID = str(Uuid(0, 0))


def test_a_topic_whose_id_was_unknown_goes_on_and_is_watched_from_then_on() -> None:
    """Brokers without topic ids, then upgraded."""
    bench = Bench()
    logs = (FakeLog(latest=10), FakeLog(latest=20))
    bench.cluster.create("orders", *logs, topic_id=NO_ID)
    position = bench.cut(bench.start())
    assert {split.topic_id for split in position} == {NO_ID}
    assert bench.enumerator.measure(position, timeout_s=TIMEOUT_S)
    bench.cluster.create("orders", *logs, topic_id="first")
    again = Bench(bench.cluster)
    again.enumerator.restore(position, timeout_s=TIMEOUT_S)
    assert again.enumerator.measure(position, timeout_s=TIMEOUT_S)
    position = again.cut(position)
    assert {split.topic_id for split in position} == {"first"}
    bench.cluster.create("orders", *logs, topic_id="second")
    with pytest.raises(SourceChangedError, match="first->second"):
        again.cut(position)


def test_an_id_that_brokers_do_not_give_for_a_while_is_kept() -> None:
    """Brokers of two releases: some answer without ids."""
    bench = Bench()
    position = bench.cut(bench.start())
    logs = bench.cluster.topics["orders"][1]
    bench.cluster.create("orders", *logs.values(), topic_id=NO_ID)
    bench.clock.pass_time(1)
    position = bench.cut(position)
    assert {split.topic_id for split in position} == {"id-of-orders"}
    bench.cluster.create("orders", *logs.values(), topic_id="another")
    bench.clock.pass_time(1)
    with pytest.raises(SourceChangedError, match="id-of-orders->another"):
        bench.cut(position)


@pytest.mark.parametrize(("topic_id", "lacks"), [(NO_ID, True), ("id", False)])
def test_a_check_finds_topics_without_ids(topic_id: str, lacks: bool) -> None:
    bench = Bench()
    bench.cluster.create("orders", FakeLog(latest=1), topic_id=topic_id)
    bench.enumerator.check(timeout_s=TIMEOUT_S)
    assert bench.enumerator.lacks_topic_ids is lacks


def test_absence_for_a_moment_is_looked_at_again() -> None:
    """A broker that has just started may not know every topic yet."""
    bench = Bench()
    position = bench.start()
    held = bench.cluster.topics.pop("orders")
    began_s = bench.clock.now_s

    def pause(seconds: float) -> None:
        bench.clock.pass_time(seconds)
        if bench.clock.now_s - began_s > 1:
            bench.cluster.topics["orders"] = held

    patient = KafkaSplitEnumerator(
        SourceOptions.of(
            {"kafka.bootstrap.servers": "fake:9092", "subscribe": "orders"},
            bounded=False,
            stream=True,
        ),
        bench.cluster,
        source_id="s",
        group_id="group",
        clock=bench.clock,
        pause=pause,
    )
    cut = patient.cut(position, max_records=None, timeout_s=TIMEOUT_S)
    assert bounds(cut)["orders-0"] == (0, 10)


def test_records_lost_to_retention_stop_with_exact_ranges() -> None:
    bench = Bench()
    start = bench.start()
    bench.cluster.log("orders", 0).earliest = 4
    with pytest.raises(DataLostError) as caught:
        bench.cut(start)
    assert "orders-0[0,4)" in str(caught.value)
    with pytest.raises(DataLostError):
        Bench(bench.cluster).enumerator.restore(start, timeout_s=TIMEOUT_S)


def test_loss_is_counted_and_skipped_where_allowed() -> None:
    bench = Bench(failOnDataLoss="false")
    start = bench.start()
    bench.cluster.log("orders", 0).earliest = 4
    assert bounds(bench.cut(start)) == {"orders-0": (4, 10), "orders-1": (0, 20)}
    assert bench.enumerator.lost_records == 4


def test_a_loss_is_counted_once_however_often_it_is_seen() -> None:
    """Without anything to read behind it the position stays where it was, before the loss."""
    bench = Bench(failOnDataLoss="false")
    start = bench.start()
    for log in (bench.cluster.log("orders", 0), bench.cluster.log("orders", 1)):
        log.earliest = log.latest
    bench.enumerator.restore(start, timeout_s=TIMEOUT_S)
    for _ in range(3):
        bench.cut(start)
    assert bench.enumerator.lost_records == 30
    bench.cluster.log("orders", 0).latest = bench.cluster.log("orders", 0).earliest = 12
    bench.cut(start)
    assert bench.enumerator.lost_records == 32


def test_a_recreated_topic_stops_also_where_its_deletion_did_not() -> None:
    bench = Bench(failOnDataLoss="false")
    position = bench.start()
    (_, logs) = bench.cluster.topics.pop("orders")
    bench.cut(position)
    bench.cluster.create("orders", *logs.values(), topic_id="another")
    with pytest.raises(SourceChangedError, match="id-of-orders->another"):
        bench.cut(position)


def test_ranges_of_an_earlier_process_must_be_of_the_same_topic() -> None:
    """A replayed batch would read another topic's records under the old offsets."""
    bench = Bench()
    logged = bench.cut(bench.start())
    assert bench.enumerator.readable(logged, timeout_s=TIMEOUT_S) == logged
    bench.cluster.create("orders", FakeLog(latest=50), FakeLog(latest=50), topic_id="another")
    with pytest.raises(SourceChangedError, match="id-of-orders->another"):
        bench.enumerator.readable(logged, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_log_that_stays_shorter_than_the_position_has_lost_records(fails: str) -> None:
    """A new leader may know a lower end for a moment; half a minute later it is a truncation."""
    bench = Bench(failOnDataLoss=fails)
    position = bench.cut(bench.start())
    bench.cluster.log("orders", 0).latest = 7
    assert bounds(bench.cut(position))["orders-0"] == (10, 10)
    bench.clock.pass_time(31)
    with pytest.raises(DataLostError, match=r"orders-0\[7,10\)"):
        bench.cut(position)
    bench.cluster.log("orders", 0).latest = 12
    assert bounds(bench.cut(position))["orders-0"] == (10, 12)


def test_a_log_that_was_cut_off_is_judged_beside_cuts_of_other_regions() -> None:
    """All regions of a source share the enumerator, and cut their own splits in turn."""
    bench = Bench()
    position = bench.cut(bench.start())
    mine, others = position[:1], position[1:]
    bench.cluster.log("orders", 0).latest = 7
    assert bounds(bench.cut(mine))["orders-0"] == (10, 10)
    for _ in range(4):
        bench.clock.pass_time(10)
        bench.cut(others)
    with pytest.raises(DataLostError, match=r"orders-0\[7,10\)"):
        bench.cut(mine)


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("grown_to", [7, 9, 30])
def test_a_truncated_log_is_an_error_whatever_fail_on_data_loss_says(
    grown_to: int, fails: str
) -> None:
    """An unclean election: other records have the offsets that the source has read."""
    bench = Bench(failOnDataLoss=fails)
    position = bench.cut(bench.start())
    bench.cluster.log("orders", 0).elect(cut_off_at=7, grown_to=grown_to)
    for _ in range(2):
        with pytest.raises(DataLostError, match=r"orders-0\[7,10\).*Start from a new") as caught:
            bench.cut(position)
    assert "orders-1" not in str(caught.value)
    assert len(bench.cluster.epoch_requests) == 1
    assert bench.enumerator.lost_records == 0


def test_a_log_that_was_cut_off_behind_the_position_is_read_on() -> None:
    """Nobody here has read what was lost; a clean election loses nothing. Each is asked once."""
    bench = Bench()
    position = bench.cut(bench.start())
    log = bench.cluster.log("orders", 0)
    log.latest = 15  # nobody has read them
    log.elect(cut_off_at=10, grown_to=12)
    bench.cluster.log("orders", 1).elect()
    assert bounds(bench.cut(position)) == {"orders-0": (10, 12), "orders-1": (20, 20)}
    again = bench.cut(position)
    assert {split.name: split.leader_epoch for split in again} == {"orders-0": 1, "orders-1": 1}
    bench.cut(again)
    assert len(bench.cluster.epoch_requests) == 1


def test_each_later_leader_is_asked() -> None:
    bench = Bench()
    position = bench.cut(bench.start())
    log = bench.cluster.log("orders", 0)
    log.elect()
    bench.cut(position)
    log.elect(cut_off_at=7, grown_to=30)
    with pytest.raises(DataLostError, match=r"orders-0\[7,10\)"):
        bench.cut(position)


def _behind_markers(position: tuple[SplitRange, ...]) -> tuple[SplitRange, ...]:
    """A task has read a record less; its last offset is a marker."""
    first, *others = position
    return (replace(first, leader_epoch_end=first.end_offset - 1), *others)


def test_a_log_that_was_cut_off_before_a_marker_is_not_read_on() -> None:
    bench = Bench()
    position = _behind_markers(bench.cut(bench.start()))
    bench.cluster.log("orders", 0).elect(cut_off_at=7, grown_to=30)
    with pytest.raises(DataLostError, match=r"orders-0\[7,10\)"):
        bench.cut(position)


def test_markers_that_a_later_leader_may_have_written_are_read_again() -> None:
    """They are not lost, nor is anything doubled: no record lay among them."""
    bench = Bench()
    position = _behind_markers(bench.cut(bench.start()))
    bench.cluster.log("orders", 0).elect(cut_off_at=9, grown_to=30)
    again = bench.cut(position)
    assert bounds(again)["orders-0"] == (9, 30)
    assert again[0].leader_epoch_end is None
    assert bounds(bench.cut(again))["orders-0"] == (30, 30)


def test_a_position_goes_back_no_further_than_the_leader_has_told() -> None:
    """What readers may see can end before that, for as long as a transaction is open: its records
    are told apart from those that were read before."""
    bench = Bench()
    position = _behind_markers(bench.cut(bench.start()))
    log = bench.cluster.log("orders", 0)
    log.elect(cut_off_at=9)
    log.latest = 4  # an open transaction
    for _ in range(3):
        assert bounds(bench.cut(position))["orders-0"] == (9, 9)
        bench.clock.pass_time(31)
    log.latest = 30
    assert bounds(bench.cut(position))["orders-0"] == (9, 30)


def test_a_former_leader_that_answers_once_more_is_not_believed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It does not know that it was replaced."""
    bench = Bench()
    position = bench.cut(bench.start())
    log = bench.cluster.log("orders", 0)
    log.elect()
    position = bench.cut(position)
    log.leader_epoch, log.latest = 0, 40
    assert bounds(bench.cut(position))["orders-0"] == (10, 10)
    bench.cut(position[1:])  # of another region
    bench.cut(position)
    assert caplog.text.count("a former leader answers") == 1
    log.leader_epoch, log.latest = 1, 12
    assert bounds(bench.cut(position))["orders-0"] == (10, 12)


def test_records_of_earlier_leaders_in_a_log_say_nothing_of_its_leader() -> None:
    """Its first record is older than every election; cut and started again, reading goes on."""
    bench = Bench()
    position = bench.cut(bench.start())
    log = bench.cluster.log("orders", 0)
    log.elect()
    for end in (15, 25, 35):
        log.latest = end
        position = bench.cut(position)
        assert bounds(position)["orders-0"][1] == end
        bench.enumerator.restore(position, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_what_a_former_leader_has_deleted_is_not_lost(fails: str) -> None:
    """Its retention has gone further than the present one's; at a start, too."""
    bench = Bench(failOnDataLoss=fails)
    log = bench.cluster.log("orders", 0)
    log.elect()
    position = bench.cut(bench.start())
    log.leader_epoch, log.earliest, log.latest = 0, 80, 90
    assert bounds(bench.cut(position))["orders-0"] == (10, 10)
    bench.enumerator.restore(position, timeout_s=TIMEOUT_S)
    log.leader_epoch, log.earliest, log.latest = 1, 0, 12
    assert bounds(bench.cut(position))["orders-0"] == (10, 12)
    assert bench.enumerator.lost_records == 0


@pytest.mark.parametrize(
    "named",
    [{"subscribe": "orders,other"}, {"assign": '{"orders": [0, 1], "other": [0]}'}],
)
def test_what_is_gone_of_one_region_is_not_anothers(named: dict[str, str]) -> None:
    """Whoever looks for new partitions may read none of it: its own cut says what is gone."""
    cluster = FakeSourceCluster()
    cluster.create("orders", FakeLog(latest=10), FakeLog(latest=20))
    cluster.create("other", FakeLog(latest=5))
    bench = Bench(cluster, **named)
    position = bench.start()
    del cluster.topics["other"]
    bench.clock.pass_time(3600)
    mine = tuple(split for split in position if split.topic == "orders")
    assert bench.enumerator.discover(timeout_s=TIMEOUT_S) == ()
    assert bounds(bench.cut(mine))["orders-1"] == (0, 20)
    with pytest.raises(SourceChangedError, match="other-0"):
        bench.cut(tuple(split for split in position if split.topic == "other"))


def test_a_leader_that_knows_of_no_earlier_one_is_believed() -> None:
    """Nothing tells what its log lacks."""
    bench = Bench()
    position = bench.cut(bench.start())
    log = bench.cluster.log("orders", 0)
    log.leader_epoch, log.began, log.latest = 5, {}, 12
    assert bounds(bench.cut(position))["orders-0"] == (10, 12)


def test_a_position_that_no_leader_has_said_is_none_of_the_next_leaders() -> None:
    """A start at a number that does not exist yet: the leader's epoch says nothing of it."""
    bench = Bench(startingOffsets='{"orders":{"0":15,"1":20}}')
    position = bench.cut(bench.start())
    assert {split.name: split.leader_epoch for split in position} == {
        "orders-0": None,
        "orders-1": 0,
    }
    bench.cluster.log("orders", 0).elect(cut_off_at=8, grown_to=16)
    assert bounds(bench.cut(position))["orders-0"] == (15, 16)


def test_nothing_is_cut_while_a_partition_has_no_leader_who_tells() -> None:
    """What a former leader said of an end may not be so any more."""
    bench = Bench()
    position = bench.cut(bench.start(), max_records=3)
    bench.cluster.leaderless.add(("orders", 0))
    assert bounds(bench.cut(position)) == {"orders-0": (1, 1), "orders-1": (2, 20)}


def test_a_bounded_run_judges_a_short_log_however_long_the_first_look_takes() -> None:
    """On a busy machine: a read from behind the end gave no records, and no word."""
    bench = Bench(bounded=True, startingOffsets='{"orders": {"0": 30, "1": 0}}')
    position = bench.start()
    look = bench.cluster.fetch_view

    def slow(keys: Collection[PartitionKey], *, timeout_s: float) -> ClusterView:
        bench.clock.pass_time(0.9)
        return look(keys, timeout_s=timeout_s)

    with (
        patch.object(bench.cluster, "fetch_view", slow),
        pytest.raises(DataLostError, match=r"orders-0\[10,30\)"),
    ):
        bench.cut(position)


def test_a_bounded_run_does_not_end_over_a_log_that_was_cut_off() -> None:
    """Runs that end by themselves would never look long enough to learn of it."""
    bench = Bench()
    position = bench.cut(bench.start())
    bench.cluster.log("orders", 0).latest = 7
    again = Bench(bench.cluster, bounded=True)
    again.enumerator.restore(position, timeout_s=TIMEOUT_S)
    with pytest.raises(DataLostError, match=r"orders-0\[7,10\)"):
        again.cut(position)


def test_a_bounded_read_that_ends_before_it_starts_is_refused() -> None:
    bench = Bench(
        bounded=True,
        startingOffsets='{"orders":{"0":5,"1":5}}',
        endingOffsets='{"orders":{"0":4,"1":9}}',
    )
    with pytest.raises(ConfigError, match="orders-0=start=5 end=4"):
        bench.start()


def test_a_batch_read_does_not_stop_short_of_the_end_it_was_told() -> None:
    bench = Bench(bounded=True, endingOffsets='{"orders":{"0":11,"1":20}}')
    ranges = bench.cut(bench.start())
    with pytest.raises(ConfigError, match="orders-0=readable=10 ending=11"):
        bench.enumerator.require_readable_ends(ranges)
    bench.cluster.log("orders", 0).latest = 11
    bench.enumerator.require_readable_ends(bench.cut(bench.start()))


@pytest.mark.parametrize("is_deleted", [True, False])
def test_an_error_about_a_retired_topic_names_all_positions_and_how_to_give_it_up(
    *, is_deleted: bool
) -> None:
    """So that neither way doubles the other topics' records, or loses any."""
    bench = Bench(subscribe="orders,returns")
    bench.cluster.create("returns", FakeLog(latest=7))
    positions = bench.cut(bench.start())
    if is_deleted:
        del bench.cluster.topics["returns"]
    with pytest.raises(StreamError, match="forget=") as caught:
        Bench(bench.cluster).enumerator.restore(positions, timeout_s=TIMEOUT_S)
    read_to = caught.value.args[1]["read_to"]
    assert read_to == '{"orders":{"0":10,"1":20},"returns":{"0":7}}'
    left = tuple(split for split in positions if split.topic == "orders")
    again = Bench(bench.cluster, forgetTopics="returns")
    again.enumerator.restore(left, timeout_s=TIMEOUT_S)
    assert again.discover() == ()
    fresh = Bench(bench.cluster, startingOffsets='{"orders":{"0":10,"1":20}}').start()
    assert bounds(fresh) == {"orders-0": (10, 10), "orders-1": (20, 20)}


def test_a_range_of_a_topic_that_is_given_up_is_replayed_as_long_as_it_exists() -> None:
    """It may be decided, and its output is promised."""
    bench = Bench(subscribe="orders,returns")
    bench.cluster.create("returns", FakeLog(latest=7))
    ranges = bench.cut(bench.start())
    again = Bench(bench.cluster, forgetTopics="returns").enumerator
    assert again.replayable(ranges, timeout_s=TIMEOUT_S) == ranges
    del bench.cluster.topics["returns"]
    with pytest.raises(SourceChangedError, match="returns-0"):
        again.replayable(ranges, timeout_s=TIMEOUT_S)


def test_topic_no_longer_named_is_an_error_on_restore() -> None:
    bench = Bench()
    position = bench.start()
    bench.cluster.create("payments", FakeLog())
    with pytest.raises(ConfigError, match="orders-0"):
        Bench(bench.cluster, subscribe="payments").enumerator.restore(position, timeout_s=TIMEOUT_S)
