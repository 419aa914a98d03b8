"""A real HDFS for tests, and a JVM with its client; each starts when first asked for."""

from collections.abc import Iterator
from typing import Any

import pytest

from runtime.embedded.hdfs import EmbeddedHdfs
from runtime.spark.jvm import hadoop_jvm

__all__ = ["hadoop_client", "hdfs"]


@pytest.fixture(scope="session")
def hdfs() -> Iterator[EmbeddedHdfs]:
    """The session's HDFS, one NameNode and one DataNode; a test that stops it starts it again."""
    with EmbeddedHdfs() as servers:
        yield servers


@pytest.fixture(scope="session")
def hadoop_client() -> Iterator[Any]:
    """py4j's view of a JVM with Hadoop's client and without a SparkSession."""
    with hadoop_jvm() as jvm:
        yield jvm
