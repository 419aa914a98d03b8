"""Sorts failures of obstore by their remedy: its exceptions, the store's status and error code."""

import re
from collections.abc import Mapping

from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    StorageError,
    StorageUnreachableError,
    StreamError,
)
from sluice.runtime.storage.file_system import NAME_TOO_LONG

__all__ = ["object_failure"]

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NO_BUCKET = re.compile(
    r"NoSuchBucket|ContainerNotFound|(?i:the specified (?:bucket|container) does not exist)"
)
_NO_CREDENTIALS = re.compile(r"169\.254\.169\.254|metadata\.google\.internal|(?i:credential)")
_DENIED = {"401", "403"}
_DENIED_CODES = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthenticationFailed"}
_FULL_CODES = {"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "EntityTooLarge"}
_UNKNOWN_REQUESTS = {"405", "501"}
_WAIT = {"408", "409", "425", "429"}


def object_failure(error: Exception, what: str, where: Mapping[str, object]) -> StreamError:
    """The typed error for a failed action ``what``, such as "write an object".

    Args:
        error: of obstore, with the store's answer in its text.
        where: at least the URI.
    """
    text = str(error)
    status = _found(_STATUS, text)
    code = _found(_CODE, text)
    first = text.partition("\n")[0].partition(": <?xml")[0]
    where = {**where, **({"code": code} if code else {}), "error": first}
    if _NO_BUCKET.search(text):
        return ConfigError(
            "the bucket does not exist", where, "Create the bucket, or correct its name."
        )
    if status in _DENIED or code in _DENIED_CODES:
        return AuthenticationError(
            f"may not {what}",
            where,
            "Check the credentials and the rights to read, write, list and delete there.",
        )
    if status is None and _NO_CREDENTIALS.search(text):
        return AuthenticationError(
            f"may not {what}: no credentials were found",
            where,
            "Set the credentials in the environment or in storage_options.",
        )
    if status in _UNKNOWN_REQUESTS:
        return ConfigError(
            f"the store cannot {what}", where, "Use a store with conditional puts, such as S3."
        )
    if code in _FULL_CODES or status == "507":
        return StorageError(
            f"there is no room to {what}",
            where,
            "Make room there, or raise the quota, and start again. No record is lost or doubled.",
        )
    if isinstance(error, ValueError) or code in ("KeyTooLongError", "InvalidObjectName"):
        return ConfigError(f"cannot {what}", where, NAME_TOO_LONG)
    if status is None or status >= "500" or status in _WAIT:
        return StorageUnreachableError(
            f"could not {what}",
            where,
            "Check the endpoint, the network and the limits of the store.",
        )
    return StorageError(f"could not {what}", where, "Read the store's answer in `error`.")


def _found(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None
