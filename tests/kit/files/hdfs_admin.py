"""What an administrator does to an HDFS in tests: safe mode, and quotas of space."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError

_LONGEST = 2**63 - 1  # of the other quota, on names: leave it as it is


@contextmanager
def safe_mode(jvm: Any, uri: str) -> Iterator[None]:
    """As ``hdfs dfsadmin -safemode enter``, and ``leave`` at the end of the block."""
    action = jvm.org.apache.hadoop.fs.SafeModeAction
    with _client(jvm, uri) as client:
        try:
            client.setSafeMode(action.ENTER)
        except Py4JJavaError:  # by a connection to a NameNode that was restarted since
            client.setSafeMode(action.ENTER)
        try:
            yield
        finally:
            client.setSafeMode(action.LEAVE)


@contextmanager
def space_quota(jvm: Any, uri: str, quota_bytes: int) -> Iterator[None]:
    """As ``hdfs dfsadmin -setSpaceQuota``, and ``-clrSpaceQuota`` at the end of the block.

    A file that is being written counts with a whole block for each replica.
    """
    path = jvm.org.apache.hadoop.fs.Path(uri)
    with _client(jvm, uri) as client:
        client.mkdirs(path)
        client.setQuota(path, _LONGEST, quota_bytes)
        try:
            yield
        finally:
            client.setQuota(path, _LONGEST, -1)


@contextmanager
def _client(jvm: Any, uri: str) -> Iterator[Any]:
    hadoop = jvm.org.apache.hadoop
    configuration = hadoop.conf.Configuration()
    client = hadoop.fs.FileSystem.newInstance(hadoop.fs.Path(uri).toUri(), configuration)
    try:
        yield client
    finally:
        client.close()
