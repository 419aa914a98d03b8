"""The Kafka sink's coordinator side over the fake broker: sweeping, checking, repeating."""

import dataclasses
import threading
from typing import Any
from unittest.mock import patch

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_sink_coordinator import (
    KafkaSinkCoordinator,
    OpenLeaseStore,
    PlainSinkCoordinator,
    check_transaction_timeout,
)
from sluice.connectors.kafka.sink.committer.transaction_lease import KafkaLeaseStore
from sluice.connectors.kafka.sink.committer.transaction_requests import Cluster
from sluice.connectors.kafka.sink.committer.transaction_sweep import Sweeper, SweepResult
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.runtime.contracts import (
    CommitOutcome,
    RegisteredAttempt,
    SinkContext,
    SweepReport,
    SweepView,
)
from sluice.runtime.errors import ConfigError, SourceChangedError
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.ownership.lease import LeaseRecord
from tests.kit.kafka.fake_kafka import FakeWire
from tests.kit.kafka.transaction_harness import JOB_UID, FakeHarness, begun, committable
from tests.kit.waiting import PATIENCE_S, join

VIEW = SweepView(job_uid=JOB_UID, attempt_ids={"main": 2}, protected=(), orphans=())
CLUSTER = Cluster(cluster_id="c", transaction_version=2, max_transaction_timeout_s=900.0)


def _coordinator(
    harness: FakeHarness,
    *,
    topics: tuple[str, ...] = (),
    options: dict[str, str] | None = None,
    transaction_timeout_s: float | None = None,
    open_lease_store: OpenLeaseStore = KafkaLeaseStore,
) -> KafkaSinkCoordinator:
    return KafkaSinkCoordinator(
        KafkaConnection(bootstrap_servers="fake:1", options=options or {}),
        transactional_id_prefix=harness.prefix,
        transaction_timeout_s=transaction_timeout_s,
        topics=topics,
        connect=lambda _: harness.wire,
        open_lease_store=open_lease_store,
    )


def _leave_open(harness: FakeHarness, *, attempt_id: int) -> TransactionIdentity:
    attempt = harness.open(harness.name(attempt_id=attempt_id))
    attempt.produce(1)
    return attempt.identity


def _hide(wire: FakeWire, *hidden: TransactionIdentity) -> None:
    wire.absent = ("broker 2",) if hidden else ()
    wire.absent_ids = frozenset(identity.transactional_id for identity in hidden)


def test_wait_for_all_brokers_what_a_missing_broker_holds_is_swept_by_the_next_renewal() -> None:
    """Rule `wait-for-all-brokers`: within 5 s of the broker's return, not with the next sweep
    only."""
    harness = FakeHarness(2)
    identity = _leave_open(harness, attempt_id=1)
    coordinator = _coordinator(harness)
    _hide(harness.wire, identity)
    assert coordinator.sweep(VIEW, timeout_s=0.1) == SweepReport(aborted=0, is_complete=False)

    coordinator.renew()
    assert identity not in harness.broker.discarded
    _hide(harness.wire)
    coordinator.renew()

    assert identity in harness.broker.discarded


def test_wait_for_all_brokers_an_orphan_is_not_forgotten_while_its_broker_is_away() -> None:
    """Rule `wait-for-all-brokers`: later views need not name it again."""
    harness = FakeHarness(2)
    identity = _leave_open(harness, attempt_id=2)
    coordinator = _coordinator(harness)
    declared = RegisteredAttempt(
        batch=BatchKey(region="main", attempt_id=2, batch_id=1),
        operator_id="sink-1",
        resource=identity.resource,
    )
    _hide(harness.wire, identity)
    coordinator.sweep(dataclasses.replace(VIEW, orphans=(declared,)), timeout_s=0.1)
    coordinator.sweep(VIEW, timeout_s=0.1)
    _hide(harness.wire)

    assert coordinator.sweep(VIEW, timeout_s=0.1) == SweepReport(aborted=1)
    assert identity in harness.broker.discarded


