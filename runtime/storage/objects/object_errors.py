"""Sorts failures of obstore by their remedy: its exceptions, the store's status and error code."""

import re
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    StorageError,
    StorageUnreachableError,
    StreamError,
)
from sluice.runtime.storage.file_system import NAME_TOO_LONG

__all__ = ["is_strange", "object_failure", "store_answer"]

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
_PAUSES_S = (0.05, 0.1, 0.2)  # as obstore's own

T = TypeVar("T")


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
    if status is None or status >= "500" or status in _WAIT or is_strange(text):
        return StorageUnreachableError(
            f"could not {what}",
            where,
            "Check the endpoint, the network and the limits of the store.",
        )
    return StorageError(f"could not {what}", where, "Read the store's answer in `error`.")


def is_strange(text: str) -> bool:
    """Whether another server than the store has answered: a proxy whose store is away, for example.

    Args:
        text: of an error of obstore.
    """
    return _found(_STATUS, text) == "404" and _found(_CODE, text) is None


def store_answer(call: Callable[[], T], has_strange: Callable[[Exception], bool]) -> T:
    """The store's answer. Clients repeat what a store could not do, but not what a proxy before it
    has answered.

    Args:
        call: a request that may be repeated.
        has_strange: whether an error is such an answer.
    """
    for pause_s in _PAUSES_S:
        try:
            return call()
        except Exception as error:
            if not has_strange(error):
                raise
        time.sleep(pause_s)  # a proxy gets its store back in a moment, as clients expect of stores
    return call()


def _found(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None
