"""Where the owner record of a file sink lies: in its staging directory (`lease-guards-outputs`).

Two jobs never share one, for it is named after the job's uid. A job that was started from a copy of
its checkpoint directory has the same uid: each would delete what the other one has staged, and both
would publish the rows that they read.
"""

from sluice.runtime.ownership.lease_record import LeaseRecord, OwnedName
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["LEASE_FILE", "FileLeaseStore", "owned_staging"]

LEASE_FILE = ".sluice-lease"
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


class FileLeaseStore:
    """Implements `sluice.runtime.ownership.lease_record.LeaseStore`. Driver; one thread at a time.

    Args:
        fs: that the staging directory lies in; closed by whoever opened it.
        root: `sluice.connectors.hdfs.staging.staged_names.staging_root` of the sink.
    """

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._path = f"{root}/{LEASE_FILE}"

    def read(self) -> LeaseRecord | None:
        """See `LeaseStore.read`."""
        data = self._fs.read(self._path)
        return None if data is None else LeaseRecord.decode(data.decode(errors="replace"))

    def write(self, record: LeaseRecord) -> None:
        """See `LeaseStore.write`."""
        self._fs.replace(self._path, record.encode().encode())

    def close(self) -> None:
        """See `LeaseStore.close`."""