def test_what_a_sweep_could_not_see_is_remembered_within_bounds() -> None:
    """While a broker is away for hours every attempt of the job would be kept, and read at each
    renewal; nearly all of them are committed long since."""
    harness = FakeHarness(2)
    coordinator = _coordinator(harness)
    _hide(harness.wire, _leave_open(harness, attempt_id=2))
    attempts = [
        RegisteredAttempt(
            batch=BatchKey(region="main", attempt_id=2, batch_id=number),
            operator_id="sink-1",
            resource=f"{harness.prefix}|{number}|0",
        )
        for number in range(25)
    ]
    seen: list[SweepView] = []
    original = Sweeper.sweep

    def sweep(sweeper: Sweeper, view: SweepView, **words: Any) -> SweepResult:
        seen.append(view)
        return original(sweeper, view, **words)

    with (
        patch("sluice.connectors.kafka.sink.committer.kafka_sink_coordinator._MOST_ORPHANS", 10),
        patch.object(Sweeper, "sweep", sweep),
    ):
        for at in range(0, 25, 5):
            view = dataclasses.replace(VIEW, orphans=tuple(attempts[at : at + 5]))
            coordinator.sweep(view, timeout_s=0.1)
    assert seen[-1].orphans == tuple(attempts[-10:])


def test_lease_guards_outputs_a_renewal_does_not_wait_for_a_sweep_that_is_under_way() -> None:
    harness = FakeHarness(2)
    identity = _leave_open(harness, attempt_id=1)
    coordinator = _coordinator(harness)
    _hide(harness.wire, identity)
    coordinator.sweep(VIEW, timeout_s=0.1)
    listing = FakeWire.list_transactions
    is_listing, renewed = threading.Event(), threading.Event()

    def wait(*arguments: object, **named: object) -> object:
        is_listing.set()
        assert renewed.wait(PATIENCE_S)
        return listing(*arguments, **named)  # type: ignore[arg-type]

    with patch.object(FakeWire, "list_transactions", wait):
        sweep = threading.Thread(target=lambda: coordinator.sweep(VIEW, timeout_s=0.1))
        sweep.start()
        assert is_listing.wait(PATIENCE_S)
        coordinator.renew()
        renewed.set()
        join(sweep)
    assert identity not in harness.broker.discarded


class NoOwner:
    """A prefix that nobody has."""

    def read(self) -> None:
        """See `LeaseStore.read`."""

    def write(self, record: LeaseRecord) -> None:
        """See `LeaseStore.write`."""

    def close(self) -> None:
        """See `LeaseStore.close`."""


def test_commit_acknowledged_a_job_whose_prefix_begins_with_ours_is_not_waited_for() -> None:
    """A prefix may hold slashes; the other one commits ten times a second, and is never done."""
    harness = FakeHarness(2)
    coordinator = _coordinator(harness, open_lease_store=lambda *_, **__: NoOwner())
    coordinator.claim(
        SinkContext(
            job_uid=JOB_UID,
            job_name="job",
            operator_id="sink-1",
            checkpoint_uri="file:/a",
            leader_session_id="s",
        ),
        timeout_s=1.0,
    )
    harness.broker.hold_markers = True
    other = harness.open(f"{harness.prefix}/other/uid-2/main.1/owner/0")
    other.produce(1)
    harness.wire.end([other.identity], commit=True, timeout_s=1.0)
    assert coordinator.committer.await_visible(timeout_s=0)
    ours = harness.open(harness.name())
    ours.produce(1)
    harness.wire.end([ours.identity], commit=True, timeout_s=1.0)
    assert not coordinator.committer.await_visible(timeout_s=0)


def test_check_names_what_is_wrong_and_changes_nothing() -> None:
    """Missing topics, unsafe options, a bad timeout: each by name."""
    harness = FakeHarness(1)
    harness.wire.topics = ("out",)
    facts = _coordinator(harness, topics=("out",)).check(timeout_s=1)
    assert facts["cluster_id"] == "fake"
    assert facts["transaction_version"] == "1"

    with pytest.raises(SourceChangedError, match="absent"):
        _coordinator(harness, topics=("out", "absent")).check(timeout_s=1)
    with pytest.raises(ConfigError, match=r"enable\.idempotence"):
        _coordinator(harness, options={"enable.idempotence": "false"}).check(timeout_s=1)
    with pytest.raises(ConfigError, match="beyond the broker"):
        _coordinator(harness, transaction_timeout_s=1000).check(timeout_s=1)
    assert harness.broker.requests == []


@pytest.mark.parametrize(
    ("requested_s", "limit_s", "chosen_s"),
    [(None, 900.0, 900.0), (60.0, 900.0, 60.0), (900.0, 900.0, 900.0), (60.0, None, 60.0)],
)
def test_transaction_timeout_the_default_timeout_is_the_brokers_maximum(
    requested_s: float | None, limit_s: float | None, chosen_s: float
) -> None:
    """Rule `transaction-timeout`: the sweep frees readers, so a short timeout only loses decided
    transactions."""
    cluster = dataclasses.replace(CLUSTER, max_transaction_timeout_s=limit_s)

    assert check_transaction_timeout(requested_s, cluster) == chosen_s


