"""Rule `lease-guards-outputs`: one job at a time uses a transactional id prefix."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import pytest

from sluice.connectors.kafka.sink.committer.transaction_lease import lease_group
from sluice.runtime.contracts import SinkContext, SinkCoordinator
from sluice.runtime.errors import FencedError
from sluice.runtime.ownership.lease import (
    RENEWAL_INTERVAL_S,
    WATCHED_INTERVALS,
    Lease,
    LeasedOutput,
    LeaseRecord,
)
from sluice.runtime.ownership.lease_watch import _RETRY_FOR_S, LeaseWatch
from tests.kit.threads.switched_threads import Process, Switched

WATCH_S = RENEWAL_INTERVAL_S * WATCHED_INTERVALS


@dataclass
class FakeStore:
    """The record in memory; ``on_sleep`` is what another job does meanwhile."""

    record: LeaseRecord | None = None
    now_s: float = 0.0
    on_sleep: Callable[[], None] | None = None
    written: list[LeaseRecord] = field(default_factory=list)

    def read(self) -> LeaseRecord | None:
        return self.record

    def write(self, record: LeaseRecord) -> None:
        """See `LeaseStore.write`; through the codec, as Kafka would give it back."""
        self.written.append(record)
        self.record = LeaseRecord.decode(record.encode())

    def close(self) -> None:
        """See `LeaseStore.close`."""

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.on_sleep is not None:
            self.on_sleep()


@dataclass
class SlowStore(FakeStore):
    """A write that was on its way lands after the next one."""

    on_its_way: LeaseRecord | None = None

    def write(self, record: LeaseRecord) -> None:
        super().write(record)
        late, self.on_its_way = self.on_its_way, None
        if late is not None:
            self.record = late


def _claim(
    store: FakeStore,
    *,
    uid: str = "u1",
    uri: str = "file:/a",
    session: str,
    slept: Callable[[], float] = lambda: 0.0,
) -> Lease:
    context = SinkContext(
        job_uid=uid, job_name="job", operator_id="op", checkpoint_uri=uri, leader_session_id=session
    )
    owned = LeasedOutput(kind="transactional id prefix", name="orders", remedy="Take another one.")
    return Lease(store, context, owned, clock=lambda: store.now_s, sleep=store.sleep, slept=slept)


def test_lease_guards_outputs_a_free_prefix_is_taken_at_once() -> None:
    store = FakeStore()
    _claim(store, session="s1").acquire()

    assert store.record is not None
    assert (store.record.job_uid, store.record.session) == ("u1", "s1")
    assert store.now_s == 0


def test_lease_guards_outputs_the_same_job_and_directory_takes_over_at_once() -> None:
    """Rule `lease-guards-outputs`: a restart; the seal stops the older coordinator, the record
    reports it why."""
    store = FakeStore()
    older = _claim(store, session="s1")
    older.acquire()
    _claim(store, session="s2").acquire()

    assert store.now_s == 0
    with pytest.raises(FencedError, match="another run of this job"):
        older.renew()


def test_lease_guards_outputs_a_take_over_names_the_run_that_may_still_live(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A run that has ended gave its record back."""
    store = FakeStore()
    older = _claim(store, session="s1")
    older.acquire()
    _claim(store, session="s1").acquire()  # its second sink
    assert caplog.records == []
    host = socket.gethostname()
    newer = _claim(store, session="s2")
    newer.acquire()
    _claim(store, session="s2").acquire()
    newer.renew()
    (told,) = caplog.records
    assert told.levelname == "WARNING"
    assert told.getMessage().startswith(
        f"took over the lease of a run that may still run: name=orders job=u1 host={host} session=s1 "
    )
    newer.release()
    _claim(store, session="s3").acquire()
    assert len(caplog.records) == 1


def test_lease_guards_outputs_a_renewal_that_slept_does_not_end_the_newer_run() -> None:
    """It had looked before the newer run wrote. Its job finds that record the next time."""
    store = FakeStore()
    older, newer = _claim(store, session="s1"), _claim(store, session="s2")
    older.acquire()
    on_its_way = store.record
    newer.acquire()
    store.record = on_its_way
    newer.renew()
    assert store.record is not None
    assert store.record.session == "s2"
    with pytest.raises(FencedError):
        older.renew()


def test_lease_guards_outputs_a_renewal_that_slept_does_not_end_the_start_either() -> None:
    """It lands between the newer run's write and its look."""
    store = SlowStore()
    _claim(store, session="s1").acquire()
    store.on_its_way = store.record
    _claim(store, session="s2").acquire()
    assert store.record is not None
    assert store.record.session == "s2"


