"""Which transactions a sweep may abort: rules `ids-never-reused`, `abort-by-endtxn` and
`wait-for-all-brokers`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.kafka.sink.committer.transaction_requests import (
    TransactionDescription,
    TransactionState,
    Wire,
)
from sluice.connectors.kafka.sink.committer.transaction_sweep import Sweeper, orphans
from sluice.connectors.kafka.sink.handles import TransactionalId, TransactionIdentity
from sluice.runtime.contracts import RegisteredAttempt, SweepView
from sluice.runtime.errors import AuthenticationError
from sluice.runtime.model.splits import BatchKey
from tests.kit.kafka.fake_kafka import FakeWire, Fault
from tests.kit.kafka.transaction_harness import JOB_UID, FakeHarness, committable

NAME = TransactionalId(
    prefix="orders", job_uid=JOB_UID, region="main", attempt_id=5, owner="o", slot=0
)
VIEW = SweepView(job_uid=JOB_UID, attempt_ids={"main": 5, "other": 9}, protected=(), orphans=())


def _open(name: TransactionalId, *, epoch: int = 3) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=str(name),
        state=TransactionState.ONGOING,
        producer_id=70,
        producer_epoch=epoch,
    )


def _declared(one: TransactionDescription, *, operator_id: str = "sink-1") -> RegisteredAttempt:
    return RegisteredAttempt(
        batch=BatchKey(region="main", attempt_id=5, batch_id=1),
        operator_id=operator_id,
        resource=one.identity.resource,
    )


def _found(view: SweepView, *described: TransactionDescription) -> tuple[TransactionIdentity, ...]:
    return orphans(described, view, prefix="orders", operator_id="sink-1")


def test_ids_never_reused_an_older_attempt_is_swept_at_once() -> None:
    one = _open(dataclasses.replace(NAME, attempt_id=4))

    assert _found(VIEW, one) == (one.identity,)


def test_ids_never_reused_the_present_attempt_is_left_alone() -> None:
    """Rule `ids-never-reused`: an undecided, expired or skipped batch may still be accepted."""
    assert _found(VIEW, _open(NAME)) == ()


def test_ids_never_reused_a_declared_orphan_of_the_present_attempt_is_swept() -> None:
    """Rule `ids-never-reused`: its batch was decided without naming it, or aborted."""
    one = _open(NAME)
    view = dataclasses.replace(VIEW, orphans=(_declared(one),))

    assert _found(view, one) == (one.identity,)


def test_ids_never_reused_a_declared_orphan_is_reported_by_its_epoch_too() -> None:
    view = dataclasses.replace(VIEW, orphans=(_declared(_open(NAME, epoch=3)),))

    assert _found(view, _open(NAME, epoch=4)) == ()


def test_ids_never_reused_another_operators_orphan_is_not_ours() -> None:
    """Rule `ids-never-reused`: each sink sweeps its own."""
    one = _open(NAME)
    view = dataclasses.replace(VIEW, orphans=(_declared(one, operator_id="sink-2"),))

    assert _found(view, one) == ()


@pytest.mark.parametrize("attempt_id", [3, 5])
def test_ids_never_reused_a_decided_transaction_is_never_touched(attempt_id: int) -> None:
    one = _open(dataclasses.replace(NAME, attempt_id=attempt_id))
    view = dataclasses.replace(
        VIEW, orphans=(_declared(one),), protected=(committable(one.identity),)
    )

    assert _found(view, one) == ()


def test_ids_never_reused_nothing_under_a_protected_id_is_touched_at_any_epoch() -> None:
    """Rule `ids-never-reused`: such an id is not initialised before its committed mark; a mystery
    stays open."""
    one = _open(dataclasses.replace(NAME, attempt_id=3), epoch=8)
    protected = committable(dataclasses.replace(one.identity, producer_epoch=6))

    assert _found(dataclasses.replace(VIEW, protected=(protected,)), one) == ()


def test_an_attempt_that_the_view_does_not_know_yet_is_left_alone() -> None:
    """The view was taken before the region's failover; the next one will know."""
    assert _found(VIEW, _open(dataclasses.replace(NAME, attempt_id=6))) == ()


