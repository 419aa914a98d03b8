"""A JVM for Hadoop's client: whose its exceptions are, and what is left when it has ended."""

import gc
import socket
from pathlib import Path

import pytest
from py4j import java_gateway
from py4j.protocol import Py4JJavaError, get_return_value, is_error

from sluice.runtime.storage.hadoop_fs import HadoopFileSystem
from sluice.runtime.storage.hadoop_jvm import hadoop_jvm


@pytest.mark.integration
def test_a_session_is_not_asked_what_this_jvm_has_thrown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asks_the_session(answer: str, *rest: object) -> object:
        assert not is_error(answer)[0]
        return get_return_value(answer, *rest)

    monkeypatch.setattr(java_gateway, "get_return_value", asks_the_session)
    with hadoop_jvm() as jvm:
        assert HadoopFileSystem(tmp_path.as_uri(), jvm).read("absent") is None
        with pytest.raises(Py4JJavaError, match="NumberFormatException"):
            jvm.java.lang.Integer.parseInt("x")


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
