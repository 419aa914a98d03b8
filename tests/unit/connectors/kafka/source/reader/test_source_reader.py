"""Reading ranges in an executor: what is not a record, as a consumer in memory reports it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.login_refusals import LoginRefusals
from sluice.connectors.kafka.source.reader import consumers
from sluice.connectors.kafka.source.reader.consumers import ConsumerPool, PooledConsumer
from sluice.connectors.kafka.source.reader.range_reader import KafkaSplitReader
from sluice.connectors.kafka.source.reader.streaming_reader import KafkaStreamingReader
from sluice.runtime.errors import (
    AuthenticationError,
    DataLostError,
    SourceChangedError,
    StreamError,
    UnreachableError,
)
from sluice.runtime.model.splits import SplitRange
from tests.kit.source.fake_consumer import FakeConsumer, message
from tests.kit.source.fake_source_cluster import FakeClock

NOT_LOGGED_IN: int = getattr(KafkaError, "_AUTHENTICATION")  # noqa: B009 - public, underscored
END: int = getattr(KafkaError, "_PARTITION_EOF")  # noqa: B009 - public, underscored
TRUNCATED: int = getattr(KafkaError, "_LOG_TRUNCATION")  # noqa: B009 - public, underscored
OUT_OF_RANGE: int = getattr(KafkaError, "_AUTO_OFFSET_RESET")  # noqa: B009 - public, underscored


@pytest.fixture(autouse=True)
def fresh_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """No consumer of a test outlives it."""
    pool = ConsumerPool()
    monkeypatch.setattr("sluice.connectors.kafka.source.reader.range_reader.process_pool", pool)
    monkeypatch.setattr("sluice.connectors.kafka.source.reader.streaming_reader.process_pool", pool)


READER = KafkaSplitReader(
    connection=KafkaConnection(bootstrap_servers="fake:9092"), columns=("value",)
)


def split(*, leader_epoch: int | None = None, partition: int = 0) -> SplitRange:
    """orders-0[0,3)."""
    return SplitRange(
        source_id="s",
        topic="orders",
        topic_id="id",
        partition=partition,
        start_offset=0,
        end_offset=3,
        leader_epoch=leader_epoch,
    )


def values(
    monkeypatch: pytest.MonkeyPatch,
    consumer: FakeConsumer,
    *,
    leader_epoch: int | None = None,
    **settings: Any,
) -> list[bytes]:
    """What a read of orders-0[0,3) yields from this consumer."""
    consumer.install(monkeypatch)
    read = replace(READER, **settings).read([split(leader_epoch=leader_epoch)])
    return [value for batch in read for value in batch.column("value").to_pylist()]


@pytest.mark.parametrize("name", ["_BAD_MSG", "_BAD_COMPRESSION", "_NOT_IMPLEMENTED"])
def test_records_that_cannot_be_read_stop_the_read(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """librdkafka goes on behind them, and the gap would look like one of compaction."""
    unreadable = message(1, KafkaError(getattr(KafkaError, name), "MessageSet at offset 1"))
    consumer = FakeConsumer([message(0), unreadable, message(2)], watermarks=(0, 3))
    with pytest.raises(StreamError, match="offset 1"):
        values(monkeypatch, consumer)


def test_a_range_is_not_gone_on_with_in_another_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen broker gave records that the leader by whom the range was cut has others in the
    place of: of their epoch, nothing is wrong with them. The next try has another client."""
    told = message(2, KafkaError(TRUNCATED, KafkaError(TRUNCATED).str()))
    consumer = FakeConsumer(
        [message(0, leader_epoch=5), message(1, leader_epoch=5), told],
        [message(2, leader_epoch=6)],
        watermarks=(0, 3),
    )
    with pytest.raises(UnreachableError, match=r"lacks records.*orders-0"):
        values(monkeypatch, consumer, leader_epoch=6)
    assert consumer.is_closed


