"""Failures of an object store by their remedy."""

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError

from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    StorageError,
    StorageUnreachableError,
    StreamError,
)
from sluice.runtime.storage.objects.object_errors import object_failure


def answer(status: int, code: str) -> str:
    """A text of obstore."""
    return (
        f"Generic S3 error: Error performing PUT http://h/b/k in 1ms, after 3 retries - Server "
        f"returned non-2xx status code: {status} Reason: <?xml version='1.0'?>\n"
        f"<Error><Code>{code}</Code></Error>"
    )


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (FileNotFoundError(answer(404, "NoSuchBucket")), ConfigError, "the bucket does not exist"),
        (GenericError(answer(404, "ContainerNotFound")), ConfigError, "the bucket does not exist"),
        (FileNotFoundError(answer(404, "NoSuchKey")), StorageError, "code=NoSuchKey"),
        (PermissionDeniedError(answer(403, "AccessDenied")), AuthenticationError, "may not write"),
        (UnauthenticatedError(answer(401, "Unauthorized")), AuthenticationError, "may not write"),
        (GenericError(answer(400, "ExpiredToken")), AuthenticationError, "code=ExpiredToken"),
        (
            GenericError("Error performing PUT http://169.254.169.254/latest/api/token in 5s"),
            AuthenticationError,
            "no credentials were found",
        ),
        (GenericError(answer(501, "NotImplemented")), ConfigError, "the store cannot write"),
        (GenericError(answer(507, "XMinioStorageFull")), StorageError, "there is no room"),
        (GenericError(answer(500, "InternalError")), StorageUnreachableError, "could not write"),
        (GenericError(answer(503, "SlowDown")), StorageUnreachableError, "code=SlowDown"),
        (GenericError(answer(429, "TooManyRequests")), StorageUnreachableError, "could not write"),
        (GenericError("error sending request"), StorageUnreachableError, "could not write"),
        (GenericError(answer(400, "KeyTooLongError")), ConfigError, "Shorten the name"),
        (ValueError("Could not parse path"), ConfigError, "Shorten the name"),
        (GenericError(answer(400, "BadDigest")), StorageError, "code=BadDigest"),
    ],
)
def test_each_failure_has_the_type_that_its_remedy_needs(
    error: Exception, kind: type[StreamError], text: str
) -> None:
    found = object_failure(error, "write an object", {"key": "k"})
    assert type(found) is kind
    assert text in str(found)
    assert "<Error>" not in str(found)
