"""A registry with played jobs, and a service for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.served_jobs_bed import PlayedJobs, Service, service_of


@pytest.fixture
def played(tmp_path: Path) -> Iterator[PlayedJobs]:
    """Jobs that answer over HTTP."""
    with PlayedJobs(str(tmp_path / "jobs")) as made:
        yield made


@pytest.fixture
def service(played: PlayedJobs, tmp_path: Path) -> Iterator[Service]:
    """Their service, with a directory of programs."""
    (tmp_path / "programs").mkdir()
    registry = played.registry.fs.uri
    with service_of(
        registry, tmp_path, submit_dir=tmp_path / "programs", env=frozenset({"MODE"})
    ) as made:
        yield made
