"""Keyed state in a record, by columns: there may be thousands of parts, in every record. Pure.

Splits stand by source and topic, one number of parts for each; the parts of all splits follow each
other in three columns.
"""

from collections.abc import Mapping
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from typing import Any

from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import (
    KeyedState,
    SplitState,
    StatePart,
    StateTableInfo,
)

__all__ = ["keyed_from_avro", "keyed_to_avro"]

_topic = attrgetter("source_id", "topic")


def keyed_to_avro(state: KeyedState) -> dict[str, Any]:
    """The fields of ``KeyedState`` in `sluice.runtime.checkpoint.format.schema`."""
    parts = [part for split in state.splits for part in split.parts]
    topics = []
    for (source_id, topic), group in groupby(state.splits, key=_topic):
        splits = list(group)
        topics.append(
            {
                "source_id": source_id,
                "topic": topic,
                "partitions": [split.partition for split in splits],
                "parts": [len(split.parts) for split in splits],
                "has_base": [any(part.is_base for part in split.parts) for split in splits],
            }
        )
    return {
        "max_parallelism": state.max_parallelism,
        "partitions": state.partitions,
        "tables": to_json(state.tables),
        "files": to_json(state.files),
        "topics": topics,
        "part_files": [part.file for part in parts],
        "part_offsets": [part.offset for part in parts],
        "part_lengths": [part.length for part in parts],
    }


def keyed_from_avro(found: Mapping[str, Any]) -> KeyedState:
    """The state in these fields.

    Raises:
        ConfigError, ValueError: they do not fit each other.
    """
    columns = found["part_files"], found["part_offsets"], found["part_lengths"]
    parts = [
        StatePart(file=file, offset=offset, length=length)
        for file, offset, length in zip(*columns, strict=True)
    ]
    counts = [count for topic in found["topics"] for count in topic["parts"]]
    if any(count < 0 for count in counts) or sum(counts) != len(parts):
        raise ValueError("the splits have another number of parts")
    ranges = pairwise(accumulate(counts, initial=0))
    splits = []
    for topic in found["topics"]:
        rows = zip(topic["partitions"], topic["parts"], topic["has_base"], strict=True)
        for partition, _, has_base in rows:
            first, last = next(ranges)
            mine = parts[first:last]
            if has_base:
                mine[0] = StatePart(
                    file=mine[0].file, offset=mine[0].offset, length=mine[0].length, is_base=True
                )
            splits.append(
                SplitState(
                    source_id=topic["source_id"],
                    topic=topic["topic"],
                    partition=partition,
                    parts=tuple(mine),
                )
            )
    return KeyedState(
        max_parallelism=found["max_parallelism"],
        partitions=found["partitions"],
        tables=tuple(from_json(StateTableInfo, each) for each in found["tables"]),
        files=tuple(from_json(FileReference, each) for each in found["files"]),
        splits=tuple(splits),
    )