def test_what_comes_behind_the_end_of_a_range_is_nothing_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """librdkafka had read ahead, and found another log there."""
    told = message(5, KafkaError(TRUNCATED, KafkaError(TRUNCATED).str()))
    consumer = FakeConsumer([*(message(n) for n in range(3)), told], watermarks=(0, 3))
    assert values(monkeypatch, consumer, leader_epoch=6) == [b"0", b"1", b"2"]


def test_a_client_looks_for_a_leader_that_it_may_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks by itself every five minutes, and reads of a former one until then."""
    records = [message(offset) for offset in range(3)]
    consumer = FakeConsumer(records, watermarks=(0, 3))
    consumer.install(monkeypatch)
    for epoch, looks in [(None, 1), (4, 2), (4, 2), (None, 2), (3, 2), (5, 3)]:
        assert sum(b.num_rows for b in READER.read([split(leader_epoch=epoch)])) == 3
        assert consumer.calls.count("look up orders") == looks


def test_a_position_that_is_refused_again_and_again_has_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A follower that lags behind refuses offsets that exist; that must not last for ever."""
    refused = message(0, KafkaError(OUT_OF_RANGE, "out of range"))
    consumer = FakeConsumer([refused], watermarks=(0, 3))
    with pytest.raises(UnreachableError, match=r"orders-0\[0,3\)"):
        values(monkeypatch, consumer, no_progress_timeout_s=0.05)


def test_an_end_that_comes_again_and_again_before_a_ranges_has_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log that was cut off has no more, and is not judged here."""
    told = [message(1, KafkaError(END, "end"))]
    consumer = FakeConsumer([message(0)], told, [message(1), message(2)], watermarks=(0, 1))
    with pytest.raises(UnreachableError, match=r"orders-0\[0,3\)"):
        values(monkeypatch, consumer, no_progress_timeout_s=0.0)


class _BusyWorld:
    """Consumers that return nothing while they fetch aborted records, a second per call.

    Args:
        moves: offsets that one which reports has fetched, by call; then it returns the last record.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, moves: Sequence[int], *, reachable: bool = True
    ) -> None:
        self.made: list[PooledConsumer] = []
        self.reports = iter([*moves, None])
        self.clock = FakeClock()
        self.reachable = reachable
        monkeypatch.setattr(consumers, "_connect", self._connect)
        monkeypatch.setattr(
            "sluice.connectors.kafka.source.reader.range_reader.time",
            SimpleNamespace(monotonic=self.clock),
        )

    def _connect(self, key: Any) -> PooledConsumer:
        consumer = FakeConsumer([], watermarks=(0, 3))
        consumer.unreachable = not self.reachable
        pooled = PooledConsumer(consumer=consumer, key=key)  # type: ignore[arg-type]  # a fake
        self.made.append(pooled)

        def consume(most: int, timeout_s: float) -> Sequence[Message]:
            self.clock.pass_time(1.0)
            at = next(self.reports, 0) if pooled.key.reports else 0
            if at is None:
                return [message(2)]
            partitions = {"0": {"next_offset": at}, "-1": {"next_offset": -1001}}
            if pooled.key.reports:
                topics = {"orders": {"partitions": partitions}}
                report = json.dumps({"brokers": {}, "topics": topics})
                self.made[0].fetched.report(report)
            return []

        consumer.consume = consume  # type: ignore[method-assign]
        return pooled

    def read(self, timeout_s: float) -> list[bytes]:
        read = replace(READER, no_progress_timeout_s=timeout_s).read([split()])
        return [value for batch in read for value in batch.column("value").to_pylist()]


