"""``sluice checkpoint clean`` on a local directory."""

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from typer.testing import CliRunner

from sluice.runtime.checkpoint.checkpoint_slots import METADATA, slot_name
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.checkpoint.cleaning.clean_plan import FoundPath, KnownRecords, leftovers
from sluice.runtime.checkpoint.cleaning.directory_cleaning import CLEAN_FAILPOINTS
from sluice.runtime.checkpoint.format.container import ContainerWriter
from sluice.runtime.checkpoint.format.metadata import encode
from sluice.runtime.checkpoint.format.schema import METADATA_V1
from sluice.runtime.checkpoint.inspect import clean_command
from sluice.runtime.checkpoint.inspect.checkpoint_cli import app
from sluice.runtime.checkpoint.resumable_attempts import ListedAttempts, ResumableAttempts
from sluice.runtime.errors import ConfigError, UnsupportedFormatError
from sluice.runtime.failpoints import FailpointError
from sluice.runtime.model.checkpoint_record import (
    FENCING,
    CheckpointKind,
    RegionRecord,
    StateSnapshot,
    Verdict,
)
from sluice.runtime.savepoint.savepoint import open_savepoint
from tests.kit.coordinator.checkpoint_records import JOB_UID, record

_DAY_MS = 86_400_000
_MINE = f"savepoint-{JOB_UID[:8]}-7-0000"
_CLOSED = {f"full/chk-000000000001/{METADATA}", f"savepoints/{_MINE}02/{METADATA}"}
_KEPT = (
    "full/chk-000000000002/_retired",
    "spark/r0/state-2/state/0/1.zip",
    "spark/r0/5/offsets/0",
    f"savepoints/{_MINE}01/{METADATA}",
)
_LEFT = {
    "Spark files of earlier attempts": ("spark/r0/1/offsets/0", "spark/gone/state-0/state/0/1.zip"),
    "unused copies of a restore": ("spark/r0/restored-x/state/0/1.zip",),
    "half-written savepoints": (f"savepoints/{_MINE}02/spark/r0/state-2/offsets/0",),
    "half-written full checkpoints": ("full/chk-000000000001/spark/r0/state-2/offsets/0",),
    "files of deleted full checkpoints": ("full/chk-000000000002/spark/r0/state-2/state/0/1.zip",),
    "slots without a record": ("chk-000000000001/.x.s.tmp",),
    "temporary files": (
        ".x.tmp",
        "spark/r0/state-2/offsets/.1.x.tmp",
        ".sluice-trash-" + "0" * 32 + "/x",
    ),
}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job with files of every kind, 8 days later: its second run began with checkpoint 4."""
    store = open_store(str(tmp_path))
    state = StateSnapshot(
        provider="rocksdb",
        checkpoint_format_version=2,
        state_version=1,
        state_partitions=1,
        location="spark/r0/state-2/state",
    )
    region = RegionRecord(region="r0", attempt_id=2, batch_id=0, state=state)
    for made in (
        record(0, regions=()),
        record(3, regions=(region,)),
        record(
            4, verdict=Verdict.ABORTED, requested_by=FENCING, leader_session_id="second", regions=()
        ),
    ):
        store.publish(made, timeout_s=60)
    saved = record(3, kind=CheckpointKind.SAVEPOINT, regions=())
    for path in (*_KEPT, *(path for paths in _LEFT.values() for path in paths)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(encode(saved) if path.endswith(METADATA) else b"12345")
    now_ms = time.time_ns() // 1_000_000
    monkeypatch.setattr(clean_command, "_now_ms", lambda: now_ms + 8 * _DAY_MS)
    return tmp_path


def _clean(directory: Path, *options: str) -> dict[str, Any]:
    result = CliRunner().invoke(
        app, ["clean", str(directory), "--json", *options], catch_exceptions=False
    )
    found: dict[str, Any] = json.loads(result.output)
    return found


def _there(directory: Path) -> set[str]:
    return {
        each.relative_to(directory).as_posix() for each in directory.rglob("*") if each.is_file()
    }


def test_what_nothing_names_is_deleted_and_its_bytes_are_reported(directory: Path) -> None:
    before = _there(directory)
    told = _clean(directory, "--dry-run")
    assert _there(directory) == before
    assert {each["kind"]: each["length_bytes"] for each in told["kinds"]} == {
        kind: 5 * len(paths) for kind, paths in _LEFT.items()
    }
    assert told["length_bytes"] == 5 * sum(map(len, _LEFT.values()))
    assert _clean(directory) == {**told, "deleted": True}
    assert _there(directory) == _CLOSED | before - {p for paths in _LEFT.values() for p in paths}
    with pytest.raises(ConfigError, match="no complete savepoint"):
        open_savepoint(str(directory / "savepoints" / f"{_MINE}02"))
    (closed,) = _clean(directory)["kinds"]
    assert closed["kind"] == "closed savepoints"
    assert _clean(directory)["paths"] == []


def test_files_of_the_newest_run_stay_below_a_seal_in_a_retired_slot(tmp_path: Path) -> None:
    """A start that lost a race leaves a seal between the decisions of the run that won it."""
    records = {
        4: record(4, verdict=Verdict.ABORTED, requested_by=FENCING, leader_session_id="newest"),
        5: record(5, verdict=Verdict.ABORTED, requested_by=FENCING, leader_session_id="lost"),
        6: record(6, leader_session_id="newest", regions=()),
    }
    paths = ("state/r0/3-1-aa.changes", "state/r0/4-1-bb.changes", "spark/r0/4/offsets/0")
    listing = [
        FoundPath(path=path, is_directory=False, length_bytes=5, changed_ms=0) for path in paths
    ]
    known = KnownRecords(slots=records, full={})
    left = leftovers(listing, known, now_ms=8 * _DAY_MS, older_than_ms=_DAY_MS)
    assert [each.path for each in left] == [paths[0]]


def test_files_of_an_attempt_that_outlives_its_coordinator_stay(directory: Path) -> None:
    """A merged file is named by the region's next epoch; an idle region may have that much later."""
    paths = ("state/r0/2-1-aa.merged", "state/r0/3-1-bb.changes")
    for path in paths:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(b"12345")
    resumable = ResumableAttempts(open_store(str(directory)).fs)
    for run, attempts in [(3, {"r0": 3, "r1": 3}), (4, {"r0": 3, "r1": 4})]:
        resumable.write(ListedAttempts(run_attempt_id=run, resumed_from=2, attempts=attempts))
    assert [each for each in _clean(directory)["paths"] if "state/r0" in str(each)]
    assert {path for path in paths if (directory / path).exists()} == {paths[1]}
    resumable.forget_before(5)
    _clean(directory)
    assert not (directory / paths[1]).exists()


