"""``sluice savepoint`` on savepoints of a local disk; `create` is tested with a running job."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice.runtime.errors import ConfigError, DamagedCheckpointError
from sluice.runtime.job.savepoint_cli import app
from tests.unit.runtime.savepoint.test_savepoints_on_disk import Job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def _run(*arguments: object) -> str:
    found = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


def _json(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_run(*arguments, "--json"))
    return found


def test_list_names_kind_job_and_size(job: Job) -> None:
    found = _json("list", job.root)["savepoints"]
    assert {(each["kind"], each["checkpoint_id"]) for each in found} == {
        ("savepoint", 5),
        ("full", 5),
    }
    assert all(each["job_name"] == "orders" and each["bytes"] > 0 for each in found)
    assert str(job.savepoint) in _run("list", job.savepoint.parent)


def test_list_says_that_there_are_none(job: Job, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    assert _run("list", tmp_path / "none") == f"Savepoints in {tmp_path / 'none'}: none\n"
    with pytest.raises(ConfigError, match="there is no such directory"):
        _run("list", job.root / "absent")


def test_inspect_shows_regions_operators_and_state(job: Job) -> None:
    found = _json("inspect", job.savepoint)
    assert (found["kind"], found["job_uid"]) == ("savepoint", job.record.job_uid)
    regions = {each["region"]: each for each in found["regions"]}
    stateful, stateless = regions["r0"], regions["r1"]
    assert (stateful["region"], stateful["batch_id"], stateful["status"]) == ("r0", 2, "completed")
    assert stateful["state"]["operators"] == [{"number": 0, "name": "stateStoreSave"}]
    assert stateful["state"]["partitions"] == 2
    assert 0 < stateful["state"]["bytes"] < found["bytes"]  # the rest is keyed state
    assert stateless["state"] is None
    text = _run("inspect", job.savepoint)
    assert "stateStoreSave" in text
    assert job.record.job_uid in text


def test_verify_says_what_it_read_and_names_what_is_damaged(job: Job) -> None:
    found = _json("verify", job.savepoint)
    assert found["is_whole"]
    assert f"{found['files']:,} files" in _run("verify", job.full)
    victim = next((job.savepoint / "spark").rglob("*.zip"))
    victim.unlink()
    with pytest.raises(DamagedCheckpointError, match=victim.name):
        _run("verify", job.savepoint)


def test_dispose_deletes_once(job: Job) -> None:
    bytes_named = _json("inspect", job.savepoint)["bytes"]
    assert _json("dispose", job.savepoint)["bytes"] == bytes_named
    assert not job.savepoint.exists()
    with pytest.raises(ConfigError, match="there is no such directory"):
        _run("dispose", job.savepoint)
