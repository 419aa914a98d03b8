"""``sluice checkpoint`` and ``sluice job``, from the checkpoint directory alone."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore, open_store, slot_name
from sluice.runtime.checkpoint.format.committable_kinds import (
    ENTRY_POINT_GROUP,
    EntryKind,
    KindRegistry,
    installed_kinds,
)
from sluice.runtime.checkpoint.inspect.checkpoint_opening import command_store
from sluice.runtime.checkpoint.lost_work import digest_of
from sluice.runtime.checkpoint.run_record import LEADER_FILE, RunRecord, RunRecordStore
from sluice.runtime.contracts import AcceptedAs, CommitOutcome, UnsettledWork
from sluice.runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    StorageError,
    StreamError,
    UnsupportedFormatError,
)
from sluice.runtime.graph.graph_view import view_of_record
from sluice.runtime.graph.job_graph import regions_of
from sluice.runtime.graph.pipeline import Pipeline
from sluice.runtime.job.job_cli import app as job_app
from sluice.runtime.job.job_cli import checkpoint_app as app
from sluice.runtime.model.checkpoint_record import (
    RESTORED_FROM_URI,
    RESTORED_OPERATORS,
    CheckpointRecord,
    RegionRecord,
    StateEntry,
    Verdict,
)
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.coordinator.checkpoint_records import committable, full_record, record
from tests.unit.runtime.job.test_job_pieces import StubSink, StubSource


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Checkpoint 0, two committed ones, a seal, an unfinished savepoint, and a damaged record."""
    store = open_store(str(tmp_path))
    for each in (record(0, regions=()), record(1), record(2)):
        store.publish(each, timeout_s=60)
    store.mark_committed(1)
    store.mark_committed(2)
    store.publish_repair(2, {committable().payload: committable(b"x")}, session="first")
    store.publish(
        record(3, verdict=Verdict.ABORTED, leader_session_id="second", requested_by="fencing"),
        timeout_s=5,
    )
    saved = replace(full_record(), leader_session_id="second")
    store.publish(saved, timeout_s=60)
    (tmp_path / slot_name(43)).mkdir()
    (tmp_path / slot_name(43) / "_metadata").write_bytes(b"damaged")
    RunRecordStore(store.fs).announce(
        RunRecord(job_uid="job", leader_session_id="second", address="h:1", attempt_id=0)
    )
    return tmp_path


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def _json(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_run(*arguments, "--json"))
    return found


def _unsettled(entry: StateEntry, ranges: str, **changes: Any) -> UnsettledWork:
    made = UnsettledWork(
        digest=digest_of(entry),
        outcome=CommitOutcome.ABORTED,
        region="r0",
        ranges=(ranges,),
        detail="CompleteAbort with producer 5 epoch 1",
    )
    return replace(made, **changes)


@pytest.fixture
def lost(directory: Path) -> Path:
    """As `directory`; an error has named two losses of 42, one of which was repaired since."""
    store = open_store(str(directory))
    first, second, *_ = full_record().committables
    named = (_unsettled(first, "orders-3:[7,9)"), _unsettled(second, "orders-5:[0,8)"))
    store.note_unsettled(42, named)
    store.publish_repair(42, {second.payload: committable(b"again")}, session="second")
    return directory


def test_a_loss_is_accepted_by_the_id_of_its_decision(lost: Path) -> None:
    before = _json("list", str(lost))["checkpoints"]
    for _ in range(2):
        told = _run("accept-loss", str(lost), "--id", "42")
        assert "orders-3:[7,9)" in told
        assert "CompleteAbort with producer 5 epoch 1" in told
        assert "orders-5" not in told, "what was repaired is not lost"
    assert ", accepted" in _run("list", str(lost))
    after = _json("list", str(lost))["checkpoints"]
    (accepted,) = [each["accepted"] for each in after if each["accepted"]]
    assert [(each["as"], each["ranges"]) for each in accepted] == [("lost", ["orders-3:[7,9)"])]
    assert [{**each, "accepted": []} for each in after] == before
    first = full_record().committables[0]
    assert set(open_store(str(lost)).accepted(42)) == {digest_of(first)}


def test_what_is_accepted_later_stands_beside_what_was_accepted_before(lost: Path) -> None:
    """More was lost when the next start looked."""
    _run("accept-loss", str(lost), "--id", "42")
    store = open_store(str(lost))
    more = _unsettled(committable(b"again"), "orders-5:[0,8)")
    store.note_unsettled(42, (more,))
    told = _run("accept-loss", str(lost), "--id", "42")
    assert "orders-5:[0,8)" in told
    assert "orders-3" not in told, "that is known already"
    assert set(store.accepted(42)) == {digest_of(full_record().committables[0]), more.digest}


