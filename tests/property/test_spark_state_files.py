"""Property test: the chosen files load every state that Spark can load, from random directories."""

from dataclasses import dataclass, field

from hypothesis import event, given
from hypothesis import strategies as st

from sluice.runtime.savepoint.spark_files import files_of_batch
from tests.kit.files.fake_file_system import Disk, FakeFileSystem
from tests.kit.files.spark_state import SparkState, load_state

_LOCATION = "spark/r0/state-0"
_JOIN = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues")


@dataclass(frozen=True)
class _Step:
    """One batch, and what Spark's maintenance does after it."""

    foreign: bool = False
    snapshot: int | None = None  # of the version this many before the newest
    foreign_snapshot: bool = False
    logs: int | None = None
    state: bool = field(default=False)


_STEPS = st.lists(
    st.builds(
        _Step,
        foreign=st.booleans(),
        snapshot=st.none() | st.integers(0, 4),
        foreign_snapshot=st.integers(0, 9).map(lambda number: number == 0),
        logs=st.none() | st.integers(2, 6),
        state=st.booleans(),
    ),
    min_size=1,
    max_size=14,
)


def _run(spark: SparkState, steps: list[_Step]) -> None:
    for step in steps:
        batch = spark.run_batch(foreign=step.foreign)
        if step.snapshot is not None and step.snapshot <= batch:
            version = batch + 1 - step.snapshot
            if step.foreign_snapshot:
                spark.upload_snapshot(version, foreign=True)
            else:
                spark.upload_snapshot(version)
        if step.logs is not None:
            spark.purge(logs=step.logs, state=step.state)


def _copy(fs: FakeFileSystem, paths: list[str]) -> FakeFileSystem:
    copy = FakeFileSystem(Disk())
    for path in paths:
        copy.copy_from(fs, path, path)
    return copy


@given(steps=_STEPS, stores=st.sampled_from([("default",), _JOIN]), back=st.integers(0, 2))
def test_chosen_files_load_the_state_of_the_batch(
    steps: list[_Step], stores: tuple[str, ...], back: int
) -> None:
    """The copy of the chosen files alone gives the same state as the whole directory."""
    fs = FakeFileSystem(Disk())
    spark = SparkState(fs, stores=stores)
    _run(spark, steps)
    batch = max(spark.next_batch - 1 - back, 0)
    try:
        wanted = load_state(fs, batch, stores=stores)
    except KeyError:  # Spark has deleted it
        event("deleted")
        return
    paths = files_of_batch(fs, _LOCATION, batch)
    assert load_state(_copy(fs, paths), batch, stores=stores) == wanted
    assert not [path for path in paths if _version(path) > batch + 1], "a later version"


@given(steps=_STEPS)
def test_only_the_lineage_after_the_newest_snapshot_is_chosen(steps: list[_Step]) -> None:
    """Without purged logs, each version of a partition is there once, none below the snapshot."""
    fs = FakeFileSystem(Disk())
    spark = SparkState(fs, partitions=1)
    _run(spark, [_Step(foreign=each.foreign, snapshot=each.snapshot) for each in steps])
    batch = spark.next_batch - 1
    paths = files_of_batch(fs, _LOCATION, batch)
    data = [path for path in paths if path.endswith((".zip", ".changelog"))]
    versions = [_version(path) for path in data]
    assert versions == list(range(batch + 1, batch + 1 - len(versions), -1)) or sorted(
        versions
    ) == list(range(batch + 2 - len(versions), batch + 2))
    snapshots = [path for path in data if path.endswith(".zip")]
    assert len(snapshots) <= 1
    assert all(_version(path) == min(versions) for path in snapshots)


def _version(path: str) -> int:
    name = path.rpartition("/")[2]
    number = name.partition("_")[0]
    return int(number) if number.isdecimal() and "/state/" in path and "_" in name else -1