@pytest.mark.parametrize(("attempt_id", "swept"), [(4, True), (5, False), (7, False)])
def test_a_region_that_no_longer_exists_is_swept_by_its_age(attempt_id: int, swept: bool) -> None:
    """Below every present attempt it is of an earlier run; else it may just be starting."""
    one = _open(dataclasses.replace(NAME, region="gone", attempt_id=attempt_id))

    assert bool(_found(VIEW, one)) is swept


@pytest.mark.parametrize(
    "name",
    [
        dataclasses.replace(NAME, attempt_id=1, job_uid="another-job"),
        dataclasses.replace(NAME, attempt_id=1, prefix="invoices"),
        dataclasses.replace(NAME, attempt_id=1, prefix="orders/eu"),
    ],
)
def test_ids_never_reused_other_jobs_and_prefixes_are_never_touched(name: TransactionalId) -> None:
    """Rule `ids-never-reused`: two jobs with one prefix do not meet in the sweep either."""
    assert _found(VIEW, _open(name)) == ()


@pytest.mark.parametrize("text", ["orders", f"orders/{JOB_UID}/main.1", "kafka-streams-0_1"])
def test_ids_never_reused_other_programs_ids_are_never_touched(text: str) -> None:
    """Rule `ids-never-reused`: only ids of the full layout are ours."""
    one = dataclasses.replace(_open(NAME), transactional_id=text)

    assert _found(VIEW, one) == ()


names = st.builds(  # mostly ours, so that something is swept
    TransactionalId,
    prefix=st.sampled_from(["orders", "orders", "orders", "orders/eu"]),
    job_uid=st.sampled_from([JOB_UID, JOB_UID, JOB_UID, "another"]),
    region=st.sampled_from(["main", "other", "gone"]),
    attempt_id=st.integers(0, 3),
    owner=st.sampled_from(["a", "b"]),
    slot=st.integers(0, 2),
)
descriptions = st.builds(_open, names, epoch=st.integers(0, 4))


@st.composite
def _some(
    draw: st.DrawFn, described: Sequence[TransactionDescription]
) -> list[TransactionDescription]:
    """Some of those that are there, and others."""
    there = draw(st.lists(st.sampled_from(described), max_size=4))
    return there + draw(st.lists(descriptions, max_size=2))


@given(
    data=st.data(),
    described=st.lists(descriptions, min_size=2, max_size=12),
    attempt_ids=st.fixed_dictionaries({"main": st.integers(0, 3), "other": st.integers(0, 3)}),
)
def test_ids_never_reused_whatever_is_swept_had_a_reason(
    data: st.DataObject, described: list[TransactionDescription], attempt_ids: dict[str, int]
) -> None:
    """Rule `ids-never-reused`: over random views nothing living, decided or foreign is ever
    aborted."""
    protected, declared = data.draw(_some(described)), data.draw(_some(described))
    view = SweepView(
        job_uid=JOB_UID,
        attempt_ids=attempt_ids,
        protected=tuple(committable(one.identity) for one in protected),
        orphans=tuple(_declared(one) for one in declared),
    )

    for identity in _found(view, *described):
        name = TransactionalId.parse(identity.transactional_id)
        assert name is not None
        assert (name.prefix, name.job_uid) == ("orders", JOB_UID)
        assert identity.transactional_id not in {one.transactional_id for one in protected}
        current = attempt_ids.get(name.region, min(attempt_ids.values()))
        assert name.attempt_id <= current
        if name.attempt_id == current:
            assert identity in {one.identity for one in declared}


def _harness() -> tuple[FakeHarness, Sweeper]:
    harness = FakeHarness(2)
    return harness, Sweeper(harness.wire, prefix=harness.prefix)


def _leave_open(harness: FakeHarness, *, attempt_id: int) -> TransactionIdentity:
    attempt = harness.open(harness.name(attempt_id=attempt_id))
    attempt.produce(2)
    return attempt.identity


def test_wait_for_all_brokers_a_sweep_that_misses_a_broker_says_so_and_the_next_one_finishes() -> (
    None
):
    """Rule `wait-for-all-brokers`: ListTransactions sees only brokers that answer."""
    harness, sweeper = _harness()
    seen, unseen = (_leave_open(harness, attempt_id=1) for _ in range(2))
    view = dataclasses.replace(VIEW, attempt_ids={"main": 2})
    harness.wire.absent = ("broker 3",)
    harness.wire.absent_ids = frozenset({unseen.transactional_id})

    first = sweeper.sweep(view, operator_id="sink-1", timeout_s=1)
    assert (first.aborted, first.missing) == (1, ("broker 3",))
    assert seen in harness.broker.discarded

    harness.wire.absent, harness.wire.absent_ids = (), frozenset()
    second = sweeper.sweep(view, operator_id="sink-1", timeout_s=1)
    assert (second.aborted, second.missing) == (1, ())
    assert unseen in harness.broker.discarded


