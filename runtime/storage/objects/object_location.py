"""The location of objects and the way to reach them: from a URI, options and the environment."""

import json
import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sluice.runtime.errors import ConfigError
from sluice.runtime.extras import extras_named

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = [
    "OBJECT_SCHEMES",
    "ObjectLocation",
    "hadoop_storage_options",
    "is_storage_option",
    "object_location",
]

OBJECT_SCHEMES = ("s3", "gs", "abfss")
"""Schemes of URIs that name objects; ``s3a`` is another name of ``s3``."""

_URI = re.compile(r"(?P<scheme>(?i:s3a?|gs|abfss))://(?P<authority>[^/?#]*)(?P<path>.*)", re.DOTALL)
_AZURE_HOST = re.compile(r"(?P<container>[^@]+)@(?P<account>[^.@]+)\.(?P<suffix>.+)")
_OPTIONS = {
    "s3": ("aws_", "fs.s3a."),
    "gs": ("google_", "fs.gs."),
    "abfss": ("azure_", "fs.azure."),
}
"""How the options of a store begin; a job's options may be for several stores."""
_OPTION_PREFIXES = tuple(prefix for prefixes in _OPTIONS.values() for prefix in prefixes)

_ENVIRONMENT = {
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_DEFAULT_REGION",
        "AWS_REGION",
        "AWS_ENDPOINT",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ALLOW_HTTP",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
        "AWS_SKIP_SIGNATURE",
        "AWS_REQUEST_PAYER",
        "AWS_SERVER_SIDE_ENCRYPTION",
        "AWS_SSE_KMS_KEY_ID",
    ),
    "gs": (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "GOOGLE_BASE_URL",
        "GOOGLE_SKIP_SIGNATURE",
        "STORAGE_EMULATOR_HOST",
    ),
    "abfss": (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_TOKEN",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_STORAGE_CLIENT_ID",
        "AZURE_STORAGE_CLIENT_SECRET",
        "AZURE_STORAGE_TENANT_ID",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
        "AZURE_TENANT_ID",
    ),
}
"""Variables whose values the driver sends to tasks; obstore reads others on each host itself."""

_RENAMED = {
    # The endpoint of one service: obstore takes it before every other one.
    "aws_endpoint": "aws_endpoint_url_s3",
    "aws_endpoint_url": "aws_endpoint_url_s3",
    # Names with one meaning: an option goes before a variable that is spelled otherwise.
    "aws_token": "aws_session_token",
    "google_service_account_path": "google_service_account",
    **dict.fromkeys(
        ("azure_storage_access_key", "account_key", "access_key"), "azure_storage_account_key"
    ),
    **dict.fromkeys(("azure_storage_sas_key", "sas_key", "sas_token"), "azure_storage_sas_token"),
    **dict.fromkeys(("azure_storage_client_id", "client_id"), "azure_client_id"),
    **dict.fromkeys(("azure_storage_client_secret", "client_secret"), "azure_client_secret"),
    **dict.fromkeys(("azure_storage_tenant_id", "tenant_id"), "azure_tenant_id"),
    **dict.fromkeys(("azure_endpoint", "endpoint"), "azure_storage_endpoint"),
    "google_endpoint": "google_base_url",
    # As Hadoop's S3A spells them.
    "fs.s3a.access.key": "aws_access_key_id",
    "fs.s3a.secret.key": "aws_secret_access_key",
    "fs.s3a.session.token": "aws_session_token",
    "fs.s3a.endpoint": "aws_endpoint_url_s3",
    "fs.s3a.endpoint.region": "aws_region",
    # As Google's own clients name an emulator.
    "storage_emulator_host": "google_base_url",
    "fs.gs.auth.service.account.json.keyfile": "google_service_account",
    "fs.gs.storage.root.url": "google_base_url",
    "fs.azure.account.oauth2.client.id": "azure_client_id",
    "fs.azure.account.oauth2.client.secret": "azure_client_secret",
    "fs.azure.sas.fixed.token": "azure_storage_sas_token",
}
_SPARK_HADOOP = "spark.hadoop."
_AZURE_KEY = "fs.azure.account.key."
_PREFIXES = {"s3": "aws_", "gs": "google_", "abfss": ""}
"""Before an option that has no prefix."""
_NO_LOG_IN = json.dumps(
    {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
)
_ENDPOINTS = ("aws_endpoint_url_s3", "google_base_url", "azure_storage_endpoint")
_CLIENT = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "root_certificate",
    "timeout",
    "user_agent",
}
_FLAGS = {"allow_http", "allow_invalid_certificates"}
_TIMEOUTS = {"timeout": "30s", "connect_timeout": "5s"}
_RETRY_TIMEOUT = timedelta(seconds=10)
"""For so long a call is repeated below us; then the caller decides, as for every other store."""


def is_storage_option(name: str) -> bool:
    """Whether an option of this name belongs to a store, such as ``fs.s3a.access.key``."""
    return name.lower().startswith(_OPTION_PREFIXES)


