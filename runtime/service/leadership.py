"""Who leads a job, as whoever has no JVM can see it in the checkpoint directory."""

from pathlib import Path

from runtime.checkpoint.leader import FileLeaderStore, Leader
from runtime.errors import StreamError
from runtime.storage.local_fs import LocalFileSystem

__all__ = ["known_leader"]

_LOCAL = "file://"


def known_leader(checkpoint_uri: str) -> Leader | None:
    """Whom the record in the directory names; None: nobody, or it cannot be read from here.

    Only a hint, for who is answered by nobody: what hinders the look is no error of its own.
    """
    if not checkpoint_uri.startswith(_LOCAL):
        return None  # only Spark's JVM can read it
    directory = Path(checkpoint_uri.removeprefix(_LOCAL))
    try:
        return FileLeaderStore(LocalFileSystem(directory)).current()
    except StreamError:
        return None