def test_wait_for_all_brokers_the_first_sweep_waits_for_a_broker_that_is_away_and_no_longer() -> (
    None
):
    harness, waits = FakeHarness(2), list[float]()

    def comes_back(seconds: float) -> None:
        waits.append(seconds)
        harness.wire.absent, harness.wire.absent_ids = (), frozenset()

    sweeper = Sweeper(harness.wire, prefix=harness.prefix, sleep=comes_back)
    _, unseen = (_leave_open(harness, attempt_id=1) for _ in range(2))
    harness.wire.absent = ("broker 3",)
    harness.wire.absent_ids = frozenset({unseen.transactional_id})
    view = dataclasses.replace(VIEW, attempt_ids={"main": 2})
    result = sweeper.sweep_all(view, operator_id=None, timeout_s=5)
    assert (result.aborted, result.remaining, result.missing) == (2, 0, ())
    assert len(waits) == 1


def test_wait_for_all_brokers_the_first_sweep_continues_while_an_orphan_remains() -> None:
    """All have answered; but where its abort was to be, another transaction was under its id, which
    was over in a moment: after an end with that one open readers would wait."""
    harness, waits, looks = FakeHarness(2), list[float](), list[int]()
    describe = FakeWire.describe

    def moved_on(self: FakeWire, ids: Sequence[str], *, timeout_s: float) -> Mapping[str, Any]:
        found = describe(self, ids, timeout_s=timeout_s)
        looks.append(len(found))
        if len(looks) != 2:  # the first one is the sweep's own
            return found
        return {
            each: dataclasses.replace(one, producer_epoch=one.producer_epoch + 1)
            for each, one in found.items()
            if one is not None
        }

    sweeper = Sweeper(harness.wire, prefix=harness.prefix, sleep=waits.append)
    left = _leave_open(harness, attempt_id=1)
    view = dataclasses.replace(VIEW, attempt_ids={"main": 2})
    with patch.object(FakeWire, "describe", moved_on):
        result = sweeper.sweep_all(view, operator_id=None, timeout_s=600)
    assert (result.aborted, result.remaining, result.missing) == (1, 0, ())
    assert set(harness.broker.discarded) == {left}
    assert len(waits) == 1


def test_wait_for_all_brokers_what_is_listed_and_not_described_is_not_swept() -> None:
    """Its coordinator died in between: who waits for the end of the sweep would go."""
    harness, sweeper = _harness()
    seen, unseen = (_leave_open(harness, attempt_id=1) for _ in range(2))
    view = dataclasses.replace(VIEW, attempt_ids={"main": 2})
    describe = FakeWire.describe

    def half(self: FakeWire, ids: Sequence[str], *, timeout_s: float) -> Mapping[str, Any]:
        found = describe(self, ids, timeout_s=timeout_s)
        return {each: found[each] for each in found if each != unseen.transactional_id}

    with patch.object(FakeWire, "describe", half):
        result = sweeper.sweep(view, operator_id=None, timeout_s=1)
    assert (result.aborted, result.missing) == (1, (unseen.transactional_id,))
    assert seen in harness.broker.discarded
    assert sweeper.sweep(view, operator_id=None, timeout_s=1).missing == ()


def test_what_a_coordinator_has_forgotten_since_it_was_listed_disturbs_no_sweep() -> None:
    harness, sweeper = _harness()
    forgotten, left = (_leave_open(harness, attempt_id=1) for _ in range(2))
    describe = FakeWire.describe

    def late(self: FakeWire, ids: Sequence[str], *, timeout_s: float) -> Mapping[str, Any]:
        return {**describe(self, ids, timeout_s=timeout_s), forgotten.transactional_id: None}

    with patch.object(FakeWire, "describe", late):
        view = dataclasses.replace(VIEW, attempt_ids={"main": 2})
        result = sweeper.sweep(view, operator_id=None, timeout_s=1)
    assert (result.aborted, result.missing) == (1, ())
    assert set(harness.broker.discarded) == {left}


