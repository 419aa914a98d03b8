"""How to open a catalog: the name of pyiceberg's configuration, a URI, or properties."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from sluice.connectors.iceberg.table.client_errors import client_errors_translated
from sluice.runtime.errors import ConfigError
from sluice.runtime.extras import extras_named
from sluice.runtime.storage.file_system_opening import absolute_uri
from sluice.runtime.storage.objects.object_location import object_location

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

__all__ = ["CatalogSettings", "load_table"]

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SECRET = re.compile(r"key|secret|password|token|credential|uri", re.IGNORECASE)
_STORES = {"s3.": "s3://b", "gcs.": "gs://b", "adls.": "abfss://c@a.dfs.core.windows.net"}
_OF_STORES = {
    "aws_endpoint_url_s3": "s3.endpoint",
    "aws_default_region": "s3.region",
    "aws_region": "s3.region",
    "aws_access_key_id": "s3.access-key-id",
    "aws_secret_access_key": "s3.secret-access-key",
    "aws_session_token": "s3.session-token",
    "aws_virtual_hosted_style_request": "s3.force-virtual-addressing",
    "google_base_url": "gcs.service.host",
    "azure_storage_account_key": "adls.account-key",
    "azure_storage_sas_token": "adls.sas-token",
    "azure_client_id": "adls.client-id",
    "azure_client_secret": "adls.client-secret",
    "azure_tenant_id": "adls.tenant-id",
}
"""Names of `object_location` as pyiceberg has them; a later one of the same meaning counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """The name and properties of a catalog. Picklable; holds no connection.

    Attributes:
        name: of the catalog; pyiceberg's configuration may add properties under it.
        properties: as pyiceberg names them.
        storage_options: see `object_location`; for stores of which no property speaks.
    """

    name: str | None
    properties: Mapping[str, str] = field(repr=False)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        catalog: str | Mapping[str, object],
        *,
        warehouse: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Self:
        """The settings for what a user passed as ``catalog``.

        Args:
            catalog: a name in pyiceberg's configuration; or a URI (``sqlite:///…``,
                ``postgresql://…``, ``https://…``, ``thrift://…``); or properties, of which ``name``
                is the catalog's name.
            warehouse: directory or name of the warehouse; overrides the property.
            storage_options: of its object store.
        Raises:
            ConfigError: it is empty.
        """
        name: str | None = None
        if not catalog:
            raise ConfigError(
                "an Iceberg sink has no catalog",
                {"catalog": repr(catalog)},
                "Pass a URI, properties, or a name of pyiceberg's configuration.",
            )
        if isinstance(catalog, str):
            is_uri = _URI.match(catalog) is not None
            given: dict[str, object] = {"uri": catalog} if is_uri else {}
            name = None if is_uri else catalog
        else:
            given = dict(catalog)
            found = given.pop("name", None)
            name = None if found is None else str(found)
        if warehouse is not None:
            given["warehouse"] = warehouse
        location = given.get("warehouse")
        if isinstance(location, str) and location.startswith("/"):
            given["warehouse"] = absolute_uri(location)
        return cls(
            name=name,
            properties={key: str(value) for key, value in given.items()},
            storage_options=dict(storage_options or {}),
        )

    def open(self) -> "Catalog":
        """A client of the catalog; most connect at their first request.

        Endpoint, region and keys of a store come from ``storage_options``, then from the usual
        environment variables, if no property speaks of this store.

        Raises:
            ConfigError: pyiceberg refuses the properties.
            MissingRequirementError: pyiceberg, or what a catalog needs, is not installed.
            UnreachableError, AuthenticationError: a REST catalog did not answer.
        """
        with extras_named():
            from pyiceberg.catalog import load_catalog
            from pyiceberg.exceptions import NotInstalledError

        with client_errors_translated("open a catalog", self.where()):
            try:
                return load_catalog(self.name, **{**self._of_stores(), **self.properties})
            except (ValueError, NotInstalledError) as err:
                raise ConfigError(
                    "the catalog cannot be opened",
                    {**self.where(), "error": str(err)},
                    "Correct its properties; see pyiceberg's configuration.",
                ) from err

    def load_table(self, table: str) -> "Table":
        """The table as it is now.

        Raises:
            ConfigError: there is no such table; as `open`.
        """
        return load_table(self.open(), table, self.where())

    def where(self) -> Mapping[str, object]:
        """For messages: no secret."""
        return {"catalog": self.name or self.properties.get("uri", "default").rpartition("@")[2]}

    def shown(self) -> Mapping[str, str]:
        """The properties for ``_metadata``, secrets redacted."""
        shown = {
            key: "[redacted]" if _SECRET.search(key) else value
            for key, value in self.properties.items()
        }
        return {"name": self.name or "", **shown}

    def _of_stores(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for prefix, uri in _STORES.items():
            if any(key.startswith(prefix) for key in self.properties):
                continue  # keys of one place and an endpoint of another do not belong together
            config = object_location(uri, self.storage_options).config
            found |= {name: config[key] for key, name in _OF_STORES.items() if key in config}
        return found


def load_table(catalog: "Catalog", table: str, where: Mapping[str, object]) -> "Table":
    """The table as it is now; ConfigError if there is none."""
    from pyiceberg.exceptions import NoSuchTableError

    where = {**where, "table": table}
    with client_errors_translated("load a table", where):
        try:
            return catalog.load_table(table)
        except NoSuchTableError as err:
            raise ConfigError(
                "there is no such Iceberg table",
                where,
                "Create the table first, or correct its name: NAMESPACE.TABLE.",
            ) from err
