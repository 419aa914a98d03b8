"""The lease of a file sink: a file in its staging directory (`lease-guards-outputs`).

Two jobs never share a staging directory, because its name contains the job's uid. A job started
from a copy of a checkpoint directory has the same uid: each of the two would delete the other's
staged files, and both would publish the same rows.
"""

from sluice.runtime.ownership.lease_record import LeaseRecord, OwnedName
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["LEASE_FILE", "FileLeaseStore", "owned_staging"]

LEASE_FILE = ".sluice-lease"
"""The name of the lease file in the staging directory."""


def owned_staging(uri: str) -> OwnedName:
    """The name and remedy in errors about the staging directory at ``uri``."""
    return OwnedName(
        kind="staging directory",
        name=uri,
        remedy="Run one of the two: one checkpoint directory is a copy of the other, and a copy "
        "is the same job. For a separate job, give this one an empty checkpoint directory.",
    )


class FileLeaseStore:
    """Implements `sluice.runtime.ownership.lease_record.LeaseStore`. Driver; one thread at a time.

    Args:
        fs: holds the staging directory; its opener closes it.
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
