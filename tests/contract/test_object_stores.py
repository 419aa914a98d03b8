"""Checkpoints on an S3 server behind a proxy that delays, drops, repeats, refuses and truncates."""

import contextlib
import itertools
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import pytest

from sluice.runtime.checkpoint.checkpoint_slots import METADATA, slot_name
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.resumable_attempts import ListedAttempts, ResumableAttempts
from sluice.runtime.checkpoint.retained_states import KeptStates
from sluice.runtime.checkpoint.retention import name_other_records
from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    StorageError,
    StorageUnreachableError,
)
from sluice.runtime.model.checkpoint_record import FENCING, Verdict
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.files.published_records import TIMEOUT_S, publish
from tests.kit.objects.s3_fixture import ProxiedBucket, S3Bucket
from tests.kit.objects.s3_proxy import Fault, FaultKind, S3Request, random_faults

T = TypeVar("T")
_RECORD = r"/_metadata$"
_FAST = {"timeout": "5s"}


def opened(bucket: S3Bucket, **options: str) -> FileSystem:
    """The directory ``job`` of a bucket."""
    found = {**bucket.storage_options, **_FAST, **options}
    return open_file_system(f"{bucket.uri}/job", storage_options=found)


def store_at(bucket: S3Bucket, **options: str) -> CheckpointStore:
    """The checkpoints there."""
    return CheckpointStore(opened(bucket, **options))


def repeated(call: Callable[..., T], *arguments: object, **named: object) -> T:
    """As a job repeats a call that was not answered."""
    for _ in range(50):
        with contextlib.suppress(StorageError):
            return call(*arguments, **named)
    raise AssertionError("no call was answered")


@pytest.mark.parametrize(
    "kind",
    [
        FaultKind.DROPPED_BEFORE,
        FaultKind.DROPPED_AFTER,
        FaultKind.REPEATED,
        FaultKind.REFUSED,
        FaultKind.REFUSED_AFTER,
        FaultKind.STRANGE,
    ],
)
@pytest.mark.parametrize(("status", "times"), [(500, 1), (503, 3)])
def test_publish_whole_a_fault_of_the_put_is_settled_by_reading_back(
    s3_proxied: ProxiedBucket, kind: FaultKind, status: int, times: int
) -> None:
    """The record stands once and whole, and its publisher knows."""
    s3_proxied.proxy.add(kind, method="PUT", key=_RECORD, times=times, status=status)
    publish(store_at(s3_proxied), record(1))
    assert store_at(s3_proxied.direct).read(1) == record(1)
    other = record(1, leader_session_id="second")
    assert store_at(s3_proxied).publish(other, timeout_s=TIMEOUT_S) is PublishOutcome.TAKEN


def test_publish_whole_a_412_for_another_reason_is_no_decision(s3_proxied: ProxiedBucket) -> None:
    """The slot is empty although the store said that it is taken: the publisher tries again."""
    s3_proxied.proxy.add(FaultKind.REFUSED, method="PUT", key=_RECORD, times=2, status=412)
    publish(store_at(s3_proxied), record(1))


@pytest.mark.parametrize("status", [409, 412])
def test_publish_whole_a_refused_slot_that_stays_empty_is_unknown(
    s3_proxied: ProxiedBucket, status: int
) -> None:
    s3_proxied.proxy.add(FaultKind.REFUSED, method="PUT", key=_RECORD, times=None, status=status)
    clock = itertools.count()
    store = CheckpointStore(opened(s3_proxied), clock=lambda: next(clock), pause=lambda _: None)
    assert store.publish(record(1), timeout_s=3) is PublishOutcome.UNKNOWN
    assert store.read(1) is None


def test_publish_whole_a_late_put_changes_no_slot_that_is_closed(s3_proxied: ProxiedBucket) -> None:
    """The decision is on its way when its run gives it up: the first record that lands stands."""
    late = s3_proxied.proxy.add(FaultKind.HELD, method="PUT", key=_RECORD)
    with ThreadPoolExecutor(1) as pool:
        decision = pool.submit(
            store_at(s3_proxied, timeout="60s").publish, record(1), timeout_s=TIMEOUT_S
        )
        late.wait()
        aborted = record(1, verdict=Verdict.ABORTED)
        publish(store_at(s3_proxied.direct), aborted)
        late.release()
        assert decision.result(TIMEOUT_S) is PublishOutcome.TAKEN
    assert store_at(s3_proxied.direct).read(1) == aborted