def test_transaction_timeout_a_maximum_that_may_not_be_read_leaves_the_clients_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rule `transaction-timeout`: the log reports what to grant or to set."""
    cluster = dataclasses.replace(CLUSTER, max_transaction_timeout_s=None)

    assert check_transaction_timeout(None, cluster) is None
    assert "DESCRIBE_CONFIGS" in caplog.text


@pytest.mark.parametrize("requested_s", [14.9, 0.5])
def test_transaction_timeout_a_timeout_shorter_than_a_restart_is_refused(
    requested_s: float,
) -> None:
    """Rule `transaction-timeout`: a one-minute outage after a decision must not lose it."""
    with pytest.raises(ConfigError, match="restart"):
        check_transaction_timeout(requested_s, CLUSTER)

    assert check_transaction_timeout(requested_s, CLUSTER, restart_budget_s=0) == requested_s


def test_what_a_sink_has_decided_is_committed_also_where_it_has_no_transactions_any_more() -> None:
    harness = FakeHarness(level=2)
    decided, given_up = begun(harness, 3), begun(harness, 2)
    coordinator = PlainSinkCoordinator(
        KafkaConnection(bootstrap_servers="fake:1"),
        topics=(),
        guarantee="at-least-once",
        connect=lambda _: harness.wire,
    )
    committer = coordinator.committer
    assert committer.commit([], timeout_s=1, after_crash=True) == []
    entry = committable(decided.identity)
    (report,) = committer.commit([entry], timeout_s=1, after_crash=True)
    assert report.outcome is CommitOutcome.COMMITTED
    (report,) = committer.abort([committable(given_up.identity)], timeout_s=1)
    assert report.outcome is CommitOutcome.ABORTED
    assert committer.await_visible(timeout_s=1)
    assert harness.visible() == 3


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (
            ("FindCoordinator v4", "DescribeTransactions"),
            "=FindCoordinator v4, DescribeTransactions .*Use Kafka 3.0 or later. "
            "Without it, guarantee=at-least-once and sources work.",
        ),
        (("AddPartitionsToTxn",), "guarantee=at-least-once and sources work"),
        (("EndTxn", "OffsetForLeaderEpoch"), "=EndTxn servers"),
        (("InitProducerId", "EndTxn"), "works with kafka.enable.idempotence=false"),
        (("Produce v3",), "serve sources only"),
    ],
)
def test_brokers_without_part_of_the_transaction_api_are_refused_at_the_start(
    missing: tuple[str, ...], told: str
) -> None:
    """By the missing requests, the oldest Kafka that has them, and what works without them."""
    harness = FakeHarness(2)
    old = dataclasses.replace(CLUSTER, missing_requests=missing)
    with (
        patch.object(FakeWire, "cluster", lambda *_, **__: old),
        pytest.raises(ConfigError, match=told),
    ):
        _coordinator(harness).check(timeout_s=1)


@pytest.mark.parametrize(
    ("missing", "options", "guarantee", "refused"),
    [
        (("EndTxn", "ListTransactions"), {}, "at-least-once", False),
        (("InitProducerId",), {}, "at-least-once", True),
        (("InitProducerId",), {"enable.idempotence": "False"}, "at-least-once", False),
        (("InitProducerId",), {}, "none", False),
        (("Produce v3",), {"enable.idempotence": "false"}, "none", True),
    ],
)
def test_a_sink_without_transactions_needs_only_its_own_requests(
    missing: tuple[str, ...], options: dict[str, str], guarantee: str, refused: bool
) -> None:
    harness = FakeHarness(2)
    old = dataclasses.replace(CLUSTER, missing_requests=missing)
    plain = PlainSinkCoordinator(
        KafkaConnection(bootstrap_servers="fake:1", options=options),
        topics=(),
        guarantee=guarantee,
        connect=lambda _: harness.wire,
    )
    with patch.object(FakeWire, "cluster", lambda *_, **__: old):
        if refused:
            with pytest.raises(ConfigError, match=f"missing={missing[0]} guarantee={guarantee}"):
                plain.check(timeout_s=1)
        else:
            assert plain.check(timeout_s=1)["guarantee"] == guarantee
