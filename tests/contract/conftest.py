"""What several contract suites use."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.coordinator.coordinated_job import job
from tests.kit.files.fake_file_system import Disk, FakeFileSystem
from tests.kit.files.published_records import store

__all__ = ["fs", "job", "store"]


@pytest.fixture(params=["fake", "file", "s3", pytest.param("hdfs", marks=pytest.mark.integration)])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileSystem]:
    """An empty root on each kind of file system, in a directory with a space in its name."""
    if request.param == "fake":
        yield FakeFileSystem(Disk())
    elif request.param == "file":
        yield open_file_system(str(tmp_path / "check points"))
    elif request.param == "s3":
        bucket = request.getfixturevalue("s3")
        options = bucket.storage_options
        yield open_file_system(f"{bucket.uri}/check points", storage_options=options)
    else:
        servers = request.getfixturevalue("hdfs")
        client = request.getfixturevalue("hadoop_client")
        yield open_file_system(f"{servers.uri}/{uuid.uuid4().hex}/check points", client)
