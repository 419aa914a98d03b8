"""File systems of the registry and of checkpoint directories, for a process without Spark."""

import contextlib
import threading
from typing import Any

from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import needs_jvm, open_file_system

__all__ = ["StoreAccess"]


class StoreAccess:
    """Opens directories. Any thread. The first HDFS directory starts a JVM from PySpark's jars.

    A context manager; the JVM ends with it.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._view: Any = None

    def open(self, uri: str) -> FileSystem:
        """The file system rooted at ``uri``; raises as `open_file_system`."""
        return open_file_system(uri, self.jvm(uri))

    def jvm(self, uri: str) -> Any:  # noqa: ANN401 - py4j's view
        """The JVM for `open_file_system`; None: this directory needs none."""
        if not needs_jvm(uri):
            return None
        with self._lock:
            if self._view is None:
                # A package without the extra `spark` has no py4j, and reads local directories.
                from sluice.runtime.storage.hadoop_jvm import hadoop_jvm

                self._view = self._stack.enter_context(hadoop_jvm())
            return self._view

    def __enter__(self) -> "StoreAccess":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
