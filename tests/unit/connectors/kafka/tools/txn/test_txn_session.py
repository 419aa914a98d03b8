"""What ``sluice txn`` knows of a job whose settings have changed, over a fake broker."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.sink.handles import TransactionalId, TransactionIdentity, encode_handle
from sluice.connectors.kafka.tools.txn import txn_cli as _cli_txn
from sluice.connectors.kafka.tools.txn import txn_session
from sluice.connectors.kafka.tools.txn.txn_session import (
    TransactionSession,
    abort_transactions,
    end_transactions,
    open_session,
)
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore, open_store
from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.errors import ConfigError, FencedError, UnreachableError
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    OperatorNode,
    RegionRecord,
    StateEntry,
    Verdict,
)
from sluice.runtime.ownership.lease import LeaseRecord
from tests.kit.kafka.fake_kafka import FakeBroker, FakeWire
from tests.kit.kafka.transaction_harness import handle_of
from tests.unit.runtime.ownership.test_lease import FakeStore

JOB_UID = "j"
SINK = OperatorNode(operator_id="sink-1", name="out", kind="sink", upstream=())


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    made = FakeBroker()
    monkeypatch.setattr(txn_session, "TransactionWire", lambda _: FakeWire(made))
    return made


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """A job that ran under the prefix ``old``, and then under ``new``."""
    made = open_store(str(tmp_path))
    made.publish(_record(0, "old"), timeout_s=60)
    made.mark_committed(0)
    made.publish(_record(1, "new", Verdict.ABORTED), timeout_s=60)
    return made


def _record(
    checkpoint_id: int,
    prefix: str,
    verdict: Verdict = Verdict.DECIDED,
    committables: tuple[StateEntry, ...] = (),
) -> CheckpointRecord:
    return CheckpointRecord(
        job_uid=JOB_UID,
        job_name="job",
        checkpoint_id=checkpoint_id,
        kind=CheckpointKind.CHECKPOINT,
        verdict=verdict,
        leader_session_id=f"session-{checkpoint_id}",
        run_attempt=checkpoint_id + 1,
        settings={"out.transactional_id_prefix": prefix, "out.kafka.bootstrap.servers": "b:9092"},
        graph=(SINK,),
        regions=(
            RegionRecord(
                region="main", attempt_id=0, batch_id=checkpoint_id, committables=committables
            ),
        ),
    )


def _begun(broker: FakeBroker, prefix: str, slot: int = 0) -> TransactionIdentity:
    parsed = TransactionalId(
        prefix=prefix, job_uid=JOB_UID, region="main", attempt_id=0, owner="o", slot=slot
    )
    transaction = broker.initialise(str(parsed))
    broker.produce(transaction, 1)
    return transaction


@contextmanager
def _opened(store: CheckpointStore) -> Iterator[TransactionSession]:
    with open_session(store.uri, bootstrap=None, options={}, timeout_s=1) as session:
        yield session


def test_what_lies_under_an_older_prefix_is_found_and_aborted(
    store: CheckpointStore, broker: FakeBroker
) -> None:
    """A new run sweeps its own prefix only, so this is the one way to free the readers."""
    old = _begun(broker, "old").transactional_id
    new = _begun(broker, "new").transactional_id
    with _opened(store) as session:
        assert [(line.transactional_id, line.is_open) for line in session.lines] == [
            (new, True),
            (old, True),
        ]
        reports = end_transactions(session, session.chosen([old]), commit=False, timeout_s=1)
    assert [(line.transactional_id, report.outcome) for line, report in reports] == [
        (old, CommitOutcome.ABORTED)
    ]
    assert [transaction.transactional_id for transaction in broker.discarded] == [old]


def test_what_was_decided_under_an_older_prefix_is_committed(
    store: CheckpointStore, broker: FakeBroker
) -> None:
    """A decision is kept whatever the sink is called later."""
    decided = _begun(broker, "new")
    entry = encode_handle(
        handle_of(decided, records=1, checkpoint_id=2), operator_id=SINK.operator_id
    )
    store.publish(_record(2, "new", committables=(entry,)), timeout_s=60)
    store.publish(_record(3, "newest", Verdict.ABORTED), timeout_s=60)
    with _opened(store) as session:
        (line,) = session.chosen([decided.transactional_id])
        assert line.named is not None
        assert line.named.commit_is_due
        ((_, report),) = end_transactions(session, [line], commit=True, timeout_s=1)
    assert report.outcome is CommitOutcome.COMMITTED
    assert broker.visible == {decided: 1}


def test_what_a_dying_job_has_decided_meanwhile_is_not_aborted(
    broker: FakeBroker, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was slow when the command looked, decided, and was killed before its commits; nothing
    then renews its lease."""
    open_one = _begun(broker, "new")
    decided = encode_handle(handle_of(open_one), operator_id=SINK.operator_id)

    def decide(*_: object, **__: object) -> None:
        store.publish(_record(2, "new", committables=(decided,)), timeout_s=60)

    monkeypatch.setattr(txn_session, "_refuse_of_a_copy", lambda *_, **__: None)
    monkeypatch.setattr(txn_session, "_refuse_while_alive", decide)
    with pytest.raises(ConfigError, match="a decided checkpoint names this transaction"):
        _cli_txn.abort(store.uri)
    assert not broker.discarded