def test_a_late_put_lists_no_ended_attempt_again(s3_proxied: ProxiedBucket) -> None:
    """A list that was given up and repeated lands once more, after the work of an attempt that the
    next list leaves out was aborted."""
    late = s3_proxied.proxy.add(FaultKind.HELD, method="PUT", key=r"/_attempts-")
    attempts = ResumableAttempts(opened(s3_proxied, timeout="60s"))
    first = ListedAttempts(run_attempt_id=5, resumed_from=3, attempts={"main": 5})
    with ThreadPoolExecutor(1) as pool:
        given_up = pool.submit(attempts.write, first)
        late.wait()
        attempts.write(replace(first, attempts={"main": 7}))
        late.release()
        given_up.result(TIMEOUT_S)
    found = ResumableAttempts(opened(s3_proxied.direct))
    assert found.before(9).attempts == found.running() == {"main": 7}


def test_lists_of_attempts_do_not_pile_up(s3: S3Bucket) -> None:
    """The last two of a run stay: another process may be about to read the one before the last."""
    fs = opened(s3)
    attempts = ResumableAttempts(fs)
    first = ListedAttempts(run_attempt_id=5, resumed_from=3)
    for each in range(12):
        attempts.write(replace(first, attempts={"main": each}))
    assert [each.name for each in fs.entries("")] == ["_attempts-5-10", "_attempts-5-11"]
    assert attempts.before(6).attempts == {"main": 11}
    later = ResumableAttempts(fs)
    later.write(replace(first, run_attempt_id=40))
    later.forget_before(40)
    assert [each.name for each in fs.entries("")] == ["_attempts-40"]


def test_fence_first_of_two_coordinators_on_one_bucket_one_decides(
    s3_proxied: ProxiedBucket,
) -> None:
    """Behind a proxy with faults at every tenth request; each one knows whose record stands."""
    s3_proxied.proxy.choose = random_faults(seed=40, probability=0.1)
    names = ("first", "second")

    def decide(name: str) -> list[PublishOutcome]:
        store = store_at(s3_proxied)
        mine = (record(each, leader_session_id=name) for each in range(1, 11))
        return [repeated(store.publish, each, timeout_s=TIMEOUT_S) for each in mine]

    with ThreadPoolExecutor(2) as pool:
        answers = dict(zip(names, pool.map(decide, names, timeout=TIMEOUT_S), strict=True))
    standing = store_at(s3_proxied.direct)
    for place in range(1, 11):
        found = standing.read(place)
        assert found is not None
        for name in names:
            ours = found.leader_session_id == name
            wanted = PublishOutcome.OURS if ours else PublishOutcome.TAKEN
            assert answers[name][place - 1] is wanted


def test_publish_whole_a_killed_deletion_leaves_no_checkpoint(s3_proxied: ProxiedBucket) -> None:
    """The record goes first, in a request of its own."""
    store = store_at(s3_proxied)
    publish(store, record(1))
    store.mark_committed(1)
    deletions = 0

    def only_one(request: S3Request) -> Fault | None:
        nonlocal deletions
        deletions += request.method == "DELETE" or "delete" in request.query
        return None if deletions <= 1 else Fault(kind=FaultKind.REFUSED, status=403)

    s3_proxied.proxy.choose = only_one
    with pytest.raises(AuthenticationError):
        store.fs.delete(slot_name(1))
    left = store_at(s3_proxied.direct)
    assert left.read(1) is None
    assert left.fs.entries(slot_name(1)) != []


@pytest.mark.parametrize("seed", range(3))
def test_checkpoints_live_with_random_faults(s3_proxied: ProxiedBucket, seed: int) -> None:
    """Published, marked, listed and retired, with each call repeated as a job repeats it."""
    s3_proxied.proxy.choose = random_faults(seed=seed, probability=0.15)
    store = store_at(s3_proxied)

    for place in range(1, 8):
        found = repeated(store.publish, record(place), timeout_s=TIMEOUT_S)
        assert found is PublishOutcome.OURS
        repeated(store.mark_committed, place)
        repeated(lambda: store.retire(store.retirable(retain=2)))
    direct = store_at(s3_proxied.direct)
    assert [place for place in direct.slots() if direct.is_committed(place)] == direct.slots()
    assert direct.slots()[-2:] == [6, 7]
    assert direct.read(7) == record(7)


