"""Opens a checkpoint directory for a command, without its job."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.errors import ConfigError
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem
from sluice.runtime.storage.file_system_opening import needs_jvm, open_file_system

__all__ = ["DROP_IN", "command_file_systems", "command_store", "split_slot", "store_at"]

_SLOT = re.compile(r"(?P<uri>.*?)/?chk-(?P<id>\d{12,})(?:/_metadata)?/*")
DROP_IN = "sluice"


def split_slot(path: str) -> tuple[str, int | None]:
    """``DIR/chk-000000000042`` as (``DIR``, 42); any other path as (path, None)."""
    match = _SLOT.fullmatch(path)
    if match is None:
        return path, None
    return match["uri"] or ".", int(match["id"])


@contextlib.contextmanager
def command_file_systems() -> Iterator[OpenFileSystem]:
    """A function that opens file systems, each once; with at most one JVM, which ends with the
    block.

    For hdfs a JVM is started from PySpark's jars, without a SparkSession.
    """
    with contextlib.ExitStack() as stack:
        jvm: list[Any] = []
        opened: dict[str, FileSystem] = {}

        def open_at(uri: str) -> FileSystem:
            if needs_jvm(uri) and not jvm:
                from sluice.runtime.storage.hadoop_jvm import hadoop_jvm

                jvm.append(stack.enter_context(hadoop_jvm()))
            if uri not in opened:
                opened[uri] = open_file_system(uri, jvm[0] if jvm else None)
            return opened[uri]

        yield open_at


@contextlib.contextmanager
def command_store(uri: str) -> Iterator[CheckpointStore]:
    """The store at ``uri``, or at ``uri/sluice`` below a drop-in query's checkpoint location.

    Raises:
        ConfigError: there are no checkpoints.
        StorageError, AuthenticationError: the file system does not answer, or refuses.
    """
    with command_file_systems() as open_at:
        yield store_at(uri, open_at)


def store_at(uri: str, open_at: OpenFileSystem) -> CheckpointStore:
    """As `command_store`, with file systems of the caller's own."""
    for place in (uri, f"{uri.rstrip('/')}/{DROP_IN}"):
        store = CheckpointStore(open_at(place))
        if store.slots():
            return store
    found = open_at(uri)
    raise ConfigError(
        "the directory holds no checkpoints" if found.exists("") else "there is no such directory",
        {"uri": found.uri},
        "Give the job's checkpoint directory: it holds chk-000000000000.",
    )
