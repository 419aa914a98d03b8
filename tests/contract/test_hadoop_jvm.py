"""A JVM for Hadoop's client: what is left of it when it has ended."""

import gc
import socket

import pytest

from runtime.spark.jvm import hadoop_jvm


@pytest.mark.integration
@pytest.mark.extended
def test_objects_of_an_ended_jvm_connect_to_nobody() -> None:
    """Its port may be another process's by the time that they are collected."""
    with hadoop_jvm() as jvm:
        kept = jvm.java.util.ArrayList()
        port = kept._gateway_client.port  # noqa: SLF001 - py4j has no public way
    with socket.create_server(("127.0.0.1", port)) as stranger:
        stranger.setblocking(False)
        del kept
        gc.collect()
        with pytest.raises(BlockingIOError):
            stranger.accept()