def test_an_answer_that_was_cut_short_is_asked_for_again(s3_proxied: ProxiedBucket) -> None:
    store = store_at(s3_proxied)
    publish(store, record(1))
    s3_proxied.proxy.add(FaultKind.TRUNCATED, method="GET", times=2)
    assert store.slots() == [1]
    s3_proxied.proxy.add(FaultKind.TRUNCATED, method="GET", key=_RECORD, times=2)
    assert store.read(1) == record(1)


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.read(1),
        lambda store: store.is_committed(1),
        lambda store: store.slots(),
        lambda store: store.fs.exists("chk-000000000001/_metadata"),
    ],
    ids=["record", "marker", "listing", "look"],
)
def test_a_404_of_another_server_does_not_mean_that_there_is_nothing(
    s3_proxied: ProxiedBucket, ask: Callable[[CheckpointStore], object]
) -> None:
    """A proxy whose store is away may answer so."""
    store = store_at(s3_proxied)
    publish(store, record(1))
    there = ask(store)
    s3_proxied.proxy.add(FaultKind.STRANGE, method="GET", times=3)
    assert ask(store) == there
    s3_proxied.proxy.add(FaultKind.STRANGE, method="GET", times=None)
    with pytest.raises(StorageUnreachableError):
        ask(store)


def test_an_empty_answer_of_another_server_is_no_damaged_record(s3_proxied: ProxiedBucket) -> None:
    """A damaged record protects no file that waits for a later epoch; a start would delete it."""
    publish(store_at(s3_proxied), record(0))
    s3_proxied.proxy.add(FaultKind.BLANK, method="GET", key=_RECORD, times=None)
    with pytest.raises(StorageUnreachableError):
        store_at(s3_proxied).read(0)
    s3_proxied.proxy.clear()
    late = s3_proxied.proxy.add(FaultKind.BLANK, method="GET", key=_RECORD, times=2)
    kept = repeated(KeptStates.read, store_at(s3_proxied))
    assert late.seen
    assert not kept.has_damaged


def test_half_a_record_is_never_read(s3_proxied: ProxiedBucket) -> None:
    publish(store_at(s3_proxied), record(1))
    s3_proxied.proxy.add(FaultKind.TRUNCATED, method="GET", key=_RECORD, times=None)
    with pytest.raises(StorageError):
        store_at(s3_proxied).read(1)


class TestRefusals:
    def test_publish_whole_a_store_that_ignores_the_condition_is_refused_at_the_start(
        self, s3_proxied: ProxiedBucket
    ) -> None:
        """Before its first record; nothing is left there."""
        s3_proxied.proxy.add(FaultKind.UNCONDITIONAL, times=None)
        with pytest.raises(ConfigError, match=r"ignores the condition of a put.*If-None-Match"):
            store_at(s3_proxied).publish(record(0), timeout_s=TIMEOUT_S)
        assert opened(s3_proxied.direct).entries("") == []

    def test_a_store_without_conditional_puts_is_refused(self, s3_proxied: ProxiedBucket) -> None:
        conditional = re.compile(r"sluice-condition")
        s3_proxied.proxy.choose = lambda request: (
            _unsupported(request) if conditional.search(request.key) else None
        )
        with pytest.raises(ConfigError, match=r"conditional puts"):
            store_at(s3_proxied).publish(record(0), timeout_s=TIMEOUT_S)

    def test_a_missing_bucket_is_named(self, s3: S3Bucket) -> None:
        found = open_file_system("s3://not-there/job", storage_options=s3.storage_options)
        with pytest.raises(ConfigError, match=r"bucket does not exist.*s3://not-there"):
            CheckpointStore(found).slots()

    @pytest.mark.parametrize("status", [403, 400])
    def test_wrong_and_expired_credentials_are_named(
        self, s3_proxied: ProxiedBucket, status: int
    ) -> None:
        s3_proxied.proxy.add(FaultKind.REFUSED, status=status, times=None)
        with pytest.raises(AuthenticationError, match=r"InvalidAccessKeyId|ExpiredToken"):
            store_at(s3_proxied).publish(record(0), timeout_s=TIMEOUT_S)

    def test_a_server_that_is_away_is_an_outage(self, s3: S3Bucket) -> None:
        away = {**s3.storage_options, "aws_endpoint_url": "http://127.0.0.1:9"}
        found = open_file_system(f"{s3.uri}/job", storage_options=away)
        with pytest.raises(StorageUnreachableError):
            found.read("x")

    def test_a_store_that_slows_down_is_an_outage(self, s3_proxied: ProxiedBucket) -> None:
        s3_proxied.proxy.add(FaultKind.REFUSED, status=503, times=None)
        with pytest.raises(StorageUnreachableError, match=r"code=SlowDown"):
            opened(s3_proxied).read("x")


