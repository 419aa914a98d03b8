"""Spark's state of a savepoint or checkpoint as a checkpoint location that Spark can read."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sluice.runtime.model.checkpoint_record import StateSnapshot
from sluice.runtime.savepoint.operator_metadata import is_operator_metadata, with_location
from sluice.runtime.savepoint.savepoint import Savepoint, StateFile
from sluice.runtime.savepoint.spark_files import is_shared, location_of
from sluice.runtime.storage.divided_directory import spark_root
from sluice.runtime.storage.file_system_opening import is_object_store
from sluice.runtime.storage.local_fs import LocalFileSystem

__all__ = ["readable_location"]

_THREADS = 8


@contextlib.contextmanager
def readable_location(savepoint: Savepoint, region: str, state: StateSnapshot) -> Iterator[str]:
    """The URI of Spark's checkpoint location with this state, while the block runs.

    Most states are read where they are. Those on an object store are copied to this host: Spark may
    have no client for it. The files of a full checkpoint lie in several directories,
    so they are copied to this host. A moved savepoint is copied, too, if Spark's description of an
    operator names its schema files by their old path.
    """
    files, location = savepoint.state_files(region), location_of(state)
    uri = f"{spark_root(savepoint.fs)}/{location}"
    is_plain = all(file.source == file.path for file in files) and not is_object_store(uri)
    if is_plain and _is_at(savepoint, files, uri):
        yield uri
        return
    with tempfile.TemporaryDirectory(prefix="sluice-state-") as scratch:
        fs = LocalFileSystem(Path(scratch))

        def copy(file: StateFile) -> None:
            shared = is_shared(file.path)
            fs.copy_from(savepoint.fs, file.source, file.path, may_link=shared)
            if is_operator_metadata(file.path):
                found = with_location(fs.read(file.path) or b"", f"{fs.uri}/{location}")
                fs.replace(file.path, found)

        with ThreadPoolExecutor(_THREADS, "sluice-state") as pool:
            list(pool.map(copy, files))
        yield f"{fs.uri}/{location}"


def _is_at(savepoint: Savepoint, files: Sequence[StateFile], uri: str) -> bool:
    """Whether every operator names its schema files below ``uri``."""
    described = (file.source for file in files if is_operator_metadata(file.path))
    contents = (savepoint.fs.read(path) or b"" for path in described)
    return all(with_location(each, uri) == each for each in contents)
