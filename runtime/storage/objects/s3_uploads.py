"""Multipart uploads to S3 and to stores with its interface, by botocore."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import urllib3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.session import get_session

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
from sluice.runtime.storage.objects.object_errors import store_answer

__all__ = ["S3Uploads"]

_MARK = "sluice-upload"
_MARK_HEADERS = (f"x-amz-meta-{_MARK}", f"x-goog-meta-{_MARK}")
_CONNECTIONS = 32
_DENIED = frozenset({"AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken"})
_DENIED |= {"ExpiredTokenException", "SignatureDoesNotMatch", "UnrecognizedClientException"}
_OVERLOADED = frozenset({"RequestTimeout", "RequestTimeTooSkewed", "SlowDown", "Throttling"})
_NO_BUCKET = "NoSuchBucket"
_GONE = frozenset({"NoSuchKey", "NoSuchUpload"})

T = TypeVar("T")


class _NoSuchRangeError(StorageError):
    """The object has not even one byte."""


@dataclass(frozen=True, kw_only=True)  # no slots: it keeps its client
class S3Uploads(MultipartUploads):
    """`MultipartUploads` of a bucket. A picklable value; each process makes its own client.

    Attributes:
        bucket: its name.
        prefix: of all keys, with a slash at its end, or empty.
        client: arguments of botocore's client: ``endpoint_url``, ``region_name``, keys.
        config: arguments of its `Config`, over those of this class.
        scheme: of the store's URIs.
    """

    bucket: str
    prefix: str = ""
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold keys
    config: Mapping[str, Any] = field(default_factory=dict)
    scheme: str = "s3"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_s3"}

    @property
    def uri(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")

    @functools.cached_property
    def _s3(self) -> Any:  # noqa: ANN401 - botocore makes its clients' classes at run time
        return self._made_client(self.client, self.config)

    def _made_client(self, client: Mapping[str, Any], config: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as `_s3`
        settings = {
            "connect_timeout": 5,
            "read_timeout": 30,
            "max_pool_connections": _CONNECTIONS,
            "retries": {"mode": "standard", "total_max_attempts": 3},
            # Stores with S3's interface may not know the newer checksums. A part has its MD5 tag.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
        with self._translated("open", ""):
            return get_session().create_client(
                "s3", **client, config=Config(**{**settings, **config})
            )

    def create(self, key: str, *, mark: str) -> str:
        with self._translated("begin an upload", key):
            made = _sent(
                lambda: self._s3.create_multipart_upload(**self._at(key), Metadata={_MARK: mark})
            )
            return self._reported(made, "UploadId", "begin an upload", key)

    def put_part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        with self._translated("upload a part", key):
            put = _sent(
                lambda: self._s3.upload_part(
                    **self._at(key), UploadId=upload_id, PartNumber=number, Body=data
                )
            )
            return self._reported(put, "ETag", "upload a part", key)

    def complete(self, key: str, upload_id: str, tags: Sequence[str], *, mark: str) -> None:
        del mark  # S3 keeps it from the beginning of the upload
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        with self._translated("complete an upload", key):
            made = _sent(
                lambda: self._s3.complete_multipart_upload(
                    **self._at(key), UploadId=upload_id, MultipartUpload={"Parts": parts}
                )
            )
            self._reported(made, "ETag", "complete an upload", key)

    def abort(self, key: str, upload_id: str) -> None:
        with contextlib.suppress(UploadGoneError), self._translated("abort an upload", key):
            _sent(lambda: self._s3.abort_multipart_upload(**self._at(key), UploadId=upload_id))

    def open_uploads(self, prefix: str) -> Iterator[OpenUpload]:
        with self._translated("list uploads", prefix):
            pages = self._s3.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.bucket, Prefix=f"{self.prefix}{prefix}"
            )
            found = _sent(lambda: [each for page in pages for each in page.get("Uploads", ())])
        for each in found:
            key = str(each["Key"]).removeprefix(self.prefix)
            yield OpenUpload(key=key, upload_id=str(each["UploadId"]))

    def look(self, key: str) -> CompletedObject | None:
        """See `MultipartUploads.look`. The answer to a HEAD has no body, which would say who gave
        it. So this asks for a byte."""
        try:
            with self._translated("look at an object", key):
                found = _sent(lambda: self._s3.get_object(**self._at(key), Range="bytes=0-0"))
                found["Body"].read()  # so that the connection can be used again
        except UploadGoneError:
            return None
        except _NoSuchRangeError:
            return CompletedObject(length_bytes=0, mark=None)  # no upload makes an empty object
        headers = found["ResponseMetadata"]["HTTPHeaders"]
        marks = (headers.get(name) for name in _MARK_HEADERS)
        length = str(found.get("ContentRange", "")).rpartition("/")[2] or found["ContentLength"]
        return CompletedObject(length_bytes=int(length), mark=next(filter(None, marks), None))

    def close(self) -> None:
        opened = self.__dict__.pop("_s3", None)
        if opened is not None:
            opened.close()

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": f"{self.prefix}{key}"}

    def _reported(self, answer: Mapping[str, Any], name: str, action: str, key: str) -> str:
        """A field that each answer of the store to this request has. A success without it is that
        of another server, for example from a proxy whose store is away."""
        if not answer.get(name):
            raise _no_store(action, {"uri": f"{self.uri}/{key}", "lacks": name})
        return str(answer[name])

    @contextlib.contextmanager
    def _translated(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except ClientError as err:
            raise _of_answer(err, action, f"{self.uri}/{key}") from err
        except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as err:
            raise AuthenticationError(
                "there are no credentials for this bucket",
                {"uri": self.uri, "error": str(err)},
                "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give storage_options.",
            ) from err
        except (BotoCoreError, urllib3.exceptions.HTTPError, OSError) as err:
            raise StorageUnreachableError(
                f"an object store did not answer, or not whole: could not {action}",
                {"uri": f"{self.uri}/{key}", "error": str(err)},
                "Check AWS_ENDPOINT_URL, the network and the store; the call is repeated.",
            ) from err


def _sent(call: Callable[[], T]) -> T:
    return store_answer(call, _is_strange)


def _is_strange(err: Exception) -> bool:
    """Whether the answer has no code of the store: of a proxy without the store behind it."""
    if not isinstance(err, ClientError):
        return False
    status = err.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status == 404 and err.response.get("Error", {}).get("Code") in (None, "", "404")


def _no_store(action: str, where: Mapping[str, object]) -> StorageUnreachableError:
    return StorageUnreachableError(
        f"could not {action}: not the store has answered",
        where,
        "Check AWS_ENDPOINT_URL, and the proxies before the store; the call is repeated.",
    )


def _of_answer(err: ClientError, action: str, uri: str) -> StreamError:
    """The typed error for an answer that refuses."""
    code = str(err.response.get("Error", {}).get("Code", ""))
    status = int(err.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    where = {"uri": uri, "status": status, "code": code}
    if code == _NO_BUCKET:
        return StorageError(f"could not {action}: there is no bucket", where, "Make the bucket.")
    if code in _GONE:
        return UploadGoneError(
            f"could not {action}: the store does not have it", where, "Report this message."
        )
    if code == "InvalidRange":
        return _NoSuchRangeError(f"could not {action}: it is empty", where, "Report this message.")
    if _is_strange(err):
        return _no_store(action, where)
    if status in (401, 403) or code in _DENIED:
        return AuthenticationError(
            f"may not {action}",
            where,
            "Give these credentials the right to put, get, list and delete objects, and to list "
            "and abort multipart uploads.",
        )
    if status >= 500 or status == 429 or code in _OVERLOADED:
        return StorageUnreachableError(
            f"an object store could not {action}", where, "Check the store; the call is repeated."
        )
    return StorageError(
        f"an object store refused to {action}",
        where,
        "Check that the store has S3's multipart uploads, and the bucket's policies.",
    )
