"""What a job may be restored from, and Spark's operators of a transform and of a checkpoint."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import fastavro
import pytest
from pyspark.sql import SparkSession

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.format.container import ContainerWriter
from sluice.runtime.checkpoint.format.schema import METADATA_V1, METADATA_VERSION
from sluice.runtime.coordinator.start.restoring import RestoredState, RestoreRequest
from sluice.runtime.coordinator.start.translation import TakenState
from sluice.runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    StreamError,
    UnsupportedFormatError,
    WrongJobError,
)
from sluice.runtime.job.job import Job
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.savepoint.savepoint_writer import savepoint_name, write_savepoint
from sluice.runtime.spark.frames.plan_analysis import PlanAnalysis
from sluice.runtime.spark.run.region_layout import Layout
from sluice.runtime.spark.run.restore_request import origin_of, require_fitting
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.coordinator.starting_job import NEVER_WRITTEN, record
from tests.kit.files.spark_state import SparkState


def restored(*operators: str) -> RestoredState:
    state = replace(NEVER_WRITTEN, operators=tuple(enumerate(operators)))
    before = RegionRecord(region="old", attempt_id=1, batch_id=7, state=state)
    taken = TakenState(before=before, region="orders", sources={}, topics={})
    return RestoredState(taken=taken, now=replace(before, region="orders"))


def fitting(kinds: tuple[str, ...], *operators: str) -> None:
    require_fitting({"orders": PlanAnalysis(stateful_kinds=kinds)}, [restored(*operators)])


@pytest.mark.parametrize(
    ("kinds", "operators"),
    [
        (("Aggregate",), ("stateStoreSave",)),
        (("Aggregate",), ("sessionWindowStateStoreSaveExec",)),
        (("Deduplicate", "Aggregate"), ("stateStoreSave", "dedupe")),
        (("OfALaterSpark",), ("anything",)),
    ],
)
def test_the_operators_of_the_same_transform_fit(
    kinds: tuple[str, ...], operators: tuple[str, ...]
) -> None:
    fitting(kinds, *operators)


@pytest.mark.parametrize(
    ("kinds", "operators"),
    [
        (("Deduplicate",), ("stateStoreSave",)),
        (("Aggregate", "Aggregate"), ("stateStoreSave",)),
        (("Aggregate",), ("stateStoreSave", "dedupe")),
        (("Aggregate", "Aggregate"), ("stateStoreSave", "dedupe")),
    ],
)
def test_other_operators_are_refused_with_both_lists(
    kinds: tuple[str, ...], operators: tuple[str, ...]
) -> None:
    with pytest.raises(WrongJobError) as caught:
        fitting(kinds, *operators)
    where = caught.value.args[1]
    assert (where["checkpoint_has"], where["transform_has"]) == (
        ",".join(operators),
        ",".join(kinds),
    )


def job(**arguments: Any) -> Job:
    return Job("j", cast(SparkSession, None), checkpoint_dir="/c", **arguments)


def test_a_path_is_a_uri_and_a_number_is_a_checkpoint() -> None:
    assert job(restore_from=7).spec.restore_from == 7
    assert job(restore_from="/s/one").spec.restore_from == "file:///s/one"
    assert job(restore_from=Path("/s/one")).spec.restore_from == "file:///s/one"
    rules = job(restore_from="/s", match="strict", topic_map={"a": "b"}).spec.restore_rules
    assert (rules.by_name, rules.topic_map) == (False, {"a": "b"})


@pytest.mark.parametrize("origin", ["", "7", "ftp://server/savepoint"])
def test_what_is_no_savepoint_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError):
        job(restore_from=origin)


@pytest.mark.parametrize(
    "rules", [{"topic_map": {"a": "b"}}, {"match": "strict"}, {"allow_non_restored_state": True}]
)
@pytest.mark.parametrize("origin", [None, 7])
def test_rules_without_a_restore_are_refused(origin: int | None, rules: dict[str, Any]) -> None:
    """They would have no effect."""
    with pytest.raises(ConfigError, match="need a restore from a URI"):
        job(restore_from=origin, **rules)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("damaged", DamagedCheckpointError),
        ("missing", DamagedCheckpointError),
        ("later", UnsupportedFormatError),
        ("incomplete", ConfigError),
        ("", None),
    ],
)
def test_a_savepoint_that_is_not_whole_is_refused_by_name(
    tmp_path: Path, fault: str, error: type[StreamError] | None
) -> None:
    """Its files are read before anything starts."""
    fs = LocalFileSystem(tmp_path / "job")
    spark = SparkState(fs)
    spark.run_batch()
    saved = record(9, regions=(spark.record(spark.run_batch()),))
    uri = write_savepoint(
        fs, saved, LocalFileSystem(tmp_path), name=savepoint_name(saved, "0a1b2c")
    ).uri
    written = LocalFileSystem(Path(uri.removeprefix("file://")))
    named = "spark/r0/state-0/commits/1"
    if fault == "damaged":
        written.replace(named, b"x")
    elif fault == "missing":
        written.delete(named)
    elif fault == "later":
        later = ContainerWriter(METADATA_V1, format_version=METADATA_VERSION + 1)
        written.replace("_metadata", later.write(fields_of(written.read("_metadata"))))
    elif fault == "incomplete":
        written.delete("_metadata")
    spec, layout = job(restore_from=uri).spec, Layout(graph=(), regions=(), continuous=frozenset())
    request = origin_of(spec, layout, CheckpointStore(fs), jvm=None)
    assert isinstance(request, RestoreRequest)
    if error is None:
        assert request.open().uri == uri
        return
    with pytest.raises(error, match=re.escape(uri)):
        request.open()


def fields_of(content: bytes | None) -> dict[str, Any]:
    reader: Any = fastavro.reader(io.BytesIO(content or b""))
    return {**next(reader), "format_version": METADATA_VERSION + 1}