@pytest.mark.parametrize("checkpoint_id", ["0", "2", "3"])
def test_there_is_no_loss_to_accept_where_nothing_is_open(
    directory: Path, checkpoint_id: str
) -> None:
    """Committed, aborted, or a decision that names nothing to commit."""
    with pytest.raises(ConfigError, match="no loss to accept"):
        _run("accept-loss", str(directory), "--id", checkpoint_id)
    assert not open_store(str(directory)).accepted(int(checkpoint_id))


@pytest.fixture
def unknown(directory: Path) -> Path:
    first, second, *_ = full_record().committables
    lost = _unsettled(first, "orders-3:[7,9)")
    open_one = _unsettled(second, "orders-5:[0,8)", outcome=CommitOutcome.UNKNOWN, detail="gone")
    open_store(str(directory)).note_unsettled(42, (lost, open_one))
    return directory


def test_what_nobody_can_tell_is_not_accepted_without_a_word(unknown: Path) -> None:
    """The error says where to look, and for what."""
    with pytest.raises(ConfigError, match="--unknown-as") as raised:
        _run("accept-loss", str(unknown), "--id", "42")
    assert "orders-5:[0,8)" in str(raised.value)
    assert "orders-3" not in str(raised.value)
    assert "sluice verify" in str(raised.value)
    assert not open_store(str(unknown)).accepted(42)


@pytest.mark.parametrize("word", ["committed", "lost"])
def test_a_person_says_what_became_of_what_nobody_can_tell(unknown: Path, word: str) -> None:
    """It is printed, and may be said again otherwise."""
    for said in ("lost", "committed", word):
        told = _run("accept-loss", str(unknown), "--id", "42", "--unknown-as", said)
    assert all(each in told for each in ("orders-3:[7,9)", "orders-5:[0,8)", f" {word} "))
    first, second = (digest_of(each) for each in full_record().committables)
    accepted = open_store(str(unknown)).accepted(42)
    assert {key: work.accepted_as for key, work in accepted.items()} == {
        first: AcceptedAs.LOST,
        second: AcceptedAs(word),
    }


def test_a_word_for_what_is_lost_for_certain_is_refused(lost: Path) -> None:
    with pytest.raises(ConfigError, match="certainly lost"):
        _run("accept-loss", str(lost), "--id", "42", "--unknown-as", "committed")
    assert not open_store(str(lost)).accepted(42)


def test_there_is_no_loss_to_accept_before_an_error_has_named_it(directory: Path) -> None:
    with pytest.raises(ConfigError, match="Start the job"):
        _run("accept-loss", str(directory), "--id", "42")
    assert not open_store(str(directory)).accepted(42)


def test_inspect_shows_what_is_lost_and_what_was_accepted(lost: Path) -> None:
    assert "lost or unknown" in _run("list", str(lost))
    (named, repaired) = _json("inspect", str(lost), "--id", "42")["unsettled"]
    assert named["ranges"] == ["orders-3:[7,9)"]
    assert repaired["ranges"] == ["orders-5:[0,8)"]
    assert "orders-3:[7,9)" in _run("inspect", str(lost), "--id", "42")


def test_a_damaged_note_hides_no_checkpoint(lost: Path) -> None:
    (lost / slot_name(42) / "_unsettled").write_text("{")
    shown = _json("list", str(lost))["checkpoints"]
    assert len(shown) == 6
    assert "is damaged" in shown[4]["error"]
    with pytest.raises(DamagedCheckpointError):
        _run("accept-loss", str(lost), "--id", "42")


def test_list_says_how_each_checkpoint_stands(directory: Path) -> None:
    found = _json("list", str(directory))
    standing = {each["checkpoint_id"]: each["standing"] for each in found["checkpoints"]}
    assert standing == {
        0: "decided",
        1: "committed",
        2: "committed",
        3: "fencing",
        42: "unfinished",
        43: "unreadable",
    }
    assert found["job_name"] == full_record().job_name
    assert found["last_leader"] == "second"
    assert found["next_checkpoint_id"] == 44
    assert found["checkpoints"][2]["repairs"] == 1
    assert found["checkpoints"][2]["metadata_bytes"] > 100
    assert "checksum" in found["checkpoints"][5]["error"]


def test_list_says_what_a_start_from_an_older_checkpoint_has_left_out(directory: Path) -> None:
    open_store(str(directory)).mark_superseded(2, by=3)
    (left,) = [c for c in _json("list", str(directory))["checkpoints"] if c["checkpoint_id"] == 2]
    assert left["standing"] == "superseded"
    assert left["superseded_by"] == 3
    row = next(r for r in _run("list", str(directory)).splitlines() if r.split()[:1] == ["2"])
    assert "superseded by" in row