def test_aborted_records_that_a_client_is_busy_with_are_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long it returns none: the silent client is replaced by one that reports."""
    world = _BusyWorld(monkeypatch, range(1, 200))
    assert world.read(timeout_s=20.0) == [b"2"]
    assert world.clock.now_s > 1_200.0
    silent, watched = (pooled.consumer for pooled in world.made)
    assert isinstance(silent, FakeConsumer)
    assert isinstance(watched, FakeConsumer)
    assert silent.is_closed
    assert watched.is_closed, "no idle client reports, for nothing takes its reports"


@pytest.mark.parametrize("moves", [[0] * 99, [2] * 99], ids=["never moved", "stands"])
def test_a_client_that_fetches_nothing_ends_the_read_in_time(
    monkeypatch: pytest.MonkeyPatch, moves: Sequence[int]
) -> None:
    world = _BusyWorld(monkeypatch, moves)
    with pytest.raises(UnreachableError, match=r"orders-0\[0,3\)"):
        world.read(timeout_s=20.0)
    assert world.clock.now_s <= 1_000.0 + 20.0 + 12.0


def test_a_range_that_ended_before_the_client_was_replaced_is_not_returned_to_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record after the end of orders-0, and the present end of orders-1, come in one call."""
    clock, made = FakeClock(), []
    last = message(5), message(0, KafkaError(END, "end"), partition=1)
    answers = [iter([*[[]] * 9, last]), iter([[message(2, partition=1)]])]

    def connect(key: Any) -> PooledConsumer:
        consumer, given = FakeConsumer([], watermarks=(0, 3)), answers[len(made)]

        def consume(most: int, timeout_s: float) -> Sequence[Message]:
            clock.pass_time(1.0)
            return next(given)

        consumer.consume = consume  # type: ignore[method-assign]
        made.append(consumer)
        return PooledConsumer(consumer=consumer, key=key)  # type: ignore[arg-type]  # a fake

    monkeypatch.setattr(consumers, "_connect", connect)
    monkeypatch.setattr(
        "sluice.connectors.kafka.source.reader.range_reader.time", SimpleNamespace(monotonic=clock)
    )
    read = replace(READER, no_progress_timeout_s=26.0).read([split(), split(partition=1)])
    values = [value for batch in read for value in batch.column("value").to_pylist()]
    assert len(made) == 2
    assert values == [b"2"]


def test_a_silent_client_stays_while_no_other_reaches_a_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bootstrap servers may be down, and the leader not."""
    world = _BusyWorld(monkeypatch, [], reachable=False)
    with pytest.raises(UnreachableError, match=r"orders-0\[0,3\)"):
        world.read(timeout_s=30.0)
    silent, *others = (pooled.consumer for pooled in world.made)
    assert isinstance(silent, FakeConsumer)
    assert silent.calls[-1] == "assign"
    assert len(others) == 2


@pytest.mark.parametrize("name", ["UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC"])
def test_a_range_of_what_is_not_there_any_more_is_waited_for_by_nobody(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Only who follows a partition hears from the driver what becomes of it."""
    absent = message(1, KafkaError(getattr(KafkaError, name)))
    consumer = FakeConsumer([message(0)], [absent], [], watermarks=(0, 3))
    with pytest.raises(SourceChangedError, match="orders-0"):
        values(monkeypatch, consumer, no_progress_timeout_s=0.2)


