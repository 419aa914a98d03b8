"""Who leads a job, as whoever has no JVM can see it in the checkpoint directory."""

from pathlib import Path

from sluice.runtime.checkpoint.leader_record import LEADER_FILE, FileLeaderStore, Leader, leader_in
from sluice.runtime.errors import StreamError
from sluice.runtime.storage.local_fs import LocalFileSystem
from sluice.runtime.storage.web_hdfs import WebHdfsAddress, read_over_web

__all__ = ["known_leader"]

_LOCAL = "file://"
_HDFS = "hdfs://"


def known_leader(checkpoint_uri: str, web: WebHdfsAddress | None) -> Leader | None:
    """Whom the record in the directory names; None: nobody, or it cannot be read from here.

    Only a hint, for who is answered by nobody: what hinders the look is no error of its own.

    Args:
        checkpoint_uri: absolute; empty: there is none.
        web: where WebHDFS answers for a directory on HDFS; None: nowhere.
    """
    try:
        if checkpoint_uri.startswith(_LOCAL):
            directory = Path(checkpoint_uri.removeprefix(_LOCAL))
            return FileLeaderStore(LocalFileSystem(directory)).current()
        if web is not None:
            _, _, path = checkpoint_uri.removeprefix(_HDFS).partition("/")
            found = read_over_web(web, f"/{path}/{LEADER_FILE}")
            return leader_in(found, uri=checkpoint_uri)
    except StreamError:
        return None
    return None
