"""Copies files of keyed state into the directory of a restored job."""

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed

from sluice.runtime.checkpoint.checkpoint_slots import STATE
from sluice.runtime.errors import DamagedCheckpointError
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.savepoint.savepoint import Savepoint
from sluice.runtime.storage.file_copies import THREADS
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["copy_keyed_files", "restored_path"]

_OF_COPY = re.compile(rf"(?:chk-\d{{12,}}/)?{STATE}/(?:restored-[^/]+/)?")


def restored_path(path: str, *, session: str) -> str:
    """The path of a restored file in its new directory; pure.

    Args:
        path: in the savepoint, full checkpoint or checkpoint directory.
        session: leader session id of the start, so that no other start has the same paths.
    """
    return f"{STATE}/restored-{session}/{_OF_COPY.sub('', path, count=1)}"


def copy_keyed_files(
    savepoint: Savepoint, paths: Mapping[FileReference, str], fs: FileSystem
) -> Iterator[None]:
    """Copy or link files, whole and synced; yields between files.

    Args:
        paths: in ``fs``, of the files in the savepoint.
        fs: rooted at the checkpoint directory of the restored job.
    Raises:
        DamagedCheckpointError: a file is missing, or is not as the savepoint describes it.
        StorageError: the store does not take a file.
    """

    def copy(file: FileReference, path: str) -> None:
        found = fs.copy_from(savepoint.fs, file.path, path, may_link=True)
        if (found.length_bytes, found.sha256) != (file.length_bytes, file.sha256):
            raise DamagedCheckpointError(
                "a file of keyed state has other content than the savepoint says",
                {"uri": savepoint.uri, "path": file.path},
                "Copy the savepoint again from where it is whole, or restore from another one.",
            )

    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="sluice-restore")
    try:
        for done in as_completed([pool.submit(copy, *each) for each in paths.items()]):
            done.result()
            yield
    finally:
        pool.shutdown(cancel_futures=True)
    for directory in sorted({path.rpartition("/")[0] for path in paths.values()}):
        fs.sync_directory(directory)
