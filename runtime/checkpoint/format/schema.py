"""Avro schemas of what the checkpoint store writes; frozen per format version.

A schema is never changed once it was released: a new version is added beside it, and
``tests/data`` keeps one file of each version for ever.
"""

from typing import Any

__all__ = [
    "METADATA_V1",
    "METADATA_VERSION",
    "REPAIR_V1",
    "REPAIR_VERSION",
]

METADATA_VERSION = 1
"""The version of ``_metadata`` that this Sluice writes, and the latest it reads."""

REPAIR_VERSION = 1
"""As `METADATA_VERSION`, of ``_repair-k``."""

_NAMESPACE = "sluice.checkpoint"


def _record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "namespace": _NAMESPACE,
        "fields": [{"name": field, "type": kind} for field, kind in fields],
    }


def _many(items: Any) -> dict[str, Any]:  # noqa: ANN401 - an Avro type is any JSON
    return {"type": "array", "items": items}


_OPTIONAL_LONG = ["null", "long"]

_OPERATOR_NODE = _record(
    "OperatorNode",
    ("operator_id", "string"),
    ("name", "string"),
    ("kind", "string"),
    ("upstream", _many("string")),
    ("parallelism", "long"),
    ("max_parallelism", "long"),
    ("uid", "string"),
)

_SPLIT_RANGE = _record(
    "SplitRange",
    ("source_id", "string"),
    ("topic", "string"),
    ("topic_id", "string"),
    ("partition", "long"),
    ("start_offset", "long"),
    ("end_offset", "long"),
    ("leader_epoch", _OPTIONAL_LONG),
    ("largest_timestamp_ms", _OPTIONAL_LONG),
    ("watermark_ms", _OPTIONAL_LONG),
    ("idle_since_ms", _OPTIONAL_LONG),
    ("leader_epoch_end", _OPTIONAL_LONG),
    ("barrier_watermark_ms", _OPTIONAL_LONG),
)

# Enumerations are strings, so that a later symbol is an error which names it, not a schema clash.
_STATE_ENTRY = _record(
    "StateEntry",
    ("operator_id", "string"),
    ("state_name", "string"),
    ("kind", "string"),
    ("version", "long"),
    ("redistribution", "string"),
    ("payload", "bytes"),
)

_STATE_SNAPSHOT = _record(
    "StateSnapshot",
    ("provider", "string"),
    ("checkpoint_format_version", "long"),
    ("state_version", "long"),
    ("state_partitions", "long"),
    ("operators", _many(_record("SparkOperator", ("number", "long"), ("name", "string")))),
    ("state_schema", "string"),
    ("key_schema", "string"),
    ("location", "string"),
    (
        "files",
        _many(
            _record(
                "FileReference", ("path", "string"), ("length_bytes", "long"), ("sha256", "string")
            )
        ),
    ),
)

# Parts in columns, splits by topic: `sluice.runtime.checkpoint.format.keyed_columns`.
_KEYED_STATE = _record(
    "KeyedState",
    ("max_parallelism", "long"),
    ("partitions", "long"),
    (
        "tables",
        _many(
            _record(
                "StateTableInfo",
                ("number", "long"),
                ("operator_id", "string"),
                ("name", "string"),
                ("kind", "string"),
                ("key_schema", "string"),
                ("value_schema", "string"),
            )
        ),
    ),
    ("files", _many(f"{_NAMESPACE}.FileReference")),
    (
        "topics",
        _many(
            _record(
                "TopicState",
                ("source_id", "string"),
                ("topic", "string"),
                ("partitions", _many("long")),
                ("parts", _many("long")),
                ("has_base", _many("boolean")),
            )
        ),
    ),
    ("part_files", _many("long")),
    ("part_offsets", _many("long")),
    ("part_lengths", _many("long")),
)

_REGIONS = _many(
    _record(
        "RegionRecord",
        ("region", "string"),
        ("attempt_id", "long"),
        ("status", "string"),
        ("snapshot_id", _OPTIONAL_LONG),
        ("query_id", "string"),
        ("batch_id", _OPTIONAL_LONG),
        ("splits", _many(_SPLIT_RANGE)),
        ("least_watermark_ms", _OPTIONAL_LONG),
        ("offset_log_version", "long"),
        ("state", ["null", _STATE_SNAPSHOT]),
        ("committables", _many(_STATE_ENTRY)),
        ("operator_states", _many(f"{_NAMESPACE}.StateEntry")),
        ("other_offsets_sha256", "string"),
        ("keyed_state", ["null", _KEYED_STATE]),
    )
)


# Partitions by source and topic: there may be thousands, in every record.
_ASSIGNMENT = _record(
    "Assignment",
    ("version", "long"),
    (
        "regions",
        _many(
            _record(
                "AssignedRegion",
                ("region", "string"),
                (
                    "splits",
                    _many(
                        _record(
                            "AssignedSplits",
                            ("source_id", "string"),
                            ("topic", "string"),
                            ("partitions", _many("long")),
                        )
                    ),
                ),
            )
        ),
    ),
)

_METADATA_FIELDS: tuple[tuple[str, Any], ...] = (
    ("format_version", "long"),
    ("job_uid", "string"),
    ("job_name", "string"),
    ("checkpoint_id", "long"),
    ("kind", "string"),
    ("leader_session_id", "string"),
    ("run_attempt", "long"),
    ("restored_from", _OPTIONAL_LONG),
    ("sluice_version", "string"),
    ("spark_version", "string"),
    ("cluster_ids", _many("string")),
    ("settings", {"type": "map", "values": "string"}),
    ("graph", _many(_OPERATOR_NODE)),
    ("verdict", "string"),
    ("requested_by", "string"),
    ("reason", "string"),
    ("created_at_ms", "long"),
)

METADATA_V1 = _record(
    "CheckpointRecord",
    *_METADATA_FIELDS,
    ("regions", _REGIONS),
    ("assignment", ["null", _ASSIGNMENT]),
)
"""``_metadata``: a `sluice.runtime.model.checkpoint_record.CheckpointRecord`."""

REPAIR_V1 = _record(
    "Repair",
    ("format_version", "long"),
    ("checkpoint_id", "long"),
    ("number", "long"),
    ("leader_session_id", "string"),
    ("replaced", _many(_record("Replacement", ("lost", "bytes"), ("entry", _STATE_ENTRY)))),
)
"""``_repair-k``: lost committables and their replacements (`two-phase-repair`)."""