def test_young_files_stay(directory: Path) -> None:
    before = _there(directory)
    """But for what a killed deletion left, and what retention has begun to delete."""
    assert _clean(directory, "--older-than", "2w")["length_bytes"] == 10
    assert len(_there(directory)) == len(before) - 2


def test_what_may_be_under_way_stays_for_an_hour_whatever_the_limit_says(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for what earlier runs of the job wrote."""
    now_ms = time.time_ns() // 1_000_000
    monkeypatch.setattr(clean_command, "_now_ms", lambda: now_ms + 60_000)
    kinds = [each["kind"] for each in _clean(directory, "--older-than", "0s")["kinds"]]
    assert kinds == [
        "Spark files of earlier attempts",
        "files of deleted full checkpoints",
        "temporary files",
    ]
    assert not list(directory.glob(".sluice-trash-*")), "a killed deletion is finished at once"
    assert (directory / ".x.tmp").exists()


def test_a_damaged_record_protects_what_it_could_name(directory: Path) -> None:
    (directory / slot_name(3) / METADATA).write_bytes(b"damaged")
    told = _clean(directory)
    assert any("spark" in path for path in _there(directory))
    assert "Spark files of earlier attempts" not in {each["kind"] for each in told["kinds"]}
    assert set(_KEPT) <= _there(directory)
    assert len(told["damaged"]) == 1
    shown = CliRunner().invoke(app, ["clean", str(directory)], catch_exceptions=False).output
    assert "Everything that this record could name stays" in shown
    assert "sluice files clean" in shown


@pytest.mark.parametrize("place", [slot_name(3), f"full/{slot_name(3)}", f"savepoints/{_MINE}01"])
def test_a_record_of_a_later_version_ends_the_command(directory: Path, place: str) -> None:
    before = _there(directory)
    path = directory / place / METADATA
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_of_later_version(encode(record(3, regions=()))))
    with pytest.raises(UnsupportedFormatError, match="version"):
        _clean(directory)
    assert _there(directory) >= before


def _of_later_version(data: bytes) -> bytes:
    fields: dict[str, Any] = {**next(fastavro.reader(io.BytesIO(data))), "format_version": 99}
    return ContainerWriter(METADATA_V1, format_version=99).write(fields)


def test_half_written_savepoints_of_this_job_are_deleted_elsewhere_too(
    directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Named as their parent, or as one of the savepoints there."""
    parent = tmp_path_factory.mktemp("saved")
    for name in (f"{_MINE}0a", f"{_MINE}0b", "savepoint-01234567-7-00000a"):
        (parent / name).mkdir()
        (parent / name / "1.zip").write_bytes(b"1")
    (parent / f"{_MINE}0a" / METADATA).write_bytes(b"damaged")
    told = _clean(directory, "--savepoint", str(parent / f"{_MINE}0a"), "--savepoint", str(parent))
    assert _there(parent) == {
        f"{_MINE}0b/{METADATA}",
        f"{_MINE}0a/1.zip",
        f"{_MINE}0a/{METADATA}",
        "savepoint-01234567-7-00000a/1.zip",
    }
    assert len(told["damaged"]) == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("--older-than", "7"), ("--older-than", "x d"), ("--savepoint", "/nowhere")],
)
def test_options_that_make_no_sense_are_refused(directory: Path, option: str, value: str) -> None:
    before = _there(directory)
    with pytest.raises(ConfigError):
        _clean(directory, option, value)
    assert _there(directory) == before


@pytest.mark.parametrize("point", CLEAN_FAILPOINTS)
def test_a_command_that_dies_between_two_deletions_is_repeated(
    directory: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Twice in a row, at its second deletion."""
    before = _there(directory)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(clean_command, "failpoint", _second(point))
            with pytest.raises(FailpointError):
                _clean(directory)
        assert set(_KEPT) <= _there(directory)
    _clean(directory)
    _clean(directory)
    left = {path for paths in _LEFT.values() for path in paths}
    assert _there(directory) == before - left | {f"full/chk-000000000001/{METADATA}"}


def _second(point: str) -> Callable[[str], None]:
    reached: list[str] = []

    def die(name: str) -> None:
        reached.append(name)
        if reached.count(point) == 2:
            raise FailpointError("dead", {}, "Start it again.")

    return die
