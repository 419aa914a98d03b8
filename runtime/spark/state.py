"""What a checkpoint says of Spark's state: provider, versions, operators, partitions, schema."""

import json

from runtime.checkpoint.file_system import FileSystem
from runtime.model import StateSnapshot
from runtime.spark.session import QUERY_SETTINGS

__all__ = ["snapshot_of"]

_PREFIX = "spark.sql.streaming.stateStore."


def snapshot_of(fs: FileSystem, location: str, batch_id: int) -> StateSnapshot:
    """The state after batch ``batch_id``, read from Spark's own operator metadata (v1 files)."""
    operators: list[tuple[int, str]] = []
    partitions = 0
    for name in sorted(fs.list(f"{location}/state"), key=lambda n: (len(n), n)):
        content = fs.read(f"{location}/state/{name}/_metadata/metadata")
        if name.isdigit() and content is not None:
            info = json.loads(content.decode().splitlines()[1])
            operators.append((int(name), info["operatorInfo"]["operatorName"]))
            partitions = max(s["numPartitions"] for s in info["stateStoreInfo"])
    return StateSnapshot(
        provider=QUERY_SETTINGS[f"{_PREFIX}providerClass"],
        checkpoint_format_version=int(QUERY_SETTINGS[f"{_PREFIX}checkpointFormatVersion"]),
        state_version=batch_id + 1,
        state_partitions=partitions,
        operators=tuple(operators),
        location="state",
    )
