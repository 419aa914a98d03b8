"""A real HDFS for tests, and a JVM with its client; each starts when first asked for."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.storage.hadoop_jvm import hadoop_jvm

_PATIENT = """<configuration>
  <property><name>ipc.client.rpc-timeout.ms</name><value>120000</value></property>
  <property><name>dfs.client.socket-timeout</name><value>120000</value></property>
</configuration>
"""


@pytest.fixture(scope="session")
def hdfs() -> Iterator[EmbeddedHdfs]:
    """The session's HDFS, one NameNode and one DataNode; a test that stops it starts it again."""
    with EmbeddedHdfs() as servers:
        yield servers


@pytest.fixture(scope="session")
def hadoop_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """py4j's view of a JVM with Hadoop's client and without a SparkSession.

    By its site file it waits for servers that are as slow as the machine; a job gives them up after
    ten seconds, and tries again.
    """
    directory = tmp_path_factory.mktemp("hadoop")
    (directory / "core-site.xml").write_text(_PATIENT)
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # only while the JVM starts
            patch.setenv("HADOOP_CONF_DIR", str(directory))
            jvm = stack.enter_context(hadoop_jvm())
        yield jvm


@pytest.fixture(scope="session")
def hasty_hadoop_client() -> Iterator[Any]:
    """The same with the time-outs that a job has, for servers that are frozen."""
    with hadoop_jvm() as jvm:
        yield jvm
