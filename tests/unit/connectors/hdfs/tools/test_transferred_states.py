"""States of file sinks for a job that is restored from another one's."""

import pytest

from sluice.connectors.hdfs.partition_commit.partition_state import (
    OpenPartition,
    PartitionState,
    decode_state,
    encode_state,
)
from sluice.connectors.hdfs.staging.pending_files import (
    PendingFile,
    PendingFiles,
    encode_pending_files,
)
from sluice.connectors.hdfs.tools.file_kinds import OPEN_PARTITIONS, STAGED_FILES
from sluice.runtime.checkpoint.format.committable_kinds import KindRegistry
from sluice.runtime.errors import ConfigError

KINDS = KindRegistry([*STAGED_FILES, OPEN_PARTITIONS])


def opened(path: str, checkpoint_id: int) -> OpenPartition:
    return OpenPartition(path=path, first_seen_ms=7, checkpoint_id=checkpoint_id)


def test_open_partitions_stay_open_under_the_numbers_of_the_new_job() -> None:
    """A mark of the old job covers files up to its checkpoint 40; the new job's marks begin at 1."""
    state = PartitionState(
        checkpoint_id=42,
        opened={"d=1": opened("d=1", 40), "d=2": opened("d=2", 42), "d=3": opened("d=3", 41)},
        marked={"d=1": {"orders": 40, "other": 39}, "d=3": {"other": 41}},
        forgotten_ms=5,
        target="file:///out",
    )
    found = decode_state(KINDS.transferred(encode_state(state, operator_id="op"), "orders"))
    assert {path: one.checkpoint_id for path, one in found.opened.items()} == {"d=2": 1, "d=3": 1}
    assert found.marked == {"d=1": {"orders": 0, "other": 0}, "d=3": {"other": 0}}
    assert (found.checkpoint_id, found.forgotten_ms, found.target) == (0, 5, "file:///out")
    assert not found.has_rows
    assert set(found.unmarked("orders", found.marked)) == {"d=2", "d=3"}


def test_held_rows_of_the_old_job_are_not_published_twice() -> None:
    """Both jobs would publish them."""
    held = PendingFile(
        directory="",
        staging="_staging/a",
        staged="f",
        length_bytes=3,
        rows=2,
        first_ms=0,
        last_ms=1,
    )
    pending = PendingFiles(target="file:///out", layout="x", files=(held,))
    with pytest.raises(ConfigError, match=r"holds rows back.*files=1 rows=2.*savepoint"):
        KINDS.transferred(encode_pending_files(pending, operator_id="op"), "orders")
    none = encode_pending_files(PendingFiles(target="t", layout="x"), operator_id="op")
    assert KINDS.transferred(none, "orders") == none
