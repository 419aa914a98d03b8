"""Fixtures of tests that need a Docker engine; without one they are skipped with the reason."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import pytest
from docker.errors import DockerException  # type: ignore[import-not-found]  # hidden by docker/
from testcontainers.core.docker_client import DockerClient
from testcontainers.core.network import Network

from tests.containers.hdfs_cluster import IMAGES as HDFS_IMAGES
from tests.containers.hdfs_cluster import HdfsCluster
from tests.containers.images import find_image
from tests.containers.kafka_cluster import IMAGES as KAFKA_IMAGES
from tests.containers.kafka_cluster import KafkaCluster

_REQUIRED = "SLUICE_REQUIRE_CONTAINERS"


@pytest.fixture(scope="session")
def engine() -> None:
    """Skips when no Docker engine answers; with ``SLUICE_REQUIRE_CONTAINERS=1`` an error."""
    with _required("the Docker engine"):
        _require_socket(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))


@pytest.fixture(scope="session")
def kafka_image(engine: None) -> str:
    """The image to run; skips when it cannot be had, with ``SLUICE_REQUIRE_CONTAINERS`` fails."""
    with _required("an image of Kafka"):
        return _image_at_hand("KAFKA_IMAGE", KAFKA_IMAGES)


@pytest.fixture(scope="session")
def hdfs_image(engine: None) -> str:
    """As `kafka_image`, of HDFS."""
    with _required("an image of HDFS"):
        return _image_at_hand("HDFS_IMAGE", HDFS_IMAGES)


@contextmanager
def _required(what: str) -> Iterator[None]:
    try:
        yield
    except (DockerException, OSError) as error:
        reason = f"{what} cannot be used: {error}"
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


def _image_at_hand(variable: str, images: Sequence[str]) -> str:
    image = find_image(variable, images)
    with closing(DockerClient().client) as client:
        if not client.images.list(name=image):
            client.images.pull(image)
    return image


@pytest.fixture(scope="module")
def network(engine: None) -> Iterator[Network]:
    """One network for all servers of a module."""
    with Network() as made:
        yield made


@pytest.fixture(scope="module")
def cluster(kafka_image: str, network: Network) -> Iterator[KafkaCluster]:
    """Three brokers for a module; a test that kills one brings it back, but for the last one.

    Not for the session: three brokers without work still cost a fifth of a core.
    """
    with KafkaCluster(kafka_image, network) as made:
        yield made


@pytest.fixture(scope="module")
def hdfs_cluster(hdfs_image: str, network: Network) -> Iterator[HdfsCluster]:
    """A NameNode and a DataNode for a module; a test that stops one starts it again."""
    with HdfsCluster(hdfs_image, network) as made:
        yield made