@pytest.mark.parametrize("name", ["NOT_LEADER_FOR_PARTITION", "OFFSET_NOT_AVAILABLE"])
def test_a_leader_that_moves_while_it_is_asked_what_it_holds_ends_no_job(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The region begins again, as behind any broker that is away."""
    consumer = FakeConsumer([message(0, KafkaError(OUT_OF_RANGE))], watermarks=(0, 3))

    def moved(*_: Any, **__: Any) -> tuple[int, int]:
        raise KafkaException(KafkaError(getattr(KafkaError, name)))

    monkeypatch.setattr(consumer, "get_watermark_offsets", moved)
    with pytest.raises(UnreachableError, match=name):
        values(monkeypatch, consumer)


def test_a_loss_while_reading_is_told_and_passed_over_only_where_allowed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [message(0, KafkaError(OUT_OF_RANGE, "out of range"))], [message(2)]
    with pytest.raises(DataLostError, match=r"orders-0\[0,2\)"):
        values(monkeypatch, FakeConsumer(*answers, watermarks=(2, 3)))
    consumer = FakeConsumer(*answers, watermarks=(2, 3))
    assert values(monkeypatch, consumer, fail_on_data_loss=False) == [b"2"]
    assert "records=2 range=orders-0[0,2)" in caplog.text


def _of_three_leaders() -> FakeConsumer:
    """The range's records, each of another leader, and one behind it."""
    records = [message(offset, leader_epoch=1 + offset) for offset in range(4)]
    return FakeConsumer(records, watermarks=(0, 4))


@pytest.mark.parametrize("fails", [True, False])
def test_a_log_that_ends_before_a_range_is_an_error_whatever_is_allowed(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A range was defined when its records were there."""
    answers = [message(0)], [message(1, KafkaError(OUT_OF_RANGE))], [message(1), message(2)]
    with pytest.raises(DataLostError, match=r"truncated.*orders-0\[0,3\)"):
        values(monkeypatch, FakeConsumer(*answers, watermarks=(0, 0)), fail_on_data_loss=fails)


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize(("leader_epoch", "first"), [(0, 0), (1, 1), (2, 2)])
def test_records_of_a_later_leader_are_an_error_whatever_is_allowed(
    monkeypatch: pytest.MonkeyPatch, leader_epoch: int, first: int, fails: bool
) -> None:
    """They have the offsets of records that the range was defined for."""
    with pytest.raises(DataLostError, match=rf"orders-0\[{first},3\)"):
        values(
            monkeypatch,
            _of_three_leaders(),
            leader_epoch=leader_epoch,
            fail_on_data_loss=fails,
        )


@pytest.mark.parametrize("leader_epoch", [3, 9, None])
def test_records_of_known_leaders_are_read(
    monkeypatch: pytest.MonkeyPatch, leader_epoch: int | None
) -> None:
    """Records after the range may be of any leader; if none is known, every record is read."""
    found = values(monkeypatch, _of_three_leaders(), leader_epoch=leader_epoch)
    assert found == [b"0", b"1", b"2"]


def test_a_topic_is_looked_up_once_and_before_it_isassigned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or else the first read of each worker waits up to a second for the leader."""
    consumer = FakeConsumer([message(0), message(1), message(2)], watermarks=(0, 3))
    for _ in range(2):
        assert values(monkeypatch, consumer) == [b"0", b"1", b"2"]
    assert consumer.calls == ["look up orders", "assign", "assign"]


def test_a_failed_look_up_leaves_the_read_to_its_own_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = FakeConsumer([message(0), message(1), message(2)], watermarks=(0, 3))
    consumer.unreachable = True
    assert values(monkeypatch, consumer) == [b"0", b"1", b"2"]


def test_the_newest_timestamp_of_a_range_is_told_once_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of its own records alone: one behind the end, or without a timestamp, does not count."""
    found = [
        Message(topic="orders", partition=0, offset=0, value=b"", timestamp=(1, 700)),
        Message(topic="orders", partition=0, offset=1, value=b"", timestamp=(2, 900)),
        Message(topic="orders", partition=0, offset=2, value=b"", timestamp=(0, 5_000)),
        Message(topic="orders", partition=0, offset=3, value=b"", timestamp=(1, 9_000)),
    ]
    consumer = FakeConsumer(found, watermarks=(0, 4))
    consumer.install(monkeypatch)
    told: list[tuple[SplitRange, int]] = []
    reading = READER.read_timed([split()], lambda *answer: told.append(answer))
    assert next(reading).num_rows == 3
    assert told == []
    assert list(reading) == []
    assert told == [(split(), 900)]


@pytest.mark.parametrize(("end", "is_known"), [(2, True), (3, False)], ids=["record", "marker"])
def test_a_follower_that_begins_anew_asks_whether_the_log_is_the_one_it_has_read(
    monkeypatch: pytest.MonkeyPatch, end: int, is_known: bool
) -> None:
    """Behind an unclean election its next records are others', and no driver has judged the place
    yet. Where a life begins one will; whose markers lie before a place nobody tells."""
    found = [message(0, leader_epoch=4), message(1, leader_epoch=5)]
    at_end = message(end, KafkaError(END, "end"))
    consumer = FakeConsumer([*found, at_end], [], watermarks=(0, 3))
    consumer.install(monkeypatch)
    follower = KafkaStreamingReader(reader=READER).follow([split(leader_epoch=4)], None)
    assert (consumer.places, consumer.checked) == ([(0, None)], [])
    follower.poll()
    follower.restart_at([replace(split(), start_offset=end)])
    assert consumer.is_closed, "what was read from before fetches nothing more"
    place = (end, 5 if is_known else None)
    assert (consumer.places, consumer.checked) == ([place], [place] if is_known else [])
    follower.restart_at([split()])
    assert (consumer.places, consumer.checked) == ([(0, None)], [])


def test_a_follower_tells_whose_its_first_record_is_where_nobody_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of what follows librdkafka asks each later leader, also behind a new beginning."""
    answers = [
        [message(n, leader_epoch=at) for n, at in some] for some in ([(0, 4), (1, 5)], [(2, 6)])
    ]
    consumer = FakeConsumer(*answers, [], watermarks=(0, 3))
    consumer.install(monkeypatch)
    follower = KafkaStreamingReader(reader=READER).follow([split(leader_epoch=3)], None)
    assert follower.records_read() == {}
    for read in ((2, 5, 4), (3, 6, 4)):
        follower.poll()
        assert follower.records_read() == {split().key: read}
    follower.restart_at([replace(split(), start_offset=3)])
    assert follower.records_read() == {split().key: (3, 6, 4)}
    follower.restart_at([split()])
    assert follower.records_read() == {}


def test_where_a_follower_begins_anew_behind_markers_nobody_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An epoch has ended there. Its next record may be a leader's that lacks what lies before."""
    first = [message(0, leader_epoch=4), message(2, KafkaError(END, "end"))]
    consumer = FakeConsumer(first, [message(2, leader_epoch=6)], [], watermarks=(0, 3))
    consumer.install(monkeypatch)
    follower = KafkaStreamingReader(reader=READER).follow([split(leader_epoch=4)], None)
    follower.poll()
    follower.restart_at([replace(split(), start_offset=2)])
    assert consumer.places == [(2, None)]
    assert follower.records_read() == {split().key: (1, 4, 4)}
    follower.poll()
    assert follower.records_read() == {split().key: (3, 6, 6)}


@pytest.mark.parametrize(("first_left", "place"), [(0, 0), (1, 1), (2, 2)])
def test_a_follower_goes_on_before_the_markers_that_it_has_passed(
    monkeypatch: pytest.MonkeyPatch, first_left: int, place: int
) -> None:
    """Other records may be in their place by now; of those that were deleted nothing is left."""
    events = [message(2, KafkaError(END, "end")), message(2, KafkaError(OUT_OF_RANGE, "no"))]
    consumer = FakeConsumer(events, [], watermarks=(first_left, 2))
    consumer.install(monkeypatch)
    follower = KafkaStreamingReader(reader=READER).follow([split()], None)
    follower.poll()
    assert consumer.places == [(place, None)]
    assert follower.positions() == {split().key: 2}


@pytest.mark.parametrize("watermarks", [None, (0, 1)], ids=["no answer", "a shorter log"])
def test_a_follower_whose_place_is_refused_asks_for_it_again_later(
    monkeypatch: pytest.MonkeyPatch, watermarks: tuple[int, int] | None
) -> None:
    """What becomes of it the driver says; nothing is asked for there meanwhile."""
    clock = FakeClock()
    monkeypatch.setattr(
        "sluice.connectors.kafka.source.reader.range_reader.time", SimpleNamespace(monotonic=clock)
    )
    refused = message(2, KafkaError(OUT_OF_RANGE, "no"))
    consumer = FakeConsumer([refused], [], watermarks=watermarks)
    consumer.install(monkeypatch)
    follower = KafkaStreamingReader(reader=READER).follow(
        [replace(split(), start_offset=2, end_offset=2)], None
    )
    follower.poll()
    assert consumer.assigned == set()
    follower.poll()
    assert consumer.assigned == set()
    clock.pass_time(1.5)
    follower.poll()
    assert consumer.assigned == {("orders", 0)}
    assert consumer.places == [(2, None)]
    follower.close()
    assert consumer.is_closed


def test_what_a_follower_may_not_read_it_does_not_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = message(0, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    consumer = FakeConsumer([refused], [], watermarks=(0, 3))
    consumer.install(monkeypatch)
    follower = KafkaStreamingReader(reader=READER).follow([split()], None)
    with pytest.raises(AuthenticationError, match="orders-0"):
        follower.poll()


# --- log-ins that are refused -----------------------------------------------------------------


class RefusedConsumer(FakeConsumer):
    """Is refused a log-in at its first look, and tells it once; a look takes a second."""

    def __init__(self, *answers: Sequence[Message], broker_answers: bool) -> None:
        super().__init__(*answers, watermarks=(0, 3))
        self.unreachable = not broker_answers
        self.clock = FakeClock()
        self.refusals = LoginRefusals({"servers": "fake:9092"}, clock=self.clock)
        self._began_s = self.clock()

    def consume(self, most: int, timeout_s: float) -> Sequence[Message]:
        if self.clock() == self._began_s:
            self.refusals.note(KafkaError(NOT_LOGGED_IN, "the token endpoint answered 503"))
        self.clock.pass_time(1.0)
        return super().consume(most, timeout_s)

    @property
    def lasted_s(self) -> float:
        """How long it has been read from."""
        return self.clock() - self._began_s

    def follow(self, monkeypatch: pytest.MonkeyPatch, *, polls: int) -> int:
        """The position in orders-0 of who follows it from 0 on, after so many looks."""
        self.install(monkeypatch)
        follower = KafkaStreamingReader(reader=READER).follow([split()], None)
        for _ in range(polls):
            follower.poll()
        return follower.positions()[split().key]

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever reads gets this one."""
        monkeypatch.setattr(
            consumers,
            "_connect",
            lambda key: PooledConsumer(consumer=self, key=key, refusals=self.refusals),
        )


def test_one_refused_log_in_ends_nothing_while_a_broker_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token is renewed while the old one is valid: the task goes on, also where nothing comes for
    minutes."""
    consumer = RefusedConsumer(*[[] for _ in range(200)], [message(0)], broker_answers=True)
    assert consumer.follow(monkeypatch, polls=201) == 1
    assert consumer.calls.count("look up orders") == 2  # at the start, and once for the refusal


def test_a_log_in_that_is_refused_for_good_is_said_within_half_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But not before a token that could not be had was asked for again, which takes 10 s."""
    consumer = RefusedConsumer([], broker_answers=False)
    with pytest.raises(AuthenticationError, match="503"):
        consumer.follow(monkeypatch, polls=1_000)
    assert 12 < consumer.lasted_s < 20  # 5 s for the topic's leader, and a second for each look


@pytest.mark.parametrize("sign", [message(0), message(0, KafkaError(END, "end"))], ids=["r", "e"])
def test_a_refusal_is_over_when_records_or_an_end_come(
    monkeypatch: pytest.MonkeyPatch, sign: Message
) -> None:
    consumer = RefusedConsumer([], [sign], [], broker_answers=False)
    consumer.follow(monkeypatch, polls=100)
    assert consumer.lasted_s > 60


def test_a_read_of_a_range_survives_a_refused_log_in_too(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [message(offset) for offset in range(3)]
    consumer = RefusedConsumer([], [], records, broker_answers=True)
    assert values(monkeypatch, consumer) == [b"0", b"1", b"2"]
