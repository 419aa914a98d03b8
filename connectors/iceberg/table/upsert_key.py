"""The columns by which an upsert replaces rows, and what a table needs for that."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.runtime.errors import ConfigError

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["UpsertKey", "foreign_specs"]

_ENABLED = "write.upsert.enabled"
_FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertKey:
    """The user's settings of upserts. Picklable.

    Attributes:
        is_upsert: whether rows replace rows of their key; None: as the table's property
            ``write.upsert.enabled`` says.
        fields: names of the key's columns; none: the table's identifier fields.
    """

    is_upsert: bool | None = None
    fields: tuple[str, ...] = ()

    def ids_in(self, table: "Table", name: str) -> tuple[int, ...]:
        """Field ids of the key in ascending order; none: the sink appends. Reads one manifest list.

        Raises:
            ConfigError: the table or its columns cannot have upserts.
        """
        is_upsert = self.is_upsert
        if is_upsert is None:
            is_upsert = table.properties.get(_ENABLED, "false").lower() == "true"
        if not is_upsert:
            if self.fields:
                raise ConfigError(
                    "equality fields are set, and the sink appends",
                    {"table": name, "equality_fields": ",".join(self.fields)},
                    f"Pass upsert=True, or set the table's property {_ENABLED}=true.",
                )
            return ()
        version = table.metadata.format_version
        if version != _FORMAT:
            raise ConfigError(
                "a table of this format version cannot have upserts",
                {"table": name, "format-version": version},
                f"Use a table of format version {_FORMAT}, or append.",
            )
        ids = _key_of(table, name, self.fields)
        _require_partitions_in_key(table, name, ids)
        foreign = foreign_specs(table, table.spec().spec_id)
        if foreign:
            raise ConfigError(
                "rows of an older partition spec cannot be replaced",
                {"table": name, "spec": table.spec().spec_id, "older": foreign},
                "Rewrite them with rewrite_data_files and rewrite-all=true, then start again.",
            )
        return ids


def foreign_specs(table: "Table", spec_id: int) -> Sequence[int]:
    """Other partition specs with data files that deletes of this spec would not reach."""
    snapshot = table.current_snapshot()
    if snapshot is None or not table.specs()[spec_id].fields:
        return ()  # deletes of an unpartitioned spec reach all files
    from pyiceberg.manifest import ManifestContent

    return sorted(
        {
            manifest.partition_spec_id
            for manifest in snapshot.manifests(table.io)
            if manifest.content is ManifestContent.DATA
            and manifest.partition_spec_id != spec_id
            and (manifest.has_added_files() or manifest.has_existing_files())
        }
    )


def _key_of(table: "Table", name: str, fields: Sequence[str]) -> tuple[int, ...]:
    from pyiceberg.types import DoubleType, FloatType, PrimitiveType

    schema = table.schema()
    columns = {field.name: field for field in schema.fields}
    named = list(fields) or [
        column.name for column in schema.fields if column.field_id in schema.identifier_field_ids
    ]
    if not named:
        raise ConfigError(
            "an upsert has no key",
            {"table": name},
            "Pass equality_fields, or set identifier fields on the table.",
        )
    for wanted in named:
        column = columns.get(wanted)
        kind = None if column is None else column.field_type
        if not isinstance(kind, PrimitiveType) or isinstance(kind, FloatType | DoubleType):
            raise ConfigError(
                "an equality field of an upsert cannot be used",
                {"table": name, "field": wanted, "type": kind or "absent"},
                "Name top-level columns of the table; float, double and nested types cannot be "
                "keys.",
            )
    return tuple(sorted(columns[wanted].field_id for wanted in named))


def _require_partitions_in_key(table: "Table", name: str, ids: Sequence[int]) -> None:
    for field in table.spec().fields:
        if field.source_id not in ids:
            raise ConfigError(
                "a partition field's column is not in the key of the upsert",
                {
                    "table": name,
                    "partition": field.name,
                    "column": table.schema().find_column_name(field.source_id),
                },
                "Add the column to equality_fields: deletes reach one partition alone.",
            )