def test_lease_guards_outputs_a_renewal_that_slept_does_not_end_a_job_of_two_sinks() -> None:
    """Both have the prefix; the second one finds the first one's record, not the older run's."""
    store = FakeStore()
    _claim(store, session="s1").acquire()
    late = store.record
    first, second = _claim(store, session="s2"), _claim(store, session="s2")
    first.acquire()
    second.acquire()
    store.record = late
    second.renew()
    first.renew()
    assert store.record is not None
    assert store.record.session == "s2"


def test_lease_guards_outputs_a_copy_of_the_job_that_lives_on_ends_one_of_both() -> None:
    """The same directory's name on another machine: no seal stops it, and it keeps writing."""
    store = FakeStore()
    older, newer = _claim(store, session="s1"), _claim(store, session="s2")
    older.acquire()
    theirs = store.record
    newer.acquire()
    for _ in range(2):  # as a late renewal does
        store.record = theirs
        newer.renew()
    store.record = theirs
    with pytest.raises(FencedError):
        newer.renew()


@pytest.mark.parametrize(("uid", "uri"), [("u2", "file:/b"), ("u1", "file:/b"), ("u2", "file:/a")])
def test_lease_guards_outputs_a_second_live_job_is_refused_before_it_writes(
    uid: str, uri: str
) -> None:
    """Rule `lease-guards-outputs`: the record changes while it is watched, so the other job
    lives."""
    store = FakeStore()
    first = _claim(store, session="s1")
    first.acquire()
    store.on_sleep = first.renew
    before = len(store.written)

    with pytest.raises(FencedError) as caught:
        _claim(store, uid=uid, uri=uri, session="s2").acquire()

    assert {record.session for record in store.written} == {"s1"}
    assert len(store.written) > before  # only the holder's own renewals
    assert caught.value.args[1]["checkpoint"] == "file:/a"


def test_lease_guards_outputs_a_dead_jobs_record_is_taken_after_three_intervals() -> None:
    """Rule `lease-guards-outputs`: no clocks are compared; the record is watched for a fixed
    time."""
    store = FakeStore()
    _claim(store, uid="dead", session="s1").acquire()
    _claim(store, session="s2").acquire()

    assert store.now_s == pytest.approx(RENEWAL_INTERVAL_S * WATCHED_INTERVALS)
    assert store.record is not None
    assert store.record.session == "s2"


def test_lease_guards_outputs_a_live_holder_renews_within_the_watch() -> None:
    """Rule `lease-guards-outputs`: one renewal at the very end of the watch is enough to be
    seen."""
    store = FakeStore()
    first = _claim(store, uid="other", session="s1")
    first.acquire()

    def renew_once() -> None:
        if store.now_s >= RENEWAL_INTERVAL_S * WATCHED_INTERVALS - 1:
            first.renew()

    store.on_sleep = renew_once
    with pytest.raises(FencedError):
        _claim(store, session="s2").acquire()


def test_lease_guards_outputs_a_record_given_back_while_watched_is_free() -> None:
    """Rule `lease-guards-outputs`: the other job ends in time."""
    store = FakeStore()
    first = _claim(store, uid="other", session="s1")
    first.acquire()
    store.on_sleep = first.release
    _claim(store, session="s2").acquire()

    assert store.now_s < RENEWAL_INTERVAL_S
    assert store.record is not None
    assert store.record.session == "s2"


def test_lease_guards_outputs_a_holder_that_was_replaced_stops_and_does_not_write() -> None:
    """Rule `lease-guards-outputs`: it finds another session in the record; also giving back leaves
    that alone."""
    store = FakeStore()
    first = _claim(store, session="s1")
    first.acquire()
    _claim(store, session="s2").acquire()
    count = len(store.written)

    with pytest.raises(FencedError):
        first.renew()
    first.release()

    assert len(store.written) == count


def test_lease_guards_outputs_of_two_that_start_at_once_one_is_refused() -> None:
    """Rule `lease-guards-outputs`: both found the prefix free; the last writer has it, the other
    one sees that."""

    class Racing(FakeStore):
        def write(self, record: LeaseRecord) -> None:
            super().write(record)
            if record.session == "s1":
                _claim(self, uid="u2", uri="file:/b", session="s2")._write()  # noqa: SLF001

    with pytest.raises(FencedError):
        _claim(Racing(), session="s1").acquire()


