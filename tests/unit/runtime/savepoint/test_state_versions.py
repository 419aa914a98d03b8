"""The files of one state version, from the names in a store's directory."""

import io
import json
import zipfile
from collections.abc import Mapping

import pytest

from sluice.runtime.savepoint.spark_files import is_shared
from sluice.runtime.savepoint.state_versions import (
    files_in_snapshot,
    ids_in_commit,
    store_version,
)

_OWN = {1: "a1", 2: "a2", 3: "a3", 4: "a4"}


def _chosen(
    names: str, *, version: int = 4, ids: Mapping[int, str | None] = _OWN
) -> tuple[str, ...] | None:
    def ids_at(number: int) -> frozenset[str] | None:
        known = ids.get(number)
        return None if known is None else frozenset({known, "another-store"})

    found = store_version(names.split(), version, ids_at)
    return None if found is None else found.names


def test_newest_snapshot_of_the_lineage_and_the_changelogs_after_it() -> None:
    names = "1_a1.zip 2_a2.zip 2_a2.changelog 3_a3.changelog 4_a4.changelog 5_a5.zip"
    assert _chosen(names) == ("2_a2.zip", "3_a3.changelog", "4_a4.changelog")


def test_checksums_come_along_and_files_of_other_attempts_do_not() -> None:
    names = "3_b3.zip 3_a3.zip 3_a3.zip.crc 4_a4.changelog 4_a4.changelog.crc 4_b4.changelog SSTs"
    wanted = ("3_a3.zip", "3_a3.zip.crc", "4_a4.changelog", "4_a4.changelog.crc")
    assert _chosen(names) == wanted


def test_without_any_snapshot_all_changelogs_from_the_first_one() -> None:
    names = "1_a1.changelog 2_a2.changelog 3_a3.changelog 4_a4.changelog"
    assert _chosen(names) == tuple(names.split())
    assert _chosen(names, version=0) == ()


@pytest.mark.parametrize("missing", ["2_a2.zip", "3_a3.changelog", "4_a4.changelog"])
def test_a_missing_file_is_noticed(missing: str) -> None:
    names = "1_b1.zip 2_a2.zip 3_a3.changelog 4_a4.changelog".replace(missing, "")
    assert _chosen(names) is None


def test_without_the_commit_log_a_single_id_is_certain() -> None:
    names = "1_a1.changelog 2_a2.zip 3_a3.changelog 4_a4.changelog"
    assert _chosen(names, ids={4: "a4"}) == ("2_a2.zip", "3_a3.changelog", "4_a4.changelog")


def test_without_the_commit_log_a_snapshot_beside_another_id_is_no_base() -> None:
    """It may belong to an attempt that failed: then Spark loads the older one."""
    names = "1_a1.zip 2_a2.changelog 2_b2.zip 3_a3.changelog 4_a4.changelog"
    assert _chosen(names, ids={4: "a4"}) == tuple(sorted(names.split()))


def test_without_the_commit_log_an_uncertain_base_is_enough_if_spark_deleted_the_rest() -> None:
    names = "2_a2.zip 2_b2.changelog 3_a3.changelog 4_a4.changelog"
    assert _chosen(names, ids={4: "a4"}) == tuple(sorted(names.split()))


def test_ids_in_a_commit_log_entry() -> None:
    entry = b'v2\n{"nextBatchWatermarkMs":1,"stateUniqueIds":{"0":[["a"],["b"]],"1":[["c","d"]]}}'
    assert ids_in_commit(entry) == {
        ("0", "0"): frozenset("a"),
        ("0", "1"): frozenset("b"),
        ("1", "0"): frozenset("cd"),
    }
    for broken in (b"", b"v1\n{}", b"v2\n", b"v2\n{}", b"v2\nno JSON"):
        with pytest.raises(ValueError, match=r".+"):
            ids_in_commit(broken)


def test_files_in_a_snapshot() -> None:
    listed = {
        "sstFiles": [{"localFileName": "8.sst", "dfsSstFileName": "8-u.sst", "sizeBytes": 1}],
        "logFiles": [{"localFileName": "9.log", "dfsLogFileName": "9-u.log", "sizeBytes": 1}],
    }
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("metadata", f"v1\n{json.dumps(listed)}")
    assert files_in_snapshot(data.getvalue()) == ["SSTs/8-u.sst", "logs/9-u.log"]
    with pytest.raises(ValueError, match="the snapshot cannot be read"):
        files_in_snapshot(data.getvalue()[:50])


@pytest.mark.parametrize(
    ("path", "is_data"),
    [
        ("state/0/1/12_c9910715-0977.zip", True),
        ("state/0/1/12_c9910715-0977.changelog.crc", True),
        ("state/0/1/SSTs/000008-7a1b62a8.sst", True),
        ("state/0/1/logs/000013-7a1b62a8.log", True),
        ("state/0/0/_metadata/schema", False),
        ("state/0/_stateSchema/default/0_7c9cd7c5", False),
        ("offsets/12", False),
        ("metadata", False),
    ],
)
def test_only_state_data_never_changes(path: str, is_data: bool) -> None:
    assert is_shared(f"spark/r0/state-0/{path}") == is_data
