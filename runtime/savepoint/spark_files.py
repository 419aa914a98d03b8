"""Which of Spark's files a query needs to resume after a batch."""

from pathlib import PurePosixPath

from sluice.runtime.model.checkpoint_record import StateSnapshot
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["files_of_batch", "location_of"]


def location_of(state: StateSnapshot) -> str:
    """Spark's checkpoint location of a query, relative to the job's checkpoint directory."""
    return str(PurePosixPath(state.location).parent)


def files_of_batch(fs: FileSystem, location: str, batch_id: int) -> list[str]:
    """The files that a query needs to resume after a batch, relative to ``fs``."""
    del batch_id
    found = []
    ahead = [location]
    while ahead:
        directory = ahead.pop()
        for entry in fs.entries(directory):
            path = f"{directory}/{entry.name}"
            if entry.is_directory:
                ahead.append(path)
            else:
                found.append(path)
    return sorted(found)
