"""The part of a table that a task needs to write data files, without the catalog."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.locations import LocationProvider
    from pyiceberg.table.sorting import SortOrder

__all__ = ["PROPERTY_PREFIX", "WritingPlan"]

PROPERTY_PREFIX = "sluice."
"""Begins the names of this connector's table properties and summary entries."""

_OF_STORES = ("s3.", "gcs.", "adls.", "hdfs.", "oss.", "hf.", "client.", "py-io-impl")


@dataclass(frozen=True, kw_only=True)  # no slots: it keeps what it has opened
class WritingPlan:
    """A table as its writers see it. Picklable.

    Attributes:
        table: its name in the catalog.
        table_uuid, location, schema, spec, sort_order: of its metadata.
        properties: of the table, without this connector's own.
        io_properties: of its FileIO; may hold credentials.
        equality_ids: fields of the key of upserts; none: rows are appended.
    """

    table: str
    table_uuid: str
    location: str
    schema: "Schema"
    spec: "PartitionSpec"
    sort_order: "SortOrder"
    properties: Mapping[str, str]
    io_properties: Mapping[str, str] = field(repr=False)
    equality_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, name: str, table: "Table", equality_ids: tuple[int, ...] = ()) -> Self:
        """The plan for a table as it is now."""
        metadata = table.metadata
        return cls(
            table=name,
            table_uuid=str(metadata.table_uuid),
            location=metadata.location,
            schema=metadata.schema(),
            spec=metadata.spec(),
            sort_order=table.sort_order(),
            properties={
                key: value
                for key, value in metadata.properties.items()
                if not key.startswith(PROPERTY_PREFIX)
            },
            io_properties=_of_store(table.io.properties),
            equality_ids=equality_ids,
        )

    @cached_property
    def io(self) -> "FileIO":
        """Opens and deletes files of the table."""
        from pyiceberg.io import load_file_io

        return load_file_io(dict(self.io_properties), self.location)

    @cached_property
    def locations(self) -> "LocationProvider":
        """Names the places of new data files, as the table's properties say."""
        from pyiceberg.table.locations import load_location_provider

        return load_location_provider(self.location, dict(self.properties))

    def __getstate__(self) -> dict[str, object]:
        opened = {"io", "locations"}
        return {key: value for key, value in vars(self).items() if key not in opened}


def _of_store(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Without the catalog's own, such as the password in its URI; a remote signer needs those."""
    if "s3.signer" in properties:
        return dict(properties)
    return {key: value for key, value in properties.items() if key.startswith(_OF_STORES)}