def test_an_unreachable_cluster_is_swept_next_time() -> None:
    harness, sweeper = _harness()
    harness.wire.unreachable = True

    result = sweeper.sweep(VIEW, operator_id=None, timeout_s=1)

    assert (result.aborted, result.missing) == (0, ("the cluster",))


def test_an_abort_whose_request_is_lost_is_repeated() -> None:
    """Nothing is kept between sweeps, so nothing can be forgotten."""
    harness, sweeper = _harness()
    _leave_open(harness, attempt_id=1)
    harness.wire.faults = [Fault.LOSE_REQUEST]
    view = dataclasses.replace(VIEW, attempt_ids={"main": 2})

    result = sweeper.sweep_all(view, operator_id=None, timeout_s=5)

    assert (result.aborted, result.remaining) == (1, 0)


def test_abort_by_endtxn_at_version_0_a_zombie_that_continues_is_swept_again() -> None:
    """Rule `abort-by-endtxn`: version 4 does not fence, so the writer may open the id's next
    transaction."""
    harness = FakeHarness(0)
    sweeper = Sweeper(harness.wire, prefix=harness.prefix)
    zombie = harness.open(harness.name(attempt_id=1))
    view = dataclasses.replace(VIEW, attempt_ids={"main": 2})

    for _ in range(3):
        harness.broker.produce(zombie.identity, 1)
        assert sweeper.sweep(view, operator_id=None, timeout_s=1).aborted == 1

    assert harness.visible() == 0


def test_ids_never_reused_what_another_kind_of_sink_registered_is_passed_over() -> None:
    """A sweep of all sinks finds a staging directory among the orphans, and a transaction."""
    one = _open(NAME)
    directory = dataclasses.replace(_declared(one), resource="file:/data/.staging/a")
    view = dataclasses.replace(VIEW, orphans=(directory, _declared(one)))

    assert orphans([one], view, prefix="orders", operator_id=None) == (one.identity,)


def test_open_transactions_of_another_job_are_named_and_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A new checkpoint directory with the prefix of a killed job: its transactions block readers.
    A decided one, and one of a longer prefix, are no reason to warn."""
    harness, _ = _harness()
    other = _leave_open(harness, attempt_id=1)
    decided = _leave_open(harness, attempt_id=2)
    longer = harness.open(f"{harness.prefix}/eu/{JOB_UID}/main.1/o/0")
    longer.produce(1)
    view = dataclasses.replace(
        VIEW, job_uid="another", protected=(committable(decided, records=1),)
    )

    sweeper = Sweeper(harness.wire, prefix=harness.prefix)
    result = sweeper.sweep_all(view, operator_id=None, timeout_s=1)

    assert (result.aborted, result.foreign) == (0, (other.transactional_id,))
    assert not harness.broker.discarded
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert f"transactional_ids={other.transactional_id}. " in warning
    assert "sluice txn abort" in warning


def test_a_long_list_of_transactions_of_another_job_is_shortened(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness, _ = _harness()
    for attempt_id in range(12):
        _leave_open(harness, attempt_id=attempt_id)

    view = dataclasses.replace(VIEW, job_uid="another")
    Sweeper(harness.wire, prefix=harness.prefix).sweep_all(view, operator_id=None, timeout_s=1)

    assert "transactions=12 " in caplog.text
    assert caplog.text.count(f"{harness.prefix}/{JOB_UID}/") == 10


def test_a_cluster_that_refuses_to_list_is_swept_next_time() -> None:
    """Not only one that is away: whatever the brokers answer, a sweep never raises."""
    harness, _ = _harness()
    identity = _leave_open(harness, attempt_id=1)

    class Refusing:
        def list_transactions(self, *_: object, **__: object) -> None:
            raise AuthenticationError("no", {}, "Ask for DESCRIBE on the ids of the prefix.")

    sweeper = Sweeper(cast("Wire", Refusing()), prefix=harness.prefix)
    result = sweeper.sweep(VIEW, operator_id=None, timeout_s=1)

    assert (result.aborted, result.missing) == (0, ("the cluster",))
    assert identity not in harness.broker.discarded