@dataclass
class SlowAnswers(FakeStore):
    """Each call takes its time; when the writes landed."""

    call_s: float = 0.0
    written_at_s: list[float] = field(default_factory=list)

    def read(self) -> LeaseRecord | None:
        self.now_s += self.call_s
        return super().read()

    def write(self, record: LeaseRecord) -> None:
        self.now_s += self.call_s
        self.written_at_s.append(self.now_s)
        super().write(record)


@dataclass
class PausingStore(FakeStore):
    """``on_write`` happens between the look and the write of a renewal; its host sleeps, too."""

    slept_s: float = 0.0
    on_write: Callable[[], None] | None = None

    def write(self, record: LeaseRecord) -> None:
        happens, self.on_write = self.on_write, None
        if happens is not None:
            happens()
        super().write(record)


@pytest.mark.parametrize("asleep", [False, True])
def test_lease_guards_outputs_who_renews_after_a_pause_looks_whether_it_was_taken_for_dead(
    asleep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short the renewal is: the pause began before it, or the host's clock hung in
    it. Another run has watched meanwhile, and takes the name between the look and the write."""
    store = PausingStore()
    older = _claim(store, session="s1", slept=lambda: store.slept_s)
    older.acquire()
    newer = _claim(store, uri="file:/copy", session="s2")
    monkeypatch.setattr(newer, "_watch", lambda _: None)  # it has

    def meanwhile() -> None:
        store.slept_s = WATCH_S if asleep else 0.0
        newer.acquire()
        store.on_sleep = newer.renew

    store.now_s = 0.0 if asleep else WATCH_S
    store.on_write = meanwhile
    with pytest.raises(FencedError, match="another job"):
        older.renew()
    assert store.record is not None
    assert store.record.session == "s2"


def test_lease_guards_outputs_a_run_whose_store_is_slow_never_looks_dead() -> None:
    """Its second look takes time, too: the record of a run that lives changes within a watch."""
    store = SlowAnswers()
    claim = _claim(store, session="s1")
    claim.acquire()
    store.now_s += WATCH_S
    store.call_s = 2.0
    for _ in range(5):
        claim.renew()
        store.now_s += RENEWAL_INTERVAL_S
    behind = [after - before for before, after in pairwise(store.written_at_s)]
    assert max(behind[1:]) < WATCH_S
    assert behind[-1] < 2 * RENEWAL_INTERVAL_S, "it has caught up"


def test_lease_guards_outputs_a_renewal_that_slept_does_not_end_a_newer_run_that_looks_twice() -> (
    None
):
    """The newer one was paused, too, and the older one's write lands between its looks."""
    store = FakeStore()
    older, newer = _claim(store, session="s1"), _claim(store, session="s2")
    older.acquire()
    on_its_way = store.record
    newer.acquire()

    def lands() -> None:
        store.record, store.on_sleep = on_its_way, None

    store.now_s, store.on_sleep = store.now_s + WATCH_S, lands
    newer.renew()
    newer.renew()
    assert store.record is not None
    assert store.record.session == "s2"


def test_lease_guards_outputs_who_was_taken_over_ends_though_it_writes_over_the_answer() -> None:
    """Its late renewal writes twice: once over the record of the run that took over, and once over
    what that one wrote upon finding it."""
    store = PausingStore()
    older, newer = _claim(store, session="s1"), _claim(store, session="s2")
    older.acquire()
    store.now_s, store.on_write = WATCH_S, newer.acquire

    def answer() -> None:
        store.on_write, store.on_sleep = newer.renew, None

    store.on_sleep = answer
    older.renew()
    newer.renew()
    with pytest.raises(FencedError):
        older.renew()
    newer.renew()


def test_lease_guards_outputs_who_was_taken_over_ends_though_the_record_was_given_back_meanwhile() -> (
    None
):
    store = PausingStore()
    older, newer = _claim(store, session="s1"), _claim(store, session="s2")
    older.acquire()
    store.now_s, store.on_write = WATCH_S, newer.acquire

    def end() -> None:
        store.on_sleep = None
        newer.renew()
        newer.release()

    store.on_sleep = end
    with pytest.raises(FencedError, match="another run may have used it"):
        older.renew()


def test_lease_guards_outputs_who_finds_no_record_after_a_pause_ends() -> None:
    """Another run had it, and gave it back: what this one has open was swept."""
    store = FakeStore()
    older, newer = _claim(store, session="s1"), _claim(store, uri="file:/copy", session="s2")
    older.acquire()
    newer.acquire()
    newer.release()
    with pytest.raises(FencedError, match="lease on the transactional id prefix expired"):
        older.renew()
    assert store.record is not None
    assert (store.record.session, store.record.is_ended) == ("s2", True)
    assert [record.renewals for record in store.written] == [1, 1, 2]


def test_lease_guards_outputs_a_record_that_somebody_deletes_is_written_again() -> None:
    store = FakeStore()
    claim = _claim(store, session="s1")
    claim.acquire()
    store.now_s, store.record = 2 * RENEWAL_INTERVAL_S, None
    claim.renew()
    assert store.record is not None


def test_lease_guards_outputs_who_renews_in_time_looks_once() -> None:
    store = FakeStore()
    claim = _claim(store, session="s1")
    claim.acquire()
    for _ in range(5):
        store.now_s += 2 * RENEWAL_INTERVAL_S
        before_s = store.now_s
        claim.renew()
        assert store.now_s == before_s


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"v":3}', "not json", '{"v":1,"uid":1}'])
def test_a_foreign_record_is_no_owner(text: str) -> None:
    assert LeaseRecord.decode(text) is None


