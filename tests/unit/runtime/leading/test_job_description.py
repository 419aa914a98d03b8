"""The job that a driver leaves for its coordinator: which one stays, and what cannot be read."""

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
)
from sluice.runtime.errors import StreamError, UnsupportedFormatError
from sluice.runtime.spark.run.hosting.job_description import (
    JobDescription,
    publish,
    read_description,
)
from sluice.runtime.storage.local_fs import LocalFileSystem

_JOB = JobDescription(
    plan=JobPlan(name="job", regions=(RegionPlan(name="main", source_ids=("source",)),)),
    settings=CheckpointSettings(),
    regions=(),
    continuous=frozenset({"main"}),
    uid=None,
    lost_timeout_s=None,
    between_barriers_s=1.0,
)
_OTHER = replace(_JOB, plan=replace(_JOB.plan, name="other"))


@pytest.fixture
def fs(tmp_path: Path) -> LocalFileSystem:
    return LocalFileSystem(tmp_path)


def test_a_coordinator_reads_the_job_that_a_driver_has_described(fs: LocalFileSystem) -> None:
    assert read_description(fs) is None
    publish(fs, _JOB)
    assert read_description(fs) == _JOB


def test_a_driver_of_another_job_replaces_it_only_while_no_leader_answers(
    fs: LocalFileSystem,
) -> None:
    publish(fs, _JOB)
    publish(fs, _OTHER, is_led=lambda: True)
    assert read_description(fs) == _JOB
    publish(fs, _OTHER, is_led=lambda: False)
    assert read_description(fs) == _OTHER


def test_a_driver_of_the_same_job_brings_its_functions(fs: LocalFileSystem) -> None:
    publish(fs, _JOB)
    publish(fs, replace(_JOB, between_barriers_s=2.0), is_led=lambda: True)
    found = read_description(fs)
    assert found is not None
    assert found.between_barriers_s == 2.0


def test_a_driver_with_another_restore_describes_another_job(fs: LocalFileSystem) -> None:
    """A leader would not execute its request, so the next one must not find it."""
    publish(fs, _JOB)
    publish(fs, replace(_JOB, restore_from=7), is_led=lambda: True)
    assert read_description(fs) == _JOB


def test_only_this_user_may_read_it(fs: LocalFileSystem, tmp_path: Path) -> None:
    publish(fs, _JOB)
    assert (tmp_path / "_job").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("data", [b"sluice-job-1\n", b"sluice-job-2\nno pickle", b""])
def test_a_file_of_another_version_is_refused(fs: LocalFileSystem, data: bytes) -> None:
    fs.replace("_job", data)
    with pytest.raises(UnsupportedFormatError, match="description of the job cannot be read"):
        read_description(fs)


def test_what_cannot_be_pickled_is_said_before_anything_is_written(fs: LocalFileSystem) -> None:
    with pytest.raises(StreamError, match="cannot be sent to its coordinator"):
        publish(fs, replace(_JOB, uid=(each for each in "a generator")))  # type: ignore[arg-type]
    assert read_description(fs) is None
