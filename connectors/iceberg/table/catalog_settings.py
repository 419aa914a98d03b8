"""How to open a catalog: the name of pyiceberg's configuration, a URI, or properties."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from sluice.connectors.iceberg.table.client_errors import client_errors_translated
from sluice.runtime.errors import ConfigError
from sluice.runtime.extras import extras_named
from sluice.runtime.storage.file_system_opening import absolute_uri

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

__all__ = ["CatalogSettings", "load_table"]

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SECRET = re.compile(r"key|secret|password|token|credential|uri", re.IGNORECASE)
_FROM_ENVIRONMENT = {
    "s3.endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "s3.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "s3.access-key-id": ("AWS_ACCESS_KEY_ID",),
    "s3.secret-access-key": ("AWS_SECRET_ACCESS_KEY",),
    "s3.session-token": ("AWS_SESSION_TOKEN",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """The name and properties of a catalog. Picklable; holds no connection.

    Attributes:
        name: of the catalog; pyiceberg's configuration may add properties under it.
        properties: as pyiceberg names them.
    """

    name: str | None
    properties: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, catalog: str | Mapping[str, object], *, warehouse: str | None = None) -> Self:
        """The settings for what a user passed as ``catalog``.

        Args:
            catalog: a name in pyiceberg's configuration; or a URI (``sqlite:///…``,
                ``postgresql://…``, ``https://…``, ``thrift://…``); or properties, of which ``name``
                is the catalog's name.
            warehouse: directory or name of the warehouse; overrides the property.
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
        return cls(name=name, properties={key: str(value) for key, value in given.items()})

    def open(self) -> "Catalog":
        """A client of the catalog; most connect at their first request.

        Endpoint, region and keys of S3 come from AWS's variables if no property has them.

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
                return load_catalog(self.name, **{**self._from_environment(), **self.properties})
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

    def _from_environment(self) -> Mapping[str, str]:
        if any(key.startswith("s3.") for key in self.properties):
            return {}  # keys of one place and an endpoint of another do not belong together
        found = {
            key: next((os.environ[name] for name in names if os.environ.get(name)), None)
            for key, names in _FROM_ENVIRONMENT.items()
        }
        return {key: value for key, value in found.items() if value is not None}


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
