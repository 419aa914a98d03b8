"""Uploads in blocks to Azure: a blob is invisible until a list of its blocks is put."""

import contextlib
import functools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
)
from azure.storage.blob import BlobBlock, ContainerClient, LinearRetry

from sluice.runtime.errors import (
    AuthenticationError,
    StorageError,
    StorageUnreachableError,
    StreamError,
)
from sluice.runtime.storage.objects.multipart_uploads import (
    CompletedObject,
    MultipartUploads,
    OpenUpload,
    UploadGoneError,
)
from sluice.runtime.storage.objects.object_location import ObjectLocation

__all__ = ["AzureUploads"]

_MARK = "sluice_upload"  # a name of metadata must be an identifier
_OVERLOADED = frozenset({408, 429, 500, 502, 503, 504})
_GONE = frozenset({"BlobAlreadyExists", "BlobNotFound", "InvalidBlockList"})
_KEYS = ("azure_storage_account_key", "azure_storage_access_key", "account_key", "access_key")
_SAS = ("azure_storage_sas_token", "azure_storage_sas_key", "sas_token", "sas_key")
_APPLICATION = ("tenant_id", "client_id", "client_secret")


@dataclass(frozen=True, kw_only=True)  # no slots: it keeps its connections
class AzureUploads(MultipartUploads):
    """`MultipartUploads` of a container. A picklable value.

    An upload is a prefix of block ids, so Azure does not list uploads, and no request aborts one.
    Azure discards blocks that no list names after a week.

    Attributes:
        location: of the root.
    """

    location: ObjectLocation

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self.location}

    @property
    def uri(self) -> str:
        return self.location.uri

    def create(self, key: str, *, mark: str) -> str:
        del key, mark
        return uuid.uuid4().hex

    def put_part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        block = f"{upload_id}-{number:05d}"
        with self._translated("upload a block", key):
            self._blob(key).stage_block(block, data, length=len(data))
        return block

    def complete(self, key: str, upload_id: str, tags: Sequence[str], *, mark: str) -> None:
        del upload_id  # part of the tags
        with self._translated("put a list of blocks", key):
            self._blob(key).commit_block_list(
                [BlobBlock(tag) for tag in tags],
                metadata={_MARK: mark},
                match_condition=MatchConditions.IfMissing,
            )

    def abort(self, key: str, upload_id: str) -> None:
        """See `MultipartUploads.abort`: Azure discards the blocks after a week."""

    def open_uploads(self, prefix: str) -> Iterator[OpenUpload]:
        """See `MultipartUploads.open_uploads`: none can be aborted."""
        return iter(())

    def look(self, key: str) -> CompletedObject | None:
        try:
            with self._translated("look at a blob", key):
                found = self._blob(key).get_blob_properties()
        except UploadGoneError:
            return None
        return CompletedObject(length_bytes=int(found.size), mark=(found.metadata or {}).get(_MARK))

    def close(self) -> None:
        opened = self.__dict__.pop("_container", None)
        if opened is not None:
            opened.close()

    @functools.cached_property
    def _container(self) -> ContainerClient:
        config = self.location.config
        account = config["azure_storage_account_name"]
        endpoint = config.get("azure_storage_endpoint", f"https://{account}.blob.core.windows.net")
        return ContainerClient(
            endpoint,
            self.location.bucket,
            credential=_credential(config),
            connection_timeout=5,
            read_timeout=30,
            # By default the library waits 15 s before its first repetition.
            retry_policy=LinearRetry(backoff=1, retry_total=3, random_jitter_range=1),
        )

    def _blob(self, key: str) -> Any:  # noqa: ANN401 - a `BlobClient`, whose arguments have no types
        prefix = f"{self.location.prefix}/" if self.location.prefix else ""
        return self._container.get_blob_client(f"{prefix}{key}")

    @contextlib.contextmanager
    def _translated(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except AzureError as err:
            raise _typed(err, action, f"{self.uri}/{key}") from err


def _credential(config: Mapping[str, str]) -> Any:  # noqa: ANN401 - text, or one of several classes
    for name in (*_KEYS, *_SAS):
        if name in config:
            return config[name]
    from azure.identity import ClientSecretCredential, DefaultAzureCredential

    given = [
        next((config[n] for n in (f"azure_storage_{name}", f"azure_{name}") if n in config), None)
        for name in _APPLICATION
    ]
    tenant_id, client_id, client_secret = given
    if tenant_id and client_id and client_secret:
        return ClientSecretCredential(tenant_id, client_id, client_secret)
    return DefaultAzureCredential()


def _typed(err: AzureError, action: str, uri: str) -> StreamError:
    status = getattr(err, "status_code", None)
    code = getattr(err, "error_code", None) or ""
    code = str(getattr(code, "value", code))  # an enumeration, or text
    where = {"uri": uri, "status": status, "code": code}
    if code in _GONE:
        return UploadGoneError(
            f"could not {action}: the store does not have it", where, "Report this message."
        )
    if isinstance(err, ClientAuthenticationError) or status in (401, 403):
        return AuthenticationError(
            f"may not {action}",
            where | {"error": err.message.partition("\n")[0]},
            "Give these credentials the right to read, write, list and delete blobs.",
        )
    is_strange = status == 404 and not code  # of a proxy without the store behind it, for example
    if not isinstance(err, HttpResponseError) or status in (None, *_OVERLOADED) or is_strange:
        return StorageUnreachableError(
            f"an object store could not {action}",
            where | {"error": type(err).__name__},
            "Check the endpoint, the network and the store; the call is repeated.",
        )
    return StorageError(
        f"an object store refused to {action}", where, "Read the store's answer in `code`."
    )