def test_a_record_fits_kafkas_offset_metadata() -> None:
    """4096 bytes is the broker's default; a very long directory is cut at its front."""
    store = FakeStore()
    long_uri = "hdfs://name/" + "d" * 9000
    _claim(store, uri=long_uri, session="s" * 36).acquire()
    _claim(store, uri=long_uri, session="t" * 36).acquire()

    assert store.now_s == 0
    assert store.record is not None
    assert len(store.record.encode()) < 4096
    assert lease_group("orders") == "sluice-lease.orders"


_FENCED = FencedError("another job uses this prefix", {}, "Stop one of them.")
_INTERVAL_S = 5.0
_PAUSE_S = 600.0


class Job:
    """A process with one record.

    Args:
        look: what a renewal does.

    Attributes:
        looks: renewals that have ended.
    """

    def __init__(self, look: Callable[["Job"], None]) -> None:
        self.switched = Switched(lambda _: 0)
        self.process = Process("job")
        self.looks = 0
        self._look = look

    def renew(self) -> None:
        try:
            self._look(self)
        finally:
            self.looks += 1

    def pause_in(self, after_s: float) -> None:
        def pause() -> None:
            self.switched.sleep(after_s)
            self.process.stopped_until_s = self.switched.now_s + _PAUSE_S

        self.switched.spawn(pause, process=Process("host"), name="sleep")

    def live(self, main: Callable[[LeaseWatch], None]) -> None:
        with self.switched.in_modules("sluice.runtime.ownership.lease_watch"):
            sinks = cast(Mapping[str, SinkCoordinator], {"sink": self})
            clock = self.switched.clock

            def run() -> None:
                owners = LeaseWatch(sinks, interval_s=_INTERVAL_S, age_clock=clock)
                owners.start()
                main(owners)
                owners.stop(timeout_s=0.0)

            thread = self.switched.spawn(run, process=self.process, name="main")
            try:
                assert self.switched.run(lambda: not thread.is_alive(), most_turns=10_000)
            finally:
                self.switched.end()


def test_lease_guards_outputs_a_decision_waits_from_the_beginning_after_a_pause() -> None:
    """Its patience had nearly run out when the host slept, and another job has the record since:
    the look that finds it was paused, too."""

    def look(job: Job) -> None:
        job.switched.sleep(_RETRY_FOR_S - 0.5)  # that is over while the host sleeps
        job.switched.sleep(6.0)
        raise _FENCED

    def main(owners: LeaseWatch) -> None:
        job.pause_in(_RETRY_FOR_S - 1.0)
        with pytest.raises(FencedError):
            owners.require()

    job = Job(look)
    job.live(main)
    assert job.looks == 1


def test_lease_guards_outputs_a_decision_waits_so_long_and_no_longer_for_a_look_that_hangs() -> (
    None
):
    took_s = list[float]()

    def main(owners: LeaseWatch) -> None:
        began_s = job.switched.now_s
        owners.require()
        took_s.append(job.switched.now_s - began_s)

    job = Job(lambda job: job.switched.sleep(_PAUSE_S))
    job.live(main)
    assert took_s == [pytest.approx(_RETRY_FOR_S, abs=0.5)]


@pytest.mark.parametrize(("timeout_s", "looks"), [(60.0, 1), (1.0, 0)])
def test_the_end_of_a_watch_waits_for_a_look_under_way(timeout_s: float, looks: int) -> None:
    """Its client is closed after that. But not for ever, for it may hang."""

    def main(owners: LeaseWatch) -> None:
        job.switched.sleep(_INTERVAL_S + 0.5)
        owners.stop(timeout_s=timeout_s)
        assert job.looks == looks

    job = Job(lambda job: job.switched.sleep(3.0))
    job.live(main)
