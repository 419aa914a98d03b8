"""Where the owner record of a file sink lies: in its staging directory (protocol rule 22).

Two jobs never share one, for it is named after the job's uid. A job that was started from a copy of
its checkpoint directory has the same uid: each would delete what the other one has staged, and both
would publish the rows that they read.
"""

from sluice.runtime.ownership.lease_record import OwnedName, OwnerRecord
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["OWNER_FILE", "FileOwnerStore", "owned_staging"]

OWNER_FILE = ".sluice-owner"
"""Of a sink, in its staging directory."""


def owned_staging(uri: str) -> OwnedName:
    """What people are told about the staging directory at ``uri``."""
    return OwnedName(
        kind="staging directory",
        name=uri,
        remedy="Its checkpoint directory is a copy of this one's, or the other way round: a copy "
        "is the same job. Let one of them run; for a job of its own give this one an empty "
        "checkpoint directory.",
    )


class FileOwnerStore:
    """Implements `sluice.runtime.ownership.lease_record.OwnerStore`. Driver; one thread at a time.

    Args:
        fs: that the staging directory lies in; closed by whoever opened it.
        root: `sluice.connectors.hdfs.staging.staged_names.staging_root` of the sink.
    """

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._path = f"{root}/{OWNER_FILE}"

    def read(self) -> OwnerRecord | None:
        """See `OwnerStore.read`."""
        data = self._fs.read(self._path)
        return None if data is None else OwnerRecord.decode(data.decode(errors="replace"))

    def write(self, record: OwnerRecord) -> None:
        """See `OwnerStore.write`."""
        self._fs.replace(self._path, record.encode().encode())

    def close(self) -> None:
        """See `OwnerStore.close`."""
