"""What a checkpoint says of Spark's state: provider, versions, operators, partitions, schema."""

import json

from runtime.checkpoint.file_system import FileSystem
from runtime.model import StateSnapshot
from runtime.spark.session import QUERY_SETTINGS

__all__ = ["snapshot_of"]

_PREFIX = "spark.sql.streaming.stateStore."


def snapshot_of(fs: FileSystem, location: str, batch_id: int) -> StateSnapshot:
    """The state after batch ``batch_id``, read from Spark's own operator metadata (v1 files).

    ``location`` is the query's, relative to the checkpoint directory.
    """
    operators: list[tuple[int, str]] = []
    partitions = 0
    names = [entry.name for entry in fs.entries(f"{location}/state")]
    for name in sorted(filter(str.isdigit, names), key=int):
        content = fs.read(f"{location}/state/{name}/_metadata/metadata")
        if content is not None:
            info = json.loads(content.decode().splitlines()[1])
            operators.append((int(name), info["operatorInfo"]["operatorName"]))
            partitions = max(s["numPartitions"] for s in info["stateStoreInfo"])
    return StateSnapshot(
        provider=QUERY_SETTINGS[f"{_PREFIX}providerClass"],
        checkpoint_format_version=int(QUERY_SETTINGS[f"{_PREFIX}checkpointFormatVersion"]),
        state_version=batch_id + 1,
        state_partitions=partitions,
        operators=tuple(operators),
        location=f"{location}/state",
    )
