"""Opens a checkpoint directory for a command, without its job."""

import contextlib
import re
from collections.abc import Iterator

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore, open_store
from sluice.runtime.errors import ConfigError
from sluice.runtime.storage.file_system_opening import needs_jvm

__all__ = ["DROP_IN", "command_store", "split_slot"]

_SLOT = re.compile(r"(?P<uri>.*?)/?chk-(?P<id>\d{12,})(?:/_metadata)?/*")
DROP_IN = "sluice"


def split_slot(path: str) -> tuple[str, int | None]:
    """``DIR/chk-000000000042`` as (``DIR``, 42); any other path as (path, None)."""
    match = _SLOT.fullmatch(path)
    if match is None:
        return path, None
    return match["uri"] or ".", int(match["id"])


@contextlib.contextmanager
def command_store(uri: str) -> Iterator[CheckpointStore]:
    """The store at ``uri``, or at ``uri/sluice`` below a drop-in query's checkpoint location.

    For hdfs a JVM is started from PySpark's jars, without a SparkSession; it ends with the block.

    Raises:
        ConfigError: there are no checkpoints.
        StorageError, AuthenticationError: the file system does not answer, or refuses.
    """
    with contextlib.ExitStack() as stack:
        jvm = None
        if needs_jvm(uri):
            from sluice.runtime.storage.hadoop_jvm import hadoop_jvm

            jvm = stack.enter_context(hadoop_jvm())
        for place in (uri, f"{uri.rstrip('/')}/{DROP_IN}"):
            store = open_store(place, jvm)
            if store.slots():
                yield store
                return
        raise ConfigError(
            "the directory holds no checkpoints",
            {"uri": uri},
            "Give the job's checkpoint directory: it holds chk-000000000000.",
        )
