"""The pytest plugin ``sluice``: fixtures for Kafka, topics, HDFS and Spark.

pytest loads this module in every project of an environment that has Sluice, so it imports pytest
alone. A fixture imports what it needs when a test first requests it; without one nothing starts.
Under pytest-xdist each worker has servers of its own. The servers, Spark's JVM and the programs of
`kill_and_restart` end with pytest, also when pytest is killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sluice.connectors.testing.kafka_server import KafkaServer
    from sluice.connectors.testing.topics import TopicFactory
    from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `sluice_kafka`."""
    parser.getgroup("sluice").addoption(
        "--kafka-image",
        metavar="IMAGE",
        help="Run sluice_kafka in a container of this image, for example apache/kafka:4.3.1; "
        "by default it is a process of this machine.",
    )


@pytest.fixture(scope="session")
def sluice_kafka(pytestconfig: pytest.Config) -> Iterator[KafkaServer]:
    """A Kafka broker for all tests: ``bootstrap`` and ``connection``; see ``--kafka-image``."""
    from sluice.connectors.testing.kafka_server import running_kafka

    with running_kafka(image=pytestconfig.getoption("--kafka-image")) as server:
        yield server


@pytest.fixture
def sluice_topic(sluice_kafka: KafkaServer) -> Iterator[TopicFactory]:
    """A function: ``sluice_topic("orders", partitions=2)`` creates a topic with a unique name.

    After the test the topic is deleted.
    """
    from sluice.connectors.testing.topics import created_topics

    with created_topics(sluice_kafka.connection) as create:
        yield create


@pytest.fixture(scope="session")
def sluice_hdfs() -> Iterator[EmbeddedHdfs]:
    """HDFS for all tests, one NameNode and one DataNode; its ``uri`` is ``hdfs://host:port``."""
    from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs

    with EmbeddedHdfs() as servers:
        yield servers


@pytest.fixture(scope="session")
def sluice_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark session with Sluice's formats; a session that runs already is used instead."""
    from sluice.connectors.testing.local_spark import local_spark

    with local_spark(tmp_path_factory.mktemp("sluice-spark")) as session:
        yield session
