"""What a record says of held files, and the policy that lets them roll."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from sluice import HdfsSink, Roll
from sluice.connectors.hdfs.rolling.roll_plan import again_in_s, plan, settle
from sluice.connectors.hdfs.staging.committables import InvalidFileSetError
from sluice.connectors.hdfs.staging.pending_files import (
    PENDING_KIND,
    PendingFile,
    PendingFiles,
    decode_pending_files,
    encode_pending_files,
    pending_partitions,
)
from sluice.runtime.checkpoint.format.committable_kinds import installed_kinds
from sluice.runtime.errors import ConfigError, DamagedCheckpointError, UnsupportedFormatError

VERSION_1 = Path(__file__).parents[4] / "data" / "pending-files-v1.json"
ROOT = ".sluice-staging-orders/5b2f/0a1b/main.3"
HELD = PendingFiles(
    target="hdfs://h:9000/data/orders",
    layout="0123456789abcdef",
    files=(
        PendingFile(
            directory="dt=1",
            staging=f"{ROOT}/9-00000000000000000000000000000002",
            staged="merged-00000/sluice_group=0/part-00000-x-c000.snappy.parquet",
            length_bytes=1200,
            rows=3,
            first_ms=1000,
            last_ms=5000,
            level=1,
        ),
        PendingFile(
            directory="",
            staging=f"{ROOT}/7-00000000000000000000000000000001",
            staged="part-00001-x-c000.json",
            length_bytes=900,
            rows=None,
            first_ms=6000,
            last_ms=6000,
        ),
    ),
)


def test_version_1_is_read_for_ever() -> None:
    entry = encode_pending_files(HELD, operator_id="op")
    old = dataclasses.replace(entry, payload=VERSION_1.read_bytes())
    assert decode_pending_files(old) == HELD
    assert json.loads(entry.payload) == json.loads(VERSION_1.read_bytes())


def test_partitions_of_held_files_are_told_from_a_sinks_states() -> None:
    """Nobody may call such a partition complete."""
    other = dataclasses.replace(encode_pending_files(HELD, operator_id="op"), kind="other")
    assert pending_partitions([other, encode_pending_files(HELD, operator_id="op")]) == {"", "dt=1"}


def test_a_start_knows_what_it_restores_and_shows_it() -> None:
    """Or it would refuse every checkpoint that holds files."""
    entry = encode_pending_files(HELD, operator_id="op")
    shown = installed_kinds().describe(entry)
    assert shown is not None
    assert (shown["target"], shown["length_bytes"]) == (HELD.target, 2100)
    assert installed_kinds().latest_versions[PENDING_KIND] == entry.version


def test_what_cannot_be_read_is_refused() -> None:
    entry = encode_pending_files(HELD, operator_id="op")
    with pytest.raises(UnsupportedFormatError):
        decode_pending_files(dataclasses.replace(entry, version=2))
    with pytest.raises(DamagedCheckpointError):
        decode_pending_files(dataclasses.replace(entry, payload=b'{"files": []}'))


@pytest.mark.parametrize(
    "changes",
    [
        {"staging": "../x"},
        {"staged": "../x"},
        {"directory": "/"},
        {"length_bytes": 0},
        {"rows": -1},
        {"level": -1},
        {"last_ms": 0},
    ],
    ids=str,
)
def test_a_held_file_that_is_out_of_range_is_refused(changes: dict[str, Any]) -> None:
    """A damaged record may name whatever there is: it would be merged, published or swept."""
    with pytest.raises(InvalidFileSetError):
        dataclasses.replace(HELD.files[0], **changes)


@pytest.mark.parametrize(
    ("size", "size_bytes"), [(7, 7), ("7", 7), ("128m", 128 << 20), ("2GB", 2 << 30), ("1k", 1024)]
)
def test_a_size_is_a_number_or_as_spark_spells_it(size: int | str, size_bytes: int) -> None:
    assert Roll(size=size).size_bytes == size_bytes


@pytest.mark.parametrize(
    "settings",
    [
        {"size": "big"},
        {"size": 0},
        {"size": 1e6},
        {"age": 0},
        {"age": math.inf},
        {"age": math.nan},
        {"idle": -1.0},
        {"idle": math.inf},
    ],
)
def test_a_policy_out_of_range_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Roll(**settings)


@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize(
    "options",
    [
        {"header": True},
        {" Header": " True "},
        {"compression": "snappy"},
        {"codec": "bzip2"},
        {"encoding": "UTF-16"},
    ],
)
def test_lines_that_cannot_be_put_behind_one_another_do_not_roll(
    form: str, options: dict[str, str]
) -> None:
    """A header in the middle of a file would be a row, and what was compressed by itself is read
    as far as its first part, or not at all."""
    HdfsSink("/data/orders", format=form, options=options)
    with pytest.raises(ConfigError, match="cannot roll"):
        HdfsSink("/data/orders", format=form, options=options, roll=Roll())


@pytest.mark.parametrize("form", ["parquet", "orc"])
def test_columns_roll_however_they_are_compressed(form: str) -> None:
    """They are written anew when they are merged, and not put behind one another."""
    HdfsSink("/data/orders", format=form, options={"compression": "snappy"}, roll=Roll())


def test_the_policy_is_shown_among_the_settings() -> None:
    assert HdfsSink("/d/x").settings()["roll"] == "each epoch"
    shown = HdfsSink("/d/x", roll=Roll(size="1k", age=60, idle=5)).settings()["roll"]
    assert shown == "1024 bytes, age 60 s, idle 5 s"


def test_files_that_the_writer_splits_are_not_merged_again() -> None:
    """With ``maxRecordsPerFile`` no merged file may ever be whole by its size: held on, all of
    them would be written once more in each epoch."""
    roll = Roll(size=2000)
    files = (HELD.files[0], dataclasses.replace(HELD.files[0], staged="other"))
    planned = plan(files, roll, now_ms=0, publishes_all=False)
    (merge,) = planned.merges
    parts = [
        merge.merged(staging=ROOT, staged=f"part-{n}", length_bytes=900, rows=3) for n in (0, 1)
    ]
    outcome = settle(planned, [parts], roll)
    assert (len(outcome.publish), len(outcome.keep)) == (2, 0)


@pytest.mark.parametrize(
    ("now_ms", "publishes_all", "published"),
    [(6_999, False, 0), (7_000, False, 1), (61_000, False, 2), (0, True, 2)],
)
def test_files_with_decision_a_directory_rolls_when_it_is_old_idle_or_over(
    now_ms: int, publishes_all: bool, published: int
) -> None:
    """Each directory by itself: the first has had no row since 5 s, the other one has."""
    roll = Roll(age=55.0, idle=2.0)
    late = dataclasses.replace(HELD.files[1], last_ms=60_000)
    files = (HELD.files[0], late)
    outcome = settle(plan(files, roll, now_ms=now_ms, publishes_all=publishes_all), [], roll)
    assert (len(outcome.publish), len(outcome.keep)) == (published, 2 - published)
    assert again_in_s(files, roll, now_ms=6_000) == 1.0


def test_files_with_decision_a_clock_that_was_set_back_holds_no_row_longer_than_the_policy_does() -> (
    None
):
    """A run whose clock went ahead by a day has staged them; from now on they are of today."""
    roll = Roll(age=55.0, idle=20.0)
    day_ms = 86_400_000
    ahead = tuple(dataclasses.replace(f, first_ms=day_ms, last_ms=day_ms) for f in HELD.files)
    held = settle(plan(ahead, roll, now_ms=1_000, publishes_all=False), [], roll).keep
    assert {(file.first_ms, file.last_ms) for file in held} == {(1_000, 1_000)}
    assert again_in_s(held, roll, now_ms=1_000) == 20.0
    late = settle(plan(held, roll, now_ms=21_000, publishes_all=False), [], roll)
    assert (len(late.publish), len(late.keep)) == (len(HELD.files), 0)
