"""Half-made files: gone once nobody can be writing them, and no reason to stop."""

import pytest

from sluice.runtime.checkpoint.leftover_files import Leftovers
from tests.kit.fakes import ManualClock
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault

HOUR_S = 3600.0


def test_what_cannot_be_deleted_stays_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(files={f"._leader.{'0' * 32}.tmp": b""})
    clock, is_away = ManualClock(), True

    def fault(_: str) -> Fault:
        return Fault.REFUSED if is_away else Fault.NONE

    leftovers = Leftovers(FakeFileSystem(disk, fault=fault), clock=clock)
    for _ in range(2):
        leftovers.delete_abandoned()
        clock.advance(HOUR_S)
    assert disk.files
    assert "incomplete files were not deleted" in caplog.text
    is_away = False
    leftovers.delete_abandoned()
    assert not disk.files
