"""Opens the file system of a URI; refuses unknown schemes by name."""

import os
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sluice.runtime.errors import ConfigError
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.local_fs import LocalFileSystem
from sluice.runtime.storage.objects.object_file_system import ObjectFileSystem
from sluice.runtime.storage.objects.object_location import OBJECT_SCHEMES, object_location

__all__ = [
    "absolute_uri",
    "canonical_uri",
    "hadoop_uri",
    "is_object_store",
    "needs_jvm",
    "open_file_system",
    "without_scheme",
]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_HDFS_PORT = ":8020"  # where a URI has none
_REMOTE = re.compile(r"(?P<scheme>\w+):(?://(?P<authority>[^/]+))?(?P<path>(?:/.*)?)", re.DOTALL)
_LOCAL_AUTHORITY = re.compile(r"file:(?://(?:localhost)?(?=/)|(?=/(?!/)))", re.IGNORECASE)


def needs_jvm(uri: str) -> bool:
    """Whether the store needs Hadoop's client; ConfigError for an unsupported scheme."""
    return _supported_scheme(uri) == "hdfs"


def is_object_store(uri: str) -> bool:
    """Whether objects lie there; ConfigError for an unsupported scheme."""
    return _supported_scheme(uri) in OBJECT_SCHEMES


def absolute_uri(uri: str) -> str:
    """``uri`` with its scheme and an absolute path, without a slash at the end.

    An hdfs URI gets ``//`` and a plain path, as Hadoop reads it: callers split the path off.
    """
    if needs_jvm(uri):
        return _remote(uri)
    if is_object_store(uri):
        return object_location(uri).uri
    return f"file://{_local_path(uri).absolute().as_posix()}"


def canonical_uri(uri: str, *, default_fs: str) -> str:
    """The URI of a directory by which its other spellings are known, too.

    Local links are followed, as this host has them. An hdfs URI gets the authority of
    ``default_fs`` if it has none, and loses the port that HDFS has by default.

    Args:
        default_fs: Hadoop's ``fs.defaultFS``.
    """
    absolute = absolute_uri(uri)
    if needs_jvm(uri):
        authority, _, path = absolute.partition("://")[2].partition("/")
        authority = (authority or urlsplit(default_fs).netloc).lower().removesuffix(_HDFS_PORT)
        return f"hdfs://{authority}/{path}"
    if is_object_store(uri):
        return absolute
    return f"file:///{os.path.realpath(without_scheme(absolute)).lstrip('/')}"


def open_file_system(
    uri: str,
    jvm: Any = None,  # noqa: ANN401 - py4j's view
    storage_options: Mapping[str, str] | None = None,
) -> FileSystem:
    """The file system rooted at ``uri``; see `open_store`.

    Args:
        storage_options: of an object store; see `object_location`.
    """
    if is_object_store(uri):
        return ObjectFileSystem(object_location(uri, storage_options))
    if not needs_jvm(uri):
        return LocalFileSystem(_local_path(uri))
    if jvm is None:
        raise ConfigError(
            "an hdfs directory needs Hadoop's client, but this process has no JVM",
            {"uri": uri},
            "Call sluice.install(spark) in the process of the SparkSession, or use file:.",
        )
    # A package without the extra `spark` has no py4j, and describes jobs all the same.
    from sluice.runtime.storage.hadoop_fs import HadoopFileSystem

    return HadoopFileSystem(uri, jvm)


def hadoop_uri(uri: str) -> str:
    """How Hadoop's clients, and so Spark, name this directory: S3 is ``s3a:`` there.

    Spark opens the logs of a query by Hadoop's FileContext. That knows `fs.defaultFS` only by paths
    without a scheme, and refuses ``hdfs:///path``.
    """
    return re.sub(r"^hdfs://(?=/)", "", re.sub(r"^s3://", "s3a://", uri))


def without_scheme(uri: str) -> str:
    """The absolute path of ``uri`` inside its file system, as tasks name files; ``""``: the root.

    Args:
        uri: absolute, as `absolute_uri` gives it.
    """
    _, slash, path = uri.partition("://")[2].partition("/")
    return f"{slash}{path}"


def _supported_scheme(uri: str) -> str:
    """In lower case; ``file`` for a bare path."""
    match = _SCHEME.match(uri)
    scheme = match[1].lower() if match else "file"
    scheme = "s3" if scheme == "s3a" else scheme
    if scheme not in ("file", "hdfs", *OBJECT_SCHEMES):
        raise ConfigError(
            f"{scheme}: has no tested way to publish a file without replacing",
            {"uri": uri, "supported": "file, hdfs, s3, gs, abfss"},
            "Use file:, hdfs:, s3:, gs: or abfss:.",
        )
    return scheme


def _remote(uri: str) -> str:
    match = _REMOTE.fullmatch(uri)
    if match is None:
        raise ConfigError(
            "an hdfs: URI must hold an absolute path",
            {"uri": uri},
            "Write hdfs://namenode:port/path, or hdfs:///path on fs.defaultFS.",
        )
    path = posixpath.normpath(f"/{match['path'].lstrip('/')}").rstrip("/")
    return f"{match['scheme'].lower()}://{match['authority'] or ''}{path}"


def _local_path(uri: str) -> Path:
    """The path as Hadoop reads it: plain, not percent-encoded."""
    if not _SCHEME.match(uri):
        if not uri:
            raise ConfigError("the directory is empty", {"uri": uri}, "Give a path.")
        return Path(uri)
    match = _LOCAL_AUTHORITY.match(uri)
    if match is None:
        raise ConfigError(
            "a file: URI must hold an absolute path and no host",
            {"uri": uri},
            "Write file:///absolute/path.",
        )
    return Path(uri[match.end() :])