def test_what_a_checkpoint_names_is_asked_for_though_no_broker_lists_it(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker that has it was away for the listing; its coordinator may be another by now."""
    broker = FakeBroker()
    decided = _begun(broker, "new")
    hidden = frozenset({decided.transactional_id})
    wire = FakeWire(broker, absent=("broker 2",), absent_ids=hidden)
    monkeypatch.setattr(txn_session, "TransactionWire", lambda _: wire)
    entry = encode_handle(handle_of(decided, checkpoint_id=2), operator_id=SINK.operator_id)
    store.publish(_record(2, "new", committables=(entry,)), timeout_s=60)
    with _opened(store) as session:
        (line,) = session.lines
    assert line.is_open
    assert session.missing == ["broker 2"]


def _leave_out_the_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for look in ("_refuse_of_a_copy", "_refuse_while_alive"):
        monkeypatch.setattr(txn_session, look, lambda *_, **__: None)


def test_an_abort_of_all_that_is_open_takes_what_a_checkpoint_that_was_given_up_names(
    store: CheckpointStore, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job was killed after that record, or no broker answered it: readers wait, and the
    command said that there was nothing to do."""
    _leave_out_the_looks(monkeypatch)
    given_up = _begun(broker, "new")
    entry = encode_handle(handle_of(given_up, checkpoint_id=2), operator_id=SINK.operator_id)
    store.publish(_record(2, "new", Verdict.ABORTED, committables=(entry,)), timeout_s=60)
    _cli_txn.abort(store.uri)
    assert list(broker.discarded) == [given_up]


def _decided_and_orphan(
    store: CheckpointStore, broker: FakeBroker
) -> tuple[TransactionIdentity, TransactionIdentity]:
    decided, orphan = (_begun(broker, "new", slot) for slot in range(2))
    entry = encode_handle(handle_of(decided, checkpoint_id=2), operator_id=SINK.operator_id)
    store.publish(_record(2, "new", committables=(entry,)), timeout_s=60)
    return decided, orphan


@pytest.mark.parametrize("force", [False, True])
def test_a_commit_of_all_that_is_decided_leaves_what_no_decision_names(
    store: CheckpointStore, broker: FakeBroker, force: bool
) -> None:
    decided, orphan = _decided_and_orphan(store, broker)
    _cli_txn.commit(store.uri, force=force)
    assert list(broker.visible) == [decided]
    described = broker.describe(orphan.transactional_id)
    assert described.state is TransactionState.ONGOING


def test_each_by_name_needs_force_where_the_checkpoints_say_otherwise(
    store: CheckpointStore, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of the one would double its records, an abort of the other lose them."""
    monkeypatch.setattr(txn_session, "_refuse_while_alive", lambda *_, **__: pytest.fail("late"))
    decided, orphan = _decided_and_orphan(store, broker)
    with pytest.raises(ConfigError, match="no decision requires the commit"):
        _cli_txn.commit(store.uri, [orphan.transactional_id])
    with pytest.raises(ConfigError, match="a decided checkpoint names this"):
        _cli_txn.abort(store.uri, [decided.transactional_id])
    assert not broker.visible
    assert not broker.discarded


def test_a_coordinator_that_does_not_answer_is_named_and_nothing_is_reported_its_ids(
    store: CheckpointStore, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided, _ = _decided_and_orphan(store, broker)
    known = FakeWire.describe

    def without(wire: FakeWire, ids: Sequence[str], *, timeout_s: float) -> Mapping[str, object]:
        return known(wire, [i for i in ids if i != decided.transactional_id], timeout_s=timeout_s)

    monkeypatch.setattr(FakeWire, "describe", without)
    with pytest.raises(UnreachableError, match=decided.transactional_id), _opened(store):
        pass


def test_what_an_aborted_checkpoint_names_is_not_committed_unasked(
    store: CheckpointStore, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = _begun(broker, "new")
    entry = encode_handle(handle_of(orphan, checkpoint_id=2), operator_id=SINK.operator_id)
    store.publish(_record(2, "new", Verdict.ABORTED, committables=(entry,)), timeout_s=60)
    with pytest.raises(ConfigError, match="no decision requires the commit"):
        _cli_txn.commit(store.uri, [orphan.transactional_id])
    assert not broker.visible
    _leave_out_the_looks(monkeypatch)
    _cli_txn.abort(store.uri, [orphan.transactional_id])
    assert list(broker.discarded) == [orphan]


def _owner(store: CheckpointStore) -> LeaseRecord:
    return LeaseRecord(
        job_uid=JOB_UID,
        checkpoint_uri=store.uri,
        session="s",
        host="h",
        renewed_at_ms=0,
        renewals=1,
    )


def test_lease_guards_outputs_a_job_that_has_ended_is_not_watched(
    store: CheckpointStore, broker: FakeBroker
) -> None:
    _, orphan = _decided_and_orphan(store, broker)
    held = FakeStore(record=replace(_owner(store), is_ended=True))
    with _opened(store) as opened:
        session = replace(
            opened,
            open_lease_store=lambda *_, **__: held,
            clock=lambda: held.now_s,
            sleep=held.sleep,
        )
        abort_transactions(session, [], force=False, timeout_s=1)
    assert list(broker.discarded) == [orphan]
    assert held.now_s == 0


@pytest.mark.parametrize("renewed_by", [JOB_UID, None, "another job"])
def test_lease_guards_outputs_nothing_of_a_job_that_lives_is_aborted(
    store: CheckpointStore, broker: FakeBroker, renewed_by: str | None
) -> None:
    _, orphan = _decided_and_orphan(store, broker)
    owner = replace(_owner(store), job_uid=renewed_by or JOB_UID)
    held = FakeStore(record=owner)
    if renewed_by is not None:
        held.on_sleep = lambda: held.write(replace(owner, renewals=2)) if held.now_s > 5 else None
    with _opened(store) as opened:
        session = replace(
            opened,
            open_lease_store=lambda *_, **__: held,
            clock=lambda: held.now_s,
            sleep=held.sleep,
        )
        if renewed_by == JOB_UID:
            with pytest.raises(FencedError, match="the job runs"):
                abort_transactions(session, [], force=False, timeout_s=1)
            assert not broker.discarded
            return
        abort_transactions(session, [], force=False, timeout_s=1)
    assert list(broker.discarded) == [orphan]
    assert held.now_s == pytest.approx(0.0 if renewed_by else 15.0)


@pytest.mark.parametrize(
    ("session", "checkpoint_uri", "is_refused"),
    [
        ("another", "file:///other", True),
        ("another", None, False),
        ("session-1", "file:///where-it-was", False),
    ],
    ids=["another-directory", "this-one", "this-one-before-it-was-moved"],
)
@pytest.mark.parametrize("is_ended", [False, True])
def test_lease_guards_outputs_what_a_run_of_another_directory_may_have_decided_is_not_aborted(
    store: CheckpointStore,
    broker: FakeBroker,
    session: str,
    checkpoint_uri: str | None,
    is_refused: bool,
    is_ended: bool,
) -> None:
    """Rule `lease-guards-outputs`: this one is a copy, of yesterday or started by mistake, and
    does not know of it; the job itself was killed before its commits, or gave up waiting for
    brokers that it needs for them."""
    open_one = _begun(broker, "new").transactional_id
    owner = LeaseRecord(
        job_uid=JOB_UID,
        checkpoint_uri=checkpoint_uri or store.uri,
        session=session,
        host="h",
        renewed_at_ms=0,
        renewals=3,
        is_ended=is_ended,
    )
    at_rest = SimpleNamespace(read=lambda: owner, close=lambda: None)
    time = iter(range(1000))
    with _opened(store) as opened:
        job = replace(
            opened,
            open_lease_store=lambda *_, **__: at_rest,
            clock=lambda: float(next(time)),
            sleep=lambda _: None,
        )
        refusal = pytest.raises(FencedError, match="another checkpoint directory has this prefix")
        with refusal if is_refused else nullcontext():
            abort_transactions(job, (), force=False, timeout_s=1)
        assert [each.transactional_id for each in broker.discarded] == (
            [] if is_refused else [open_one]
        )
        abort_transactions(job, (), force=True, timeout_s=1)
    assert [each.transactional_id for each in broker.discarded] == [open_one]


def test_each_cluster_is_asked_for_the_ids_of_its_own_sinks(
    store: CheckpointStore, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one does not know them, which would look as if they had expired."""
    brokers = {"b:9092": broker, "c:9092": FakeBroker()}
    monkeypatch.setattr(
        txn_session,
        "TransactionWire",
        lambda connection: FakeWire(brokers[connection.bootstrap_servers]),
    )
    decided, _ = _decided_and_orphan(store, broker)
    both = replace(
        _record(3, "new", Verdict.ABORTED),
        graph=(SINK, OperatorNode(operator_id="sink-2", name="too", kind="sink", upstream=())),
    )
    settings = {"too.transactional_id_prefix": "too", "too.kafka.bootstrap.servers": "c:9092"}
    store.publish(replace(both, settings={**both.settings, **settings}), timeout_s=60)
    with _opened(store) as session:
        assert {key[0] for key in session.sinks} == {"out", "too"}
        (line,) = session.chosen([decided.transactional_id])
    assert line.described is not None
    assert line.is_open
