"""Whether a file system takes files now, and the end of its client."""

import contextlib
import logging
import uuid

from sluice.runtime.errors import StreamError
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["close_quietly", "require_writable"]

log = logging.getLogger(__name__)


def require_writable(fs: FileSystem, directory: str) -> None:
    """Write a small file and delete it: an answer alone does not say that files are taken.

    Raises:
        StorageUnreachableError: not at the moment (safe mode, no DataNode, no answer).
        StorageError, AuthenticationError, ConfigError: refused.
    """
    path = f"{directory}/.sluice-probe-{uuid.uuid4().hex}".lstrip("/")
    try:
        fs.write_temporary(path, b"sluice")
    except StreamError:
        with contextlib.suppress(StreamError):
            fs.delete(path)  # without a DataNode the name is there all the same
        raise
    fs.delete(path)


def close_quietly(fs: FileSystem) -> None:
    """At the end of what used it, where a client that does not close changes nothing."""
    try:
        fs.close()
    except StreamError as err:
        log.info("a file system's client was not closed: uri=%s error=%s", fs.uri, err)
