"""Fixtures of tests that need a Docker engine; without one they are skipped with the reason."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from docker.errors import DockerException  # type: ignore[import-not-found]  # hidden by docker/
from testcontainers.core.docker_client import DockerClient

from tests.containers.kafka_cluster import KafkaCluster, find_image

_REQUIRED = "SLUICE_REQUIRE_CONTAINERS"


@pytest.fixture(scope="session")
def kafka_image() -> str:
    """The image to run; skips when no engine answers or the image cannot be had.

    With ``SLUICE_REQUIRE_CONTAINERS=1`` that is an error instead.
    """
    try:
        _require_socket(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
        return _image_at_hand()
    except (DockerException, OSError) as error:
        reason = f"no Kafka can be started in a container: {error}"
        if os.environ.get(_REQUIRED) == "1":
            raise RuntimeError(reason) from error
        pytest.skip(reason)  # shown by `-rs`; where containers are required it is an error, above


def _require_socket(address: str) -> None:
    """Raise `OSError` when nothing listens; docker's client would leave a socket open then."""
    scheme, _, path = address.partition("://")
    if scheme == "unix":
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except OSError as error:
                raise OSError(f"no Docker engine answers at {address} ({error})") from error


def _image_at_hand() -> str:
    image = find_image()
    with closing(DockerClient().client) as client:
        if not client.images.list(name=image):
            client.images.pull(image)
    return image


@pytest.fixture(scope="module")
def cluster(kafka_image: str) -> Iterator[KafkaCluster]:
    """Three brokers for a module; a test that kills one brings it back before it ends.

    Not for the session: three brokers without work still cost a fifth of a core.
    """
    with KafkaCluster(kafka_image) as made:
        yield made


@pytest.fixture
def own_cluster(kafka_image: str) -> Iterator[KafkaCluster]:
    """Three brokers for one test that does not give them all back."""
    with KafkaCluster(kafka_image) as made:
        yield made
