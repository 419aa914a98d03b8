"""State of ten times its memory: a task of RocksDB writes, merges and restores it, and stays small."""

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_MEMORY_MIB = 32
_PROGRAM = """
import random, sys
from pathlib import Path
from sluice.runtime.state.state_settings import StateSettings
from tests.kit.state.state_beds import P0, P1, StateTask, state_store

directory, mebibytes = Path(sys.argv[1]), int(sys.argv[2])
store = state_store(directory)
settings = StateSettings(backend="rocksdb", memory_mib=32, directory=str(directory / "local"))


def rss_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) // 256


def value(key):
    return random.Random(key).randbytes(1024)


largest = 0
task = StateTask(store, {P0: None, P1: None}, settings=settings)
for first in range(0, 1024 * mebibytes, 4096):
    for split in (P0, P1):
        task.put(split, {b"%d" % key: value(key) for key in range(first + split[2], first + 4096, 2)})
    state = task.end_epoch()
    largest = max(largest, rss_mib())
task.close()
task = StateTask(store, {split: state.of([split]) for split in (P0, P1)}, settings=settings)
keys = random.Random(7).sample(range(1024 * mebibytes), 2000)
for split in (P0, P1):
    mine = [key for key in keys if key % 2 == split[2]]
    found = task.state.table(1).get(task.state.ordinal(split), [b"%d" % key for key in mine])
    assert found == [value(key) for key in mine]
largest = max(largest, rss_mib())
task.close()
print(largest)
"""


def _largest_mib(directory: Path, mebibytes: int) -> int:
    program = [sys.executable, "-c", _PROGRAM, str(directory), str(mebibytes)]
    done = subprocess.run(program, cwd=_ROOT, check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.extended
def test_state_of_ten_times_its_memory(tmp_path: Path) -> None:
    """Beside the state's memory, a merge and a restore have a batch of each part."""
    some = _largest_mib(tmp_path / "some", 3 * _MEMORY_MIB)
    large = _largest_mib(tmp_path / "large", 10 * _MEMORY_MIB)
    assert large < 1.25 * some  # without the bound, it would be twice as large
