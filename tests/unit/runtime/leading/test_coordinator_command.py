"""``sluice coordinator start`` as a standby."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.election.ha_settings import HaSettings, await_lead
from sluice.runtime.leading import coordinator_cli

_LEASE = HaSettings(zookeeper=None, timeout_s=2.0)


def test_a_standby_ends_without_an_error_when_the_leader_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor must not start it again: it would lead a job that was stopped."""
    described = SimpleNamespace(plan=SimpleNamespace(name="job"))
    monkeypatch.setattr(coordinator_cli, "_awaited", lambda _: described)
    store = open_store(str(tmp_path / "checkpoint"))
    leader = _LEASE.election(store.fs, name="job", role="coordinator")

    def stand_by() -> int:
        with contextlib.ExitStack() as stack, pytest.raises(typer.Exit) as ended:
            coordinator_cli._elected(store, _LEASE, [], stack)  # noqa: SLF001
        return ended.value.exit_code

    with leader, ThreadPoolExecutor(1) as pool:
        await_lead(leader, check=lambda: None)
        standby = pool.submit(stand_by)
        while not leader.view().standbys:
            assert not standby.done()
        leader.resign(is_finished=True)
        assert standby.result(60.0) == 0