def test_a_place_that_is_retired_while_all_are_read_is_none(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = CheckpointStore.read
    monkeypatch.setattr(
        CheckpointStore, "read", lambda store, each: None if each == 1 else read(store, each)
    )
    listed = [each["checkpoint_id"] for each in _json("list", str(directory))["checkpoints"]]
    assert listed == [0, 2, 3, 42, 43]


def test_list_does_not_need_to_know_who_leads(directory: Path) -> None:
    """A later Sluice runs the job, and keeps the leader in a format of its own."""
    (directory / LEADER_FILE).write_text(json.dumps({"format_version": 99}))
    found = _json("list", str(directory))
    assert found["last_leader"] is None
    assert len(found["checkpoints"]) == 6


def test_inspect_shows_offsets_names_committables_and_state(directory: Path) -> None:
    """Everything of the record, with operators by name."""
    found = _json("inspect", str(directory))
    assert found["checkpoint_id"] == 42
    region = found["regions"][0]
    assert region["splits"][0]["source"] == "orders"
    assert region["splits"][0]["end_offset"] == 2**40
    assert region["state"]["state_version"] == 42
    assert region["operator_states"][0]["operator"] == "out"
    assert region["operator_states"][0]["payload_bytes"] == 256
    assert region["operator_states"][0]["content"] is None, "an unknown kind is shown undecoded"
    assert found["settings"]["password"] == "***"
    assert [node["upstream"] for node in found["graph"]] == [[], ["orders"]]
    assert found["regions"][1]["snapshot_id"] == 41
    assert found["assignment"]["version"] == 3
    assert found["assignment"]["regions"]["r0"][1]["partitions"] == [3, 11]


def test_inspect_shows_how_operators_of_a_restored_job_match(tmp_path: Path) -> None:
    match = {"kind": "source", "name": "eu", "from_name": "orders", "matched_by": "name"}
    settings = {RESTORED_FROM_URI: "file:///s", RESTORED_OPERATORS: json.dumps([match])}
    open_store(str(tmp_path)).publish(replace(record(0), settings=settings), timeout_s=60)
    found = _json("inspect", str(tmp_path))
    assert found["restored_operators"] == [match]
    assert found["settings"] == {RESTORED_FROM_URI: "file:///s"}
    text = _run("inspect", str(tmp_path))
    assert "Restored operators" in text
    assert "orders" in text


def test_drop_in_location_is_found_below(tmp_path: Path) -> None:
    """A drop-in query's checkpointLocation holds the store in ``sluice``."""
    open_store(str(tmp_path / "sluice")).publish(record(0), timeout_s=60)
    assert _json("list", str(tmp_path))["uri"].endswith("/sluice")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("list", "{}/none"), ConfigError),
        (("inspect", "{}", "--id", "7"), StorageError),
        (("inspect", "{}", "--id", "43"), DamagedCheckpointError),
        (("list", "ftp://server/x"), ConfigError),
    ],
)
def test_what_cannot_be_shown_is_a_typed_error(
    directory: Path, arguments: tuple[str, ...], error: type[StreamError]
) -> None:
    """The frame of the command line prints these as what, where and remedy, exit code 1."""
    with pytest.raises(error):
        _run(*(each.format(directory) for each in arguments))


def test_looking_changes_nothing(directory: Path, tmp_path: Path) -> None:
    def stamps() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    before = stamps()
    _run("list", str(directory))
    _run("inspect", str(directory), "--id", "1")
    assert stamps() == before


def test_kafka_transactions_are_shown_decoded() -> None:
    """The connector registers its kind; the runtime knows none by name."""
    kinds = installed_kinds()
    assert kinds.latest_versions.get("kafka-transaction") == 1
    shown = kinds.describe(committable(b"not a handle"))
    assert shown is not None
    assert "error" in shown, "a payload that its codec refuses is shown, not raised"


def test_kind_registry_refuses_what_it_cannot_read() -> None:
    """An unknown kind, or a later version of a known one, is an error that names it."""

    def describe(entry: StateEntry) -> dict[str, object]:
        return {"length": len(entry.payload)}

    transaction = EntryKind(kind="kafka-transaction", latest_version=1, describe=describe)
    registry = KindRegistry([transaction])
    registry.require_known(record())
    assert registry.describe(committable()) == {"length": 4}
    assert registry.describe(replace(committable(), version=2)) is None
    assert registry.describe(committable(kind="other")) is None
    with pytest.raises(UnsupportedFormatError, match="'hdfs-file'"):
        registry.require_known(full_record())
    with pytest.raises(ConfigError, match="same kind"):
        KindRegistry([transaction, transaction])