def _unsupported(request: S3Request) -> Fault | None:
    return Fault(kind=FaultKind.REFUSED, status=501) if request.conditional else None


class TestCosts:
    def test_a_checkpoint_costs_the_same_after_many(self, s3_proxied: ProxiedBucket) -> None:
        """Requests of a checkpoint do not grow with those before."""
        store = store_at(s3_proxied)
        publish(store, record(0))
        costs = []
        for place in range(1, 41):
            s3_proxied.proxy.requests.clear()
            publish(store, record(place))
            assert len(s3_proxied.proxy.requests) == 1 or place == 1, "a decision is one request"
            store.mark_committed(place)
            store.retire(store.retirable(retain=3))
            costs.append(len(s3_proxied.proxy.requests))
        assert max(costs[20:]) == max(costs[5:15]) <= 15
        assert len(store.fs.entries("")) <= 6

    def test_a_start_costs_the_same_after_many(self, s3_proxied: ProxiedBucket) -> None:
        """Each one leaves a fencing record for ever; no request is made for each of them."""
        costs = []
        for start in range(40):
            s3_proxied.proxy.requests.clear()
            store, session = store_at(s3_proxied), f"run-{start}"
            others = name_other_records(store.slots(), store.known_fencing_records())
            fencing = record(
                2 * start,
                leader_session_id=session,
                verdict=Verdict.ABORTED,
                requested_by=FENCING,
                settings=others,
            )
            publish(store, fencing, record(2 * start + 1, leader_session_id=session))
            store.mark_committed(2 * start + 1)
            store.retire(store.retirable(retain=1))
            costs.append(len(s3_proxied.proxy.requests))
        assert max(costs[20:]) == max(costs[12:20]) <= 60


class TestDeletion:
    def test_a_record_goes_before_its_markers(self, s3_proxied: ProxiedBucket) -> None:
        store = store_at(s3_proxied)
        publish(store, record(1))
        store.mark_committed(1)
        s3_proxied.proxy.requests.clear()
        store.fs.delete(slot_name(1))
        deletes = [r for r in s3_proxied.proxy.requests if r.method in ("DELETE", "POST")]
        assert len(deletes) == 2
        assert store.fs.entries("") == []

    def test_markers_of_a_deleted_job_do_not_mark_the_next_one(self, s3: S3Bucket) -> None:
        """The deletion was killed after the record was gone."""
        before = store_at(s3)
        publish(before, record(0), record(1))
        before.mark_committed(1)
        for place in (0, 1):
            before.fs.delete(f"{slot_name(place)}/{METADATA}")
        store = store_at(s3)
        publish(store, record(0, job_uid="another"), record(1, job_uid="another"))
        assert not store.is_committed(1)


class TestLargeObjects:
    def test_objects_of_many_parts_come_back_whole(self, s3: S3Bucket) -> None:
        fs = opened(s3, timeout="60s")
        data = bytes(range(256)) * (80_000)
        fs.write_temporary("large", data)
        assert fs.length_bytes("large") == len(data)
        digest = fs.digest("large")
        assert fs.copy_from(fs, "large", "copy") == digest
        assert fs.join(["large", "copy"], "both") == 2 * len(data)
        assert fs.read("both") == data + data
