"""How to reach a schema registry."""

import atexit
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from sluice.connectors.kafka.client.connection import REDACTED
from sluice.connectors.kafka.client.credentials import without_credentials
from sluice.connectors.kafka.records.registry.registered_schema import RegisteredSchema
from sluice.connectors.kafka.records.registry.registry_client import RegistryClient
from sluice.runtime.errors import ConfigError

__all__ = ["SchemaRegistry", "close_clients"]

_OWN = ("url", "options", "timeout_s", "request_timeout_s")
_SECRETS = frozenset(
    {
        "basic.auth.user.info",
        "bearer.auth.client.secret",
        "bearer.auth.custom.provider.config",
        "bearer.auth.token",
        "proxy",
        "ssl.key.password",
    }
)
_SET_HERE = {
    "max.retries": "Set timeout_s.",
    "timeout": "Set request_timeout_s.",
    "url": "Set url.",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class SchemaRegistry:
    """How to reach a registry that speaks Confluent's protocol. Picklable; its text has no secrets.

    Each process makes one client on first use and keeps the schemas that it has fetched.

    Attributes:
        url: one or several, comma-separated; for Apicurio it ends in ``/apis/ccompat/v7``.
        basic_auth_user_info: ``user:password``.
        bearer_auth_token, bearer_auth_logical_cluster, bearer_auth_identity_pool_id: a fixed token.
        ssl_ca_location, ssl_certificate_location, ssl_key_location, ssl_key_password: PEM files.
        proxy: URL of an HTTP proxy.
        options: further options of confluent-kafka's ``SchemaRegistryClient`` by their names, such
            as ``bearer.auth.credentials.source``.
        timeout_s: how long a lookup is retried while the registry is down, slow or overloaded.
        request_timeout_s: how long one request waits for each part of an answer.
    Raises:
        ConfigError: an option is unknown, given twice or wrong.
    """

    url: str
    basic_auth_user_info: str | None = None
    bearer_auth_token: str | None = None
    bearer_auth_logical_cluster: str | None = None
    bearer_auth_identity_pool_id: str | None = None
    ssl_ca_location: str | None = None
    ssl_certificate_location: str | None = None
    ssl_key_location: str | None = None
    ssl_key_password: str | None = None
    proxy: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    timeout_s: float = 30.0
    request_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.request_timeout_s <= self.timeout_s:
            raise ConfigError(
                "a timeout of the registry is out of range",
                {"timeout_s": self.timeout_s, "request_timeout_s": self.request_timeout_s},
                "Set 0 < request_timeout_s <= timeout_s.",
            )
        for name in self.options:
            if "_" in name:
                raise ConfigError(
                    "the registry has no such option",
                    {"option": name},
                    "Use confluent-kafka's names, with dots, or the fields of SchemaRegistry.",
                )
            if name in _SET_HERE or name.replace(".", "_") in self._given():
                raise ConfigError(
                    "an option of the registry has a field of its own, or is given twice",
                    {"option": name},
                    _SET_HERE.get(name, "Give it once."),
                )
        self._settings()  # refuses credentials that are given twice

    def __repr__(self) -> str:
        shown = {n: REDACTED if n in _SECRETS else v for n, v in self._settings().items()}
        text = ", ".join(
            f"{name}={value!r}" for name, value in {**shown, "url": self.address}.items()
        )
        return f"SchemaRegistry({text})"

    @property
    def address(self) -> str:
        """The URLs without credentials."""
        return ",".join(without_credentials(url.strip()) for url in self.url.split(","))

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest schema of a subject, with those that it refers to; asks the registry.

        Raises:
            ConfigError: the subject does not exist.
            UnreachableError, AuthenticationError: the registry does not answer, or refuses.
        """
        return self.client().version(subject, "latest")

    def client(self) -> RegistryClient:
        """The client of this process."""
        settings = self._settings()
        key = (os.getpid(), self.timeout_s, *sorted((n, repr(v)) for n, v in settings.items()))
        with _LOCK:
            if key not in _CLIENTS:
                _CLIENTS[key] = RegistryClient(
                    settings, address=self.address, timeout_s=self.timeout_s
                )
            return _CLIENTS[key]

    def _given(self) -> dict[str, str]:
        names = [each.name for each in fields(self) if each.name not in _OWN]
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def _settings(self) -> dict[str, Any]:
        """By confluent-kafka's names. Its HTTP client logs URLs: they have no credentials."""
        given = {name.replace("_", "."): value for name, value in self._given().items()}
        found = {**given, **self.options, "timeout": self.request_timeout_s, "max.retries": 0}
        parts = [urlsplit(url.strip()) for url in self.url.split(",")]
        users = {f"{unquote(p.username)}:{unquote(p.password or '')}" for p in parts if p.username}
        if users:
            if len(users) > 1 or "basic.auth.user.info" in found:
                raise ConfigError(
                    "the credentials of the registry are given twice",
                    {"url": self.address},
                    "Give basic_auth_user_info alone.",
                )
            found["basic.auth.user.info"] = users.pop()
        bare = [p._replace(netloc=p.netloc.rpartition("@")[2]) for p in parts]
        found["url"] = ",".join(urlunsplit(part) for part in bare)
        if "bearer.auth.token" in found:
            # Confluent Cloud alone needs the cluster; other registries ignore the header.
            found.setdefault("bearer.auth.credentials.source", "STATIC_TOKEN")
            found.setdefault("bearer.auth.logical.cluster", "")
        return found


_CLIENTS: dict[tuple[object, ...], RegistryClient] = {}
_LOCK = threading.Lock()


def close_clients() -> None:
    """Close the connections of this process."""
    with _LOCK:
        for client in _CLIENTS.values():
            client.close()
        _CLIENTS.clear()


atexit.register(close_clients)