def test_a_connector_that_cannot_be_loaded_hides_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    installed = list(entry_points(group=ENTRY_POINT_GROUP))
    broken = [
        EntryPoint(name="gone", value="no_such_package.kinds:KIND", group=ENTRY_POINT_GROUP),
        EntryPoint(name="old", value="sluice.runtime.errors:NoSuchKind", group=ENTRY_POINT_GROUP),
    ]
    monkeypatch.setattr(
        "sluice.runtime.checkpoint.format.committable_kinds.entry_points",
        lambda group: [*broken, *installed],
    )
    assert "kafka-transaction" in installed_kinds().latest_versions
    assert _json("inspect", str(directory))["checkpoint_id"] == 42


class Jvm:
    """A JVM that only knows whether it lives, and what was opened with which client."""

    def __init__(self) -> None:
        self.attempts = False
        self.clients: list[object] = []

    @contextlib.contextmanager
    def __call__(self) -> Iterator["Jvm"]:
        self.attempts = True
        try:
            yield self
        finally:
            self.attempts = False


@pytest.fixture
def jvm(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Jvm:
    made = Jvm()

    def opened(uri: str, client: object) -> FileSystem:
        made.clients.append(client)
        return open_file_system(str(directory / "none" if "empty" in uri else directory))

    monkeypatch.setattr("sluice.runtime.storage.hadoop_jvm.hadoop_jvm", made)
    monkeypatch.setattr(
        "sluice.runtime.checkpoint.inspect.checkpoint_opening.open_file_system", opened
    )
    return made


def test_a_directory_on_hdfs_is_read_with_a_jvm_that_ends_with_the_command(jvm: Jvm) -> None:
    with command_store("hdfs://h:1/a") as store:
        assert jvm.attempts
        assert store.slots()
    assert not jvm.attempts
    with (
        pytest.raises(ConfigError, match="there is no such directory"),
        command_store("hdfs:///empty"),
    ):
        pass
    assert not jvm.attempts
    assert jvm.clients == [jvm] * 3, "the second one is looked at for a drop-in query, too"


def test_a_local_directory_needs_no_jvm(directory: Path, jvm: Jvm) -> None:
    with command_store(str(directory)) as store:
        assert not jvm.attempts
        assert store.slots()
    assert jvm.clients == [None]


def run_of(parts: int, checkpoint_id: int) -> CheckpointRecord:
    pipeline = Pipeline(StubSource(), [], [StubSink()])
    graph, regions = regions_of([pipeline], [False], parts=parts)
    records = (RegionRecord(region=each.name, attempt_id=1) for each in regions)
    return replace(record(checkpoint_id), graph=graph, regions=tuple(records))


@pytest.fixture
def directory_job(tmp_path: Path) -> Path:
    """A job of one part in checkpoint 0, of three in checkpoint 1."""
    store = open_store(str(tmp_path))
    for each in (run_of(1, 0), run_of(3, 1)):
        store.publish(each, timeout_s=60)
    return tmp_path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(job_app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_graph_shows_the_newest_decision(directory_job: Path) -> None:
    """Which job and checkpoint, then operators, edges and regions with their standing."""
    heading, text = run("graph", str(directory_job)).split("\n\n", 1)
    assert record(1).job_name in heading
    assert "checkpoint 1" in heading
    assert text == view_of_record(run_of(3, 1)).text() + "\n"
    assert "orders-2  completed  orders[2] out[2]" in text


def test_graph_as_mermaid_is_a_diagram_and_nothing_else(directory_job: Path) -> None:
    shown = run("graph", str(directory_job), "--mermaid")
    assert shown == view_of_record(run_of(3, 1)).mermaid() + "\n"
    assert shown.startswith("flowchart LR\n")


def test_graph_of_an_older_checkpoint(directory_job: Path) -> None:
    older = run("graph", str(directory_job), "--id", "0")
    assert older == run("graph", f"{directory_job}/{slot_name(0)}")
    assert "checkpoint 0" in older
    assert "orders-2" not in older


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(("graph", "{}/none"), ConfigError), (("graph", "{}", "--id", "7"), StorageError)],
)
def test_what_cannot_be_shown_is_a_typed_error_job(
    directory_job: Path, arguments: tuple[str, ...], error: type[StreamError]
) -> None:
    """The frame of the command line prints it, exit code 1."""
    with pytest.raises(error):
        run(*(each.format(directory_job) for each in arguments))
