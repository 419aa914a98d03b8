"""The lease of a file sink, in its staging directory (`lease-guards-outputs`).

A staging directory is named after the job's uid, so two jobs never share one. A job that was
started from a copy of its checkpoint directory has the same uid. Without a lease each of the two
would delete files that the other one has staged, and both would publish the same rows.
"""

from sluice.runtime.ownership.lease import LeasedOutput, LeaseRecord, LeaseStore
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["LEASE_FILE", "FileLeaseStore", "leased_staging"]

LEASE_FILE = ".sluice-lease"
"""Name of the lease in a staging directory."""


def leased_staging(uri: str) -> LeasedOutput:
    """The staging directory at ``uri``, for messages."""
    return LeasedOutput(
        kind="staging directory",
        name=uri,
        remedy="Run only one of the two jobs: one checkpoint directory is a copy of the other, and "
        "a copy is the same job. For a job of its own, use an empty checkpoint directory.",
    )


class FileLeaseStore(LeaseStore):
    """Implements `sluice.runtime.ownership.lease.LeaseStore`. Driver; one thread at a time.

    Args:
        fs: that holds the staging directory; its opener closes it.
        root: `sluice.connectors.hdfs.staging.staged_names.staging_root` of the sink.
    """

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._path = f"{root}/{LEASE_FILE}"

    def read(self) -> LeaseRecord | None:
        data = self._fs.read(self._path)
        return None if data is None else LeaseRecord.decode(data.decode(errors="replace"))

    def write(self, record: LeaseRecord) -> None:
        self._fs.replace(self._path, record.encode().encode())

    def close(self) -> None:
        """Holds nothing open."""
