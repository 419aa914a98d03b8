"""Small files that the sink keeps beside a table, through the table's own FileIO.

`Below` is hidden from readers, and from tools that delete orphaned files: Spark's skips names that
begin with a dot.
"""

import contextlib
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pa_fs

from sluice.connectors.iceberg.table.client_errors import client_errors_translated
from sluice.runtime.ownership.lease import LeaseRecord, LeaseStore

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.io import FileIO

__all__ = ["TableLeaseStore", "TableStore", "sink_root"]

_HIDDEN = ".sluice"
_AT_ONCE = 8
LEASE_FILE = "lease"


def sink_root(location: str, *, job_uid: str, operator_id: str) -> str:
    """Directory of one sink of one job, below the location of its table."""
    return f"{location.rstrip('/')}/{_HIDDEN}/{job_uid}/{operator_id}"


class TableStore:
    """Files below ``root``. Driver and tasks; any thread.

    Args:
        io: of the table.
        root: URI of a directory; it may not exist.
    """

    def __init__(self, io: "FileIO", root: str) -> None:
        self._io = io
        self.root = root

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole, replacing an earlier one.

        Raises:
            StorageError, AuthenticationError: it is unknown whether it was written.
        """
        with self._translated("write a file"):
            fs, path = self._opened(name)
            target, is_local = path, isinstance(fs, pa_fs.LocalFileSystem)
            if is_local:  # other stores show a file only whole
                target = f"{path}.{uuid.uuid4().hex}"
                fs.create_dir(path.rpartition("/")[0], recursive=True)
            with fs.open_output_stream(target) as stream:
                stream.write(data)
            if is_local:
                fs.move(target, path)

    def read(self, name: str) -> bytes | None:
        """The content; None: there is no such file. Raises as `write`."""
        with self._translated("read a file"):
            fs, path = self._opened(name)
            with contextlib.suppress(FileNotFoundError), fs.open_input_stream(path) as stream:
                return bytes(stream.read())
        return None

    def delete(self, names: "Iterable[str]") -> None:
        """Delete files, several at once; those that are gone do not matter. Raises as `write`.

        Args:
            names: below ``root``, or full locations.
        """
        found = list(names)
        if len(found) <= 1:
            for name in found:
                self._delete(name)
            return
        with ThreadPoolExecutor(min(_AT_ONCE, len(found))) as pool:
            for _ in pool.map(self._delete, found):
                pass

    def exists(self, location: str) -> bool:
        """Whether there is a file at a full location. Raises as `write`."""
        with self._translated("look for a file"):
            return bool(self._io.new_input(location).exists())

    def names(self) -> list[str]:
        """All files, by their path below ``root``. Raises as `write`."""
        with self._translated("list files"):
            fs, path = self._opened("")
            path = path.rstrip("/")
            selector = pa_fs.FileSelector(path, recursive=True, allow_not_found=True)
            return [
                info.path.rpartition(f"{path}/")[2]
                for info in fs.get_file_info(selector)
                if info.type is pa_fs.FileType.File
            ]

    def _delete(self, name: str) -> None:
        with self._translated("delete a file"), contextlib.suppress(FileNotFoundError):
            fs, path = self._opened(name)
            fs.delete_file(path)

    def _opened(self, name: str) -> tuple[Any, str]:
        """The file system of a location, and the path in it."""
        from pyiceberg.io.pyarrow import PyArrowFileIO

        location = name if "://" in name or name.startswith("/") else f"{self.root}/{name}"
        scheme, netloc, path = PyArrowFileIO.parse_location(location, self._io.properties)
        if isinstance(self._io, PyArrowFileIO):
            return self._io.fs_by_scheme(scheme, netloc), path
        opened = self._io.get_fs(scheme)  # type: ignore[attr-defined]  # of FsspecFileIO
        return pa_fs.PyFileSystem(pa_fs.FSSpecHandler(opened)), path

    def _translated(self, action: str) -> contextlib.AbstractContextManager[None]:
        where: Mapping[str, object] = {"directory": self.root}
        return client_errors_translated(action, where)


class TableLeaseStore(LeaseStore):
    """Implements `sluice.runtime.ownership.lease.LeaseStore`. Driver; one thread at a time.

    Args:
        store: of the sink; see `sink_root`.
    """

    def __init__(self, store: TableStore) -> None:
        self._store = store

    def read(self) -> LeaseRecord | None:
        data = self._store.read(LEASE_FILE)
        return None if data is None else LeaseRecord.decode(data.decode(errors="replace"))

    def write(self, record: LeaseRecord) -> None:
        self._store.write(LEASE_FILE, record.encode().encode())

    def close(self) -> None:
        """Holds nothing open."""
