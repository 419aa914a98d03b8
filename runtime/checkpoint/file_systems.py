"""Which file system a checkpoint URI means; all others are refused by name."""

import re
from pathlib import Path
from typing import Any

from runtime.checkpoint.file_system import FileSystem
from runtime.checkpoint.hadoop_fs import HadoopFileSystem
from runtime.checkpoint.local_fs import LocalFileSystem
from runtime.errors import ConfigError

__all__ = ["needs_jvm", "open_file_system"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_LOCAL_AUTHORITY = re.compile(r"file:(?://(?:localhost)?(?=/)|(?=/(?!/)))", re.IGNORECASE)


def needs_jvm(uri: str) -> bool:
    """Whether the store lies behind Hadoop's client; ConfigError for schemes we refuse."""
    return _supported_scheme(uri) != "file"


def open_file_system(uri: str, jvm: Any = None) -> FileSystem:  # noqa: ANN401 - py4j's view
    """The file system rooted at ``uri``; see `runtime.checkpoint.store.open_store`."""
    if not needs_jvm(uri):
        return LocalFileSystem(_local_path(uri))
    if jvm is None:
        raise ConfigError(
            "a checkpoint directory on hdfs needs Hadoop's client in a JVM, and there is none here",
            {"uri": uri},
            "Call connectors.install(spark) in the process of the SparkSession, or use file:.",
        )
    return HadoopFileSystem(uri, jvm)


def _supported_scheme(uri: str) -> str:
    """In lower case; ``file`` for a bare path."""
    match = _SCHEME.match(uri)
    scheme = match[1].lower() if match else "file"
    if scheme not in ("file", "hdfs"):
        raise ConfigError(
            f"no checkpoints on {scheme}: it has no tested step that publishes without replacing",
            {"uri": uri, "supported": "file, hdfs"},
            "Put the checkpoint directory on file: or hdfs:; the data may lie elsewhere.",
        )
    return scheme


def _local_path(uri: str) -> Path:
    """As Hadoop reads it: what follows is a plain path, not percent-encoded."""
    if not _SCHEME.match(uri):
        if not uri:
            raise ConfigError("no checkpoint directory is given", {"uri": uri}, "Give a path.")
        return Path(uri)
    match = _LOCAL_AUTHORITY.match(uri)
    if match is None:
        raise ConfigError(
            "a file: URI must hold an absolute path and no host",
            {"uri": uri},
            "Write file:///absolute/path.",
        )
    return Path(uri[match.end() :])