def hadoop_storage_options(settings: Mapping[str, str]) -> dict[str, str]:
    """Those of Hadoop's settings that have a meaning here, without their ``spark.hadoop.``.

    Args:
        settings: of a Spark session, as the user set them.
    """
    named = {
        name.removeprefix(_SPARK_HADOOP): value
        for name, value in settings.items()
        if name.startswith(_SPARK_HADOOP)
    }
    return {
        name: value
        for name, value in named.items()
        if name in _RENAMED or name.startswith(_AZURE_KEY)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLocation:
    """A prefix in a bucket or container. Picklable: the driver makes it, tasks open it.

    Attributes:
        uri: with scheme and bucket, without a slash at the end.
        scheme: one of `OBJECT_SCHEMES`.
        bucket: or container.
        prefix: the key of the directory inside the bucket, without slashes at its ends; or "".
        config: of obstore's store; holds secrets.
        client: of obstore's HTTP client; may hold secrets.
    """

    uri: str
    scheme: str
    bucket: str
    prefix: str
    config: Mapping[str, str] = field(repr=False)
    client: Mapping[str, str] = field(repr=False)

    @property
    def endpoint(self) -> str | None:
        """The configured address; None: the cloud's own."""
        return next((self.config[each] for each in _ENDPOINTS if each in self.config), None)

    def open(self) -> "ObjectStore":
        """The store, whose paths begin at ``prefix``. It connects with the first call.

        Raises:
            ConfigError: an option is not known or has a wrong value.
            MissingRequirementError: obstore is not installed.
        """
        with extras_named():
            from obstore.exceptions import BaseError
            from obstore.store import AzureStore, GCSStore, S3Store
        client: dict[str, Any] = {
            name: value.lower() == "true" if name in _FLAGS else value
            for name, value in self.client.items()
        }
        common: dict[str, Any] = {
            "prefix": self.prefix or None,
            "config": dict(self.config),
            "client_options": {**_TIMEOUTS, **client},
            "retry_config": {
                "max_retries": 3,
                "retry_timeout": _RETRY_TIMEOUT,
                "backoff": {
                    "init_backoff": timedelta(milliseconds=50),
                    "max_backoff": timedelta(seconds=1),
                    "base": 2,
                },
            },
        }
        try:
            if self.scheme == "s3":
                return S3Store(self.bucket, **common)
            if self.scheme == "gs":
                return GCSStore(self.bucket, **common)
            return AzureStore(self.bucket, **common)
        except (BaseError, ValueError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(
                "an option of the object store is wrong",
                {"uri": self.uri, "reason": reason},
                "Correct storage_options, or the environment variable of this name.",
            ) from error


def object_location(
    uri: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
) -> ObjectLocation:
    """The location that ``uri`` names; an option goes before the environment.

    Args:
        uri: ``s3://bucket/prefix``, ``gs://bucket/prefix`` or
            ``abfss://container@account.dfs.core.windows.net/prefix``.
        storage_options: as obstore, pandas and delta-rs spell them (``aws_endpoint_url``), or as
            Hadoop does (``fs.s3a.endpoint``). Case does not matter.
    Raises:
        ConfigError: the URI or an option is wrong.
    """
    match = _URI.fullmatch(uri)
    if match is None or not match["authority"]:
        raise _bad_uri(uri, "it names no bucket")
    scheme = match["scheme"].lower()
    scheme = "s3" if scheme == "s3a" else scheme
    authority, bucket, account = match["authority"], match["authority"], {}
    if scheme == "abfss":
        host = _AZURE_HOST.fullmatch(authority)
        if host is None:
            raise _bad_uri(uri, "it names no container and account")
        bucket, account = host["container"], {"azure_storage_account_name": host["account"]}
    elif "@" in authority or ":" in authority:
        raise _bad_uri(uri, "a bucket has no port and no user")
    prefix = posixpath.normpath(f"/{match['path'].lstrip('/')}").strip("/")
    set_for_all = {
        name: environment[name] for name in _ENVIRONMENT[scheme] if environment.get(name)
    }
    config, client = _sorted_out(scheme, set_for_all)
    own_config, own_client = _sorted_out(scheme, storage_options or {})
    config |= own_config | account
    client |= own_client
    if any(config.get(name, "").startswith("http://") for name in _ENDPOINTS):
        client.setdefault("allow_http", "true")
    return ObjectLocation(
        uri=f"{scheme}://{authority}" + (f"/{prefix}" if prefix else ""),
        scheme=scheme,
        bucket=bucket,
        prefix=prefix,
        config=config,
        client=client,
    )


def _sorted_out(scheme: str, given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Options of the store, and options of its HTTP client."""
    config, client = {}, {}
    others = tuple(each for each in _OPTION_PREFIXES if each not in _OPTIONS[scheme])
    for name, value in given.items():
        if name.lower().startswith(others):
            continue
        bare = re.sub(r"^(aws|google|azure)_", "", name.lower())
        if bare in _CLIENT:
            client[bare] = str(value)
        else:
            config[_config_name(scheme, name.lower())] = str(value)
    if "storage_emulator_host" in map(str.lower, given):
        config.setdefault("google_skip_signature", "true")
        # obstore skips the signature of reads only; a key without a log-in is for all requests.
        config.setdefault("google_service_account_key", _NO_LOG_IN)
    for name in _ENDPOINTS:
        if name in config:
            config[name] = _with_scheme(name, config[name])
    return config, client


def _config_name(scheme: str, name: str) -> str:
    if name.startswith(_AZURE_KEY):
        return "azure_storage_account_key"
    if not name.startswith((*_OPTION_PREFIXES, "storage_emulator")):
        name = f"{_PREFIXES[scheme]}{name}"
    return _RENAMED.get(name, name)


def _with_scheme(name: str, endpoint: str) -> str:
    """Hadoop reads an endpoint without a scheme as https; Google's clients name emulators so."""
    endpoint = endpoint.rstrip("/")
    if urlsplit(endpoint).scheme in ("http", "https"):
        return endpoint
    return f"{'http' if name == 'google_base_url' else 'https'}://{endpoint}"


def _bad_uri(uri: str, reason: str) -> ConfigError:
    return ConfigError(
        "this URI names no object store",
        {"uri": uri, "reason": reason},
        "Write s3://bucket/prefix, gs://bucket/prefix or "
        "abfss://container@account.dfs.core.windows.net/prefix.",
    )
